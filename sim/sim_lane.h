// sim/sim_lane.h -- one end of a simulated connection, and a host's factory of them. Private to sim/sim_fabric.*; see
// there.
#pragma once

#include <memory>
#include <string>

#include "sim/sim_fabric.h"

namespace canarynet {

class SimLane final : public Lane {
 public:
  SimLane(SimFabric& fabric, int host, int peer_host, int rail, std::uint32_t nic, std::uint32_t peer_nic);
  ~SimLane() override;

  bool send(const wire::Header& header, const std::byte* payload, std::uint64_t cookie) override;
  void flush(Nanos now) override;
  bool cancel(std::uint64_t cookie) override;
  void redirect(std::uint64_t cookie) override;
  std::size_t queued_bytes() const override { return queued_bytes_; }
  bool up() const override { return up_ && !deaf_; }
  bool backs_off() const override;
  Progress progress() const override;
  const LaneCounters& counters() const override { return counters_; }
  std::string description() const override;
  int rail() const override { return rail_; }
  Address remote() const override;

 private:
  friend class SimFabric;
  friend class SimLaneFactory;
  static constexpr std::uint32_t kCutFrame = kNoSlot - 1;
  std::uint64_t got_on() const;
  struct Landed {
    Landing landing;
    std::uint32_t frame = kNoSlot;  // header shown, payload still coming; kCutFrame: it never will
  };

  SimFabric* fabric_;
  SlotRef self_, peer_;
  std::uint64_t number_ = 0;  // in order of creation, for the hash
  int host_, peer_host_, rail_;
  int listener_rail_ = 0;  // dialled: which of the peer's listeners
  std::uint16_t listener_port_ = 0;
  std::uint32_t nic_, peer_nic_;
  bool shared_ = false;  // through shared memory: no CRC is needed, and a ring bounds what has begun
  bool up_ = false;
  bool dead_ = false;          // broken, closed or crashed: nothing goes in or out
  bool deaf_ = false;          // told down, for a header: nothing goes in
  bool silent_ = false;        // swallows everything that arrives
  bool fabric_owned_ = false;  // accepted, waiting for the acceptor
  bool reset_sent_ = false;
  bool wants_room_ = false;
  bool waiting_ = false;         // in its NIC's list
  std::uint32_t unflushed_ = 0;  // frames in the queue that no flush() has seen
  bool retry_set_ = false;
  bool unanswered_ = false;         // it sends to an end that is gone, and the wire is dead
  std::uint32_t vain_retries_ = 0;  // of incoming frames, in a row
  std::uint32_t next_waiting_ = kNoSlot;

  FrameList queue_;
  std::uint32_t queued_frames_ = 0;
  std::size_t queued_bytes_ = 0;
  std::int64_t in_flight_bytes_ = 0;
  std::int64_t in_flight_frames_ = 0;
  std::uint32_t live_ = kNoSlot;   // frames on their way whose payload still lies in the sender's memory
  Nanos leaves_at_, leaves_for_;   // the last frame that has begun: when it will have left, and how long it takes
  std::int64_t leaves_bytes_ = 0;  // its size
  std::uint32_t waiting_frame_ = kNoSlot;  // the one with Frame::kWaiting
  Nanos last_arrival_;                     // when the last frame that this end sent arrives
  Nanos fin_arrival_;                      // when the peer's FIN comes, once it closed
  std::uint32_t incoming_ = 0;             // ordered frames for this end whose last bits are still to come
  Nanos last_whole_;                       // when the last of them will be there

  FrameList held_;        // stream: stopped by a dead wire, lost, or behind such a frame
  FrameList held_whole_;  // the same after their first bit was here: they precede all of held_
  FrameList deferred_;    // came while a landing was open
  Landed landed_;
  Status down_reason_;
  bool down_hangup_ = false;
  LaneCounters counters_;
};

class SimLaneFactory final : public LaneFactory {
 public:
  SimLaneFactory(SimFabric& fabric, int host) : fabric_(fabric), host_(host) {}

  std::span<const Rail> rails() const override;
  Result<std::unique_ptr<Lane>> dial(int rail, const Address& to, LaneSink& sink) override;
  Result<Address> listen_control(const Address& at) override;
  void set_acceptor(LaneAcceptor* acceptor) override { acceptor_ = acceptor; }
  std::size_t poll(Nanos now) override;
  Nanos next_deadline() const override { return Nanos::max(); }
  int poll_fd() const override { return -1; }
  const char* name() const override { return "sim"; }
  std::uint64_t kernel_tx_bytes(int rail) const override;

 private:
  friend class SimFabric;
  friend class SimLane;
  void show(const SimFabric::InboxEntry& entry);
  void show_frame(std::uint32_t index, bool head_only);
  void bad_header(SimLane& lane, const std::string& why);

  SimFabric& fabric_;
  int host_;
  LaneAcceptor* acceptor_ = nullptr;
  std::vector<SlotRef> unflushed_;     // lanes with frames that no flush() has seen; may hold stale entries
  std::uint32_t unflushed_count_ = 0;  // entries that are not stale
};

}  // namespace canarynet
