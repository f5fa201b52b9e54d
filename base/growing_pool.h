// base/growing_pool.h -- numbered places for T, up to a fixed limit; memory comes in chunks when it is first needed.
//
// A place that was given back is the next one taken, so a pool takes the memory of its high-water mark and no more.
// References stay valid until the pool ends. One owner thread. take() throws std::bad_alloc where the first chunk can't
// be had; later it says that all are taken, as at the limit: those in use come back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace canarynet {

template <typename T, std::uint32_t kChunk>
class GrowingPool {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;

  explicit GrowingPool(std::uint32_t limit) : limit_(limit) {}

  T& operator[](std::uint32_t i) { return chunks_[i / kChunk][i % kChunk]; }
  const T& operator[](std::uint32_t i) const { return chunks_[i / kChunk][i % kChunk]; }
  // Places that have memory: all that were ever taken are below.
  std::uint32_t made() const { return made_; }
  std::uint32_t used() const { return made_ - static_cast<std::uint32_t>(free_.size()); }

  // As it was left when it was given back, or default-initialized; kNone: none is free.
  std::uint32_t take() {
    if (free_.empty() && !grow()) return kNone;
    const std::uint32_t i = free_.back();
    free_.pop_back();
    return i;
  }
  void give_back(std::uint32_t i) { free_.push_back(i); }

 private:
  bool grow() {
    const std::uint32_t more = std::min(kChunk, limit_ - made_);
    if (more == 0) return false;
    try {
      free_.reserve(made_ + more);
      chunks_.push_back(std::make_unique_for_overwrite<T[]>(more));
    } catch (const std::bad_alloc&) {
      if (made_ == 0) throw;
      return false;
    }
    for (std::uint32_t i = made_ + more; i-- > made_;) free_.push_back(i);
    made_ += more;
    return true;
  }

  std::uint32_t limit_;
  std::uint32_t made_ = 0;
  std::vector<std::unique_ptr<T[]>> chunks_;
  std::vector<std::uint32_t> free_;  // room for all that are made: giving back allocates nothing
};

}  // namespace canarynet
