// What the cost model says of a plan over links that differ, and what it takes in virtual time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "collectives/cost.h"
#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

using Rates = std::vector<std::vector<int>>;  // [host][rail], Mbit/s
constexpr Nanos kDelay = 50_us;

double predicted(PlannerId id, const Rates& mbit, std::uint64_t bytes) {
  const int n = static_cast<int>(mbit.size()), rails = static_cast<int>(mbit.front().size());
  const auto reach = Reachability::full(n, rails);
  LinkCosts links;
  for (std::size_t a = 0; a < mbit.size(); ++a) {
    for (std::size_t b = 0; b < mbit.size(); ++b) {
      for (std::size_t r = 0; a != b && r < mbit.front().size(); ++r) {
        links.set(static_cast<int>(a), static_cast<int>(b), static_cast<int>(r),
                  {kDelay.seconds(), 8 / (std::min(mbit[a][r], mbit[b][r]) * 1e6)});
      }
    }
  }
  const PlanRequest request{.ranks = n, .count = bytes / 4, .reach = &reach};
  return walk_cost(id, request, rails, {.links = &links, .piece_bytes = 128 << 10});
}

// The mean of a while, after lanes have had time to learn what they carry. Applications compute between operations.
double measured(PlannerId id, const Rates& mbit, std::uint64_t bytes) {
  ClusterOptions o = flat_cluster(static_cast<int>(mbit.size()), static_cast<int>(mbit.front().size()));
  o.settings.algo = std::string(name_of(id));
  o.fabric.window_bytes = 16 << 20;
  Cluster c(o);
  for (std::size_t host = 0; host < mbit.size(); ++host) {
    for (std::size_t r = 0; r < mbit[host].size(); ++r)
      c.fabric().nic(static_cast<int>(host), static_cast<int>(r)) =
          NicOptions::link(kDelay, BytesPerSec::from_mbit(mbit[host][r]));
  }
  EXPECT_TRUE(c.join());
  std::uint64_t salt = 0;
  const auto run_for = [&](Nanos span) {
    Nanos took{};
    int operations = 0;
    for (const Nanos began = c.now(); c.now() - began < span; ++operations) {
      AllRanks op(c, sum(c.ranks(), bytes / 4, ++salt));
      const Nanos submitted = c.now();
      op.submit_all();
      op.expect_exact(60_s);
      took += c.now() - submitted;
      c.run_for(5_ms);
    }
    return took.seconds() / operations;
  };
  run_for(800_ms);
  return run_for(200_ms);
}

// A plan that gives an equal part to each rail: the rails are a preference of it, and the slow one is left alone.
TEST(Prediction, ARingPerRailOverRailsThatDifferTakesWhatTheModelSays) {
  Rates unequal(8, {500, 125}), one_slow(8, {500, 500});
  one_slow.back() = {500, 50};
  for (const Rates& mbit : {unequal, one_slow}) {
    const double model = predicted(PlannerId::kRingPerRail, mbit, 256 << 10);
    const double clock = measured(PlannerId::kRingPerRail, mbit, 256 << 10);
    std::printf("%d + %d Mbit/s: %.3f ms by the model, %.3f by the clock\n", mbit.back()[0], mbit.back()[1],
                model * 1e3, clock * 1e3);
    EXPECT_NEAR(model / clock, 1, 0.05);
  }
}

}  // namespace
}  // namespace canarynet
