// engine/messages.h -- sends and receives all messages of an engine: credits, pieces, parking, completion.
//
// Receiver-driven: a receive that is posted gives the sender a credit, and every piece of its message a place in the
// buffer. A message of one piece may go before (the eager budget, per peer); it is parked at the receiver. A send is
// done when the peer acknowledged every piece, a receive when every piece is in its place. Works for groups
// (engine/group_messages.cc) and connections (engine/endpoint.h) alike.
// Memory: see engine/message_end.h; records of requests are made by the chunk, grow to the most at a time, and are used
// again. Commands are checked before (port/command_check.h).
// Thread: the engine's owner. Failures: lengths or types that differ go to the host; everything else is the host's to
// notice (fail()).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/message_end.h"
#include "port/command.h"

namespace canarynet {

class MessageHost {
 public:
  virtual ~MessageHost() = default;
  // A message met a receive that it does not fit. `told`: the other end knows it already.
  virtual void on_mismatch(MessageEnd& end, const Status& why, bool told) = 0;
  // The failure that one request hears of when its end does.
  virtual Status failure_of(const MessageRequest& request, const Status& why, Nanos now) = 0;
};

struct MessageCounters {
  std::uint64_t sent = 0;  // and acknowledged
  std::uint64_t sent_bytes = 0;
  std::uint64_t received = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t sending_bytes = 0;    // of the sends that are not done
  std::uint64_t receiving_bytes = 0;  // of the receives that have begun and are not done
};

class Messages {
 public:
  explicit Messages(MessageHost& host) : host_(host) {}

  // The order in a command that was checked and names `ticket`.
  static MessageOrder order_of(const port::Command& command, const port::Regions& regions, OpTicket* ticket);

  // Where an arriving frame belongs. `over`: its end has ended, or never was: acknowledge and forget.
  struct Where {
    MessageEnd* end = nullptr;  // null and not over: not known yet, small messages are parked
    bool over = false;
  };

  // Prepares a new end (identity and peer are set) for traffic; its messages count from `first`.
  void open(MessageEnd& end, std::uint32_t piece_bytes, std::uint64_t first = 1);
  // One send, or receives that take the next messages as a group. Their tickets may be done on return (an end that has
  // failed, a parked message, a local peer).
  void post(MessageEnd& end, std::span<const MessageOrder> orders, Nanos now);
  // Ends it: every request fails, and whatever is posted later. The channels' references must have been cancelled.
  // Later receives still get what is parked already.
  void fail(MessageEnd& end, const Status& why, Nanos now);
  // The other end has closed and says that everything up to this number is with its user: those sends are done. The
  // channel's references must have been cancelled.
  void settle_sends(MessageEnd& end, std::uint32_t op, Nanos now);
  // When something last moved of what is under way at this end: the first send, if the peer has a place for it, or
  // receives that have begun. Nanos::max(): nothing is.
  static Nanos stuck_since(const MessageEnd& end);
  // Messages up to this number are no longer charged to the peer's eager budget.
  static void give_back_debts(MessageEnd& end, std::uint64_t up_to);
  // Forgets what is parked of a flow number.
  void drop_parked(MessagePeer& peer, std::uint32_t flow);
  // Requests that are not done.
  std::uint64_t pending() const { return pending_; }
  const MessageCounters& counters() const { return counters_; }
  // There is something of that priority to send: the end takes its turn.
  void make_ready(MessageEnd& end, canary_priority priority);
  // It will not be used again: takes it out of its peer's lists.
  void forget(MessageEnd& end);

  // These are as a flow has them.
  bool next_frame(MessageRound& round, OutPiece* out);
  void on_done(std::uint64_t cookie, Nanos now);
  Landing landing_for(MessagePeer& peer, const Where& where, const wire::Header& h);
  // Pieces, credits and refusals; the frames of connections are the endpoint's own.
  bool on_arrival(MessagePeer& peer, const Where& where, const wire::Header& h, const Arrival& arrival, Nanos now);
  // Only credits and refusals are words of messages; the others are their connection's.
  bool on_word(const Where& where, const wire::MessageWord& word, Nanos now);
  void on_landing_lost(MessagePeer& peer, const Where& where, const wire::Header& h, std::uint64_t cookie);

 private:
  enum class Match : std::uint8_t {
    kFound,
    kNotPosted,
    kAmbiguous,   // an earlier message with the same tag must come first
    kUnknownTag,  // no receive of its group has that tag
  };
  Match find_receive(MessageEnd& end, std::uint64_t number, std::uint32_t tag, MessageRequest** request);
  // Whether the message may go into `r`; learns its length.
  bool accepts(MessageEnd& end, MessageRequest& r, std::uint64_t number, const wire::Header& h);
  // Whether the peer is told that this message has no place here, and so waits for no acknowledgement.
  static bool is_refused(const MessageEnd& end, std::uint64_t number);
  static bool well_formed(const MessageEnd& end, const MessageRequest& r, const wire::Header& h);
  static std::uint64_t number_of(const MessageEnd& end, const wire::Header& h);
  void arrived(MessageEnd& end, MessageRequest& r, const wire::Header& h, const std::byte* payload, Nanos now);
  void mismatch(MessageEnd& end, std::uint64_t number, const wire::Header& h, const MessageRequest* r);
  void claim_parked(MessageEnd& end, Nanos now);
  void on_credit(MessageEnd& end, std::uint32_t op, Nanos now);
  void on_refusal(MessageEnd& end, const wire::Refuse& word);
  bool fill(MessageEnd& end, canary_priority priority, OutPiece* out);
  static void pass_cursor(MessageEnd& end, MessageRequest& request);
  static void count_waiting(MessageEnd& end, canary_priority priority);
  bool may_go(MessageEnd& end, MessageRequest& r);
  void match_local(MessageEnd& sender, Nanos now);
  void complete_send(MessageRequest& r);
  void complete_receive(MessageEnd& end, MessageRequest& r);
  void finish(MessageRequest& r, Status status);
  MessageRequest& take_record();

  MessageHost& host_;
  static constexpr std::uint32_t kChunk = 64;
  std::vector<std::unique_ptr<MessageRequest[]>> records_;
  MessageRequest* free_ = nullptr;  // the last one given back first: its memory is warm
  std::uint64_t pending_ = 0;
  MessageCounters counters_;
};

}  // namespace canarynet
