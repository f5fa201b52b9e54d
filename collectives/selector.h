// collectives/selector.h -- which planner runs an operation. Pure: equal on all ranks for equal arguments.
//
// A row of the decision table decides for what it names. Elsewhere the static choice decides: by size, and, if peers
// are behind different rails, by the costs of the wiring (collectives/wiring.h).
#pragma once

#include "base/status.h"
#include "collectives/decision_table.h"
#include "collectives/schedule.h"

namespace canarynet {

// The planner for `request`. It is an error if the planner of a row can't run among these ranks, or if none can; the
// error names ranks.
Result<PlannerId> select_planner(const PlanRequest& request, const DecisionTable& table);

}  // namespace canarynet
