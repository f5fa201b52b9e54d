// tools/perf/order.h -- the order in which operations of several sizes are measured. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace canarynet::perf {

// kBlocks: all operations of a size before the next size. kSweep: one of each, up and down again. kRandom: drawn.
enum class Order { kBlocks, kSweep, kRandom };

// The index in `sizes` of each operation: every size `each` times, the same on all ranks.
std::vector<std::size_t> turns_of(Order order, std::size_t sizes, int each, std::uint64_t seed);

}  // namespace canarynet::perf
