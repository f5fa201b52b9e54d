// base/random.h -- the only source of randomness: a seeded generator whose every output is the same on all compilers.
//
// xoshiro256** seeded by splitmix64 (Blackman, Vigna, 2018). No std distributions: their results differ between
// libraries. One owner thread. Not for keys.
#pragma once

#include <cstdint>

#include "base/units.h"

namespace canarynet {

class Random {
 public:
  explicit Random(std::uint64_t seed) {
    for (auto& word : state_) {
      seed += 0x9e3779b97f4a7c15ull;
      std::uint64_t z = seed;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
      word = z ^ (z >> 31);
    }
  }
  std::uint64_t next() {
    const std::uint64_t result = rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = rotl(state_[3], 45);
    return result;
  }
  // Uniform in [0, bound); 0 for bound 0. The bias of the multiply-shift is below 2^-32 for the bounds used here.
  std::uint64_t below(std::uint64_t bound) {
    return static_cast<std::uint64_t>((static_cast<Uint128>(next()) * bound) >> 64);
  }
  // True with probability ppm / 1e6.
  bool chance_ppm(std::uint32_t ppm) { return ppm != 0 && below(1'000'000) < ppm; }

 private:
  static constexpr std::uint64_t rotl(std::uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }
  std::uint64_t state_[4];
};

}  // namespace canarynet
