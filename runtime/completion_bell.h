// runtime/completion_bell.h -- tells a caller's event loop that operations have completed.
//
// What: an eventfd that is readable from a completion on until drain(); where callers drive the engine as well, an
//   epoll descriptor over it and what the engine sleeps on, so that one loop hears of both. A completed ticket only
//   leaves a mark (news()); whoever drives the engine writes once for all that it completed in a turn, after their
//   results can be read. So who drains first and looks at the results then misses none: what it has not seen is written
//   afterwards.
// Threads: news() by any; open(), ring() and ring_if_news() by the holder of the engine; fd() and drain() by any.
// Cost: where nobody asked for the descriptor, one store for each completion; else one system call for each turn that
//   completed something. Failure: open() gives the system's error.
#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <span>
#include <utility>

#include "base/descriptor.h"
#include "base/status.h"

namespace canarynet {

class CompletionBell {
 public:
  // Where completions leave their mark.
  std::atomic<bool>& news() { return news_; }

  // `others`: to be heard by the same descriptor.
  Status open(std::span<const int> others) {
    Descriptor bell(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), all;
    if (!bell.open()) return system_error("eventfd", errno);
    if (!others.empty()) {
      all = Descriptor(epoll_create1(EPOLL_CLOEXEC));
      if (!all.open()) return system_error("epoll_create1", errno);
      epoll_event readable{EPOLLIN, {}};
      bool added = epoll_ctl(all.fd(), EPOLL_CTL_ADD, bell.fd(), &readable) == 0;
      for (const int fd : others) added = added && epoll_ctl(all.fd(), EPOLL_CTL_ADD, fd, &readable) == 0;
      if (!added) return system_error("epoll_ctl", errno);
    }
    bell_ = std::move(bell);
    all_ = std::move(all);
    news_.store(false, std::memory_order_relaxed);
    fd_.store(all_.open() ? all_.fd() : bell_.fd(), std::memory_order_release);
    return {};
  }
  void close() {
    fd_.store(-1, std::memory_order_relaxed);
    all_.close();
    bell_.close();
  }
  // The descriptor to poll; -1: not open.
  int fd() const { return fd_.load(std::memory_order_acquire); }

  void ring() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(bell_.fd(), &one, sizeof one);  // full means that it is readable already
  }
  void ring_if_news() {
    if (news_.load(std::memory_order_relaxed) && news_.exchange(false, std::memory_order_relaxed)) ring();
  }
  void drain() {
    std::uint64_t rings = 0;
    [[maybe_unused]] const ssize_t n = read(bell_.fd(), &rings, sizeof rings);
  }

 private:
  // A line of its own: the engine writes it, callers write around it.
  alignas(64) std::atomic<bool> news_{false};
  alignas(64) std::atomic<int> fd_{-1};
  Descriptor bell_, all_;
};

}  // namespace canarynet
