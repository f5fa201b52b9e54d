// collectives/selector.h -- which planner runs an operation. Pure: equal on all ranks for equal arguments.
//
// The static choice: a table by size, and where peers are behind different rails the costs of the wiring
// (collectives/wiring.h); one measured at run time comes later behind the same call.
#pragma once

#include "base/status.h"
#include "collectives/schedule.h"

namespace canarynet {

struct SelectorOptions {
  bool forced = false;  // CANARY_ALGO
  PlannerId planner = PlannerId::kRing;
};

// The planner for `request`. With a forced planner that does not define the collective: the static choice among the
// others (a forced planner that defines it but whose ranks can't meet is an error, as it is when no planner can run at
// all; it names ranks).
Result<PlannerId> select_planner(const PlanRequest& request, const SelectorOptions& options);

}  // namespace canarynet
