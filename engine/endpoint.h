// engine/endpoint.h -- an engine that stands alone: connections by 128-byte handles, without a job or a group. A state
// machine driven by poll().
//
// What: listeners, connections (ordered messages both ways, engine/messages.h), and per peer endpoint a channel over
// every pair of NICs that meet, shared by all connections that were made in one direction. The end that connects dials.
// There is no control connection: heartbeats on the lanes and hang-ups tell whether a peer lives.
// Commands (port/command.h) name connections and listeners by ids: each connection has a queue for its messages, all
// others go through the endpoint's.
// Threads: submit(), add(), make_handle(), ticket_id() and what is atomic from any; everything else from the one thread
// that drives it.
// Memory: connections and listeners belong to their user; the endpoint uses them from add() and make_handle() until
// `closed` is set.
// Failures: a lost lane is the channel's business. A dead peer ends its connections: every request of theirs hears who,
// over which links, how many bytes were outstanding and since when it was silent.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mpsc_ring.h"
#include "base/secret.h"
#include "base/settings.h"
#include "base/sole_user.h"
#include "engine/endpoint_handle.h"
#include "engine/greeter.h"
#include "engine/messages.h"
#include "engine/peers.h"
#include "engine/silence_watch.h"
#include "port/command.h"
#include "port/id_table.h"
#include "port/memory_ref.h"
#include "port/ticket.h"

namespace canarynet {

class EndpointLink;

struct EndpointOptions {
  Settings settings;
  std::string host_name;
  std::int64_t pid = 0;
  PulseSource pulse_of;              // may be empty
  std::size_t strangers_max = 1024;  // connections that have not said who they are
  SecretSource secret;               // of its token and its channels' names
  std::uint32_t channel_records = 2048;
  std::uint32_t channel_copies = 64;  // control frames only: messages are borrowed
  // Anybody who knows a handle can make links here, each with memory of its own (engine/endpoint.cc says how much).
  // Links beyond are turned away; one that has ended makes room.
  std::size_t accepted_links_max = 4096;
  // Set when a connection is made, has failed, or can be accepted; as OpTicket::news for messages. nullptr: nobody
  // asks.
  std::atomic<bool>* news = nullptr;
};

struct Connection {
  static constexpr std::size_t kMessagesMax = 64;
  enum class State : int { kOpening, kUp, kFailed };
  port::ConnectionId id;  // in its endpoint

  std::atomic<State> state{State::kOpening};
  std::atomic<bool> closed{false};  // the endpoint has forgotten it
  Status failure;                   // valid once kFailed

  // Messages that the endpoint has not seen; any thread pushes.
  MpscRing<port::Command> called{kMessagesMax};
  std::atomic<bool> listed{false};    // the endpoint knows, or is about to know, that there are some
  Connection* next_called = nullptr;  // among those that it does not know yet

  // The endpoint's.
  MessageEnd end;
  EndpointLink* link = nullptr;  // null once the link is gone
  Nanos began;
  bool answered = false;       // the peer has said yes or no
  bool told_of_abort = false;  // we have given up, and said why
  Connection* next_closed = nullptr;
};

struct Listener {
  static constexpr std::size_t kBacklog = 64;
  Listener() : accepted(kBacklog) {}
  ~Listener();
  port::ListenerId id;       // in its endpoint
  std::uint32_t number = 0;  // as handles have it
  // Pushed by the endpoint, popped by whoever accepts (one thread at a time): each then belongs to that.
  MpscRing<Connection*> accepted;
  std::atomic<bool> closed{false};
};

class Endpoint final : private MessageHost, private SilenceHost, private GreeterHost {
 public:
  // Alone on the lanes of `factory`, or beside an engine.
  Endpoint(const EndpointOptions& options, LaneFactory& factory);
  Endpoint(EndpointOptions options, std::shared_ptr<SharedRails> rails);
  ~Endpoint() override;

  std::size_t poll(Nanos now);
  // Its two halves, for whoever polls the lanes in between for an engine as well.
  void begin_poll(Nanos now);
  std::size_t end_poll(Nanos now);
  Nanos next_deadline() const;
  // Something was submitted that poll() has not seen.
  bool has_commands() const {
    return called_.load(std::memory_order_relaxed) != nullptr || !calling_.empty() || commands_.ready();
  }

  // Gives the listener its id, its number, and the handle by which it is reached; submit(kListen) before the handle is
  // given away.
  void make_handle(Listener* listener, std::span<std::byte> handle);
  // Gives a connection that is to be made its id; one that is accepted has it.
  void add(Connection& connection);
  // Commands name the ticket by this id, from the first call until the ticket ends.
  port::TicketId ticket_id(OpTicket& ticket) {
    ticket.join_table(tickets_);
    return ticket.id();
  }
  // The only way in: one command, or receives that are a unit. OK; what is wrong with them; or CANARY_WOULD_BLOCK
  // without a text: the queue is full, let the endpoint poll and try again.
  Status submit(std::span<const port::Command> unit);
  Status submit(const port::Command& command) { return submit({&command, 1}); }
  // The first half of submit(), alone: what is wrong with them, whatever room there is.
  Status check(std::span<const port::Command> unit) const;

