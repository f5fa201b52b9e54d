#include "tools/perf/order.h"

#include <random>
#include <utility>

namespace canarynet::perf {

std::vector<std::size_t> turns_of(Order order, std::size_t sizes, int each, std::uint64_t seed) {
  std::vector<std::size_t> turns;
  if (order == Order::kBlocks) {
    for (std::size_t size = 0; size < sizes; ++size) turns.insert(turns.end(), static_cast<std::size_t>(each), size);
    return turns;
  }
  for (int pass = 0; pass < each; ++pass) {
    for (std::size_t i = 0; i < sizes; ++i) turns.push_back(pass % 2 == 0 ? i : sizes - 1 - i);
  }
  if (order == Order::kRandom) {
    // Shuffled by hand: std::shuffle may differ between the standard libraries of two ranks.
    std::mt19937_64 random(seed);
    for (std::size_t left = turns.size(); left > 1; --left) std::swap(turns[left - 1], turns[random() % left]);
  }
  return turns;
}

}  // namespace canarynet::perf
