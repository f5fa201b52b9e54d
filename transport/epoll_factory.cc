#include "transport/epoll_factory.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace canarynet {
namespace {

constexpr Nanos kAcceptPause = 100_ms;

}  // namespace

Status EpollFactory::open_epoll() {
  epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.open()) return system_error(std::string(name()) + ": epoll_create1", errno);
  doorbell_ = Descriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!doorbell_.open()) return system_error(std::string(name()) + ": eventfd", errno);
  // Edge-triggered: each ring is reported once and nobody needs to read the counter back.
  return watch(doorbell_.fd(), EPOLLIN | EPOLLET, kDoorbellKey);
}

Status EpollFactory::watch(int fd, std::uint32_t events, std::uint64_t key) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  if (::epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return system_error(std::string(name()) + ": epoll_ctl", errno);
}

void EpollFactory::leave_epoll(const Descriptor& descriptor) const {
  if (descriptor.open()) ::epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, descriptor.fd(), nullptr);
}

void EpollFactory::ring() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(doorbell_.fd(), &one, sizeof one);
}

Status EpollFactory::add_listener(Descriptor socket, int rail) {
  const auto closed = [](const auto& listener) { return !listener->socket.open(); };
  const auto place = std::find_if(listeners_.begin(), listeners_.end(), closed) - listeners_.begin();
  if (Status status = watch(socket.fd(), EPOLLIN, static_cast<std::uint64_t>(place)); !status.ok()) return status;
  if (static_cast<std::size_t>(place) == listeners_.size()) listeners_.push_back(std::make_unique<Listener>());
  Listener& listener = *listeners_[static_cast<std::size_t>(place)];
  listener = {};
  listener.socket = std::move(socket);
  listener.rail = rail;
  return {};
}

void EpollFactory::close_listeners(int rail) {
  for (const auto& listener : listeners_) {
    if (listener->rail != rail || !listener->socket.open()) continue;
    leave_epoll(listener->socket);
    *listener = {};
  }
}

void EpollFactory::pause(Listener& listener, Nanos now) {
  listener.paused_until = now + kAcceptPause;
  leave_epoll(listener.socket);
}

void EpollFactory::resume_listeners(Nanos now) {
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    Listener& listener = *listeners_[i];
    if (listener.paused_until.count == 0 || now < listener.paused_until) continue;
    listener.paused_until = watch(listener.socket.fd(), EPOLLIN, i).ok() ? Nanos{} : now + kAcceptPause;
  }
}

Nanos EpollFactory::next_resumption() const {
  Nanos next = Nanos::max();
  for (const auto& listener : listeners_) {
    if (listener->paused_until.count != 0) next = std::min(next, listener->paused_until);
  }
  return next;
}

void EpollFactory::note_trouble(const Status& why, Nanos now) {
  trouble_ = why.text();
  trouble_warning_.say(now, trouble_);
}

}  // namespace canarynet
