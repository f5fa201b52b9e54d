#include "compress/ratio_controller.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"

namespace canarynet {
namespace {

TEST(RatioCandidates, AreThoseOfThePaper) {
  const std::vector<double> ratios = ratio_candidates({});
  const double expected[] = {0.1, 0.033, 0.011, 0.004, 0.001};
  ASSERT_EQ(5U, ratios.size());
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(expected[i], ratios[i], 1e-12);
  EXPECT_EQ(1U, ratio_candidates({.high = 0.01, .low = 0.01}).size());
}

TEST(ParetoFront, LeavesOutWhatAnotherPointBeats) {
  const std::vector<RatioCost> costs = {{3, 1, 1}, {2, 2, 2}, {2, 2, 3}, {1, 3, 2}, {2, 2, 2}};
  EXPECT_EQ((std::vector<std::size_t>{0, 1, 3, 4}), pareto_front(costs));
}

TEST(ParetoFront, EveryPointLeftOutIsBeatenByOneOfTheFront) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    std::vector<RatioCost> costs(1 + random.below(12));
    for (RatioCost& cost : costs) {
      cost = {static_cast<double>(random.below(4)), static_cast<double>(random.below(4)),
              static_cast<double>(random.below(4))};
    }
    const auto beats = [&](std::size_t a, std::size_t b) {
      const double d[] = {costs[a].compress_seconds - costs[b].compress_seconds,
                          costs[a].sync_seconds - costs[b].sync_seconds, costs[a].inverse_gain - costs[b].inverse_gain};
      return d[0] <= 0 && d[1] <= 0 && d[2] <= 0 && d[0] + d[1] + d[2] < 0;
    };
    const std::vector<std::size_t> front = pareto_front(costs);
    std::vector<bool> in_front(costs.size());
    for (const std::size_t i : front) in_front[i] = true;
    for (std::size_t i = 0; i < costs.size(); ++i) {
      bool beaten = false;
      for (const std::size_t j : front) beaten |= beats(j, i);
      EXPECT_EQ(in_front[i], !beaten) << "seed " << seed << " point " << i;
    }
    EXPECT_TRUE(in_front[knee_of(costs)]) << "seed " << seed;
  }
}

TEST(Knee, IsNearBothEndsRatherThanAtOne) {
  EXPECT_EQ(1U, knee_of(std::vector<RatioCost>{{0, 10, 1}, {0, 2, 2}, {0, 1, 10}}));
  EXPECT_EQ(0U, knee_of(std::vector<RatioCost>{{1, 1, 1}}));
  EXPECT_EQ(0U, knee_of(std::vector<RatioCost>{{1, 1, 1}, {1, 1, 1}}));
}

// Gains rise with the ratio; bytes cost `beta` per unit of ratio on top of `alpha`.
struct Bench {
  double alpha = 0.001, beta = 1, gain_scale = 1;
  RatioController controller{{}, [this](double ratio) { return alpha + beta * ratio; }};

  static double gain_of(double ratio) { return std::pow(ratio, 0.1); }
  RatioController::Step run() {
    const RatioController::Step step = controller.next();
    controller.report(gain_scale * gain_of(step.ratio), 0.01);
    return step;
  }
  void explore() {
    while (controller.exploring()) run();
  }
};

TEST(RatioController, ExploresEachCandidateTenTimesFromTheCheckpoint) {
  Bench bench;
  const std::vector<double> ratios = ratio_candidates({});
  for (std::size_t candidate = 0; candidate < 5; ++candidate) {
    for (int iteration = 0; iteration < 10; ++iteration) {
      const RatioController::Step step = bench.run();
      EXPECT_TRUE(step.exploring);
      EXPECT_EQ(ratios[candidate], step.ratio);
      EXPECT_EQ(candidate == 0 && iteration == 0, step.save);
      EXPECT_EQ(candidate != 0 && iteration == 0, step.restore);
    }
  }
  const RatioController::Step after = bench.run();
  EXPECT_FALSE(after.exploring);
  EXPECT_TRUE(after.restore) << "training goes on from the checkpoint";
  EXPECT_FALSE(bench.run().restore);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(Bench::gain_of(ratios[i]), bench.controller.explored_gain(i), 1e-9);
}

TEST(RatioController, ASlowNetworkAsksForLessAndAFastOneForMore) {
  Bench bench;
  bench.explore();
  const double before = bench.controller.ratio();
  bench.beta = 0;  // bytes are free: only the gain counts
  bench.controller.network_changed();
  EXPECT_EQ(0.1, bench.controller.ratio());
  EXPECT_GT(bench.controller.ratio(), before);
  EXPECT_EQ(2, bench.controller.choices());
  EXPECT_EQ(1, bench.controller.explorations()) << "the gains are still good";
}

TEST(RatioController, ExploresAgainWhenTheGainHasMovedByATenth) {
  Bench bench;
  bench.explore();
  bench.gain_scale = 0.91;  // nine percent: it never gets there
  for (int i = 0; i < 300; ++i) bench.run();
  EXPECT_EQ(1, bench.controller.explorations());
  bench.gain_scale = 0.85;
  int iterations = 0;
  while (!bench.controller.exploring() && iterations < 300) {
    bench.run();
    ++iterations;
  }
  EXPECT_EQ(2, bench.controller.explorations());
  EXPECT_TRUE(bench.controller.next().save);
  bench.explore();
  EXPECT_EQ(2, bench.controller.choices()) << "new gains are put to use at once";
  for (int i = 0; i < 300; ++i) bench.run();
  EXPECT_EQ(2, bench.controller.explorations()) << "the new gain is the yardstick now";
}

TEST(RatioController, AGainOfNothingIsNoChange) {
  Bench bench;
  bench.gain_scale = 0;
  bench.explore();
  for (int i = 0; i < 50; ++i) bench.run();
  EXPECT_EQ(1, bench.controller.explorations());
}

TEST(RatioController, AChangeOfTheNetworkDuringAnExplorationCountsAtItsEnd) {
  Bench bench;
  for (int i = 0; i < 7; ++i) bench.run();
  bench.beta = 0;
  bench.controller.network_changed();
  EXPECT_TRUE(bench.controller.exploring());
  EXPECT_EQ(0, bench.controller.choices());
  bench.explore();
  EXPECT_EQ(0.1, bench.controller.ratio());
}

}  // namespace
}  // namespace canarynet
