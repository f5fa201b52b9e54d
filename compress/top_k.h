// compress/top_k.h -- chooses the values of a sparsifier: exactly the k largest, or about them by a threshold.
//
// "Largest" is by absolute value. Lists come in ascending order of index; indices count from `first_index`.
// Memory and threads: the caller's arrays; nothing allocates.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compress/method.h"

namespace canarynet {

// What is sent: k of `count`, at least one, of a share in millionths.
std::size_t kept_of(std::size_t count, std::uint32_t ratio_ppm);

struct Chosen {
  std::uint32_t* indices;
  float* values;
};

// Parts of a workspace. The lists of a choice are what `chosen` points to.
struct TopKSpace {
  TopKSpace(Carver* carver, std::size_t count, std::size_t k);

  std::size_t room;  // of the lists
  Chosen chosen;
  std::uint32_t* magnitudes;  // of candidates, or of a sample
};

// The j-th value of a sample of `count` values, a function of the arguments: one from each of sample_of(count) equal
// stretches.
std::size_t sample_of(std::size_t count);
std::size_t sampled_position(std::size_t j, std::size_t count, std::uint64_t seed);

// Exactly the k largest, ties to the lower index; 0 < k <= count. Fills the first k of space.chosen. If any value is
// NaN or infinite, one of those is among the chosen.
//
// A sample bounds the k-th largest from below; one pass lists the values above the bound (a few percent more than k),
// and a selection among these is exact. Where the sample was misleading, a radix selection reads the values four times.
void choose_top_k(const float* values, std::size_t count, std::size_t k, std::uint32_t first_index,
                  const TopKSpace& space);

// MSTopK (Shi et al., MLSys 2021): `kMsTopKRounds` of binary search between mean and maximum find two thresholds with
// at most k and at least k values above them; all above the upper are taken, and a contiguous run, begun at random, of
// those in between makes it k. Where a sample has 256 or more of the k, the search runs on it, three standard
// deviations to either side, and the thresholds are counted on all values; if they don't enclose k there, the search
// runs on all. All values must be finite.
inline constexpr int kMsTopKRounds = 25;
void choose_ms_top_k(const float* values, std::size_t count, std::size_t k, std::uint64_t seed, const TopKSpace& space);

// The j-th of k positions chosen at random among `count`: one in each of k stretches of nearly equal length. A function
// of its arguments alone, so all ranks, and all pieces, agree on it.
std::size_t random_position(std::size_t j, std::size_t k, std::size_t count, std::uint64_t seed, std::uint64_t round);

}  // namespace canarynet
