// collectives/selector.h -- which planner runs an operation. Pure: equal on all ranks for equal arguments.
//
// A row that the user forces decides for what it names, then a row of the group's measured table. Elsewhere the static
// choice decides: by size, and, if peers are behind different rails, by the costs of the wiring (collectives/wiring.h).
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "collectives/decision_table.h"
#include "collectives/measured_table.h"
#include "collectives/schedule.h"

namespace canarynet {

// To walk the plans of more ranks takes longer than a first call should, so no costs choose among them.
inline constexpr int kCostedRanksMax = 64;

enum class ChosenBy : std::uint8_t { kForced, kMeasured, kStatic };

struct Choice {
  PlannerId planner = PlannerId::kRing;
  std::uint32_t piece_bytes = 0;  // 0: the job's
  ChosenBy by = ChosenBy::kStatic;
  bool in_order = false;  // a ring in the measured table's order
};

// What a row decides for `request`; nothing where the static choice is to. `codec`: the number of the codec
// (compress/spec.h) whose encoded pieces or top-k values the operation carries; 0: none. It is an error if the planner
// of a forced row can't run among these ranks, or not with such pieces. A measured row of a planner that can't run is
// passed over, on all ranks alike.
Result<std::optional<Choice>> choice_of_rows(const PlanRequest& request, const DecisionTable& forced,
                                             const MeasuredTable& measured, std::uint32_t codec = 0);

// Whether there are several hosts, one of them with several ranks, and ranks of one host meet without a NIC: only then
// do a hierarchical plan's first and last leg cost the network nothing.
bool hosts_share_memory(const PlanRequest& request);

// Whether the planner's plan for an all-reduce completes every element on one rank, which then tells it to all others:
// so must every plan whose pieces go through a codec, since two ranks that complete a sum each by themselves would not
// decode the same.
bool completes_once(PlannerId id, const PlanRequest& request);
// Whether an operation that carries what this codec makes (its number; 0: none) can run by the planner: pieces that are
// encoded need completes_once(), the values of AR-Topk travel as they are.
bool takes_codec(PlannerId id, const PlanRequest& request, std::uint32_t codec);
// The planner for an all-reduce with a codec, by forced rows and otherwise by what encoding costs: a mesh encodes every
// value twice in all, a ring once more for every rank. Errors as of select_planner(), also where a forced planner does
// not complete every element on one rank.
Result<PlannerId> select_coded_planner(const PlanRequest& request, const DecisionTable& forced);

// The planner for `request`, by forced rows and the static choice. It is an error if the planner of a row can't run
// among these ranks, or if none can; the error names ranks.
Result<PlannerId> select_planner(const PlanRequest& request, const DecisionTable& table);

}  // namespace canarynet
