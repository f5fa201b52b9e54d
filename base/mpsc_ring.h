// base/mpsc_ring.h -- bounded ring, many producers, one consumer at a time; the door through which threads hand work to
// an engine.
//
// Each cell carries a sequence number (Vyukov's bounded queue): a producer claims a position by one compare-and-swap,
// fills the cell, and publishes it with a release-store; the order of the claims is the order of consumption. Capacity:
// a power of two, fixed. push() from any thread, never blocks: false when full. pop() by the consumer that holds the
// engine. T must be movable; no allocation after construction.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/check.h"

namespace canarynet {

template <typename T>
class MpscRing {
 public:
  explicit MpscRing(std::size_t capacity) : mask_(capacity - 1), cells_(std::make_unique<Cell[]>(capacity)) {
    CANARY_CHECK(capacity >= 2 && (capacity & (capacity - 1)) == 0, "ring capacity must be a power of two");
    for (std::size_t i = 0; i < capacity; ++i) cells_[i].sequence.store(i, std::memory_order_relaxed);
  }

  bool push(T value) {
    std::size_t position = tail_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[position & mask_];
      const auto lag = static_cast<std::ptrdiff_t>(cell.sequence.load(std::memory_order_acquire) - position);
      if (lag == 0) {
        if (tail_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) {
          cell.value = std::move(value);
          cell.sequence.store(position + 1, std::memory_order_release);
          return true;
        }
      } else if (lag < 0) {
        return false;
      } else {
        position = tail_.load(std::memory_order_relaxed);
      }
    }
  }

  // Consumer: pop() would give something.
  bool ready() const { return cells_[head_ & mask_].sequence.load(std::memory_order_acquire) == head_ + 1; }

  // Positions claimed by producers so far; they may still be filling theirs, and what lies behind them waits. Any
  // thread.
  std::size_t claimed() const { return tail_.load(std::memory_order_acquire); }
  // Consumer: positions taken so far.
  std::size_t taken() const { return head_; }

  bool pop(T* out) {
    Cell& cell = cells_[head_ & mask_];
    if (cell.sequence.load(std::memory_order_acquire) != head_ + 1) return false;
    *out = std::move(cell.value);
    cell.value = T{};
    cell.sequence.store(head_ + mask_ + 1, std::memory_order_release);
    ++head_;
    return true;
  }

 private:
  struct Cell {
    std::atomic<std::size_t> sequence{0};
    T value{};
  };
  const std::size_t mask_;
  std::unique_ptr<Cell[]> cells_;
  alignas(128) std::atomic<std::size_t> tail_{0};
  alignas(128) std::size_t head_ = 0;  // consumer's own
};

}  // namespace canarynet
