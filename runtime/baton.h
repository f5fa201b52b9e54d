// runtime/baton.h -- who drives the engine: exactly one thread at a time, and a waiting caller rather than the progress
// thread.
//
// try_take() and give() around every use of the engine. A thread that found it taken can sleep until it is given back
// or `limit` passes. A holder that keeps it while it sleeps gives way to those that want() it. Any number of callers
// may wait: each is woken when its own result is there, and one of the others when the baton is free, so that sixteen
// waiting threads cost no more than one.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/check.h"
#include "base/units.h"

namespace canarynet {

class Baton {
 public:
  bool try_take() { return !held_.exchange(true, std::memory_order_acquire); }
  // `to_progress`: the engine has something to do while nobody waits, so the progress thread is woken if no one else
  // takes it. Without, it looks by itself when its nap ends.
  void give(bool to_progress = true) {
    CANARY_CHECK(held_.load(std::memory_order_relaxed), "the baton is given by the thread that took it, once");
    held_.store(false, std::memory_order_release);
    // The fence pairs with the one in sleep(): either the sleeper sees the baton free, or we see the sleeper.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_relaxed) == 0) return;
    const std::lock_guard lock(mutex_);
    wake_done();
    // Callers that only want the engine for a moment come first, then those that wait for a result, then the thread.
    if (!wake_first(Kind::kUser) && !wake_first(Kind::kWaiter) && to_progress) wake_first(Kind::kProgress);
  }
  // The holder, after work: wakes those whose result is there.
  void notify_done() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (waiters_.load(std::memory_order_relaxed) == 0) return;
    const std::lock_guard lock(mutex_);
    wake_done();
  }
  // Wakes everybody: what they sleep for may never come.
  void notify_all() {
    const std::lock_guard lock(mutex_);
    for (Sleeper* s = first_; s != nullptr; s = s->next) s->wake();
  }
  // Ends the progress thread's rest; what its `done` looks at was set before.
  void call_progress() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_relaxed) == 0) return;
    const std::lock_guard lock(mutex_);
    wake_first(Kind::kProgress);
  }
  // Announces (+1), and takes back (-1), that the holder should give it away soon.
  void want(int change) {
    const int before = wanted_.fetch_add(change, std::memory_order_relaxed);
    CANARY_CHECK(before + change >= 0, "what was not announced can't be taken back");
  }
  bool wanted() const { return wanted_.load(std::memory_order_relaxed) > 0; }
  // Somebody sleeps until it is free, or has been woken for it.
  bool waited_for() const { return sleepers_.load(std::memory_order_relaxed) > 0; }

  // Sleeps until the baton is free (and no other sleeper was chosen to take it), `done()` is true, or `limit` has
  // passed. `done` is called by other threads, too.
  template <typename Done>
  void wait(Nanos limit, const Done& done) {
    waiters_.fetch_add(1, std::memory_order_relaxed);
    sleep(Kind::kWaiter, limit, done);
    waiters_.fetch_sub(1, std::memory_order_relaxed);
  }
  // The same for a thread that wants the engine itself.
  void wait_for_engine(Nanos limit) {
    sleep(Kind::kUser, limit, [] { return false; });
  }
  // The same for the progress thread, which is needed only while nobody waits.
  template <typename Done>
  void nap(Nanos limit, const Done& done) {
    sleep(Kind::kProgress, limit, done);
  }
  // The progress thread again, but it sleeps on while the baton is free, until it is given `to_progress`; `done` tells
  // so, too.
  template <typename Done>
  void rest(Nanos limit, const Done& done) {
    sleep(Kind::kProgress, limit, done, /*also_while_free=*/true);
  }

 private:
  enum class Kind { kUser, kWaiter, kProgress };
  // On its thread's stack, in the list while it sleeps; first come, first served.
  struct Sleeper {
    Kind kind;
    bool (*is_done)(const void*);
    const void* done;
    bool woken = false;
    std::condition_variable changed = {};
    Sleeper* next = nullptr;
    void wake() {
      woken = true;
      changed.notify_one();
    }
  };

  template <typename Done>
  void sleep(Kind kind, Nanos limit, const Done& done, bool also_while_free = false) {
    Sleeper self{kind, [](const void* d) -> bool { return (*static_cast<const Done*>(d))(); }, &done};
    std::unique_lock lock(mutex_);
    Sleeper** end = &first_;
    while (*end != nullptr) end = &(*end)->next;
    *end = &self;
    sleepers_.fetch_add(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if ((also_while_free || held_.load(std::memory_order_relaxed)) && !done()) {
      self.changed.wait_for(lock, std::chrono::nanoseconds(limit.count), [&] { return self.woken; });
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    for (Sleeper** at = &first_; *at != nullptr; at = &(*at)->next) {
      if (*at != &self) continue;
      *at = self.next;
      break;
    }
  }
  // With the mutex held.
  void wake_done() {
    for (Sleeper* s = first_; s != nullptr; s = s->next) {
      if (s->kind == Kind::kWaiter && !s->woken && s->is_done(s->done)) s->wake();
    }
  }
  bool wake_first(Kind kind) {
    for (Sleeper* s = first_; s != nullptr; s = s->next) {
      if (s->kind != kind || s->woken) continue;
      s->wake();
      return true;
    }
    return false;
  }

  std::atomic<bool> held_{false};
  std::atomic<int> sleepers_{0};
  std::atomic<int> waiters_{0};
  std::atomic<int> wanted_{0};
  std::mutex mutex_;
  Sleeper* first_ = nullptr;
};

}  // namespace canarynet
