#include "tests/nccl/communicator.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "tests/nccl/call_timer.h"

namespace nccltest {
namespace {

constexpr std::size_t kHandleGuardBytes = 64;
// How long passes have to be fruitless before the progress thread sleeps (Options::idle_sleep_us). A plugin that does
// its I/O in test() moves bytes in passes that look fruitless from here.
constexpr std::uint64_t kYieldNs = 50'000;

Millis millis(double seconds) { return Millis(static_cast<long>(seconds * 1e3)); }

// NCCL does not zero its handle buffers for the plugin, and something else lies behind them.
struct Handle {
  unsigned char bytes[kHandleBytes];
  unsigned char guard[kHandleGuardBytes];
  Handle() { std::memset(this, 0xCC, sizeof *this); }
  bool intact() const { return check_bytes(guard, sizeof guard, 0xCC) == sizeof guard; }
};

}  // namespace

void sleep_us(long us) {
  timespec t{us / 1'000'000, us % 1'000'000 * 1000};
  nanosleep(&t, nullptr);
}

void exact_sleeps() { prctl(PR_SET_TIMERSLACK, 1000UL); }

void idle(long us) {
  if (us > 0) {
    sleep_us(us);
  } else if (us == 0) {
    sched_yield();
  }
}

double seconds_between(std::uint64_t begin_ns, std::uint64_t end_ns) {
  return (static_cast<double>(end_ns) - static_cast<double>(begin_ns)) / 1e9;
}

// --- service thread --------------------------------------------------------------------------------------------------

ServiceThread::ServiceThread() : thread_([this] { loop(); }) {}

ServiceThread::~ServiceThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ServiceThread::run(const std::function<void()>& work) {
  std::unique_lock lock(mutex_);
  work_ = &work;
  changed_.notify_all();
  changed_.wait(lock, [&] { return work_ == nullptr; });
}

void ServiceThread::loop() {
  pthread_setname_np(pthread_self(), "nccl-service");
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || work_; });
    if (stop_) return;
    lock.unlock();
    (*work_)();
    lock.lock();
    work_ = nullptr;
    changed_.notify_all();
  }
}

// --- set-up ----------------------------------------------------------------------------------------------------------

Communicator::Communicator(Net& net, const Options& options, int index, int generation)
    : net_(net), options_(options), rank_(options.rank), index_(index), generation_(generation) {}

Communicator::~Communicator() {
  stop();
  close();
  finalize();
}

bool Communicator::init() {
  const std::uint64_t comm_id = mix64(options_.seed) + static_cast<std::uint64_t>(index_);
  ctx_ = reinterpret_cast<void*>(std::uintptr_t{0xDEAD0});  // a plugin never reads it: it only writes there
  const Result result = net_.init(&ctx_, comm_id, plugin_logger());
  initialised_ = true;
  if (result != kSuccess) {
    fail("init: %s", result_name(result));
    return false;
  }
  const Result counted = net_.devices(&devices_);
  if (counted != kSuccess || devices_ <= 0) {
    fail("devices: %s, %d devices", result_name(counted), devices_);
    return false;
  }
  std::set<std::string> names;
  bool right = true;
  for (int dev = 0; dev < devices_; ++dev) {
    Properties p;
    right = check_properties(dev) && right;
    if (net_.properties(dev, &p) == kSuccess && !names.insert(p.name).second) {
      fail("devices %s: the name is used twice", p.name.c_str());
      right = false;
    }
  }
  return right;
}

