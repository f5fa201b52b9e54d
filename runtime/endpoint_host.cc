#include "runtime/endpoint_host.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>

#include "base/log.h"
#include "base/secret.h"
#include "discovery/host.h"
#include "discovery/interfaces.h"
#include "runtime/library_thread.h"

namespace canarynet {
namespace {

constexpr Nanos kDrainLimit = 500_ms;

// Callers may spin on every core while they wait for this thread (NCCL's do). A short slice lets it run as soon as it
// wakes instead of when theirs end (Linux before 6.12 ignores it). Where the process may, it weighs more than they do
// as well: else the scheduler finds nothing wrong with two callers that yield to each other on one core while the
// threads that they wait for share another.
void ask_for_precedence() {
  struct {
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime_ns, deadline_ns, period_ns;
  } attributes{};
  attributes.size = sizeof attributes;
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0 || attributes.policy != SCHED_OTHER)
    return;
  attributes.runtime_ns = 100'000;
  const std::int32_t inherited = attributes.nice;
  attributes.nice = std::max(-20, inherited - 5);
  if (::syscall(SYS_sched_setattr, 0, &attributes, 0) == 0) return;
  attributes.nice = inherited;
  ::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace

Result<std::unique_ptr<EndpointHost>> EndpointHost::create(Settings settings, std::atomic<bool>& over) {
  close_descriptors_in_children();
  std::unique_ptr<EndpointHost> host(new EndpointHost(over));
  if (Status s = host->start(std::move(settings)); !s.ok()) return s;
  return host;
}

Result<TcpOptions> EndpointHost::choose(const Settings& settings) {
  auto interfaces = list_interfaces();
  if (!interfaces.ok()) return interfaces.status();
  auto tcp = tcp_options(settings, interfaces.value(), /*join_is_loopback=*/false);
  if (!tcp.ok()) return tcp;
  for (const Rail& rail : tcp.value().rails) {
    if (Status s = tcp_address_allowed(rail.address, rail.device.c_str(), settings.insecure); !s.ok()) return s;
  }
  return tcp;
}

Status EndpointHost::start(Settings s) {
  auto tcp = choose(s);
  if (!tcp.ok()) return tcp.status();
  TcpOptions t = tcp.take();
  EndpointOptions e;
  // Those of all links that it accepts, and as many that it dials; a peer may have more rails than this host.
  t.lanes_max =
      static_cast<std::uint32_t>(2 * e.accepted_links_max * kRailsMax * static_cast<std::size_t>(s.lanes_per_rail));
  auto factory = TcpLaneFactory::create(std::move(t));
  if (!factory.ok()) return factory.status();
  factory_ = factory.take();
  doorbell_ = Descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!doorbell_.open()) return system_error("eventfd", errno);
  spin_budget_ = s.spin_budget;
  halt_poll_ = HaltPoll(s.halt_poll);
  // A name can be read by every user of the machine, and tells nothing of the endpoint's token.
  auto name = draw_secret();
  if (!name.ok()) return name.status();
  auto lanes = HostLanes::create(s, /*has_peers=*/true, s.host_id.empty() ? default_host_id() : s.host_id, name.value(),
                                 *factory_);
  if (!lanes.ok()) return lanes.status();
  lanes_ = lanes.take();
  e.host_name = s.host_id.empty() ? host_name() : s.host_id;
  e.settings = std::move(s);
  e.pid = getpid();
  e.pulse_of = pulse_of;
  e.strangers_max = strangers_share();
  e.news = &bell_.news();
  e.secret = [] { return draw_secret().value(); };  // it works: the first one came
  endpoint_ = std::make_unique<Endpoint>(std::move(e), *lanes_);
  counters_ = std::make_unique<EngineCounters>(*endpoint_, clock_.now());
  return start_library_thread(
      "canary-endpoint", [this] { run(); }, &thread_);
}

EndpointHost::~EndpointHost() {
  stop();
  endpoint_.reset();
  lanes_.reset();
  factory_.reset();
}

void EndpointHost::run() {
  try {
    serve();
  } catch (const std::bad_alloc&) {  // half way through anything
    endpoint_->abandon();
    log(LogLevel::kError, "an endpoint has ended, and all its connections: out of memory");
    over_.store(true, std::memory_order_release);
    if (has_bell()) bell_.ring();
  }
}

void EndpointHost::serve() {
  ask_for_precedence();
  Nanos last_work = clock_.now();
  bool counted = true;  // nothing has happened since the counters were published
  while (!stop_.load(std::memory_order_acquire)) {
    const Nanos now = clock_.now();
    if (endpoint_->poll(now) != 0) {
      halt_poll_.found(now, now - last_work);
      last_work = now;
      counted = false;
    }
    ring_bell();
    if (counters_->due(now)) {
      counters_->publish(*endpoint_, now);
      counted = true;
    }
    if (now - last_work < spin_budget_) continue;
    if (!endpoint_->moves_bulk() && halt_poll_.goes_on(now, now - last_work)) {
      sched_yield();  // whose message it waits for may want this core
      continue;
    }
    halt_poll_.stop();
    const Nanos deadline = std::min(endpoint_->next_deadline(), counted ? Nanos::max() : counters_->next());
    if (deadline <= now) continue;
    // An exchange on either side: whoever submits sees the sleeper, or the sleeper what was submitted.
    asleep_.exchange(true);
    if (!endpoint_->has_commands() && !stop_.load(std::memory_order_acquire)) sleep_until(deadline);
    asleep_.exchange(false);
  }
  // Peers are to hear that connections were closed, not that a process has gone.
  for (const Nanos limit = clock_.now() + kDrainLimit; !endpoint_->drained() && clock_.now() < limit;) {
    const bool worked = endpoint_->poll(clock_.now()) != 0;
    ring_bell();
    if (!worked) sleep_until(std::min(endpoint_->next_deadline(), clock_.now() + 5_ms));
  }
  endpoint_->leave(clock_.now());
  // The sockets' queues may still hold a part of the farewell.
  for (int i = 0; i < 16 && endpoint_->poll(clock_.now()) != 0; ++i) {
  }
}

void EndpointHost::sleep_until(Nanos deadline) {
  const Nanos span = std::clamp(deadline - clock_.now(), Nanos{}, 10_s);
  const timespec t{static_cast<time_t>(span.count / 1'000'000'000), static_cast<long>(span.count % 1'000'000'000)};
  if (!lanes_->prepare_to_sleep()) return;
  pollfd fds[2] = {{lanes_->poll_fd(), POLLIN, 0}, {doorbell_.fd(), POLLIN, 0}};
  if (::ppoll(fds, 2, &t, nullptr) <= 0 || (fds[1].revents & POLLIN) == 0) return;
  std::uint64_t rings = 0;
  [[maybe_unused]] const ssize_t n = read(doorbell_.fd(), &rings, sizeof rings);
}

void EndpointHost::wake() {
  if (!asleep_.exchange(false)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(doorbell_.fd(), &one, sizeof one);
}

Status EndpointHost::try_submit(std::span<const port::Command> unit) {
  if (over()) return why_over();
  Status taken = endpoint_->submit(unit);
  if (taken.ok()) wake();
  return taken;
}

Status EndpointHost::submit(const port::Command& command) {
  for (;;) {
    if (Status s = try_submit({&command, 1}); s.code() != CANARY_WOULD_BLOCK) return s;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

// This ring tells of everything that has completed before it; the thread tells what comes later.
Result<int> EndpointHost::open_bell() {
  if (!has_bell()) {
    if (Status s = bell_.open({}); !s.ok()) return s;
    bell_.ring();
  }
  return bell_.fd();
}

void EndpointHost::stop() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  wake();
  thread_.join();
  if (has_bell()) bell_.ring();  // whoever sleeps on it wakes
}

}  // namespace canarynet
