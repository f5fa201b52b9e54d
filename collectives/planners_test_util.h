// collectives/planners_test_util.h -- for tests of planners: proves their plans for many lengths.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "collectives/checker.h"
#include "collectives/schedule.h"

namespace canarynet {

inline constexpr Collective kAll[] = {Collective::kAllReduce,  Collective::kReduceScatter, Collective::kAllGather,
                                      Collective::kBroadcast,  Collective::kBarrier,       Collective::kReduce,
                                      Collective::kGather,     Collective::kScatter,       Collective::kAllToAll,
                                      Collective::kAllGatherV, Collective::kAllToAllV};

inline Plan plan_of(PlannerId id, const PlanRequest& request, int rank) {
  Plan plan;
  planner(id).plan(request, rank, &plan);
  return plan;
}

inline std::vector<std::uint64_t> leaves_of(PlannerId id, const PlanRequest& request) {
  std::vector<std::uint64_t> leaves;
  planner(id).leaves(request, &leaves);
  return leaves;
}

inline void prove(PlannerId id, const PlanRequest& request) {
  for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{77}, std::uint64_t{1'000'003}}) {
    // The root does not change which leaves are empty, and pairs have a leaf each in any case.
    if (count < 1000 && (request.root != 0 || is_pairwise(request.collective)) && request.ranks > 20) continue;
    if (request.collective == Collective::kBarrier && count != 0) break;
    PlanRequest sized = request;
    sized.count = count;
    const Status status = check_planner(id, sized);
    ASSERT_TRUE(status.ok()) << status.to_string() << " count " << count;
  }
}

// With CANARY_TEST_QUICK most of the large groups are left out: the proof costs the square of n, and the sanitizers see
// the same code at 20. The release build goes to 64.
inline bool left_out(int n) { return std::getenv("CANARY_TEST_QUICK") != nullptr && n > 20 && n != 32 && n != 33; }

}  // namespace canarynet
