// collectives/cube.h -- ranks as corners of a BCube(r, L): their digits, their mates, and the cut of a buffer into one
// part per level. For the planners plan_bcube*.cc. Pure.
#pragma once

#include <cstdint>
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

// Checks that the request's shape fits its ranks and that all mates meet.
Status check_cube(const Planner& planner, const PlanRequest& request);

// The all-to-all of bcube.
void plan_pairs_on_cube(const PlanRequest& request, int rank, Plan* out);

}  // namespace canarynet
