// runtime/endpoint_host.h -- an endpoint with the real clock, the host's lanes (TCP, and shared memory to endpoints of
// the same host) and a thread of its own that does all I/O.
//
// Threads: submit() and stop() from any; the endpoint is driven by its thread alone, so nobody else ever waits for the
// network. It sleeps while nothing happens, after polling a little where replies come soon (runtime/halt_poll.h); a
// submission wakes it by one system call if it sleeps, by none if it does not. A caller that polls a descriptor instead
// of asking hears by open_bell() of what has completed.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <thread>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/settings.h"
#include "engine/endpoint.h"
#include "runtime/completion_bell.h"
#include "runtime/counters.h"
#include "runtime/halt_poll.h"
#include "runtime/host_lanes.h"
#include "transport/tcp/tcp_lane_factory.h"

namespace canarynet {

class EndpointHost {
 public:
  // The NICs that it will use, or why it may not.
  static Result<TcpOptions> choose(const Settings& settings);
  // Discovers NICs, listens on them, starts the thread. `over` outlives the host: it becomes true where over() does.
  static Result<std::unique_ptr<EndpointHost>> create(Settings settings, std::atomic<bool>& over);
  ~EndpointHost();

  Endpoint& endpoint() { return *endpoint_; }
  // The kernel's own counter of a rail's device. Any thread; reads a file.
  std::uint64_t kernel_tx_bytes(int rail) const { return lanes_->kernel_tx_bytes(rail); }
  // As Endpoint::submit(): one command, or receives that are a unit.
  Status try_submit(std::span<const port::Command> unit);
  // Waits for room; the thread makes some at every turn.
  Status submit(const port::Command& command);
  // Where completions leave their mark, for tickets; connections leave theirs there.
  std::atomic<bool>& news() { return bell_.news(); }
  // Any thread, one at a time. A descriptor that is readable from a completion on until drain(), and at first; the same
  // at every call.
  Result<int> open_bell();
  bool has_bell() const { return bell_.fd() >= 0; }
  void drain_bell() { bell_.drain(); }
  // Memory ran out in the thread, and it has ended: what is not done will not be, and is not touched any more.
  bool over() const { return over_.load(std::memory_order_acquire); }
  static const Status& why_over() { return no_memory(); }
  // Says farewell and ends the thread; bounded to about half a second.
  void stop();

 private:
  explicit EndpointHost(std::atomic<bool>& over) : over_(over) {}
  Status start(Settings settings);
  void run();
  void serve();
  void sleep_until(Nanos deadline);
  void wake();
  void ring_bell() {
    if (has_bell()) bell_.ring_if_news();
  }

  SystemClock clock_;
  Nanos spin_budget_;
  HaltPoll halt_poll_;
  std::unique_ptr<TcpLaneFactory> factory_;
  std::unique_ptr<HostLanes> lanes_;
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<EngineCounters> counters_;
  CompletionBell bell_;
  Descriptor doorbell_;
  std::atomic<bool> asleep_{false};
  std::atomic<bool> stop_{false};
  std::atomic<bool>& over_;
  std::thread thread_;
};

}  // namespace canarynet
