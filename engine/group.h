// engine/group.h -- a group of ranks as one engine sees it: members, their operations in flight, cached programs, the
// verdict that ended it.
//
// GroupMember = one local rank's membership: it numbers operations in the order of submission and runs them. Owned by
// the engine, used by its owner thread only, but for the constant fields (group, rank, members), which callers may
// read.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hashed_bag.h"
#include "base/mpsc_ring.h"
#include "base/types.h"
#include "base/units.h"
#include "collectives/executor.h"
#include "collectives/selector.h"
#include "compress/error_feedback.h"
#include "engine/choice_use.h"
#include "engine/codec_use.h"
#include "engine/decision_flow.h"
#include "engine/flow/flow.h"
#include "engine/low_rank_chain.h"
#include "engine/message_end.h"
#include "engine/operation_list.h"
#include "engine/partial.h"
#include "engine/top_k_chain.h"
#include "port/command.h"
#include "port/ticket.h"
#include "transport/wire.h"

namespace canarynet {

class Session;
struct Group;
struct GroupMember;

struct Operation;
struct Run;
struct OperationTurn;
struct GroupPeer;

// The exchange of an operation with one of its peers.
struct RunPartner {
  Run* run = nullptr;
  std::uint32_t index = 0;        // in Program::peers
  std::uint32_t engine = 0;       // that serves the peer
  GroupPeer* peer = nullptr;      // null: this very engine serves it
  OperationTurn* turn = nullptr;  // of the peer's, by the operation's priority
  std::uint32_t eager_bytes = 0;  // charged against the peer's budget until it is ready
  std::uint64_t counted = 0;      // of its pieces' bytes, in what waits for the turn
  bool ready = false;             // its signature is here: it has a place for everything
  bool signature_sent = false;
  enum class List : std::uint8_t { kNone, kSending, kPoor };
  List list = List::kNone;
  RunPartner* previous = nullptr;
  RunPartner* next = nullptr;
};

// Partners in order, the oldest operation's first. What becomes ready late comes in a row, too, as when a peer has
// entered one operation after the other: places are looked for from where the last one was.
struct PartnerList {
  RunPartner* head = nullptr;
  RunPartner* tail = nullptr;
  RunPartner* latest = nullptr;  // inserted last, or one that stood beside it
  void insert(RunPartner& partner);
  void remove(RunPartner& partner) {
    if (latest == &partner) latest = partner.previous != nullptr ? partner.previous : partner.next;
    (partner.previous != nullptr ? partner.previous->next : head) = partner.next;
    (partner.next != nullptr ? partner.next->previous : tail) = partner.previous;
    partner.previous = partner.next = nullptr;
  }
};

// A program being run: executor and per-peer bookkeeping. Recycled by its ProgramEntry.
struct Run {
  explicit Run(const Program& program) : executor(program), partners(program.peers.size()) {
    for (std::uint32_t i = 0; i < partners.size(); ++i) {
      partners[i].run = this;
      partners[i].index = i;
    }
  }
  Executor executor;
  std::vector<RunPartner> partners;
  std::uint32_t neighbours = 0;  // peers in this very engine
  std::uint32_t signatures_left = 0;
  bool heard_of_all() const {
    return std::all_of(partners.begin(), partners.end(), [](const RunPartner& p) { return p.ready; });
  }
  Operation* operation() const;
  std::uint32_t index = 0;        // in Engine::runs_, for cookies
  bool looked_at_soon = false;    // it stands in Engine::to_look_at_
  GroupMember* member = nullptr;  // whose operation `number` it runs now
  std::uint32_t number = 0;
  Nanos last_progress;
  std::uint64_t entered = 0;  // how many operations its engine had entered before
};

// The sends of a group's operations of one priority to one engine: their turn there, and the partners that have
// something to send.
struct OperationTurn : Turn {
  using Turn::Turn;
  PartnerList sending;
};

// All that a group has to send to one engine.
struct GroupPeer {
  std::uint32_t engine = 0;
  OperationTurn operations, urgent_operations{nullptr, FlowClass::kUrgent};
  MessageRounds messages;
  OperationTurn& turn_of(canary_priority p) { return p == CANARY_PRIORITY_URGENT ? urgent_operations : operations; }
};

inline void PartnerList::insert(RunPartner& partner) {
  const std::uint64_t age = partner.run->entered;
  RunPartner* after = tail;  // nearly always: what becomes ready is of the latest operation
  if (after != nullptr && after->run->entered > age) {
    after = latest;
    while (after != nullptr && after->run->entered > age) after = after->previous;
    for (RunPartner* p = after != nullptr ? after->next : head; p->run->entered <= age; p = p->next) after = p;
  }
  latest = &partner;
  partner.previous = after;
  partner.next = after != nullptr ? after->next : head;
  (partner.previous != nullptr ? partner.previous->next : head) = &partner;
  (partner.next != nullptr ? partner.next->previous : tail) = &partner;
}

struct ProgramEntry {
  Program program;
  std::vector<std::unique_ptr<Run>> idle;
  std::uint32_t busy = 0;
  std::uint64_t last_used = 0;
  std::uint64_t bytes = 0;       // operation_bytes()
  std::uint32_t decided_by = 0;  // identity of the measured table that last led here; 0: none was in force
  ChosenBy by = ChosenBy::kStatic;
  std::vector<std::uint16_t> ring_order;  // of a measured table; empty: the group's
  std::uint32_t carries = 0;              // OpRequest's, or the number of its own codec
  ChoiceUse::Cell* use = nullptr;         // null: there are too many kinds
};

struct Operation {
  std::uint32_t number = 0;
  OpRequest request;
  OpTicket* ticket = nullptr;
  ProgramEntry* entry = nullptr;
  CodecUse::Cell* asked = nullptr;  // null: its codec was not chosen
  std::size_t candidate = 0;        // of what it asks for
  std::unique_ptr<Run> run;
  wire::SignaturePayload signature;
  std::uint32_t hash = 0;
  Nanos entered;
  Nanos deadline = Nanos::max();
  bool chained = false;  // a phase of its member's chain
  // As its caller named it.
  std::string_view name() const { return name_of(chained ? Collective::kAllReduce : request.collective); }
  std::uint32_t remaining_seen = 0;  // executor().remaining() when progress was last noticed
};

// Called, and not in flight yet.
struct WaitingOperation {
  port::Command command;
  bool seen = false;  // by the engine, which has set what follows
  Nanos submitted{};
  Nanos deadline{};
};

struct GroupMember {
  static constexpr std::size_t kWaitingMax = 1024;
  static constexpr std::size_t kMessagesMax = 256;

