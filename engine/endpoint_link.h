// engine/endpoint_link.h -- one channel of an endpoint to another, with the connections that use it.
//
// Thread: the endpoint's. Memory: the link belongs to the endpoint; connections to their users. A link ends once; until
// it is buried its channel stays (callbacks may be under way).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/fifo.h"
#include "engine/endpoint.h"
#include "engine/stall_watch.h"

namespace canarynet {

class EndpointLink final : public Peer, public Flow, public MuxHost {
 public:
  EndpointLink(Endpoint& endpoint, std::uint64_t its_name, bool dials);

  // Makes the channel; `paths` as ChannelOptions wants them. `theirs`: as far as they are known.
  void start(std::vector<PathSpec> paths, std::uint64_t token, std::span<const Rail> theirs, Nanos now);
  // A number for a new connection; false: all are taken.
  bool add(Connection& connection);
  // Under the number the dialling side has given. False: it was seen before, or makes no sense.
  bool add(Connection& connection, std::uint32_t flow);
  void remove(Connection& connection);
  // As remove(), of a connection whose request was not answered yet: the answer is answered by a close, then the number
  // is free.
  void abandon(Connection& connection);
  // The limits on progress don't count this time.
  void hold(Nanos span);
  // No answer will come any more.
  void forget_abandoned();
  Connection* find(std::uint32_t flow) const;
  void say(wire::MessageFrame frame, std::uint32_t flow, const void* payload, std::uint32_t bytes,
           std::uint32_t op = 0);
  // Nothing waits to be said, and all that was said is acknowledged.
  bool drained() const { return controls_.empty() && channel->drained(); }
  // "the peer on host a (pid 12)"; before it is known, by its addresses.
  std::string who() const;
  // With the addresses too: "the peer on host a (pid 12) at 10.0.0.1:4000, 10.0.1.1:4000".
  std::string describe() const;
  // "; at 10.0.0.1:4000, …", for the end of a text that began with who(): of many NICs they are long, and texts may
  // be cut.
  std::string where() const;
  void learn_peer(std::int64_t its_pid, const char* its_host);
  // A lane of the peer's rail came from there. The latest of each rail is kept.
  void came_from(std::uint16_t remote_rail, std::string where);
  std::size_t connections() const { return used_; }
  template <typename Fn>
  void for_each(Fn fn) const {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].connection != nullptr) fn(*slots_[i].connection);
    }
    for (Connection* c : displaced_) fn(*c);
  }

  // Flow: the frames of all its connections, and what opens and closes them.
  bool next_frame(Mux& to, Turn& turn, OutPiece* out) override;
  void on_done(Mux& to, std::uint64_t cookie) override;
  Landing landing_for(Mux& from, const wire::Header& header) override;
  bool on_arrival(Mux& from, const wire::Header& header, const Arrival& arrival) override;
  void on_landing_lost(Mux& from, const wire::Header& header, std::uint64_t cookie) override;
  // MuxHost
  void on_heartbeat(Mux&, const wire::Header&) override {}
  void fill_heartbeat(Mux&, wire::Header*) override {}
  void on_abort(Mux&, const wire::Header&, const wire::AbortFrame&) override {}
  void on_path_event(Mux& peer, const std::string& what) override;

  const std::uint64_t name;
  const bool dialled;
  std::uint64_t remote_token = 0;  // dialled
  std::string remote_text;         // its addresses, or where its lanes came from
  MessageRounds rounds;
  Nanos idle_since;
  StallWatch stalls;

 private:
  struct Slot {
    Connection* connection = nullptr;
    std::uint16_t generation = 0;
    bool abandoned = false;
  };
  bool is_abandoned(std::uint32_t flow) const;
  bool on_open(std::uint32_t flow, const wire::Open& word);
  void on_opened(std::uint32_t flow, const wire::Opened& word);
  void on_close(std::uint32_t flow, const wire::Close& word);
  void on_give_up(std::uint32_t flow, const wire::GiveUp& word);
  void release(std::uint32_t slot);
  struct Control {
    wire::MessageFrame frame;
    std::uint32_t flow;
    std::uint32_t op;
    std::uint32_t bytes;
    std::byte payload[wire::kAbortTextBytes];
  };
  Messages::Where where_is(const wire::Header& header) const;

  Endpoint& endpoint_;
  Turn words_;  // its turn to say what opens and closes connections
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::vector<Connection*> displaced_;  // ended by a newer one under their number, and not closed by their user yet
  std::size_t used_ = 0;
  Fifo<Control> controls_;            // to be said
  Control said_{};                    // lent to the channel while it copies it
  std::vector<std::string> origins_;  // by remote rail; accepted links only
};

}  // namespace canarynet
