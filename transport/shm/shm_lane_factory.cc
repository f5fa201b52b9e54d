#include "transport/shm/shm_lane_factory.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "transport/shm/shm_lane.h"

namespace canarynet {
namespace {

constexpr std::uint16_t kRailPort = 1;
// This bit in a lane's key tells its bell from its socket.
constexpr std::uint64_t kBellBit = LaneTable<ShmLane>::kFactoryBit;
// While nobody sleeps only dials and hang-ups come through the kernel: it is asked seldom.
constexpr Nanos kQuestionInterval = 50_us;

}  // namespace

Result<std::unique_ptr<ShmLaneFactory>> ShmLaneFactory::create(const ShmOptions& options) {
  std::unique_ptr<ShmLaneFactory> factory(new ShmLaneFactory(options));
  if (Status status = factory->start(); !status.ok()) return status;
  return factory;
}

ShmLaneFactory::ShmLaneFactory(const ShmOptions& options) : options_(options) {}

Status ShmLaneFactory::start() {
  if (options_.name.family != Address::Family::kSharedMemory) {
    return Status(CANARY_INVALID_ARGUMENT, "shm: \"" + options_.name.to_string() + "\" is no name for shared memory");
  }
  if (Status status = open_epoll(); !status.ok()) return status;
  // Where memory can't be had it is better known now, while there is another way to every peer.
  shm::Descriptor memory;
  auto trial = shm::Segment::create(options_.ring_bytes, &memory);
  if (!trial.ok()) return trial.status();
  auto bound = add_listener(kRailPort, options_.rail);
  if (!bound.ok()) return bound.status();
  rail_.device = kDevice;
  rail_.address = bound.value();
  return {};
}

ShmLaneFactory::~ShmLaneFactory() {
  greeting_.clear();
  lanes_.for_each([](ShmLane& lane) {
    if (lane.writer_) lane.writer_->revoke_all();
    lane.factory_ = nullptr;
    lane.state_ = ShmLane::State::kDown;
    lane.queue_.clear();
    lane.socket_.close();
    lane.bell_.close();
  });
}

Result<Address> ShmLaneFactory::add_listener(std::uint16_t port, int rail) {
  Address at = options_.name;
  at.port = port;
  auto made = shm::listen_at(at);
  if (!made.ok()) return made.status();
  if (Status status = EpollFactory::add_listener(made.take(), rail); !status.ok()) return status;
  return at;
}

Result<Address> ShmLaneFactory::listen_control(const Address& at) {
  return add_listener(at.port != 0 ? at.port : next_control_port_++, kControlRail);
}

Result<std::unique_ptr<Lane>> ShmLaneFactory::dial(int rail, const Address& to, LaneSink& sink) {
  if (rail != kControlRail && rail != options_.rail) {
    return Status(CANARY_INVALID_ARGUMENT, "shm: there is no rail " + std::to_string(rail));
  }
  if (to.family != Address::Family::kSharedMemory || to.port == 0) {
    return Status(CANARY_INVALID_ARGUMENT,
                  "shm: cannot dial \"" + to.to_string() + "\": it names no process of this host");
  }
  bool refused = false;
  auto connected = shm::connect_to(to, &refused);
  if (!connected.ok()) return connected.status();
  shm::Descriptor socket = connected.take();
  int pid = 0;
  if (!refused) {
    if (Status status = shm::check_peer(socket.fd(), &pid); !status.ok()) return status;
  }
  auto adopted = adopt(std::move(socket), refused ? Origin::kRefused : Origin::kDialled, rail, pid);
  if (!adopted.ok()) return adopted.status();
  std::unique_ptr<ShmLane> lane = adopted.take();
  lane->set_sink(&sink);
  if (refused) {
    lane->break_down(system_error("cannot connect to " + to.to_string(), ECONNREFUSED), true);
  } else {
    if (Status status = lane->offer(options_.ring_bytes); !status.ok()) return status;
    waiting_.push_back(lane->key_);
  }
  return std::unique_ptr<Lane>(std::move(lane));
}

Result<std::unique_ptr<ShmLane>> ShmLaneFactory::adopt(shm::Descriptor socket, Origin origin, int rail, int peer_pid) {
  auto bell = shm::make_bell();
  if (!bell.ok()) return bell.status();
  const int socket_fd = socket.fd(), bell_fd = bell.value().fd();
  auto lane = std::make_unique<ShmLane>(
      *this, ShmLane::Setup{.socket = std::move(socket),
                            .bell = bell.take(),
                            .state = origin == Origin::kAccepted ? ShmLane::State::kGreeting : ShmLane::State::kOffered,
                            .rail = rail,
                            .peer_pid = peer_pid,
                            .queue_frames = options_.queue_frames,
                            .slot_bytes = options_.slot_bytes});
  lanes_.add(*lane);
  // A socket that is not connected is readable for ever: it says nothing of interest.
  if (origin != Origin::kRefused) {
    if (Status status = watch(socket_fd, EPOLLIN | EPOLLRDHUP, lane->key_); !status.ok()) return status;
  }
  if (Status status = watch(bell_fd, EPOLLIN | EPOLLET, lane->key_ | kBellBit); !status.ok()) return status;
  return lane;
}

void ShmLaneFactory::schedule(ShmLane& lane) {
  if (lanes_.schedule(lane) && asleep_ && !in_poll_) ring();
}

void ShmLaneFactory::arena_is_gone(std::uint32_t id) {
  lanes_.for_each([id](ShmLane& lane) { lane.arena_is_gone(id); });
}

std::size_t ShmLaneFactory::poll(Nanos now) {
  const SoleUser::Use use(user_);
  CANARY_CHECK(!in_poll_, "poll() was called from within poll()");
  in_poll_ = true;
  handled_ = 0;
  if (asleep_ || now >= next_question_) ask_kernel(now);
  asleep_ = false;
  look_at_rings();
  handled_ += lanes_.run_pending();
  if (!waiting_.empty()) check_waiting(now);
  in_poll_ = false;
  return handled_;
}

bool ShmLaneFactory::prepare_to_sleep() {
  asleep_ = true;
  bool nothing = !lanes_.pending();
  lanes_.for_each([&](ShmLane& lane) {
    if (!lane.sleep()) nothing = false;
  });
  return nothing;
}

// Dials, first words, hang-ups, arenas. A bell or the doorbell says only that there is something in memory.
void ShmLaneFactory::ask_kernel(Nanos now) {
  next_question_ = now + kQuestionInterval;
  resume_listeners(now);
  epoll_event events[kEventsPerPoll];
  const int count = ::epoll_wait(epoll_.fd(), events, kEventsPerPoll, 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t key = events[i].data.u64;
    if (key == kDoorbellKey || (key & kBellBit) != 0) continue;
    if (key < kDoorbellKey) {
      accept_some(*listeners_[key], now);
    } else {
      ShmLane* lane = lanes_.find(key);
      const bool greeting = lane != nullptr && lane->state_ == ShmLane::State::kGreeting;
      handled_ += lanes_.visit(key, [](ShmLane& ready) { return ready.on_socket(); });
      if (greeting && lane->state_ != ShmLane::State::kGreeting) hand_over(*lane, now);
    }
  }
}

void ShmLaneFactory::look_at_rings() {
  lanes_.for_each([this](ShmLane& lane) {
    if (lane.ready()) handled_ += lanes_.visit(lane.key_, [](ShmLane& ready) { return ready.on_rings(); });
  });
}

// An accepted lane has got its offer, or ended before.
void ShmLaneFactory::hand_over(ShmLane& lane, Nanos now) {
  const auto found = std::find_if(greeting_.begin(), greeting_.end(), [&](const auto& g) { return g.get() == &lane; });
  CANARY_CHECK(found != greeting_.end(), "an accepted lane without an owner");
  std::unique_ptr<ShmLane> owned = std::move(*found);
  greeting_.erase(found);  // the order stays: the oldest one is first
  if (owned->state_ != ShmLane::State::kUp) {
    if (!owned->broken_hangup_) note_trouble(owned->broken_reason_, now);
    return;
  }
  trouble_.clear();
  if (acceptor_ != nullptr) acceptor_->on_accept(std::move(owned));
}

void ShmLaneFactory::check_waiting(Nanos now) {
  // By index: a callback may dial and so append.
  for (std::size_t i = 0; i < waiting_.size();) {
    const std::uint64_t key = waiting_[i];
    ShmLane* lane = lanes_.find(key);
    const bool greeting = lane != nullptr && lane->state_ == ShmLane::State::kGreeting;
    if (greeting || (lane != nullptr && lane->state_ == ShmLane::State::kOffered)) {
      // dial() is not told the time: the limit runs from the first poll() after it.
      if (lane->deadline_ == Nanos::max()) lane->deadline_ = now + options_.connect_timeout;
      if (now < lane->deadline_) {
        ++i;
        continue;
      }
      handled_ += lanes_.visit(key, [this](ShmLane& late) { return late.on_time_out(options_.connect_timeout); });
      if (greeting) hand_over(*lane, now);
    }
    waiting_[i] = waiting_.back();
    waiting_.pop_back();
  }
}

Nanos ShmLaneFactory::next_deadline() const {
  Nanos next = next_resumption();
  for (std::uint64_t key : waiting_) {
    const ShmLane* lane = lanes_.find(key);
    if (lane == nullptr || (lane->state_ != ShmLane::State::kOffered && lane->state_ != ShmLane::State::kGreeting))
      continue;
    if (lane->deadline_ == Nanos::max()) return {};  // at once: its limit has to be set
    next = std::min(next, lane->deadline_);
  }
  return next;
}

void ShmLaneFactory::accept_some(Listener& listener, Nanos now) {
  for (int i = 0; i < kAcceptsPerPoll; ++i) {
    shm::Descriptor socket(::accept4(listener.socket.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.open()) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      const int error_number = errno;
      if (error_number == EMFILE || error_number == ENFILE || error_number == ENOBUFS || error_number == ENOMEM) {
        note_trouble(system_error("shm: connections can't be accepted", error_number), now);
        return pause(listener, now);
      }
      continue;  // EINTR, or an error of the one connection that was next
    }
    ++handled_;
    int pid = 0;
    if (acceptor_ == nullptr || lanes_.size() >= options_.lanes_max) continue;
    if (Status other_user = shm::check_peer(socket.fd(), &pid); !other_user.ok()) {
      stranger_warning_.say(now, other_user.text() + ": its connection was turned away");
      continue;
    }
    auto adopted = adopt(std::move(socket), Origin::kAccepted, listener.rail, pid);
    if (!adopted.ok()) {
      note_trouble(adopted.status(), now);
      continue;
    }
    if (greeting_.size() >= options_.strangers_max) greeting_.erase(greeting_.begin());
    greeting_.push_back(adopted.take());
    waiting_.push_back(greeting_.back()->key_);
  }
}

}  // namespace canarynet
