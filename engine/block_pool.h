// engine/block_pool.h -- which of n blocks in a row are free: runs of blocks are taken and given back in constant time.
//
// A run's length stands at both of its ends, so neighbours that become free are joined (Knuth, The Art of Computer
// Programming 1, 2.5: boundary tags); free runs hang in lists by the power of two of their length, as in TLSF
// (Masmano et al. 2004). Among the free runs of one power only the first few are tried, so a run that would just fit
// may be missed: a take may fail although there is room. Fixed memory: a tag per block, of which an unused pool has
// touched the first and the last. One owner thread; no allocation after construction.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

namespace canarynet {

class BlockPool {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  explicit BlockPool(std::uint32_t blocks);

  // The first of `count` > 0 blocks; kNone: there is no such run.
  std::uint32_t take(std::uint32_t count);
  // `first` as take() gave it.
  void release(std::uint32_t first);

 private:
  static constexpr int kTries = 8;

  struct Tag {
    std::uint32_t length;          // at a run's first and last block
    bool free;                     // likewise
    std::uint32_t previous, next;  // at a free run's first block: in its list, kNone at the ends
  };
  void set(std::uint32_t first, std::uint32_t length, bool free);
  void add(std::uint32_t first, std::uint32_t length);
  void remove(std::uint32_t first);

  std::uint32_t blocks_;
  std::unique_ptr<Tag[]> tags_;          // written where a run begins or ends, and read nowhere else
  std::array<std::uint32_t, 32> lists_;  // by the whole logarithm of the length
  std::uint32_t filled_ = 0;             // a bit for each list that is not empty
};

}  // namespace canarynet