  Group* group = nullptr;
  port::MemberId id;
  int rank = 0;  // in the group
  int world_rank = 0;

  std::uint32_t entered = 0;  // number of the last operation entered (numbers: base/serial.h)
  std::vector<std::unique_ptr<ProgramEntry>> programs;
  // In flight, up to twice the limit. Behind the programs: an engine may end with some in flight, and what runs a
  // program must end before it.
  OperationList<Operation> operations;
  // For room among them, in the order of the calls; any thread pushes.
  MpscRing<WaitingOperation> waiting{kWaitingMax};
  MpscRing<port::Command> called_messages{kMessagesMax};  // likewise; they wait for the next cycle only
  std::atomic<bool> listed{false};                        // the engine knows, or is about to know, that something waits
  GroupMember* next_called = nullptr;                     // among those that it does not know yet
  std::atomic<std::uint32_t> urgent_waiting{0};           // of those, and of those about to be pushed
  std::uint64_t uses = 0;
  std::atomic<const char*> last_algorithm{""};  // planner of the last completed operation; a constant string

  struct EarlySignature {
    std::uint16_t source = 0;
    std::uint32_t op = 0;
    wire::SignaturePayload payload;
  };
  HashedBag<EarlySignature> early;  // of operations not entered yet, by the operation's number; bounded
  static constexpr std::uint32_t kHistory = 64;
  wire::SignaturePayload history[kHistory] = {};  // of operations entered, by number

  Session* session = nullptr;  // whose rounds these are; null: none's
  int colayer = -1;            // of it; -1: the group where a session's workers meet

  ErrorFeedback feedback;            // of tensors that travel with a codec
  OperationChain* chain = nullptr;   // the latest one, of these two; null before the first one
  std::unique_ptr<TopKChain> top_k;  // null before its first call
  std::unique_ptr<LowRankChain> low_rank;

  std::vector<std::unique_ptr<MessageEnd>> messages;  // by the other's rank; empty before the first message

