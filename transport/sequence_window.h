// transport/sequence_window.h -- what is known of each of a row of sequence numbers in flight.
//
// The address space for a full window is allocated by reserve(); a ring of a few places is used, and one of twice as
// many whenever there are more, so that a short row touches little memory. Sequences may wrap at 32 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "base/reserved.h"

namespace canarynet {

template <typename T>
class SequenceWindow {
  static_assert(std::is_trivially_copyable_v<T>, "places end with the window's memory");

 public:
  SequenceWindow() = default;
  SequenceWindow(SequenceWindow&&) noexcept = default;
  SequenceWindow& operator=(SequenceWindow&&) noexcept = default;

  // For rows of up to `most`, a power of two. Once; nothing allocates afterwards.
  void reserve(std::size_t most) { places_ = ReservedRow<T>(most); }
  bool reserved() const { return places_.size() != 0; }
  std::size_t ring() const { return ring_; }

  T& operator[](std::uint32_t sequence) { return places_[sequence & (ring_ - 1)]; }
  const T& operator[](std::uint32_t sequence) const { return places_[sequence & (ring_ - 1)]; }
  // A place for `next`, where those from `first` up to it are in use.
  T& append(std::uint32_t first, std::uint32_t next) {
    if (next - first >= ring_) grow(first, next);
    return (*this)[next];
  }

 private:
  void grow(std::uint32_t first, std::uint32_t next) {
    const std::size_t old = ring_;
    ring_ = old == 0 ? 16 : 2 * old;
    CANARY_CHECK(ring_ <= places_.size(), "more in flight than the window holds");
    for (std::size_t i = old; i < ring_; ++i) ::new (static_cast<void*>(&places_[i])) T;
    // An entry whose place changes goes to the new half.
    for (std::uint32_t s = first; s != next; ++s) (*this)[s] = places_[s & (old - 1)];
  }

  ReservedRow<T> places_;
  std::size_t ring_ = 0;  // places in use: a power of two
};

}  // namespace canarynet
