#include "runtime/context.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/secret.h"
#include "control/unique_id.h"
#include "discovery/host.h"
#include "discovery/interfaces.h"
#include "runtime/library_thread.h"
#include "runtime/meeting.h"

namespace canarynet {
namespace {

// While callers drive, the progress thread looks this often whether they still do.
constexpr Nanos kNap = 5_ms;
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
  close_descriptors_in_children();
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
  engine_.reset();
  lanes_.reset();
  factory_.reset();
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
  doorbell_ = Descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!doorbell_.open()) return system_error("eventfd", errno);

  EngineOptions e;
  e.settings = s;
  e.world_size = options_.world_size;
  e.local_ranks = options_.ranks;
  e.host_id = s.host_id.empty() ? default_host_id() : s.host_id;
  e.host_name = s.host_id.empty() ? host_name() : s.host_id;
  e.pid = getpid();
  e.pulse_of = pulse_of;
  e.strangers_max = strangers_share();
  // One each: a name can be read by every user of the machine, and must tell nothing of the token.
  auto token = draw_secret(), name = draw_secret(), epochs = draw_secret();
  if (!token.ok()) return token.status();
  if (!name.ok()) return name.status();
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
  auto factory = TcpLaneFactory::create(std::move(t));
  if (!factory.ok()) return factory.status();
  factory_ = factory.take();
  if (listener.open()) factory_->lend_control(std::move(listener));
  auto lanes = HostLanes::create(s, options_.world_size > 1, e.host_id, name.value(), *factory_);
  if (!lanes.ok()) return lanes.status();
  lanes_ = lanes.take();
  engine_ = std::make_unique<Engine>(std::move(e), *lanes_);
  counters_ = std::make_unique<EngineCounters>(*engine_, options_.ranks, options_.world_size, clock_.now());
  return engine_->start(clock_.now());
}

Status Context::join() {
  while (!engine_->ready()) {
    if (!drive_once()) sleep_until(engine_->next_deadline());
    if (!engine_->join_status().ok()) return engine_->join_status();
    if (over()) return why_over();
  }
  // With more ranks than cores the one that is waited for needs this one.
  if (engine_->ranks_on_this_host() <= usable_cores()) polls_before_yield_ = kPollsBeforeYield;
  if (has_thread()) {
    return start_library_thread(
        "canary", [this] { progress_loop(); }, &progress_);
  }
  return {};
}

bool Context::drive_once() {
  if (over()) return false;  // what the engine still knows of buffers is their owners' affair
  // Only who holds the engine answers the doorbell, before it looks: a thread that merely woke up by it could silence
  // it while the holder sleeps on.
  if (rung_.load(std::memory_order_relaxed) && rung_.exchange(false, std::memory_order_acq_rel)) drain_doorbell();
  bool worked = false;
  drive([&] {
    drove_at_ = clock_.now();
    worked = engine_->poll(drove_at_) != 0;
    // No wake-up of its own: heartbeats come often enough.
    if (counters_->due(drove_at_)) counters_->publish(*engine_, drove_at_);
  });
  return worked;
}

template <typename Fn>
void Context::drive(Fn fn) {
  try {
    fn();
  } catch (const std::bad_alloc&) {
    give_up();
  }
  ring_bells();
}

// Memory may run out anywhere in the engine, half way through anything. Then nobody drives it any more: what is pending
// here ends, and the others hear no word from this rank.
void Context::give_up() {
  engine_->abandon();
  log(LogLevel::kError, "rank %d leaves the job: out of memory", options_.ranks.front());
  out_of_memory_.store(true, std::memory_order_release);
  stop_.store(true, std::memory_order_release);
  over_.store(true, std::memory_order_release);
  for (CompletionBell* bell : bells_) bell->ring();
  ring_doorbell();
  baton_.notify_all();
}

void Context::ring_doorbell() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(doorbell_.fd(), &one, sizeof one);  // full means it rings already
  rung_.store(true,
              std::memory_order_release);  // second: a ring that is seen has been written, or nobody would ever read it
}

void Context::drain_doorbell() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(doorbell_.fd(), &count, sizeof count);
}

void Context::sleep_until(Nanos deadline) {
  if (deadline > clock_.now() && lanes_->prepare_to_sleep()) wait_for_lanes(deadline);
}

