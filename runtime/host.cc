#include "runtime/host.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/check.h"
#include "base/fork.h"
#include "base/secret.h"
#include "engine/endpoint.h"
#include "kernels/reduce.h"
#include "runtime/library_thread.h"

namespace canarynet {
namespace {

// While callers drive, the thread looks this often whether they still do.
constexpr Nanos kNap = 5_ms;
// For a caller that was woken to take the baton.
constexpr Nanos kHandover = 100_us;

struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<Host>> hosts;
};

constexpr std::size_t index_of(Host::Place place) { return static_cast<std::size_t>(place); }

// An endpoint's callers may spin on every core while they wait for this thread (NCCL's do). A short slice lets it run
// as soon as it wakes instead of when theirs end (Linux before 6.12 ignores it). Where the process may, it weighs more
// than they do as well: else the scheduler finds nothing wrong with two callers that yield to each other on one core
// while the threads that they wait for share another.
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

// --- places ----------------------------------------------------------------------------------------------------------

Result<std::shared_ptr<Host>> Host::take_place(Place place, Wanted wanted) {
  Registry& registry = process_wide<Registry>();
  const std::lock_guard lock(registry.mutex);
  if (wanted.shared) {
    for (const auto& known : registry.hosts) {
      std::shared_ptr<Host> host = known.lock();
      if (!host || host->taken_[index_of(place)] || !host->serves(wanted)) continue;
      host->taken_[index_of(place)] = true;
      return host;
    }
    std::erase_if(registry.hosts, [](const auto& known) { return known.expired(); });
    registry.hosts.reserve(registry.hosts.size() + 1);
  }
  std::shared_ptr<Host> host(new Host);
  const bool shared = wanted.shared;
  if (Status s = host->open(std::move(wanted)); !s.ok()) return s;
  host->taken_[index_of(place)] = true;
  if (shared) registry.hosts.push_back(host);
  return host;
}

Status Host::open(Wanted wanted) {
  settings_ = wanted.settings;
  asked_ = wanted.tcp.rails;
  pacing_ = wanted.tcp.pacing;
  host_id_ = wanted.host_id;
  doorbell_ = Descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!doorbell_.open()) return system_error("eventfd", errno);
  // A name can be read by every user of the machine, and must tell nothing of any token.
  auto name = draw_secret();
  if (!name.ok()) return name.status();
  // For those of all links that an endpoint accepts, and as many that it dials; a peer may have more rails than this
  // host.
  wanted.tcp.lanes_max = static_cast<std::uint32_t>(2 * EndpointOptions{}.accepted_links_max * kRailsMax *
                                                    static_cast<std::size_t>(settings_.lanes_per_rail));
  auto tcp = TcpLaneFactory::create(std::move(wanted.tcp));
  if (!tcp.ok()) return tcp.status();
  tcp_ = tcp.take();
  auto lanes = HostLanes::create(settings_, wanted.has_peers, host_id_, name.value(), *tcp_);
  if (!lanes.ok()) return lanes.status();
  lanes_ = lanes.take();
  rails_ = std::make_shared<SharedRails>(*lanes_, strangers_share());
  return {};
}

bool Host::serves(const Wanted& wanted) const {
  const Settings& s = wanted.settings;
  const auto same = [](const Rail& a, const Rail& b) { return a.device == b.device && a.address == b.address; };
  return !broken_ && std::equal(asked_.begin(), asked_.end(), wanted.tcp.rails.begin(), wanted.tcp.rails.end(), same) &&
         std::equal(pacing_.begin(), pacing_.end(), wanted.tcp.pacing.begin(), wanted.tcp.pacing.end()) &&
         host_id_ == wanted.host_id && settings_.transports == s.transports && settings_.insecure == s.insecure &&
         settings_.tcp_congestion == s.tcp_congestion && settings_.tcp_notsent_lowat == s.tcp_notsent_lowat &&
         settings_.lanes_per_rail == s.lanes_per_rail && settings_.piece_bytes == s.piece_bytes;
}

Host::~Host() { stop(); }

void Host::move_in(Place place, Resident& resident) {
  residents_[index_of(place)] = &resident;
  if (place != Place::kEndpoint) return;
  has_endpoint_.store(true, std::memory_order_release);
  baton_.call_progress();  // it does not rest any more
}

void Host::drive_no_more(Place place) {
  residents_[index_of(place)] = nullptr;
  if (place == Place::kEndpoint) has_endpoint_.store(false, std::memory_order_release);
}

