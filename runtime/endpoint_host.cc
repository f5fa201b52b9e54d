#include "runtime/endpoint_host.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/secret.h"
#include "discovery/host.h"
#include "discovery/interfaces.h"

namespace canarynet {
namespace {

constexpr Nanos kDrainLimit = 500_ms;

}  // namespace

Result<std::unique_ptr<EndpointHost>> EndpointHost::create(Settings settings, std::atomic<bool>& over) {
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
  auto host =
      Host::take_place(Host::Place::kEndpoint, {s, tcp.take(), s.host_id.empty() ? default_host_id() : s.host_id});
  if (!host.ok()) return host.status();
  host_ = host.take();
  has_place_ = true;
  if (auto works = draw_secret(); !works.ok()) return works.status();
  EndpointOptions e;
  e.host_name = s.host_id.empty() ? host_name() : s.host_id;
  e.settings = s;
  e.pid = getpid();
  e.pulse_of = pulse_of;
  e.news = &bell_.news();
  e.secret = [] { return draw_secret().value(); };
  host_->hold([&] {
    endpoint_ = std::make_unique<Endpoint>(std::move(e), host_->rails());
    counters_ = std::make_unique<EngineCounters>(*endpoint_, host_->now());
    host_->set_patience(s.spin_budget, s.halt_poll);
    host_->move_in(Host::Place::kEndpoint, *this);
  });
  return host_->start_thread("canary-endpoint");
}

EndpointHost::~EndpointHost() {
  stop();
  if (endpoint_) host_->hold([this] { endpoint_.reset(); });
}

std::size_t EndpointHost::end_poll(Nanos now, bool moved) {
  const std::size_t work = endpoint_->end_poll(now);
  if (moved || work != 0) counted_ = false;
  if (counters_->due(now)) {
    counters_->publish(*endpoint_, now);
    counted_ = true;
  }
  return work;
}

Nanos EndpointHost::next_deadline() const {
  return std::min(endpoint_->next_deadline(), counted_ ? Nanos::max() : counters_->next());
}

// Half way through anything.
void EndpointHost::give_up() noexcept {
  endpoint_->abandon();
  log(LogLevel::kError, "an endpoint has ended, and all its connections: out of memory");
  over_.store(true, std::memory_order_release);
  if (has_bell()) bell_.ring();
}

Status EndpointHost::try_submit(std::span<const port::Command> unit) {
  if (over()) return why_over();
  Status taken = endpoint_->submit(unit);
  if (taken.ok()) host_->call();
  return taken;
}

Status EndpointHost::submit(const port::Command& command) {
  for (;;) {
    if (Status s = try_submit({&command, 1}); s.code() != CANARY_WOULD_BLOCK) return s;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

// This ring tells of everything that has completed before it; whoever drives tells what comes later.
Result<int> EndpointHost::open_bell() {
  if (!has_bell()) {
    if (Status s = bell_.open({}); !s.ok()) return s;
    bell_.ring();
  }
  return bell_.fd();
}

void EndpointHost::stop() {
  if (!std::exchange(has_place_, false)) return;
  host_->move_out(Host::Place::kEndpoint, [this] {
    if (!endpoint_ || over()) return;
    say_farewell();
    if (!over()) endpoint_->abandon();  // others may drive the lanes from now on
  });
  if (has_bell()) bell_.ring();  // whoever sleeps on it wakes
}

// Peers are to hear that connections were closed, not that a process has gone.
void EndpointHost::say_farewell() {
  const Nanos limit = host_->now() + kDrainLimit;
  while (!endpoint_->drained() && !over() && host_->now() < limit) host_->drive_or_sleep(5_ms);
  if (over()) return;
  endpoint_->leave(host_->now());
  // The sockets' queues may still hold a part of the farewell.
  for (int i = 0; i < 16 && !over() && host_->drive_once(); ++i) {
  }
}

}  // namespace canarynet
