#include "runtime/context.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/secret.h"
#include "control/unique_id.h"
#include "discovery/host.h"
#include "discovery/interfaces.h"
#include "runtime/machine_costs.h"
#include "runtime/meeting.h"

namespace canarynet {
namespace {

constexpr Nanos kLeaveLimit = 1500_ms;
constexpr int kPollsBeforeYield = 8;  // few: the one that is waited for may be on this core all the same

int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

Context::Context(ContextOptions options)
    : options_(std::move(options)), staying_(static_cast<int>(options_.ranks.size())) {
  bells_.reserve(options_.ranks.size());  // adding one can't fail
}

Result<std::unique_ptr<Context>> Context::create(ContextOptions options) {
  std::unique_ptr<Context> c(new Context(std::move(options)));
  if (Status s = c->start(); !s.ok()) return s;
  if (Status s = c->join(); !s.ok()) {
    c->leave();
    return s;
  }
  return c;
}

Context::~Context() {
  leave();
  if (engine_) host_->hold([this] { engine_.reset(); });
}

Status Context::start() {
  const Settings& s = options_.settings;
  for (const int rank : options_.ranks) {
    if (rank >= 0 && rank < options_.world_size) continue;
    return Status(CANARY_INVALID_ARGUMENT, "rank " + std::to_string(rank) + " is outside of a world of " +
                                               std::to_string(options_.world_size) +
                                               " (CANARY_RANK, CANARY_WORLD_SIZE)");
  }
  set_log_ranks(*std::min_element(options_.ranks.begin(), options_.ranks.end()),
                *std::max_element(options_.ranks.begin(), options_.ranks.end()));
  EngineOptions e;
  e.settings = s;
  e.world_size = options_.world_size;
  e.local_ranks = options_.ranks;
  e.host_id = s.host_id.empty() ? default_host_id() : s.host_id;
  e.host_name = s.host_id.empty() ? host_name() : s.host_id;
  e.pid = getpid();
  e.cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));  // not the process's own: each rank may be bound to one
  e.pulse_of = pulse_of;
  e.strangers_max = strangers_share();
  e.codec_speed = measure_codec;
  if (options_.world_size > 1 && s.measured_choice) {
    const MachineCosts costs = measure_machine_costs();
    e.reduce_seconds = costs.reduce_seconds;
    e.post_seconds = costs.post_seconds;
  }
  auto token = draw_secret(), epochs = draw_secret();
  if (!token.ok()) return token.status();
  if (!epochs.ok()) return epochs.status();
  e.job_token = token.value();
  e.epoch_seed = epochs.value();

  Socket listener;  // of a unique id that this process made
  TcpOptions t;
  if (options_.world_size > 1) {
    if (s.join.empty()) {
      return Status(CANARY_INVALID_SETTING,
                    "CANARY_JOIN is not set: where do the ranks meet? It takes tcp://host:port of rank 0, or id:HEX");
    }
    auto interfaces = list_interfaces();
    if (!interfaces.ok()) return interfaces.status();
    auto join = meeting_point(options_, interfaces.value());
    if (!join.ok()) return join.status();
    e.coordinator = join.value().addresses.front();
    e.coordinator_others.assign(join.value().addresses.begin() + 1, join.value().addresses.end());
    e.join_token = join.value().token;
    listener = std::move(join.value().listener);
    auto tcp = tcp_options(s, interfaces.value(), e.coordinator.loopback());
    if (!tcp.ok()) return tcp.status();
    t = tcp.take();
  } else if (s.join.starts_with(control::kUniqueIdScheme)) {
    (void)meeting_point(options_, {});  // closes the listener of an id made for nobody else
  }
  auto host = Host::take_place(Host::Place::kEngine,
                               {s, std::move(t), e.host_id, /*has_peers=*/options_.world_size > 1, has_thread()});
  if (!host.ok()) return host.status();
  host_ = host.take();
  has_place_ = true;
  return host_->hold([&]() -> Status {
    if (listener.open()) host_->tcp().lend_control(std::move(listener));
    engine_ = std::make_unique<Engine>(std::move(e), host_->rails());
    counters_ = std::make_unique<EngineCounters>(*engine_, options_.ranks, options_.world_size, host_->now());
    if (Status started = engine_->start(host_->now()); !started.ok()) return started;
    host_->move_in(Host::Place::kEngine, *this);
    return {};
  });
}

Status Context::join() {
  for (bool ready = false; !ready;) {
    Status failed = with_engine([&](Engine& engine) {
      if (!engine.ready()) host_->drive_or_sleep(10_s);
      ready = engine.ready();
      return engine.join_status();
    });
    if (!failed.ok()) return failed;
    if (over()) return why_over();
  }
  // With more ranks than cores the one that is waited for needs this one.
  if (with_engine([](Engine& engine) { return engine.ranks_on_this_host(); }) <= usable_cores())
    polls_before_yield_ = kPollsBeforeYield;
  return has_thread() ? host_->start_thread("canary") : Status();
}