  // Everything said on any channel was acknowledged: the closes of connections, above all.
  bool drained() const;
  // Says farewell on every channel; connections end. Poll a few times more, so that it leaves the sockets.
  void leave(Nanos now);
  // Memory ran out somewhere in poll(): peers see every lane end, and nothing is touched any more.
  void abandon() noexcept;
  std::span<const Rail> rails() const { return factory_.rails(); }
  // These count since the endpoint began, links that have ended included.
  RailStats rail_stats(int rail) const { return peers_.rail_stats(rail); }
  // Statistics of the ended links on a rail.
  const RailStats& ended_stats(std::size_t rail) const { return peers_.ended_stats(rail); }
  const std::string& host_name() const { return options_.host_name; }
  // Every path of every link, as LinkView.
  template <typename Fn>
  void for_each_link(Fn fn) const {
    peers_.for_each_link(fn);
  }
  struct Counters {
    std::uint64_t peers = 0;  // links that have not ended; two to an endpoint that connects here and is connected to
    std::uint64_t connections = 0;
  };
  Counters counters() const;
  const MessageCounters& message_counters() const { return messages_.counters(); }
  std::uint64_t messages_in_flight() const { return messages_.pending(); }
  // More is under way than a request and its reply: what comes next is a matter of the NICs' rates, not of this
  // thread's haste.
  bool moves_bulk() const {
    const MessageCounters& c = messages_.counters();
    return c.sending_bytes + c.receiving_bytes > kBulkBytes;
  }
  // Channels to other endpoints, and lanes that have not said who they are.
  std::size_t links() const { return links_.size(); }

 private:
  friend class EndpointLink;
  static constexpr std::uint64_t kBulkBytes = 128 * 1024;

  Connection* connection(port::ConnectionId id) const { return connections_.at(id.place, id.use); }
  Listener* listener(port::ListenerId id) const { return listener_ids_.at(id.place, id.use); }
  Status check(const port::Command& command) const;
  void take_commands();
  void obey(const port::Command& command);
  void take_called();
  void post_messages();
  int post_messages(Connection& connection);
  void connect(Connection& connection, const EndpointHandle& remote);
  void tell_stats(const port::Command& command);
  void close(Connection& connection);
  void come_up(Connection& connection);
  void refuse(Connection& connection, const Status& why);
  void tell_news();
  void give_up(Connection& connection, const Status& why);
  void fail(Connection& connection, const Status& why);
  void close_listener(Listener& listener);
  bool expects(const wire::HelloPayload& hello) const override { return hello.purpose == wire::kHelloEndpoint; }
  void on_hello(std::unique_ptr<Lane>& lane, const wire::Header& header, const wire::HelloPayload& hello) override;
  EndpointLink* dialled_link(const EndpointHandle& remote, Status* why);
  void on_open(EndpointLink& link, std::uint32_t flow, const wire::OpenPayload& open);
  void answer_opens();
  void check_links(Nanos now);
  void judge(EndpointLink& link, Nanos now);
  void check_connections(EndpointLink& link, Nanos now);
  void check_deadlines(EndpointLink& link, Nanos now);
  void end_link(EndpointLink& link, canary_status code, const std::string& why);
  void bury_links();
  std::optional<Word> word_over_control(const Peer&) const override { return std::nullopt; }
  Names names_of(std::span<const Peer* const> peers) const override;

  void on_mismatch(MessageEnd& end, const Status& why, bool told) override;
  Status failure_of(const MessageRequest&, const Status& why, Nanos) override { return why; }

  EndpointOptions options_;
  std::shared_ptr<SharedRails> rails_;
  LaneFactory& factory_;
  std::uint64_t token_ = 0;
  std::atomic<std::uint32_t> next_listener_{1};
  port::Regions regions_;
  std::shared_ptr<TicketTable> tickets_ = std::make_shared<TicketTable>();
  port::IdTable<Connection> connections_;
  port::IdTable<Listener> listener_ids_;
  MpscRing<port::Command> commands_;          // all but messages, which wait with their connections
  std::atomic<Connection*> called_{nullptr};  // connections that were called since the last look
  std::vector<Connection*> calling_;          // those before, in the order of their calls
  Messages messages_;
  Greeter& greeter_;
  Peers peers_;  // the links_
  SilenceWatch watch_;
  std::vector<std::unique_ptr<EndpointLink>> links_;
  std::vector<Listener*> listeners_;
  struct Open {
    EndpointLink* link;
    std::uint32_t flow;
    wire::OpenPayload payload;
    std::size_t commands = 0;  // that were on their way when it came: its listener may be among them
  };
  bool waits(const Open& open) const { return commands_.taken() < open.commands; }
  std::vector<Open> opens_;          // heard and not answered yet
  std::vector<std::uint64_t> past_;  // names of accepted channels that have ended: they must not come to life again
  std::size_t next_past_ = 0;
  SoleUser user_;
  Nanos now_;
  Nanos next_check_;
  Nanos last_check_;
  bool leaving_ = false;
};

}  // namespace canarynet
