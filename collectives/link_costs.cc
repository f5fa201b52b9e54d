#include "collectives/link_costs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "topology/rails.h"

namespace canarynet {

LinkCost LinkCosts::together(int from, int to, std::uint32_t rails, std::uint64_t bytes) const {
  std::array<LinkCost, kRailsMax> ways;
  std::size_t count = 0;
  for (std::uint32_t left = rails; left != 0 && count < ways.size(); left &= left - 1)
    ways[count++] = of(from, to, std::countr_zero(left));
  const auto end = ways.begin() + static_cast<std::ptrdiff_t>(count);
  std::sort(ways.begin(), end, [](const LinkCost& a, const LinkCost& b) { return a.alpha < b.alpha; });
  // By the time T the rails used so far deliver the sum of (T - α) / β; the next one joins if it would begin before T.
  const double first = ways[0].alpha, size = static_cast<double>(bytes);
  double rate = 0, head_start = 0, last = first;
  for (auto way = ways.begin(); way != end; ++way) {
    if (way != ways.begin() && way->alpha >= last) break;
    if (way->beta <= 0) return {first, 0};
    rate += 1 / way->beta;
    head_start += way->alpha / way->beta;
    last = (size + head_start) / rate;
  }
  return {first, bytes == 0 ? 0 : (last - first) / size};
}

}  // namespace canarynet
