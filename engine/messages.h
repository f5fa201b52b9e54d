// engine/messages.h -- sends and receives all messages of an engine: credits, cells, parking, completion.
//
// Receiver-driven: a receive that is posted gives the sender a credit, and every cell of its message a place in the
// buffer. A message of one cell may go before (the eager budget, per peer); it is parked at the receiver. A send is
// done when the peer acknowledged every cell, a receive when every cell is in its place. Works for groups
// (engine/group_messages.cc) and connections (engine/endpoint.h) alike.
// Memory: see engine/message_end.h; the table of sends grows to its high-water mark.
// Thread: the engine's owner. Failures: lengths or types that differ go to the host; everything else is the host's to
// notice (fail()).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/message_end.h"

namespace canarynet {

class MessageHost {
 public:
  virtual ~MessageHost() = default;
  // A message met a receive that it does not fit. `told`: the other end knows it already.
  virtual void on_mismatch(MessageEnd& flow, const Status& why, bool told) = 0;
  // What one request hears when its flow ends.
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

  // Where an arriving frame belongs. `over`: its flow has ended, or never was: acknowledge and forget.
  struct Where {
    MessageEnd* flow = nullptr;  // null and not over: not known yet, small messages are parked
    bool over = false;
  };

  // Prepares a new flow (identity and peer are set) for traffic; its messages count from `first`.
  void open(MessageEnd& flow, std::uint32_t piece_bytes, std::uint64_t first = 1);
  // `request->flow` is set. Its ticket may be done on return (a failed flow, a parked message, a local peer).
  void post(MessageRequest* request, Nanos now);
  // Ends a flow: every request fails, and whatever is posted later. The channels' references must have been cancelled.
  // Later receives still get what is parked already.
  void fail(MessageEnd& flow, const Status& why, Nanos now);
  // The other end has closed and says that everything up to this number is with its user: those sends are done. The
  // channel's references must have been cancelled.
  void settle_sends(MessageEnd& flow, std::uint32_t op, Nanos now);
  // When something last moved of what is under way in this flow: the first send, if the peer has a place for it, or
  // receives that have begun. Nanos::max(): nothing is.
  static Nanos stuck_since(const MessageEnd& flow);
  // Messages up to this number are no longer charged to the peer's eager budget.
  static void give_back_debts(MessageEnd& flow, std::uint64_t up_to);
  // Forgets what is parked of a flow number.
  void drop_parked(MessagePeer& peer, std::uint32_t flow);
  // Requests that are not done.
  std::uint64_t pending() const { return pending_; }
  const MessageCounters& counters() const { return counters_; }
  // There is something of that priority to send: the flow takes its turn.
  void make_ready(MessageEnd& flow, canary_priority priority);
  // It will not be used again: takes it out of its peer's lists.
  void forget(MessageEnd& flow);

  // As a flow has them.
  bool next_frame(MessageRound& round, OutPiece* out);
  // Of the messages whose turn it is: what has not been sent yet.
  static std::uint64_t waiting_bytes(const MessageRound& round);
  void on_done(std::uint64_t cookie, Nanos now);
  Landing landing_for(MessagePeer& peer, const Where& where, const wire::Header& h);
  // Pieces, credits and refusals; the frames of connections are the endpoint's own.
  bool on_arrival(MessagePeer& peer, const Where& where, const wire::Header& h, const Arrival& arrival, Nanos now);
  void on_landing_lost(MessagePeer& peer, const Where& where, const wire::Header& h, std::uint64_t cookie);

 private:
  enum class Match : std::uint8_t {
    kFound,
    kNotPosted,
    kAmbiguous,   // an earlier message with the same tag must come first
    kUnknownTag,  // no receive of its group has that tag
  };
  Match find_receive(MessageEnd& flow, std::uint64_t number, std::uint32_t tag, MessageRequest** request);
  // Whether the message may go into `r`; learns its length.
  bool accepts(MessageEnd& flow, MessageRequest& r, std::uint64_t number, const wire::Header& h);
  // Whether the peer is told that this message has no place here, and so waits for no acknowledgement.
  static bool is_refused(const MessageEnd& flow, std::uint64_t number);
  static bool well_formed(const MessageEnd& flow, const MessageRequest& r, const wire::Header& h);
  static std::uint64_t number_of(const MessageEnd& flow, const wire::Header& h);
  void arrived(MessageEnd& flow, MessageRequest& r, const wire::Header& h, const std::byte* payload, Nanos now);
  void mismatch(MessageEnd& flow, std::uint64_t number, const wire::Header& h, const MessageRequest* r);
  void claim_parked(MessageEnd& flow, Nanos now);
  void on_credit(MessageEnd& flow, std::uint32_t op, Nanos now);
  void on_refusal(MessageEnd& flow, const wire::Header& h, const wire::RefusePayload& refusal);
  bool fill(MessageEnd& flow, canary_priority priority, OutPiece* out);
  static void pass_cursor(MessageEnd& flow, MessageRequest& request);
  bool may_go(MessageEnd& flow, MessageRequest& r);
  void match_local(MessageEnd& sender, Nanos now);
  void complete_send(MessageRequest& r);
  void complete_receive(MessageEnd& flow, MessageRequest& r);
  void finish(MessageRequest& r, Status status);
  void release_slot(MessageRequest& r);

  MessageHost& host_;
  std::vector<MessageRequest*> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::uint64_t pending_ = 0;
  MessageCounters counters_;
};

}  // namespace canarynet
