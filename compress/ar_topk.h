// compress/ar_topk.h -- the pure parts of AR-Topk: one rank's top-k indices, everybody's values there, all-reduced.
//
// Source: FlexComm (Tyagi, Swany 2023) algorithm 1. Per iteration one rank is the root; it broadcasts the indices of
// its k largest values of G = gradient + residual (topk's choice); every rank takes its own values at these indices,
// keeps the rest as residual, and the mean of the values is all-reduced. STAR rotates the root; VAR takes the rank
// whose own top-k values have the largest sum of squares, found by an all-gather of one number per rank. Memory: the
// caller's. Threads: functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace canarynet {

// STAR: iteration mod ranks. ranks > 0.
std::size_t star_root(std::uint64_t iteration, std::size_t ranks);
// VAR: the rank with the greatest of these; ties to the lowest rank. CANARY_INVALID_ARGUMENT names the first rank whose
// number is not finite, since ranks would otherwise disagree. One number per rank, at least one.
Result<std::size_t> var_root(std::span<const double> squared_norms);
// What a rank offers for VAR: the sum of squares of its own top-k values.
double squared_norm(std::span<const float> values);

// taken[i] = values[indices[i]]; values[indices[i]] = 0, so that `values` becomes the residual: taken and residual hold
// every input exactly once. Indices come from another rank: CANARY_MISMATCH, and nothing changed, unless they ascend
// and lie below values.size(). `taken` has indices.size().
Status take_at(std::span<const std::uint32_t> indices, std::span<float> values, std::span<float> taken);

// How often each rank was root (FlexComm fig. 4).
class RootHistogram {
 public:
  explicit RootHistogram(std::size_t ranks) : counts_(ranks) {}
  void count(std::size_t root) { ++counts_[root]; }
  std::span<const std::uint64_t> counts() const { return counts_; }

 private:
  std::vector<std::uint64_t> counts_;
};

}  // namespace canarynet
