// collectives/cube.h -- ranks as corners of a BCube(r, L): their digits, their mates, and the cut of a buffer into one
// part per level. For the planners plan_bcube*.cc. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collectives/schedule.h"

namespace canarynet {

// The digits of the group's ranks, and their mates.
struct Cube {
  int r = 1, levels = 0, n = 1;
  std::vector<int> stride;  // r^level

  explicit Cube(const BCubeShape& shape);
  int digit(int rank, int level) const { return rank / stride[static_cast<std::size_t>(level)] % r; }
  // The rank whose digit at `level` is larger by `by` (mod r), the others equal.
  int mate(int rank, int level, int by) const {
    const int from = digit(rank, level);
    const int to = ((from + by) % r + r) % r;
    return rank + (to - from) * stride[static_cast<std::size_t>(level)];
  }
};

// The level's own rail if it reaches the peer. Among several other rails the channel chooses.
int rail_between(const Reachability& reach, int rank, int peer, int level);

// The sizes of the L parts, relative to each other, with which the slowest rail of a bcube all-reduce is done soonest:
// they minimise the maximum over rails l of load_l / rates[l], where load_l = 2 Σ_j m_((l-j) mod L) (r-1) / r^(j+1).
// rates[l] > 0 is that of level l's NICs; below 2^31 / r. Exact, in integers, so it is equal on every machine.
//
// Let u_l be rail l's load up to a factor. Then m_l = u_l - u_(l-1)/r, and the sum of all m is (1 - 1/r) Σ u: to be
// done soonest is to find the largest Σ u with u_l <= rates[l] and u_(l-1) <= r u_l (no part is negative). Whatever
// fulfils these is at most u_l = min over k of r^k rates[(l+k) mod L], and that fulfils them itself.
std::vector<std::uint64_t> part_weights(int r, std::span<const std::uint64_t> rates);

// Appends the ascending begins that cut [begin, begin + elements) in a part per level, as cut_evenly() does, or by
// part_weights() if request.rail_rates says that some level's NICs are slower than another's. A level is as fast as its
// slowest NIC. Parts are even where a pair of mates does not meet over the level's own rail.
class PartCut {
 public:
  explicit PartCut(const PlanRequest& request);
  void cut(std::uint64_t begin, std::uint64_t elements, std::vector<std::uint64_t>* out) const;

 private:
  int levels_;
  std::uint32_t element_bytes_;
  std::vector<std::uint64_t> weight_before_;  // of the parts before each one, then of all; empty: even
};

// Checks that the request's shape fits its ranks and that all mates meet.
Status check_cube(const Planner& planner, const PlanRequest& request);

// The all-to-all of bcube.
void plan_pairs_on_cube(const PlanRequest& request, int rank, Plan* out);

}  // namespace canarynet
