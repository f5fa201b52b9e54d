// transport/shm/shm_lane_factory.h -- dials, accepts and drives the shared-memory lanes of an engine on one epoll
// descriptor.
//
// What: LaneFactory between processes of one host and user: one rail, whose address is a name that the kernel knows (no
// file, no port).
// Dialling side: makes a lane's memory and offers it over the UNIX socket; the socket stays open, and its end is the
// peer's death.
// Memory: lanes belong to whoever got them; they may be destroyed at any time outside their own callbacks, also after
// the factory. Nothing outlives the processes: names, memory and bells go with their last descriptor, however a process
// ends.
// Thread: one owner; poll() does bounded work per lane and never waits. Failure: create() and dial() return a Status.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transport/epoll_factory.h"
#include "transport/lane_table.h"
#include "transport/shm/arena.h"
#include "transport/shm/ipc.h"

namespace canarynet {

class ShmLane;

// A ring for pieces of that size: it holds two of the largest, or a receiver that is late for one leaves the next half
// written.
constexpr std::size_t ring_bytes_for(std::size_t piece_bytes) {
  return std::max(std::size_t{1} << 20, std::bit_ceil(2 * piece_bytes));
}

struct ShmOptions {
  // Family::kSharedMemory: the first half says which processes meet (prefix 64), the second is this one's own.
  Address name;
  int rail = 0;                                // what lanes call their rail; a dial names it
  std::size_t ring_bytes = ring_bytes_for(0);  // per direction of a lane; a power of two
  Nanos connect_timeout = 3_s;
  std::size_t slot_bytes = wire::kPayloadMax;
  std::uint32_t queue_frames = 512;   // per lane
  std::uint32_t lanes_max = 8192;     // accepted connections beyond are closed at once
  std::size_t strangers_max = 512;    // accepted ones that have offered nothing yet; the oldest makes room
  shm::ArenaStore* arenas = nullptr;  // outlives the factory; null: everything is copied
};

class ShmLaneFactory final : public EpollFactory {
 public:
  static constexpr const char* kDevice = "shm";

  static Result<std::unique_ptr<ShmLaneFactory>> create(const ShmOptions& options);
  ~ShmLaneFactory() override;

  std::span<const Rail> rails() const override { return {&rail_, 1}; }
  Result<std::unique_ptr<Lane>> dial(int rail, const Address& to, LaneSink& sink) override;
  // On names of this process: `at` says nothing but the port.
  Result<Address> listen_control(const Address& at) override;
  std::size_t poll(Nanos now) override;
  Nanos next_deadline() const override;
  bool prepare_to_sleep() override;
  const char* name() const override { return "shm"; }
  std::uint64_t kernel_tx_bytes(int) const override { return 0; }

  // Tells the peers that an arena has been released.
  void arena_is_gone(std::uint32_t id);

 private:
  friend class ShmLane;

  explicit ShmLaneFactory(const ShmOptions& options);
  Status start();
  Result<Address> add_listener(std::uint16_t port, int rail);
  void accept_some(Listener& listener, Nanos now);
  enum class Origin : std::uint8_t { kDialled, kRefused, kAccepted };
  Result<std::unique_ptr<ShmLane>> adopt(shm::Descriptor socket, Origin origin, int rail, int peer_pid);
  void hand_over(ShmLane& lane, Nanos now);
  void ask_kernel(Nanos now);
  void look_at_rings();
  void check_waiting(Nanos now);

  // Lanes use these.
  shm::ArenaStore* arenas() const { return options_.arenas; }
  void schedule(ShmLane& lane);

  ShmOptions options_;
  Rail rail_;
  LaneTable<ShmLane> lanes_;
  std::vector<std::uint64_t> waiting_;              // lanes that await the other side's first word
  std::vector<std::unique_ptr<ShmLane>> greeting_;  // accepted ones among them
  std::uint16_t next_control_port_ = 2;
  Nanos next_question_;  // to the kernel; a sleep ends with one
  bool asleep_ = true;   // or may be: since prepare_to_sleep()
  SparseWarning stranger_warning_;
};

}  // namespace canarynet