  Operation* find(std::uint32_t number) const { return operations.find(number); }
  // Something waits in its queues.
  bool called() const { return waiting.ready() || called_messages.ready(); }
  port::MemberShape shape() const;
  // A chain is under way, and nothing else enters.
  bool chains() const { return chain != nullptr && chain->active(); }
  // An operation of the tensor is in flight that has elements in common with this one, or another momentum.
  bool exchanges(const port::Command& command) const;
  // Operations or messages are not done.
  bool pending() const;
};

struct Group {
  std::unique_ptr<Flow> operations_flow, messages_flow;  // as the muxes know them, by `flow` and messages_number()
  std::unique_ptr<DecisionFlow> decisions;               // by decisions_number(); null: no measured table decides here
  std::vector<std::unique_ptr<GroupPeer>> peers;         // engines of its ranks that something was said to, ascending
  std::uint32_t flow = 0;
  std::uint32_t epoch = 0;               // generation of the membership; the first one is drawn, never 0
  std::vector<int> members;              // world ranks; index = rank in the group
  std::vector<std::uint32_t> engine_of;  // by group rank
  std::vector<int> host_of;  // by group rank: equal numbers are one host (in a group of one host: one engine)
  std::vector<std::unique_ptr<GroupMember>> local;      // ascending ranks
  std::vector<std::unique_ptr<GroupMember>> forgotten;  // handles given back, while others stay
  std::shared_ptr<const Reachability> reach;            // shared by groups of the same ranks
  BCubeShape bcube;
  int cores = 0;                          // as PlanRequest has them
  std::vector<double> rail_rates;         // as PlanRequest has them
  std::vector<std::uint16_t> ring_order;  // likewise; empty: ranks stand in their own order
  std::vector<std::uint32_t> entered;     // by group rank: last operation known to be entered
  std::vector<std::uint8_t> left;         // by group rank: finalized
  Nanos asked_at;                         // when everybody was last asked who has entered what
  Nanos answered_at;                      // and when their answers came
  std::vector<std::uint32_t> answered;    // the engines that gave one
  bool dead = false;
  Status verdict;
  std::uint64_t bytes_reduced = 0;
  ChoiceUse use;  // of all ranks served here
  CodecUse codec_use;
  std::unique_ptr<PartialOperation> partial;  // null: a group that was formed

  std::uint32_t messages_number() const { return flow | wire::kMessageFlow; }
  std::uint32_t decisions_number() const { return flow | wire::kDecisionFlow; }
  GroupMember* member_of_world(int world_rank) {
    const auto at =
        std::find_if(local.begin(), local.end(), [&](const auto& m) { return m->world_rank == world_rank; });
    return at != local.end() ? at->get() : nullptr;
  }
  // Among those served here.
  std::size_t place_of(const GroupMember& m) const {
    const auto at = std::find_if(local.begin(), local.end(), [&](const auto& l) { return l.get() == &m; });
    return static_cast<std::size_t>(at - local.begin());
  }
  GroupMember* member(int rank) {
    const auto at =
        std::lower_bound(local.begin(), local.end(), rank, [](const auto& m, int r) { return m->rank < r; });
    return at != local.end() && (*at)->rank == rank ? at->get() : nullptr;
  }
};

// The signature that a rank which enters `request` tells its neighbours.
wire::SignaturePayload make_signature(const GroupMember& member, const OpRequest& request, const Program& program);
// The number of the session that a signature is of.
std::optional<std::uint64_t> session_in(const wire::SignaturePayload& signature);
// The same as rank `to` of the group gets it: with what passes between the two.
wire::SignaturePayload addressed(const wire::SignaturePayload& signature, const OpRequest& request, std::size_t to);
// A hash of the fields that are equal on all ranks.
std::uint32_t signature_hash(wire::SignaturePayload signature);
// Quickly: whether disagreement() has nothing to say; false where it takes more than a glance.
bool same_arguments(const wire::SignaturePayload& a, const wire::SignaturePayload& b);
// "all_reduce f32 n=1024 sum ring"
std::string describe(const wire::SignaturePayload& signature);
// How two signatures differ: a sentence that names both ranks and both values; "" where they agree. `a` as rank
// `b_rank` gets it and the other way round.
std::string disagreement(const wire::SignaturePayload& a, const wire::SignaturePayload& b);

}  // namespace canarynet
