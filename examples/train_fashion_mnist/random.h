// random.h -- splitmix64: the same numbers on every machine and compiler, which std's distributions do not promise.
#pragma once

#include <cmath>
#include <cstdint>

namespace train {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  // In [0, bound), bound below 2^32.
  std::uint64_t below(std::uint64_t bound) { return ((next() >> 32) * bound) >> 32; }
  // In [-1, 1).
  float symmetric() { return static_cast<float>(static_cast<std::int64_t>(next() >> 40) - (1 << 23)) / (1 << 23); }

 private:
  std::uint64_t state_;
};

}  // namespace train