// After lanes_->prepare_to_sleep().
void Context::wait_for_lanes(Nanos deadline) {
  const Nanos now = clock_.now();
  if (deadline <= now) return;
  const Nanos span = std::min(deadline - now, 10_s);
  const timespec t{static_cast<time_t>(span.count / 1'000'000'000), static_cast<long>(span.count % 1'000'000'000)};
  pollfd fds[2] = {{lanes_->poll_fd(), POLLIN, 0}, {doorbell_.fd(), POLLIN, 0}};
  ::ppoll(fds, 2, &t, nullptr);
}

void Context::progress_loop() {
  const auto stopped = [this] { return stop_.load(std::memory_order_acquire); };
  std::uint32_t turns_seen = 0;
  while (!stopped()) {
    // As long as callers come again and again it stays out of their way: lanes that had to wake it would cost every one
    // of them.
    const std::uint32_t turns = turns_.load(std::memory_order_relaxed);
    if (turns != std::exchange(turns_seen, turns) && !unattended_.load(std::memory_order_acquire)) {
      baton_.rest(kNap, [&] { return stopped() || unattended_.load(std::memory_order_acquire); });
      continue;
    }
    if (!baton_.try_take()) {
      baton_.nap(kNap, stopped);
      continue;
    }
    drive_once();
    const Nanos deadline = engine_->next_deadline();
    thread_wakes_at_.store(deadline.count, std::memory_order_release);
    const bool sleeps = lanes_->prepare_to_sleep();
    thread_sleeps_.store(sleeps, std::memory_order_relaxed);  // read by holders of the baton
    baton_.give();
    if (!sleeps || stopped()) continue;
    wait_for_lanes(deadline);
    thread_sleeps_.store(false, std::memory_order_relaxed);
  }
}

bool Context::try_take() {
  if (!baton_.try_take()) return false;
  turns_.fetch_add(1, std::memory_order_relaxed);
  unattended_.store(false, std::memory_order_relaxed);
  return true;
}

void Context::hand_back(bool busy) {
  // Events polled here may have been those that the sleeping thread was to be woken for; nobody else would ask for the
  // next ones.
  const bool missed = thread_sleeps_.load(std::memory_order_relaxed) && !lanes_->prepare_to_sleep();
  const bool told = busy || thread_sleeps_.load(std::memory_order_relaxed);  // else it looks soon by itself
  const Nanos deadline = told ? engine_->next_deadline() : Nanos::max();
  unattended_.store(busy || missed, std::memory_order_relaxed);
  baton_.give(busy || missed);
  // A caller that rang while this thread was leaving has found the engine taken; if its ring comes later, it finds it
  // free (see nudge()).
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (rung_.load(std::memory_order_relaxed)) {
    unattended_.store(true, std::memory_order_relaxed);
    baton_.call_progress();
  }
  if (missed || deadline.count < thread_wakes_at_.load(std::memory_order_acquire)) ring_doorbell();
}

// `submitted`: what is waited for was handed over without telling anybody, so whoever drives instead of this thread has
// to be told.
template <typename Done>
void Context::drive_until(const Done& done, bool submitted) {
  while (!done() && !over()) {
    if (baton_.wanted()) std::this_thread::sleep_for(std::chrono::microseconds(20));  // theirs first
    if (!try_take()) {
      if (submitted) ring_doorbell();
      submitted = false;
      baton_.wait(50_ms, done);
      continue;
    }
    if (std::exchange(submitted, false)) drive([this] { engine_->hurry(clock_.now()); });
    Nanos last_work;
    int idle_polls = 0;
    bool worked = true;
    while (!done() && !over()) {
      const bool worked_before = std::exchange(worked, drive_once());
      baton_.notify_done();  // also without work: a limit that has passed ends operations as well
      if (done() || baton_.wanted()) break;
      if (options_.settings.spin_budget.count != 0) {
        if (worked_before) last_work = drove_at_;  // that cycle's end
        idle_polls = worked ? 0 : idle_polls + 1;
        if (worked || drove_at_ - last_work < options_.settings.spin_budget) {
          if (idle_polls > polls_before_yield_) std::this_thread::yield();
          continue;
        }
      }
      // Also after work: what is left has a deadline of 0, and a descriptor with more to read ends the sleep at once.
      sleep_until(engine_->next_deadline());
    }
    if (!over()) drive([this] { engine_->flush_acks(clock_.now(), !progress_.joinable()); });
    // A caller that exchanges again and again wakes nobody in between, unless it leaves something that is due.
    hand_back(engine_->busy() || engine_->next_deadline().count == 0);
  }
}

