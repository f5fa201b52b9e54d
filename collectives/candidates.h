// collectives/candidates.h -- what each planner that can run an operation would take, by the cost model. Pure; equal
// everywhere for equal arguments; allocates; off the data path.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collectives/cost.h"
#include "collectives/schedule.h"

namespace canarynet {

struct Candidate {
  PlannerId planner = PlannerId::kRing;
  std::uint64_t piece_bytes = 0;
  double seconds = 0;
};

// Every planner that passes its check, walked with pieces of each of the sizes (model.piece_bytes is not looked at),
// the cheapest first. Equal costs: the order of `pieces`, then of the planners. Planners whose pieces would not differ,
// since the operation is shorter than the smallest of them, stand there once.
std::vector<Candidate> cost_candidates(const PlanRequest& request, int rails, const CostModel& model,
                                       std::span<const std::uint64_t> pieces);

}  // namespace canarynet
