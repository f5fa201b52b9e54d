// runtime/endpoint_host.h -- an endpoint in its host (runtime/host.h): the real clock, the host's lanes (TCP, and
// shared memory to endpoints of the same host) and the thread that does all I/O.
//
// Threads: submit() and stop() from any; whoever holds the host's baton drives the endpoint, which is the thread unless
// a caller of the process's engine has taken over, so nobody waits for the network. The thread sleeps while nothing
// happens, after polling a little where replies come soon (runtime/halt_poll.h); a submission wakes it by one system
// call if it sleeps, by none if it does not. A caller that polls a descriptor instead of asking hears by open_bell() of
// what has completed.
#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "base/settings.h"
#include "engine/endpoint.h"
#include "runtime/completion_bell.h"
#include "runtime/counters.h"
#include "runtime/host.h"

namespace canarynet {

class EndpointHost final : private Resident {
 public:
  // The NICs that it will use, or why it may not.
  static Result<TcpOptions> choose(const Settings& settings);
  // Discovers NICs, listens on them and starts the thread, or joins the engine that does so already. `over` outlives
  // the host: it becomes true where over() does.
  static Result<std::unique_ptr<EndpointHost>> create(Settings settings, std::atomic<bool>& over);
  ~EndpointHost();

  Endpoint& endpoint() { return *endpoint_; }
  // The kernel's own counter of a rail's device. Any thread; reads a file.
  std::uint64_t kernel_tx_bytes(int rail) const { return host_->lanes().kernel_tx_bytes(rail); }
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
  // Memory ran out in it: what is not done will not be, and is not touched any more.
  bool over() const override { return over_.load(std::memory_order_acquire); }
  static const Status& why_over() { return no_memory(); }
  // Says farewell, and ends the thread unless that serves an engine; bounded to about half a second.
  void stop();

 private:
  explicit EndpointHost(std::atomic<bool>& over) : over_(over) {}
  Status start(Settings settings);
  void say_farewell();

  // Resident
  void begin_poll(Nanos now) override { endpoint_->begin_poll(now); }
  std::size_t end_poll(Nanos now, bool moved) override;
  Nanos next_deadline() const override;
  void give_up() noexcept override;
  void ring_bells() override {
    if (has_bell()) bell_.ring_if_news();
  }
  bool called() const override { return endpoint_->has_commands(); }
  bool moves_bulk() const override { return endpoint_->moves_bulk(); }

  std::shared_ptr<Host> host_;
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<EngineCounters> counters_;
  bool counted_ = true;  // nothing has happened since the counters were published
  CompletionBell bell_;
  bool has_place_ = false;
  std::atomic<bool>& over_;
};

}  // namespace canarynet
