// runtime/host_lanes.h -- all lanes of an embedded engine as one factory: TCP over the NICs, and shared memory between
// the host's processes.
//
// What: rails() are the NICs' and behind them the shared memory's; a dial goes where its address belongs. Whom the
// engine meets over which is pair_rails()'s to say. Where the system refuses shared memory, a note is logged and
// everybody is met over TCP.
// Memory: owns the shared-memory half and the arenas; the TCP half is the caller's and outlives this.
// Thread: the engine's owner. Failures: as LaneFactory's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/settings.h"
#include "discovery/interfaces.h"
#include "transport/shm/shm_lane_factory.h"
#include "transport/tcp/tcp_lane_factory.h"

namespace canarynet {

// How many connections of strangers a process may hold: an eighth of the descriptors that it may have open, now.
std::size_t strangers_share();

// The NICs to use, and how; none where CANARY_TRANSPORTS leaves TCP out. The error names the setting that is wrong.
Result<TcpOptions> tcp_options(const Settings& settings, const std::vector<Interface>& interfaces,
                               bool join_is_loopback);

class HostLanes final : public LaneFactory {
 public:
  // `has_peers`: false leaves out what only they need. `name`: this process's own in shared memory, random; everybody
  // may read it.
  static Result<std::unique_ptr<HostLanes>> create(const Settings& settings, bool has_peers, const std::string& host_id,
                                                   std::uint64_t name, TcpLaneFactory& tcp);

  // Memory that peers of this host read without a copy; ordinary memory where there are none.
  Result<void*> allocate(std::size_t bytes) { return arenas_.allocate(bytes); }
  Status release(void* memory);

  std::span<const Rail> rails() const override { return rails_; }
  Result<std::unique_ptr<Lane>> dial(int rail, const Address& to, LaneSink& sink) override;
  Result<Address> listen_control(const Address& at) override { return tcp_.listen_control(at); }
  void set_acceptor(LaneAcceptor* acceptor) override;
  std::size_t poll(Nanos now) override;
  Nanos next_deadline() const override;
  int poll_fd() const override { return epoll_.open() ? epoll_.fd() : tcp_.poll_fd(); }
  bool prepare_to_sleep() override;
  const char* name() const override { return shm_ ? "tcp and shm" : "tcp"; }
  std::string trouble() const override;
  std::uint64_t kernel_tx_bytes(int rail) const override;

 private:
  explicit HostLanes(TcpLaneFactory& tcp) : tcp_(tcp), rails_(tcp.rails().begin(), tcp.rails().end()) {}
  Status add_shared_memory(const ShmOptions& options);

  TcpLaneFactory& tcp_;
  shm::ArenaStore arenas_;
  std::unique_ptr<ShmLaneFactory> shm_;  // null: TCP only
  shm::Descriptor epoll_;                // over both halves' own; closed where there is one
  std::vector<Rail> rails_;
  // While memory delivers and TCP does not, TCP is asked seldom: it takes a system call.
  Nanos tcp_busy_until_;
  Nanos next_tcp_poll_;
  bool asleep_ = true;  // or may be: since prepare_to_sleep()
};

}  // namespace canarynet
