// tools/perf/statistics.h -- samples to figures. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/perf/options.h"

namespace canarynet::perf {

// The smallest sample that at least `share` (0..1) of the samples do not exceed (nearest rank). The median of an even
// number is the mean of the middle two. It is 0 without samples. Sorts `samples`.
double percentile(std::vector<double>& samples, double share);
double median(std::vector<double>& samples);

// busbw = algbw x this: the share of the buffer that each rank's link must carry (nccl-tests, doc/PERFORMANCE.md).
double bus_factor(Op op, int ranks);

// The fewest bytes that all ranks together must send for one operation on a buffer of `bytes`, if no two share a host's
// memory.
std::uint64_t least_traffic(Op op, std::uint64_t bytes, int ranks);

}  // namespace canarynet::perf
