// tools/sim/search/nsga2.h -- NSGA-II (Deb et al. 2002) over a grid, three objectives to minimise; pagmo runs it.
//
// What it found is what the objectives were asked for: a caller that keeps all of that has the front of all points that
// were ever tried, which is no worse than that of the last generation. Equal arguments and objectives ask in the same
// order. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>

namespace canarynet::sim {

struct Nsga2Options {
  unsigned generations = 100;
  unsigned population = 100;  // a multiple of 4, at least 8
  std::uint32_t seed = 1;
};

// Takes a point of the grid: gene i is in [0, counts[i]).
using Objectives = std::function<std::array<double, 3>(std::span<const int> genes)>;

// Whether this build has it: it takes pagmo, which was there when it was configured.
bool has_nsga2();
// Only where has_nsga2() (CANARY_CHECK).
void run_nsga2(std::span<const int> counts, const Nsga2Options& options, const Objectives& objectives);

}  // namespace canarynet::sim