std::size_t Context::end_poll(Nanos now, bool) {
  const std::size_t work = engine_->end_poll(now);
  // No wake-up of its own: heartbeats come often enough.
  if (counters_->due(now)) counters_->publish(*engine_, now);
  return work;
}

// Memory may run out anywhere in the engine, half way through anything. Then nobody drives it any more: what is pending
// here ends, and the others hear no word from this rank.
void Context::give_up() noexcept {
  engine_->abandon();
  log(LogLevel::kError, "rank %d leaves the job: out of memory", options_.ranks.front());
  out_of_memory_.store(true, std::memory_order_release);
  over_.store(true, std::memory_order_release);
  for (CompletionBell* bell : bells_) bell->ring();
}

Status Context::add_bell(CompletionBell& bell) {
  std::array<int, 3> others{};
  if (!has_thread()) {
    auto opened = host_->open_alarm();
    if (!opened.ok()) return opened.status();
    others = opened.value();
  }
  if (Status s = bell.open(std::span(others).first(has_thread() ? 0 : 3)); !s.ok()) return s;
  bells_.push_back(&bell);
  if (!has_thread()) host_->drive_for_loops(*this);
  if (over()) bell.ring();
  return {};
}

void Context::answer_bell(CompletionBell& bell) {
  // First: what this thread completes here, its owner is about to look at.
  if (!has_thread()) {
    with_engine([this](Engine&) { host_->drive_for_loops(*this); });
  }
  bell.drain();
}

Status Context::hand_over(const port::Command& command) {
  if (over()) return {};
  Status taken = engine_->submit(command);
  return taken.code() == CANARY_WOULD_BLOCK ? wait_for_room(command) : taken;
}

// The command's deadline counts from here, not from when there is room.
Status Context::wait_for_room(port::Command command) {
  const Nanos limit{command.time_limit}, called = host_->now();
  while (!over()) {
    // The queues of commands and messages are emptied by whoever drives; a member's operations by those it exchanges
    // with.
    nudge();
    if (command.kind == port::Command::Kind::kOperation)
      drive_until([&] { return !engine_->full(command.member); }, false);
    if (limit.count > 0) command.time_limit = std::max<std::int64_t>(1, (limit - (host_->now() - called)).count);
    if (Status s = engine_->submit(command); s.code() != CANARY_WOULD_BLOCK) return s;
  }
  return {};
}

Status Context::submit(const port::Command& command) {
  if (Status s = hand_over(command); !s.ok()) return s;
  nudge();
  return {};
}

Result<void*> Context::allocate(std::size_t bytes) {
  return with_engine([&](Engine&) { return host_->lanes().allocate(bytes); });
}

Status Context::release(void* memory) {
  return with_engine([&](Engine&) { return host_->lanes().release(memory); });
}

Status Context::run(const port::Command& command, const OpTicket& ticket) {
  if (Status s = hand_over(command); !s.ok()) return s;
  drive_until([&ticket] { return ticket.done(); }, true);
  return {};
}

void Context::wait(const OpTicket& ticket) {
  drive_until([&ticket] { return ticket.done(); }, false);
}

Status Context::why_over() const {
  if (out_of_memory_.load(std::memory_order_acquire))
    return Status(CANARY_LIMIT, "out of memory: this rank has left the job");
  return Status(CANARY_CLOSED, "the context was finalized while the operation was pending");
}

port::MemberId Context::world(int rank) {
  return with_engine([rank](Engine& e) { return e.world(rank)->id; });
}

void Context::leave(int rank) {
  // Told before it stops counting: whoever is last finds nobody else in the engine.
  if (options_.ranks.size() > 1) {
    with_engine([rank](Engine& e) { e.retire(rank); });
  }
  const int staying = staying_.fetch_sub(1, std::memory_order_acq_rel);
  CANARY_CHECK(staying > 0, "a rank leaves once");
  if (staying == 1) leave();
}

void Context::leave() {
  if (!std::exchange(has_place_, false)) return;
  host_->move_out(Host::Place::kEngine, [this] {
    if (engine_ && !over()) {
      if (engine_->ready()) say_farewell();
      engine_->abandon();  // others may drive the lanes from now on
      over_.store(true, std::memory_order_release);
      for (CompletionBell* bell : bells_) bell->ring();
    }
    host_->tcp().close_control();
    host_->notify_all();
  });
}

void Context::say_farewell() {
  const Nanos began = host_->now();
  engine_->leave(began);
  const Nanos limit = kLeaveLimit + options_.settings.silence_limit;  // the engine knows whom it waits for
  while (!engine_->left() && !over() && host_->now() - began < limit) host_->drive_or_sleep(5_ms);
  // The sockets' queues may still hold a part of the farewell.
  for (int i = 0; i < 8 && !over() && host_->drive_once(); ++i) {
  }
}

}  // namespace canarynet