// Looks for values that NCCL rejects, or takes for nonsense later on.
bool Communicator::check_properties(int dev) {
  Properties p;
  const Result result = net_.properties(dev, &p);
  const char* wrong = nullptr;
  if (result != kSuccess) {
    wrong = result_name(result);
  } else if (!p.has_name || p.name.empty()) {
    wrong = "no name";
  } else if (!(p.ptr_support & kPtrHost)) {
    wrong = "ptrSupport without host memory";
  } else if (p.speed_mbit <= 0) {
    wrong = "speed is not positive";
  } else if (!(p.latency_us >= 0 && p.latency_us < 1e6)) {
    wrong = "latency is nonsense";
  } else if (p.max_comms <= 0 || p.max_recvs < 1 || p.max_recvs > Net::kMaxGroup) {
    wrong = "maxComms or maxRecvs is nonsense";
  } else if (p.net_device_type != kDeviceHost) {
    wrong = "netDeviceType is not host";
  } else if (p.max_p2p_bytes == 0 || p.max_p2p_bytes > kMaxNetBytes || p.max_coll_bytes == 0 ||
             p.max_coll_bytes > kMaxNetBytes) {
    wrong = "maxP2pBytes or maxCollBytes is not in 1 to 2^40";
  } else if (p.vdevices < 1 || p.vdevices > 8) {
    wrong = "vProps.ndevs is nonsense";
  }
  if (wrong) fail("getProperties(%d) of v%d: %s", dev, net_.version(), wrong);
  return wrong == nullptr;
}

int Communicator::dev_of(int channel) const {
  if (options_.dev == "spread") return channel % devices_;
  return std::min(std::stoi(options_.dev), devices_ - 1);
}

// ring: every rank sends to the next and receives from the one before, per channel. both: every rank exchanges with
// both neighbours, like rings and trees together. forward: rank 0 sends to rank 1, nothing else.
void Communicator::make_endpoints() {
  const auto add = [&](bool sends, int peer, int channel, int lap) {
    const int sender = sends ? rank_ : peer, receiver = sends ? peer : rank_;
    EndpointOptions o;
    o.sends = sends;
    o.peer = peer;
    o.tag = sender;
    o.connection = static_cast<std::uint64_t>(((index_ * 16 + sender) * 16 + receiver) * 256 + channel * 2 + lap);
    o.dev = dev_of(channel);
    o.depth = options_.depth;
    o.group = options_.group;
    o.check = options_.check;
    o.gap_ns_min = static_cast<std::uint64_t>(options_.gap_ms * 1e6);
    endpoints_.push_back(std::make_unique<Endpoint>(net_, o, options_.traffic));
    channels_.push_back(channel);
  };
  const int n = options_.ranks, next = (rank_ + 1) % n, previous = (rank_ + n - 1) % n;
  for (int channel = 0; channel < options_.channels; ++channel) {
    if (options_.pattern == "forward") {
      if (rank_ <= 1) add(rank_ == 0, 1 - rank_, channel, 0);
      continue;
    }
    add(true, next, channel, 0);
    add(false, previous, channel, 0);
    if (options_.pattern == "both") {
      add(true, previous, channel, 1);
      add(false, next, channel, 1);
    }
  }
}

bool Communicator::meet() {
  if (met_) return true;
  std::string error;
  met_ = bootstrap_.join(options_.meet, "c" + std::to_string(index_) + "." + std::to_string(generation_), rank_,
                         options_.ranks, millis(options_.connect_limit), &error);
  if (!met_) fail("bootstrap: %s", error.c_str());
  return met_;
}

