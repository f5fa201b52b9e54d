#include "compress/ar_topk.h"

#include <cmath>
#include <string>

#include "base/check.h"

namespace canarynet {

std::size_t star_root(std::uint64_t iteration, std::size_t ranks) {
  CANARY_CHECK(ranks != 0, "a group has ranks");
  return iteration % ranks;
}

Result<std::size_t> var_root(std::span<const double> squared_norms) {
  CANARY_CHECK(!squared_norms.empty(), "a group has ranks");
  std::size_t root = 0;
  for (std::size_t rank = 0; rank < squared_norms.size(); ++rank) {
    if (!std::isfinite(squared_norms[rank])) {
      return Status(CANARY_INVALID_ARGUMENT, "rank " + std::to_string(rank) + " offers a top-k of squared norm " +
                                                 std::to_string(squared_norms[rank]));
    }
    if (squared_norms[rank] > squared_norms[root]) root = rank;
  }
  return root;
}

double squared_norm(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

Status take_at(std::span<const std::uint32_t> indices, std::span<float> values, std::span<float> taken) {
  CANARY_CHECK(taken.size() == indices.size(), "there is a place for each value taken");
  std::size_t least = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < least || indices[i] >= values.size()) {
      return {CANARY_MISMATCH,
              "index " + std::to_string(indices[i]) + ", number " + std::to_string(i) + " of the root's: " +
                  (indices[i] < least ? "they do not ascend"
                                      : "the tensor has " + std::to_string(values.size()) + " elements")};
    }
    least = std::size_t{indices[i]} + 1;
  }
  for (std::size_t i = 0; i < indices.size(); ++i) {
    taken[i] = values[indices[i]];
    values[indices[i]] = 0;
  }
  return {};
}

}  // namespace canarynet
