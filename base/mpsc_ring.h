// base/mpsc_ring.h -- bounded ring for many producers and one consumer at a time, through which threads hand work to an
// engine.
//
// Each cell carries a sequence number (Vyukov's bounded queue): a producer claims a position by one compare-and-swap,
// fills the cell, and publishes it with a release-store; the order of the claims is the order of consumption. Capacity:
// a power of two, fixed. push() from any thread, never blocks: false when full. pop() by the consumer that holds the
// engine. T is plain data; no allocation after construction, and cells that were never used cost no memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

#include "base/check.h"

namespace canarynet {

template <typename T>
class MpscRing {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  explicit MpscRing(std::size_t capacity) : mask_(capacity - 1) {
    CANARY_CHECK(capacity >= 2 && (capacity & (capacity - 1)) == 0, "ring capacity must be a power of two");
    // calloc gives zero pages that become the process's when they are first written.
    cells_.reset(static_cast<Cell*>(std::calloc(capacity, sizeof(Cell))));
    if (cells_ == nullptr) throw std::bad_alloc();
  }

  bool push(const T& value) {
    return push_with([&](T& place) { place = value; });
  }
  // The same for a value that is best written where it will be read; `fill` writes all of it.
  template <typename Fill>
  bool push_with(Fill fill) {
    std::size_t position = tail_.load(std::memory_order_relaxed);
    for (;;) {
      const auto lag = static_cast<std::ptrdiff_t>(sequence(position) - position);
      if (lag == 0) {
        if (tail_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) {
          fill(cells_[position & mask_].value);
          set_sequence(position, position + 1);
          return true;
        }
      } else if (lag < 0) {
        return false;
      } else {
        position = tail_.load(std::memory_order_relaxed);
      }
    }
  }

  // Pushes all values, one behind the other, or none: the consumer finds the first only when the last is there. There
  // may be at most as many as the ring holds.
  bool push_all(std::span<const T> values) {
    const std::size_t count = values.size();
    std::size_t position = tail_.load(std::memory_order_relaxed);
    for (;;) {
      // Cells become free in order: if the last one is free, so are the others.
      const std::size_t last = position + count - 1;
      const auto lag = static_cast<std::ptrdiff_t>(sequence(last) - last);
      if (lag == 0) {
        if (tail_.compare_exchange_weak(position, position + count, std::memory_order_relaxed)) break;
      } else if (lag < 0) {
        return false;
      } else {
        position = tail_.load(std::memory_order_relaxed);
      }
    }
    for (std::size_t i = count; i-- > 0;) {
      cells_[(position + i) & mask_].value = values[i];
      set_sequence(position + i, position + i + 1);
    }
    return true;
  }

  // Whether push() would be refused if nothing were taken out meanwhile. Any thread.
  bool full() const {
    const std::size_t position = tail_.load(std::memory_order_acquire);
    return static_cast<std::ptrdiff_t>(sequence(position) - position) < 0;
  }

  // Consumer: whether pop() would return something.
  bool ready() const { return published(head_); }
  // Consumer: what pop() will return after `ahead` others; nullptr: nothing yet, or it is still being filled.
  T* peek(std::size_t ahead) { return published(head_ + ahead) ? &cells_[(head_ + ahead) & mask_].value : nullptr; }
  const T* peek(std::size_t ahead) const {
    return published(head_ + ahead) ? &cells_[(head_ + ahead) & mask_].value : nullptr;
  }

  // Positions that producers have claimed so far. They may still be filling them, and everything behind those waits.
  // Any thread.
  std::size_t claimed() const { return tail_.load(std::memory_order_acquire); }
  // Consumer: positions taken so far.
  std::size_t taken() const { return head_; }

  bool pop(T* out) {
    if (!published(head_)) return false;
    *out = cells_[head_ & mask_].value;
    drop();
    return true;
  }
  // Consumer: like pop() for what peek(0) shows, without a copy.
  void drop() {
    set_sequence(head_, head_ + mask_ + 1);
    ++head_;
  }

 private:
  struct Cell {
    std::atomic<std::size_t> lap;  // its sequence number less its index, so that it begins as zero
    T value;
  };
  struct Free {
    void operator()(Cell* cells) const { std::free(cells); }
  };

  std::size_t sequence(std::size_t position) const {
    return cells_[position & mask_].lap.load(std::memory_order_acquire) + (position & mask_);
  }
  void set_sequence(std::size_t position, std::size_t sequence) {
    cells_[position & mask_].lap.store(sequence - (position & mask_), std::memory_order_release);
  }
  bool published(std::size_t position) const { return sequence(position) == position + 1; }

  const std::size_t mask_;
  std::unique_ptr<Cell[], Free> cells_;
  alignas(128) std::atomic<std::size_t> tail_{0};
  alignas(128) std::size_t head_ = 0;  // consumer's own
};

}  // namespace canarynet