ConnectOutcome Communicator::connect(bool may_fail, const std::function<void()>& after_listen) {
  ConnectOutcome outcome;
  if (!meet()) return outcome;
  endpoints_.clear();
  channels_.clear();
  make_endpoints();
  const std::size_t count = endpoints_.size();
  std::vector<Handle> handles(count);
  std::vector<void*> listeners(count, nullptr);
  const auto error = [&](const char* call, const Endpoint& endpoint, Result result) {
    if (outcome.result == kSuccess) {
      outcome.result = result;
      outcome.call = call;
    }
    if (!may_fail)
      fail("%s with rank %d: %s (%s)", call, endpoint.options().peer, result_name(result), last_warning().c_str());
  };
  const std::uint64_t begin = now_ns();

  service_.run([&] {
    for (std::size_t i = 0; i < count; ++i) {
      const Endpoint& endpoint = *endpoints_[i];
      if (endpoint.options().sends) continue;
      check_properties(endpoint.options().dev);
      const Result result = timed(CallOf::kService, "listen", [&] {
        return net_.listen(ctx_, endpoint.options().dev, handles[i].bytes, &listeners[i]);
      });
      if (result != kSuccess) return error("listen", endpoint, result);
      if (!listeners[i]) fail("listen succeeded without a listenComm");
      if (!handles[i].intact()) fail("listen wrote behind the handle's %zu bytes", kHandleBytes);
    }
  });

  if (after_listen) after_listen();
  // Handles travel to the senders, in the order in which both ends count their connections.
  for (std::size_t i = 0; i < count; ++i) {
    const EndpointOptions& o = endpoints_[i]->options();
    if (o.sends) continue;
    bootstrap_.send(o.peer, std::to_string(o.connection) + " " +
                                std::string(reinterpret_cast<const char*>(handles[i].bytes), kHandleBytes));
  }
  for (std::size_t awaited = 0; awaited < count; ++awaited) {
    const EndpointOptions& from = endpoints_[awaited]->options();
    if (!from.sends) continue;
    std::string message;
    if (!bootstrap_.receive(from.peer, &message, millis(options_.connect_limit)) ||
        message.find(' ') == std::string::npos) {
      if (!may_fail) fail("no handle from rank %d", from.peer);
      return outcome;
    }
    const std::uint64_t connection = std::stoull(message);
    const std::string handle = message.substr(message.find(' ') + 1);
    for (std::size_t i = 0; i < count; ++i) {
      const EndpointOptions& o = endpoints_[i]->options();
      if (o.sends && o.connection == connection && handle.size() == kHandleBytes) {
        std::memcpy(handles[i].bytes, handle.data(), kHandleBytes);
      }
    }
  }

  service_.run([&] {
    const std::uint64_t end = now_ns() + static_cast<std::uint64_t>(options_.connect_limit * 1e9);
    std::size_t missing = count;
    if (outcome.result != kSuccess) missing = 0;
    while (missing > 0 && now_ns() < end && outcome.result == kSuccess) {
      for (std::size_t i = 0; i < count && outcome.result == kSuccess; ++i) {
        Endpoint& endpoint = *endpoints_[i];
        if (endpoint.connected()) continue;
        void* comm = nullptr;
        const bool sends = endpoint.options().sends;
        net_.set_net_attr(ctx_);
        const Result result = timed(CallOf::kService, sends ? "connect" : "accept", [&] {
          return sends ? net_.connect(ctx_, endpoint.options().dev, handles[i].bytes, &comm)
                       : net_.accept(listeners[i], &comm);
        });
        if (result != kSuccess) {
          error(sends ? "connect" : "accept", endpoint, result);
          break;
        }
        if (!comm) continue;
        if (!handles[i].intact()) fail("connect wrote behind the handle's %zu bytes", kHandleBytes);
        endpoint.set_comm(comm);
        --missing;
        if (!sends) {
          const Result closed = timed(CallOf::kService, "closeListen", [&] { return net_.close_listen(listeners[i]); });
          if (closed != kSuccess) error("closeListen", endpoint, closed);
          listeners[i] = nullptr;
        }
        if (const Result registered = endpoint.register_buffers(); registered != kSuccess)
          error("regMr", endpoint, registered);
      }
      // A tight loop, but one that lets a machine of two cores do the plugin's work too.
      sched_yield();
    }
    outcome.connected = missing == 0 && outcome.result == kSuccess;
    outcome.seconds = seconds_between(begin, now_ns());
    if (missing > 0 && outcome.result == kSuccess && !may_fail) {
      fail("%zu of %zu connections were not made within %.0f s", missing, count, options_.connect_limit);
    }
    // A communicator that is aborted here never calls closeListen: finalize has to free them.
  });
  return outcome;
}

