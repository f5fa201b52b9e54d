// engine/message_end.h -- the state of ordered messages between two ends: requests, and per pair of ends what was sent
// and received.
//
// A message is cut into pieces of the end's piece size, which travel over whatever lane is best and land in the
// receiver's buffer. The k-th send of one end meets the k-th receive of the other (within a group of receives: by tag).
// Units: bytes; message numbers count from 1 and never wrap (64 bits here, the low 32 on the wire).
// Memory: requests are records of the engine's own (engine/messages.h), which nobody else sees; their buffers and
// tickets are borrowed until they are done. Nothing here allocates after an end was made. Thread: the engine's owner.
// engine/messages.h drives all of it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/settings.h"
#include "base/units.h"
#include "engine/eager_store.h"
#include "engine/flow/mux.h"
#include "port/ticket.h"
#include "transport/channel.h"
#include "transport/message_frames.h"

namespace canarynet {

struct MessageEnd;

// Window of completed indices: all before base(), and single ones among the next 1024.
class ThroughWindow {
 public:
  static constexpr std::uint64_t kReach = 1024;

  void reset(std::uint64_t base) {
    base_ = base;
    bits_.fill(0);
  }
  std::uint64_t base() const { return base_; }
  bool in_reach(std::uint64_t i) const { return i < base_ + kReach; }
  bool through(std::uint64_t i) const { return i < base_ || (in_reach(i) && bit(i)); }
  // Marks an index in reach. False when it was through already.
  bool mark(std::uint64_t i) {
    if (through(i)) return false;
    bits_[i % kReach / 64] |= std::uint64_t{1} << (i % 64);
    while (bit(base_)) {
      bits_[base_ % kReach / 64] &= ~(std::uint64_t{1} << (base_ % 64));
      ++base_;
    }
    return true;
  }

 private:
  bool bit(std::uint64_t i) const { return (bits_[i % kReach / 64] >> (i % 64)) & 1; }
  std::uint64_t base_ = 0;
  std::array<std::uint64_t, kReach / 64> bits_{};
};

// A caller's order: one send, or one receive.
struct MessageOrder {
  std::byte* data = nullptr;  // a send only reads it
  std::uint64_t bytes = 0;    // a send's length; a receive's room
  std::uint32_t tag = 0;      // connections only
  std::uint8_t type = CANARY_U8;
  bool sends = false;
  canary_priority priority = CANARY_PRIORITY_NORMAL;
  Nanos time_limit{};  // 0: none; else from submission
  OpTicket* ticket = nullptr;
};

// An order that is not done.
struct MessageRequest : MessageOrder {
  std::uint32_t place = 0;        // among Messages' records
  MessageEnd* end = nullptr;      // null: the record is free
  std::uint64_t number = 0;       // of the message; a grouped receive gets it when the first piece comes
  std::uint64_t group_first = 0;  // a receive's number is one of [group_first, group_first + group_size)
  std::uint32_t group_size = 1;
  std::uint64_t length = 0;      // of the message
  std::uint64_t pieces = 0;      // 0: not known yet (receives)
  std::uint64_t next_piece = 0;  // sends
  std::uint64_t pieces_done = 0;
  bool eager = false;     // a send that did not wait for its credit
  ThroughWindow through;  // sends: acknowledged pieces; receives: arrived ones
  std::array<std::uint64_t, ThroughWindow::kReach / 64> landing{};  // receives: pieces that are being written in place
  Nanos entered;
  Nanos last_progress;
  Nanos deadline = Nanos::max();
  MessageRequest* previous = nullptr;
  MessageRequest* next = nullptr;  // also among free records

  // The length of the message; before a receive knows that, its room.
  std::uint64_t whole() const { return sends || pieces != 0 ? length : bytes; }
  std::uint64_t moved(std::uint64_t piece_bytes) const { return std::min(whole(), pieces_done * piece_bytes); }

