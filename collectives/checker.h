// collectives/checker.h -- proves a schedule symbolically, for up to 64 ranks: no bytes, no network.
#pragma once

#include <vector>

#include "base/status.h"
#include "collectives/schedule.h"

namespace canarynet {

// plans[r] is rank r's plan over `schedule`. OK, or CANARY_INTERNAL with a sentence that names rank, step and leaf.
// Proves, for the in-place and the out-of-place call:
//  - sends and receives match: same pair, tag and leaves, tags unique per pair;
//  - every edge is one that the reachability matrix has; a preferred rail is one that reaches the peer;
//  - each destination ends with every contribution of every element exactly once (as the collective defines it), and
//    `finish` is set on exactly the write that completes a reduction;
//  - no step reads a range before it is written, no two unordered steps write one range or read and write it;
//  - a range is overwritten only after the sends from it are acked, and kInput is never written;
//  - happens-before (dependencies, message delivery, acks) has no cycle: no deadlock under any order of arrivals.
Status check_schedule(const Schedule& schedule, const std::vector<Plan>& plans, const Reachability& reach);

// Makes all plans of a request with one planner and checks them.
Status check_planner(PlannerId id, const PlanRequest& request);

}  // namespace canarynet