// --- traffic ---------------------------------------------------------------------------------------------------------

void Communicator::start(std::uint64_t messages_per_connection) {
  stop();
  for (auto& endpoint : endpoints_) {
    endpoint->set_limit(messages_per_connection == ~std::uint64_t{0} ? messages_per_connection
                                                                     : endpoint->consumed() + messages_per_connection);
  }
  command_ = kRun;
  frozen_ = false;
  progress_ended_ = false;
  progress_ = std::thread([this] { progress_loop(); });
}

void Communicator::progress_loop() {
  pthread_setname_np(pthread_self(), "nccl-progress");
  exact_sleeps();
  std::uint64_t moved_at = now_ns();
  std::uint64_t pause_number = 0, pause_until = 0;
  for (;;) {
    const int command = command_.load(std::memory_order_acquire);
    if (command == kStop) break;
    const std::uint64_t now = now_ns();
    bool moved = false, all_finished = true;
    if (options_.pauses && now >= pause_until) {
      // Plays a late GPU: at random moments nothing is posted or tested for a few milliseconds.
      const std::uint64_t h =
          mix64(options_.seed + mix64(static_cast<std::uint64_t>(rank_ * 16 + index_)) + ++pause_number);
      if (pause_until != 0) sleep_us(static_cast<long>(h % 8000));
      pause_until = now_ns() + (h >> 20) % 40'000'000;
    }
    for (auto& endpoint : endpoints_) {
      if (endpoint->finished()) continue;
      all_finished = false;
      moved = endpoint->step(now, command == kRun) || moved;
      if (endpoint->error() != kSuccess) {
        const std::lock_guard lock(error_mutex_);
        error_ = {endpoint->error(), endpoint->error_call(), endpoint->options().peer, now_ns()};
        error_at_ns_.store(error_.at_ns, std::memory_order_release);
        progress_ended_.store(true, std::memory_order_release);
        return;  // as NCCL's thread does: the other connections stop moving too
      }
    }
    if (command == kFreeze) frozen_.store(true, std::memory_order_release);
    if (all_finished) break;
    if (moved) {
      moved_at = now_ns();
      continue;
    }
    if (command == kRun && seconds_between(moved_at, now) > options_.stall_limit) {
      fail("no message moved for %.1f s on any of %zu connections", options_.stall_limit, endpoints_.size());
      for (const auto& endpoint : endpoints_) {
        if (endpoint->finished()) continue;
        say("  %s rank %d, connection %llx: %llu posted, %llu done", endpoint->options().sends ? "to" : "from",
            endpoint->options().peer, static_cast<unsigned long long>(endpoint->options().connection),
            static_cast<unsigned long long>(endpoint->posted()), static_cast<unsigned long long>(endpoint->consumed()));
      }
      break;
    }
    idle(options_.idle_sleep_us > 0 && now - moved_at < kYieldNs ? 0 : options_.idle_sleep_us);
  }
  progress_ended_.store(true, std::memory_order_release);
}

bool Communicator::wait(double seconds_max) {
  const std::uint64_t end = now_ns() + static_cast<std::uint64_t>(seconds_max * 1e9);
  while (!progress_ended_.load(std::memory_order_acquire)) {
    if (now_ns() > end) {
      fail("traffic did not end within %.1f s", seconds_max);
      return false;
    }
    sleep_us(1000);
  }
  if (failed()) {
    const ProgressError e = error();
    fail("%s with rank %d: %s (%s)", e.call.c_str(), e.peer, result_name(e.result), last_warning().c_str());
    return false;
  }
  return std::all_of(endpoints_.begin(), endpoints_.end(), [](const auto& endpoint) { return endpoint->finished(); });
}