void Host::give_place(Place place) {
  bool empty = false;
  {
    Registry& registry = process_wide<Registry>();
    const std::lock_guard lock(registry.mutex);
    taken_[index_of(place)] = false;
    empty = taken_ == std::array<bool, 2>{};
    // Nobody moves in any more.
    if (empty) std::erase_if(registry.hosts, [this](const auto& known) { return known.lock().get() == this; });
  }
  if (empty) stop();
}

void Host::set_patience(Nanos spin_budget, Nanos halt_poll) {
  spin_budget_ = spin_budget;
  halt_poll_ = HaltPoll(halt_poll);
}

// --- driving ---------------------------------------------------------------------------------------------------------

bool Host::drive_once() {
  // Only the holder of the baton answers the doorbell, before it looks: a thread that merely woke up by it could
  // silence it while the holder sleeps on.
  if (rung_.load(std::memory_order_relaxed) && rung_.exchange(false, std::memory_order_acq_rel)) drain_doorbell();
  if (asleep_.load(std::memory_order_relaxed)) asleep_.store(false, std::memory_order_relaxed);
  const DenormalGuard guard;
  const Nanos now = drove_at_ = clock_.now();
  for (Resident* r : residents_) {
    if (r != nullptr) attempt(*r, [&] { r->begin_poll(now); });
  }
  bool moved = false;
  try {
    moved = !broken_ && lanes_->poll(now) != 0;
  } catch (const std::bad_alloc&) {  // in either's callbacks, and half way through the lanes
    broken_ = true;
    for (Resident* r : residents_) {
      if (r != nullptr && !r->over()) end(*r);
    }
  }
  bool worked = moved;
  for (Resident* r : residents_) {
    if (r != nullptr) attempt(*r, [&] { worked |= r->end_poll(now, moved) != 0; });
  }
  ring_bells();
  return worked;
}

void Host::drive_or_sleep(Nanos limit) {
  const bool worked = drive_once();
  baton_.notify_done();
  if (!worked) sleep_until(std::min(next_deadline(), clock_.now() + limit));
}

void Host::end(Resident& resident) {
  resident.give_up();
  ring_doorbell();
  baton_.notify_all();
}

void Host::ring_bells() {
  for (Resident* r : residents_) {
    if (r != nullptr) r->ring_bells();
  }
}

bool Host::called() const {
  return std::any_of(residents_.begin(), residents_.end(),
                     [](const Resident* r) { return r != nullptr && !r->over() && r->called(); });
}

Nanos Host::next_deadline() const {
  Nanos next = Nanos::max();
  for (const Resident* r : residents_) {
    if (r != nullptr && !r->over()) next = std::min(next, r->next_deadline());
  }
  return next;
}

// False: there is something to do.
bool Host::prepare_to_sleep() {
  // An exchange on either side: whoever submits sees the sleeper, or the sleeper what was submitted.
  if (residents_[index_of(Place::kEndpoint)] != nullptr) asleep_.exchange(true);
  return !called() && (broken_ || lanes_->prepare_to_sleep());
}

void Host::sleep_until(Nanos deadline) {
  if (deadline > clock_.now() && prepare_to_sleep()) wait_for_lanes(deadline);
}

// After prepare_to_sleep().
void Host::wait_for_lanes(Nanos deadline) {
  const Nanos now = clock_.now();
  if (deadline <= now) return;
  const Nanos span = std::min(deadline - now, 10_s);
  const timespec t{static_cast<time_t>(span.count / 1'000'000'000), static_cast<long>(span.count % 1'000'000'000)};
  pollfd fds[2] = {{broken_ ? -1 : lanes_->poll_fd(), POLLIN, 0}, {doorbell_.fd(), POLLIN, 0}};
  // Whoever rang may not have come to note it, being preempted by this very thread.
  if (::ppoll(fds, 2, &t, nullptr) > 0 && (fds[1].revents & POLLIN) != 0) rung_.store(true, std::memory_order_release);
}

void Host::ring_doorbell() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(doorbell_.fd(), &one, sizeof one);  // full means it rings already
  // Second: a ring that is seen has been written, or nobody would ever read it.
  rung_.store(true, std::memory_order_release);
}

void Host::drain_doorbell() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(doorbell_.fd(), &count, sizeof count);
}

void Host::notify_all() {
  ring_doorbell();
  baton_.notify_all();
}

// --- callers ---------------------------------------------------------------------------------------------------------

bool Host::try_take() {
  if (!baton_.try_take()) return false;
  turns_.fetch_add(1, std::memory_order_relaxed);
  unattended_.store(false, std::memory_order_relaxed);
  return true;
}

