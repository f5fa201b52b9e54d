// transport/sequence_window.h -- what is known of each of a row of sequence numbers in flight.
//
// Memory for a few, and for twice as many whenever there are more; it never shrinks. Sequences may wrap at 32 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace canarynet {

template <typename T>
class SequenceWindow {
 public:
  T& operator[](std::uint32_t sequence) { return ring_[sequence & (ring_.size() - 1)]; }
  const T& operator[](std::uint32_t sequence) const { return ring_[sequence & (ring_.size() - 1)]; }
  std::size_t capacity() const { return ring_.size(); }
  // A place for `next`, where those from `first` up to it are in use.
  T& append(std::uint32_t first, std::uint32_t next) {
    if (next - first >= ring_.size()) {
      std::vector<T> larger(ring_.empty() ? 16 : 2 * ring_.size());
      for (std::uint32_t s = first; s != next; ++s) larger[s & (larger.size() - 1)] = std::move((*this)[s]);
      ring_ = std::move(larger);
    }
    return (*this)[next];
  }

 private:
  std::vector<T> ring_;  // a power of two
};

}  // namespace canarynet
