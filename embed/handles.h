// embed/handles.h -- what C callers hold: numbers in the clothes of pointers, so that a handle that has ended is told
// from one that lives.
//
// What: a pool per kind of object. A handle names an object's place and which use of it; the place outlives every use,
// so asking for what ended long ago touches no freed memory. An object whose handle is closed is free for the next use.
// `T` derives from Handled, is default-constructed once, says by kKind what it is, by kName and kEnds what callers are
// told of it, and by clear() how a use ends. Calls may hold an object, so that its place has no next use meanwhile.
// Threads: any. Memory: grows with the most objects at a time, never shrinks. Failure: std::bad_alloc from take().
// A forked child inherits the numbers, and is told that they are its parent's.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "base/fork.h"
#include "embed/last_error.h"

namespace canarynet {

// The use that a place is in, and its holders.
struct Handled {
  std::atomic<std::uint32_t> use{0};      // odd: its handle is open
  std::atomic<std::uint32_t> process{0};  // in which it was opened
  std::atomic<std::uint64_t> held{0};     // that use, and in the lower half by how many: its handle, and calls
  std::uint32_t place = 0;
  Handled* next_free = nullptr;
};

template <typename T>
class HandlePool {
 public:
  // Closed.
  static T* take() { return self().take_one(); }
  // Back, for the next use; closes what is open.
  static void give(T* object) {
    close(*object);
    object->clear();
    HandlePool& pool = self();
    const std::lock_guard lock(pool.mutex_);
    object->next_free = pool.free_;
    pool.free_ = object;
  }

  static T* open(T& object) {
    object.process.store(process_number(), std::memory_order_relaxed);
    const std::uint32_t use = object.use.load(std::memory_order_relaxed) + 1;
    object.held.store(std::uint64_t{use} << 32 | 1, std::memory_order_relaxed);
    object.use.store(use, std::memory_order_release);
    return handle_of(object);
  }
  // False: it was not open, or another thread was first.
  static bool close(T& object) {
    std::uint32_t use = object.use.load(std::memory_order_relaxed);
    return use % 2 != 0 && object.use.compare_exchange_strong(use, use + 1, std::memory_order_acq_rel);
  }
  // Likewise, of this use.
  static bool close(T& object, const T* handle) {
    std::uint32_t use = use_of(handle);
    return object.use.compare_exchange_strong(use, use + 1, std::memory_order_acq_rel);
  }
  // Holds what find() finds, until let_go(). nullptr also where `alone` is asked for and another call holds it.
  static T* hold(const T* handle, bool alone) {
    T* const object = find(handle);
    if (object == nullptr) return nullptr;
    const std::uint64_t free = std::uint64_t{use_of(handle)} << 32;
    for (std::uint64_t held = object->held.load(); held > free && held <= (alone ? free + 1 : free | UINT32_MAX);) {
      if (object->held.compare_exchange_weak(held, held + 1)) return object;
    }
    return nullptr;
  }
  // True: nobody else holds it any more.
  static bool let_go(T& object) { return static_cast<std::uint32_t>(object.held.fetch_sub(1)) == 1; }
  // The handle of an open object.
  static T* handle_of(const T& object) {
    const std::uint64_t use = object.use.load(std::memory_order_relaxed);
    return reinterpret_cast<T*>(std::uintptr_t{T::kKind} << 56 | use << kPlaceBits | object.place);
  }
  // nullptr: it is no handle, has ended, or is the parent's.
  static T* find(const T* handle) {
    T* const object = self().at(handle);
    return object != nullptr && object->process.load(std::memory_order_relaxed) == process_number() ? object : nullptr;
  }
  // When find() has found nothing.
  static canary_status refuse(const std::string& call, const T* handle) {
    const std::string name = T::kName;
    if (handle == nullptr) return invalid(call + ": " + name + " is NULL");
    if (self().at(handle) != nullptr && find(handle) == nullptr)
      return invalid(call + ": the " + name + " belongs to the parent process: it can't be used after fork()");
    return invalid(call + ": this " + name + " has ended: " + T::kEnds);
  }

 private:
  static_assert(sizeof(void*) == 8 && T::kKind != 0);
  static constexpr std::uint32_t kChunk = 64;
  static constexpr std::uint32_t kChunks = 1 << 16;
  static constexpr int kPlaceBits = 24;

  static HandlePool& self() {
    static HandlePool* const one = [] {
      auto* made = new HandlePool;  // calls may come while the process ends
      pthread_atfork([] { self().mutex_.lock(); }, [] { self().mutex_.unlock(); }, [] { self().mutex_.unlock(); });
      return made;
    }();
    return *one;
  }

  static std::uint32_t use_of(const T* handle) {
    return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(handle) >> kPlaceBits);
  }
  T* at(const T* handle) const {
    const auto number = reinterpret_cast<std::uintptr_t>(handle);
    const auto place = static_cast<std::uint32_t>(number & ((1u << kPlaceBits) - 1));
    const std::uint32_t use = use_of(handle);
    if (number >> 56 != T::kKind || use % 2 == 0 || place >= kChunk * kChunks) return nullptr;
    T* const chunk = chunks_[place / kChunk].load(std::memory_order_acquire);
    if (chunk == nullptr) return nullptr;
    T& object = chunk[place % kChunk];
    return object.use.load(std::memory_order_acquire) == use ? &object : nullptr;
  }

  T* take_one() {
    const std::lock_guard lock(mutex_);
    if (free_ == nullptr) {
      if (used_ == kChunks) throw std::bad_alloc();
      T* const chunk = new T[kChunk];
      for (std::uint32_t i = kChunk; i-- > 0;) {
        chunk[i].place = used_ * kChunk + i;
        chunk[i].next_free = free_;
        free_ = &chunk[i];
      }
      chunks_[used_++].store(chunk, std::memory_order_release);
    }
    T* const object = static_cast<T*>(free_);
    free_ = object->next_free;
    return object;
  }

  std::mutex mutex_;
  Handled* free_ = nullptr;
  std::uint32_t used_ = 0;
  std::array<std::atomic<T*>, kChunks> chunks_{};
};

// The one call that is inside of an object whose users take turns.
template <typename T>
class Alone {
 public:
  explicit Alone(const T* handle) : object_(HandlePool<T>::hold(handle, /*alone=*/true)) {}
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  ~Alone() {
    if (object_ != nullptr) HandlePool<T>::let_go(*object_);
  }
  explicit operator bool() const { return object_ != nullptr; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  // A call that ends the object uses this: nobody comes after it.
  T& stay() { return *std::exchange(object_, nullptr); }

  static canary_status refuse(const std::string& call, const T* handle) {
    if (HandlePool<T>::find(handle) == nullptr) return HandlePool<T>::refuse(call, handle);
    return invalid(call + ": another thread is in a call of this " + T::kName + ": one at a time");
  }

 private:
  T* object_;
};

// Owns an object of its pool.
template <typename T>
struct GiveBack {
  void operator()(T* object) const { HandlePool<T>::give(object); }
};
template <typename T>
using Kept = std::unique_ptr<T, GiveBack<T>>;

}  // namespace canarynet
