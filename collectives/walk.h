// collectives/walk.h -- the walk of cost.h: all tasks of a schedule in virtual time, for every rank or for the few that
// stand for all. Pure; allocates; some tenths of a microsecond a message.
#pragma once

#include <cstdint>

#include "collectives/cost.h"
#include "collectives/schedule.h"

namespace canarynet {

// Which ranks a walk needs: all (cell 0), or a cell of them if the planner's plans repeat (Planner::symmetry) and so
// does everything that the cost depends on: hosts, rails, rates, links, and the lengths of leaves. `exactly`: only if a
// walk over the cell gives the same number. Otherwise leaves that differ by no more than the unit in which planners cut
// may count as the longest, and plans repeat but for the order of their leaves.
Symmetry walked_ranks(PlannerId id, const PlanRequest& request, const CostModel& model, bool exactly);

// What a walk took, as numbers that are the same on every machine.
struct WalkWork {
  std::uint64_t tasks = 0;          // pieces of steps
  std::uint64_t heaped = 0;         // how often an event was put into the heap of events, or moved in it
  std::uint64_t longest_queue = 0;  // of those of the ports
};

// Seconds until the last rank is done.
double walk(PlannerId id, const PlanRequest& request, int rails, const CostModel& model, const Symmetry& symmetry,
            WalkWork* work = nullptr);

}  // namespace canarynet
