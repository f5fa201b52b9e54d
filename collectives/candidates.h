// collectives/candidates.h -- how long each planner that can run an operation would take, by the cost model. Pure and
// equal everywhere for equal arguments; allocates, so it stays off the data path.
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

// Walks every planner that passes its check with pieces of each of the sizes (model.piece_bytes is not looked at) and
// lists the cheapest first; equal costs stand in the order of `pieces`, then of the planners. A planner whose pieces
// would not differ, since the operation is shorter than the smallest of them, is listed once.
std::vector<Candidate> cost_candidates(const PlanRequest& request, int rails, const CostModel& model,
                                       std::span<const std::uint64_t> pieces);

}  // namespace canarynet