  bool is_landing(std::uint64_t piece) const {
    return (landing[piece % ThroughWindow::kReach / 64] >> (piece % 64)) & 1;
  }
  void set_landing(std::uint64_t piece, bool on) {
    const std::uint64_t mask = std::uint64_t{1} << (piece % 64);
    std::uint64_t& word = landing[piece % ThroughWindow::kReach / 64];
    word = on ? word | mask : word & ~mask;
  }
};

// Requests in the order in which they were made.
struct MessageList {
  MessageRequest* head = nullptr;
  MessageRequest* tail = nullptr;
  MessageRequest* found =
      nullptr;  // the last one that was looked for: the pieces of a message come one after the other
  void push(MessageRequest* r) {
    r->previous = tail;
    r->next = nullptr;
    (tail != nullptr ? tail->next : head) = r;
    tail = r;
  }
  void remove(MessageRequest* r) {
    if (found == r) found = nullptr;
    (r->previous != nullptr ? r->previous->next : head) = r->next;
    (r->next != nullptr ? r->next->previous : tail) = r->previous;
  }
};

// By canary_priority.
inline constexpr std::size_t kMessagePriorities = 2;

// The ends of one flow with something of one priority to send to one peer: they take turns frame by frame. What waits
// is what has not been sent yet of the messages whose turn it is.
struct MessageRound : Turn {
  explicit MessageRound(canary_priority its_priority)
      : Turn(nullptr, its_priority == CANARY_PRIORITY_URGENT ? FlowClass::kUrgent : FlowClass::kBulk),
        priority(its_priority) {}
  const canary_priority priority;
  MessageEnd* head = nullptr;
  MessageEnd* tail = nullptr;
};

struct MessageRounds {
  MessageRound normal{CANARY_PRIORITY_NORMAL}, urgent{CANARY_PRIORITY_URGENT};
  MessageRound& of(canary_priority p) { return p == CANARY_PRIORITY_URGENT ? urgent : normal; }
  void set_flow(Flow* flow) {
    normal.set_flow(flow);
    urgent.set_flow(flow);
  }
  void leave(Mux& mux) {
    mux.forget(normal);
    mux.forget(urgent);
  }
};

// State that all ends over one channel share.
struct MessagePeer {
  // The most to be parked for messages. More would let a peer that is never received from hold more memory, and
  // speed up nobody: a send that waits for its receive is met by its credit half a round trip after that is posted.
  static constexpr std::uint64_t kEagerMax = 256 * 1024;
  static std::uint64_t eager_bytes(const Settings& s) {
    return std::min(static_cast<std::uint64_t>(s.eager_bytes.count), kEagerMax);
  }

  MessagePeer(Mux& its_mux, const Settings& settings)
      : mux(its_mux),
        parked(eager_bytes(settings), EagerStore::Keeps::kMessages),
        eager_budget(eager_bytes(settings)) {}
  Mux& mux;           // without a channel once that has ended; what is parked can still be received
  EagerStore parked;  // small messages that came before their receive
  std::uint64_t eager_budget;
  std::uint64_t eager_used = 0;  // charged for what we sent without a credit and the peer has not given one for since
  Nanos last_progress;           // of any message over this channel
};

// One end of a pair. Sends and receives are numbered apart.
struct MessageEnd {
  std::uint32_t flow = 0;   // on the wire
  std::uint32_t epoch = 0;  // groups
  std::uint16_t me = 0;
  std::uint16_t other = 0;
  bool tagged = false;          // a connection: the header carries tags instead of the epoch
  bool exact = false;           // a group: both sides must name the same length and type
  MessagePeer* peer = nullptr;  // null: both ends are in this engine, or nothing connects them
  MessageEnd* twin = nullptr;   // the other end, if it is in this engine
  std::uint32_t piece_bytes = 0;
  std::uint64_t eager_max = 0;  // longest message that may go before its credit: one piece
  void* owner = nullptr;

  // sending
  MessageList sends;
  Nanos sends_progress;        // a piece was acknowledged, or a credit came
  std::uint64_t sent = 0;      // number of the last send
  std::uint64_t credited = 0;  // the peer has a place for everything up to this number
  struct Debt {
    std::uint64_t number = 0;
    std::uint32_t bytes = 0;
  };
  static constexpr std::uint32_t kDebts = 256;
  std::unique_ptr<Debt[]> debts;  // eager messages the peer may still have parked, oldest first: a ring of kDebts
  std::uint32_t debts_first = 0;
  std::uint32_t debts_count = 0;

  // receiving
  MessageList receives;
  std::uint64_t posted = 0;       // number of the last receive
  std::uint64_t credit_sent = 0;  // the peer was told of receives up to this number
  Nanos receives_progress;        // a piece came
  ThroughWindow received;         // messages that are complete

  bool refusal_due = false;
  std::uint64_t refused = 0;  // its message's number
  wire::RefusePayload refusal;
  Status failure;  // not OK: it has ended

  MessageRounds* rounds = nullptr;  // where it takes its turns with `peer`
  // Its part in one of them.
  struct Stand {
    MessageRequest* cursor = nullptr;  // its first send of that priority with pieces the channel does not have yet
    bool ready = false;                // it stands there
    std::uint64_t counted = 0;         // of its cursor's bytes, in what waits for the round
    MessageEnd* next_ready = nullptr;
  };
  std::array<Stand, kMessagePriorities> stands;
  Stand& stand(canary_priority p) { return stands[static_cast<std::size_t>(p)]; }
  const Stand& stand(canary_priority p) const { return stands[static_cast<std::size_t>(p)]; }

  Nanos last_progress;  // of any message in either direction

  void moved(Nanos now, bool outward) {
    last_progress = (outward ? sends_progress : receives_progress) = now;
    if (peer != nullptr) peer->last_progress = now;
  }
  // Time that does not count as one without progress.
  void hold(Nanos span) {
    for (Nanos* clock : {&last_progress, &sends_progress, &receives_progress}) *clock += span;
    for (const MessageList* list : {&sends, &receives}) {
      if (list->head != nullptr) list->head->last_progress += span;
    }
  }
  bool idle() const { return sends.head == nullptr && receives.head == nullptr; }
};

}  // namespace canarynet