Status Context::add_bell(CompletionBell& bell) {
  if (!has_thread() && !alarm_.open()) {
    alarm_ = Descriptor(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (!alarm_.open()) return system_error("timerfd_create", errno);
  }
  const int others[] = {lanes_->poll_fd(), doorbell_.fd(), alarm_.fd()};
  if (Status s = bell.open(std::span(others).first(has_thread() ? 0 : 3)); !s.ok()) return s;
  bells_.push_back(&bell);
  if (!has_thread()) drive_for_bells();
  if (over()) bell.ring();
  return {};
}

void Context::answer_bell(CompletionBell& bell) {
  // First: what this thread completes here, its owner is about to look at.
  if (!has_thread()) {
    with_engine([this](Engine&) { drive_for_bells(); });
  }
  bell.drain();
}

// The caller's loop is the sleeping thread of hand_back() from here on: whoever drives in between prepares its sleep
// anew, and rings the doorbell where the engine's next deadline has come nearer.
void Context::drive_for_bells() {
  drive_once();
  if (over()) return;
  const Nanos deadline = engine_->next_deadline();
  thread_wakes_at_.store(deadline.count, std::memory_order_release);
  const bool sleeps = lanes_->prepare_to_sleep();
  thread_sleeps_.store(true, std::memory_order_relaxed);
  if (!sleeps || deadline <= clock_.now()) {
    ring_doorbell();
    return;
  }
  itimerspec at{};  // zero: never
  if (deadline != Nanos::max()) {
    at.it_value.tv_sec = static_cast<time_t>(deadline.count / 1'000'000'000);
    at.it_value.tv_nsec = static_cast<long>(deadline.count % 1'000'000'000);
  }
  timerfd_settime(alarm_.fd(), TFD_TIMER_ABSTIME, &at, nullptr);
}

Status Context::hand_over(const port::Command& command) {
  if (over()) return {};
  Status taken = engine_->submit(command);
  return taken.code() == CANARY_WOULD_BLOCK ? wait_for_room(command) : taken;
}

// The command's deadline counts from here, not from when there is room.
Status Context::wait_for_room(port::Command command) {
  const Nanos limit{command.time_limit}, called = clock_.now();
  while (!over()) {
    // The queues of commands and messages are emptied by whoever drives; a member's operations by those it exchanges
    // with.
    nudge();
    if (command.kind == port::Command::Kind::kOperation)
      drive_until([&] { return !engine_->full(command.member); }, false);
    if (limit.count > 0) command.time_limit = std::max<std::int64_t>(1, (limit - (clock_.now() - called)).count);
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
  return with_engine([&](Engine&) { return lanes_->allocate(bytes); });
}

Status Context::release(void* memory) {
  return with_engine([&](Engine&) { return lanes_->release(memory); });
}

void Context::nudge() {
  if (!try_take()) {
    ring_doorbell();
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!try_take()) return;
  }
  drive_once();
  hand_back(true);
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
  if (!engine_) return;
  stop_.store(true, std::memory_order_release);
  ring_doorbell();
  baton_.notify_all();
  if (progress_.joinable()) progress_.join();
  if (over()) return;
  with_engine([this](Engine&) {
    if (engine_->ready()) say_farewell();
    over_.store(true, std::memory_order_release);
    for (CompletionBell* bell : bells_) bell->ring();
  });
  baton_.notify_all();
}

void Context::say_farewell() {
  const Nanos began = clock_.now();
  engine_->leave(began);
  const Nanos limit = kLeaveLimit + options_.settings.silence_limit;  // the engine knows whom it waits for
  while (!engine_->left() && !over() && clock_.now() - began < limit) {
    if (!drive_once() && !engine_->left()) sleep_until(std::min(engine_->next_deadline(), clock_.now() + 5_ms));
  }
  // The sockets' queues may still hold a part of the farewell.
  for (int i = 0; i < 8 && !over() && drive_once(); ++i) {
  }
}

}  // namespace canarynet
