// tools/sim/train/slices.h -- the parts of a gradient that are exchanged one by one: colayers, in backward order.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace canarynet::sim {

struct Slice {
  std::size_t first = 0, size = 0;
  std::span<float> of(std::span<float> values) const { return values.subspan(first, size); }
  std::span<const float> of(std::span<const float> values) const { return values.subspan(first, size); }
};

// `values` in `parts` of nearly equal size. Gradients lie in forward order and are made from their end on, so the last
// values are in part 0.
inline std::vector<Slice> slices_of(std::size_t values, int parts) {
  std::vector<Slice> slices;
  const auto count = static_cast<std::size_t>(parts);
  for (std::size_t z = 0; z < count; ++z) {
    const std::size_t end = values - values * z / count, begin = values - values * (z + 1) / count;
    slices.push_back({begin, end - begin});
  }
  return slices;
}

}  // namespace canarynet::sim
