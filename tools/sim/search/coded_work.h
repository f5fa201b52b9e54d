// tools/sim/search/coded_work.h -- what a planner makes of a codec: how much each rank of an all-reduce encodes and
// decodes, and how often a value is encoded on its way.
//
// It carries a plan out on counts instead of values, by the rules of collectives/piece_coder.h: what is complete is
// handed on as it came, any other send encodes what it finds, and the rank that completes a sum encodes that. Pure;
// allocates.
#pragma once

#include <vector>

#include "collectives/schedule.h"

namespace canarynet::sim {

struct CodedWork {
  // Shares of the operation's bytes. What a rank encodes it also decodes, which tells what its codec leaves out.
  struct OfRank {
    double encoded = 0, decoded = 0, added = 0;
  };
  std::vector<OfRank> ranks;
  // How often a value is encoded before it is part of everybody's result, as a mean over all ranks' values. A mesh: 2,
  // less the own part of each rank; a ring of n: (n + 1) / 2.
  double encodings = 0;

  // Seconds per byte of the operation at the slowest rank.
  double seconds_per_byte(double encode, double decode, double add) const;
};

// Of an all-reduce of f32 that has passed the planner's check and completes every element on one rank.
CodedWork coded_work(PlannerId id, const PlanRequest& request);

}  // namespace canarynet::sim
