// embed/baton.h -- who drives the engine: exactly one thread at a time, and a waiting caller rather than the progress thread.
//
// try_take() and give() around every use of the engine. A thread that found it taken can sleep until it is given back or `limit` passes.
// A holder that keeps it while it sleeps gives way to those that want() it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/units.h"

namespace canarynet {

class Baton {
 public:
  bool try_take() { return !held_.exchange(true, std::memory_order_acquire); }
  void give() {
    held_.store(false, std::memory_order_release);
    // The fence pairs with the one in wait(): either the sleeper sees the baton free, or we see the sleeper.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_relaxed) > 0) notify();
  }
  // Wakes sleepers: their operation may be done.
  void notify() {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  // Somebody sleeps until an operation is done (naps don't count).
  bool has_waiters() const { return waiters_.load(std::memory_order_relaxed) > 0; }
  // Announces (+1), and takes back (-1), that the holder should give it away soon.
  void want(int change) { wanted_.fetch_add(change, std::memory_order_relaxed); }
  bool wanted() const { return wanted_.load(std::memory_order_relaxed) > 0; }
  // Sleeps until the baton looks free, notify() is called, `done()` is true, or `limit` has passed.
  template <typename Done>
  void wait(Nanos limit, Done done) {
    waiters_.fetch_add(1, std::memory_order_relaxed);
    nap(limit, done);
    waiters_.fetch_sub(1, std::memory_order_relaxed);
  }
  // The same for a thread that no result concerns: it gives no reason to notify().
  template <typename Done>
  void nap(Nanos limit, Done done) {
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (held_.load(std::memory_order_relaxed) && !done())
      changed_.wait_for(lock, std::chrono::nanoseconds(limit.count));
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  std::atomic<bool> held_{false};
  std::atomic<int> sleepers_{0};
  std::atomic<int> waiters_{0};
  std::atomic<int> wanted_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace canarynet
