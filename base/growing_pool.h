// base/growing_pool.h -- numbered places for T, up to a fixed limit; places that were never taken have no pages.
//
// The address space is allocated with the pool; a place is written, and its pages become the process's, when it is
// first taken. A place that was given back is the next one taken, so a pool has the memory of its high-water mark and
// no more. References stay valid until the pool ends. One owner thread; nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/reserved.h"

namespace canarynet {

template <typename T>
class GrowingPool {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;

  explicit GrowingPool(std::uint32_t limit) : limit_(limit), places_(limit) { free_.reserve(limit); }
  GrowingPool(const GrowingPool&) = delete;
  GrowingPool& operator=(const GrowingPool&) = delete;

  T& operator[](std::uint32_t i) { return places_[i]; }
  const T& operator[](std::uint32_t i) const { return places_[i]; }
  // All places that were ever taken have numbers below this.
  std::uint32_t made() const { return made_; }
  std::uint32_t used() const { return made_ - static_cast<std::uint32_t>(free_.size()); }

  // Takes a place, as it was left when it was given back, or default-initialized. Returns kNone if none is free.
  std::uint32_t take() {
    if (free_.empty()) {
      if (made_ == limit_) return kNone;
      ::new (static_cast<void*>(&places_[made_])) T;
      return made_++;
    }
    const std::uint32_t i = free_.back();
    free_.pop_back();
    return i;
  }
  void give_back(std::uint32_t i) {
    CANARY_CHECK(i < made_ && free_.size() < made_, "a place is given back once, to the pool that it is of");
    free_.push_back(i);
  }

 private:
  std::uint32_t limit_;
  std::uint32_t made_ = 0;
  ReservedRow<T> places_;
  std::vector<std::uint32_t> free_;  // has room for all places, so giving one back allocates nothing
};

}  // namespace canarynet