bool Communicator::finish(double seconds_max) {
  command_.store(kFreeze, std::memory_order_release);
  const std::uint64_t end = now_ns() + static_cast<std::uint64_t>(seconds_max * 1e9);
  while (!frozen_.load(std::memory_order_acquire) && !progress_ended_.load(std::memory_order_acquire) && now_ns() < end)
    sleep_us(200);
  std::string mine = ".";
  for (const auto& endpoint : endpoints_) {
    mine += " " + std::to_string(endpoint->options().connection) + "=" + std::to_string(endpoint->posted());
  }
  std::vector<std::string> all;
  if (!bootstrap_.all_gather(mine, &all, millis(seconds_max))) {
    fail("a rank did not come to the end of the traffic");
    return false;
  }
  const std::uint64_t group = static_cast<std::uint64_t>(options_.group);
  for (auto& endpoint : endpoints_) {
    const std::string key = " " + std::to_string(endpoint->options().connection) + "=";
    std::uint64_t last = endpoint->posted();
    for (const std::string& text : all) {
      const std::size_t at = text.find(key);
      if (at != std::string::npos) last = std::max<std::uint64_t>(last, std::stoull(text.substr(at + key.size())));
    }
    endpoint->set_limit((last + group - 1) / group * group);
  }
  command_.store(kRun, std::memory_order_release);
  return wait(seconds_max);
}

void Communicator::stop() {
  if (!progress_.joinable()) return;
  command_.store(kStop, std::memory_order_release);
  progress_.join();
}

ProgressError Communicator::error() {
  const std::lock_guard lock(error_mutex_);
  return error_;
}

bool Communicator::wait_for_error(double seconds) {
  const std::uint64_t end = now_ns() + static_cast<std::uint64_t>(seconds * 1e9);
  while (!failed() && now_ns() < end && !progress_ended_.load(std::memory_order_acquire)) sleep_us(500);
  return failed();
}

// --- teardown --------------------------------------------------------------------------------------------------------

void Communicator::close(double seconds_max) {
  service_.run([&] {
    for (auto& endpoint : endpoints_) {
      if (!endpoint->connected()) continue;
      const char* call = endpoint->options().sends ? "closeSend" : "closeRecv";
      const std::uint64_t begin = now_ns();
      if (const Result result = endpoint->deregister_buffers(); result != kSuccess)
        fail("deregMr: %s", result_name(result));
      if (const Result result = endpoint->close(); result != kSuccess) fail("%s: %s", call, result_name(result));
      const double took = seconds_between(begin, now_ns());
      if (took > seconds_max) fail("%s took %.2f s", call, took);
    }
  });
}

void Communicator::finalize(double seconds_max) {
  if (!initialised_) return;
  initialised_ = false;
  const std::uint64_t begin = now_ns();
  if (const Result result = net_.finalize(ctx_); result != kSuccess) fail("finalize: %s", result_name(result));
  const double took = seconds_between(begin, now_ns());
  if (took > seconds_max) fail("finalize took %.2f s", took);
}

void Communicator::check_untouched() {
  for (const auto& endpoint : endpoints_) {
    if (!endpoint->untouched_since_close()) {
      fail("the buffer of connection %llx from rank %d was written after closeRecv",
           static_cast<unsigned long long>(endpoint->options().connection), endpoint->options().peer);
    }
  }
}

std::uint64_t Communicator::received_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& endpoint : endpoints_) sum += endpoint->options().sends ? 0 : endpoint->bytes();
  return sum;
}

std::uint64_t Communicator::received_messages() const {
  std::uint64_t sum = 0;
  for (const auto& endpoint : endpoints_) sum += endpoint->options().sends ? 0 : endpoint->consumed();
  return sum;
}

std::uint64_t Communicator::sent_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& endpoint : endpoints_) sum += endpoint->options().sends ? endpoint->bytes() : 0;
  return sum;
}

double Communicator::progress_cpu_seconds() {
  clockid_t clock;
  timespec t{};
  if (!progress_.joinable() || pthread_getcpuclockid(progress_.native_handle(), &clock) != 0 ||
      clock_gettime(clock, &t) != 0)
    return 0;
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

}  // namespace nccltest
