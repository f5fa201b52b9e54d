// collectives/selector.h -- which planner runs an operation. Pure: equal on all ranks for equal arguments.
//
// What a row of the decision table speaks of, that row decides. Elsewhere the static choice: by size, and where peers
// are behind different rails by the costs of the wiring (collectives/wiring.h).
#pragma once

#include "base/status.h"
#include "collectives/decision_table.h"
#include "collectives/schedule.h"

namespace canarynet {

// The planner for `request`. It is an error when the planner of a row can't run among these ranks, or when none can;
// the error names ranks.
Result<PlannerId> select_planner(const PlanRequest& request, const DecisionTable& table);

}  // namespace canarynet