void Host::hand_back(bool busy) {
  // Events polled here may have been those that the sleeping thread was to be woken for; nobody else would ask for the
  // next ones.
  const bool missed = thread_sleeps_.load(std::memory_order_relaxed) && !prepare_to_sleep();
  const bool told = busy || thread_sleeps_.load(std::memory_order_relaxed);  // else it looks soon by itself
  const Nanos deadline = told ? next_deadline() : Nanos::max();
  unattended_.store(busy || missed, std::memory_order_relaxed);
  baton_.give(busy || missed || residents_[index_of(Place::kEndpoint)] != nullptr);
  // A caller that rang while this thread was leaving has found the engine taken; if its ring comes later, it finds it
  // free (see nudge()).
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (rung_.load(std::memory_order_relaxed)) {
    unattended_.store(true, std::memory_order_relaxed);
    baton_.call_progress();
  }
  if (missed || deadline.count < thread_wakes_at_.load(std::memory_order_acquire)) ring_doorbell();
}

void Host::nudge() {
  if (!try_take()) {
    ring_doorbell();
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!try_take()) return;
  }
  drive_once();
  hand_back(true);
}

Result<std::array<int, 3>> Host::open_alarm() {
  if (!alarm_.open()) {
    alarm_ = Descriptor(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (!alarm_.open()) return system_error("timerfd_create", errno);
  }
  return std::array<int, 3>{lanes_->poll_fd(), doorbell_.fd(), alarm_.fd()};
}

// The caller's loop is the sleeping thread of hand_back() from here on: whoever drives in between prepares its sleep
// anew, and rings the doorbell where the next deadline has come nearer.
void Host::drive_for_loops(const Resident& resident) {
  drive_once();
  if (resident.over()) return;
  const Nanos deadline = next_deadline();
  thread_wakes_at_.store(deadline.count, std::memory_order_release);
  const bool sleeps = prepare_to_sleep();
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

// --- the thread ------------------------------------------------------------------------------------------------------

Status Host::start_thread(const char* name) {
  const std::lock_guard lock(thread_mutex_);
  if (has_thread()) return {};
  Status started = start_library_thread(
      name, [this] { run(); }, &thread_);
  if (started.ok()) has_thread_.store(true, std::memory_order_release);
  return started;
}

void Host::stop() {
  const std::lock_guard lock(thread_mutex_);
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  notify_all();
  thread_.join();
}

void Host::run() {
  const auto stopped = [this] { return stop_.load(std::memory_order_acquire); };
  std::uint32_t turns_seen = 0;
  bool precedes = false;
  while (!stopped()) {
    const bool has_endpoint = has_endpoint_.load(std::memory_order_acquire);
    if (has_endpoint && !std::exchange(precedes, true)) ask_for_precedence();
    // As long as callers come again and again it stays out of their way: lanes that had to wake it would cost every one
    // of them.
    const std::uint32_t turns = turns_.load(std::memory_order_relaxed);
    if (turns != std::exchange(turns_seen, turns) && !has_endpoint && !unattended_.load(std::memory_order_acquire)) {
      baton_.rest(kNap, [&] {
        return stopped() || unattended_.load(std::memory_order_acquire) ||
               has_endpoint_.load(std::memory_order_acquire);
      });
      continue;
    }
    if (!baton_.try_take()) {
      baton_.nap(kNap, stopped);
      continue;
    }
    const bool worked = drive_once();
    if (polls_on(worked)) {
      const bool yields = drove_at_ - last_work_ >= spin_budget_;
      baton_.give(false);
      if (baton_.waited_for()) {
        baton_.rest(kHandover, stopped);
      } else if (yields) {
        sched_yield();  // whose message it waits for may want this core
      }
      continue;
    }
    const Nanos deadline = next_deadline();
    thread_wakes_at_.store(deadline.count, std::memory_order_release);
    const bool sleeps = deadline > drove_at_ && prepare_to_sleep();
    thread_sleeps_.store(sleeps, std::memory_order_relaxed);  // read by holders of the baton
    baton_.give();
    if (!sleeps || stopped()) continue;
    wait_for_lanes(deadline);
    thread_sleeps_.store(false, std::memory_order_relaxed);
  }
}

// After a cycle: whether to look again at once, for an endpoint's sake.
bool Host::polls_on(bool worked) {
  const Resident* const endpoint = residents_[index_of(Place::kEndpoint)];
  if (endpoint == nullptr || endpoint->over()) return false;
  if (worked) {
    halt_poll_.found(drove_at_, drove_at_ - last_work_);
    last_work_ = drove_at_;
  }
  const Nanos waited = drove_at_ - last_work_;
  if (waited < spin_budget_) return true;
  if (!endpoint->moves_bulk() && halt_poll_.goes_on(drove_at_, waited)) return true;
  halt_poll_.stop();
  return false;
}

}  // namespace canarynet
