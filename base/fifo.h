// base/fifo.h -- a queue that keeps its memory: it grows to its high-water mark by doubling and never shrinks.
//
// One owner thread. T must be movable and default-constructible; what was popped is reset at once.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "base/check.h"

namespace canarynet {

template <typename T>
class Fifo {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return ring_[(first_ + i) & (ring_.size() - 1)]; }
  T& front() { return (*this)[0]; }
  void push(T value) {
    if (size_ == ring_.size()) grow();
    (*this)[size_++] = std::move(value);
  }
  T pop() {
    CANARY_CHECK(size_ != 0, "pop of an empty queue");
    T value = std::exchange(front(), T{});
    first_ = (first_ + 1) & (ring_.size() - 1);
    --size_;
    return value;
  }

 private:
  void grow() {
    std::vector<T> larger(ring_.empty() ? 8 : 2 * ring_.size());
    for (std::size_t i = 0; i < size_; ++i) larger[i] = std::move((*this)[i]);
    ring_ = std::move(larger);
    first_ = 0;
  }
  std::vector<T> ring_;  // a power of two
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace canarynet
