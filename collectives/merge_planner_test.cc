// Merging of gradients: the exact planner against brute force, algorithm 1 against the paper's recurrences, closed
// forms of the extremes, and the scaling of the constants.
#include "collectives/merge_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#include "base/random.h"

namespace canarynet {
namespace {

// Passes are written as the page writes them: in backward order.
BackwardPass pass_of(double forward, std::vector<LayerTiming> backward_order) {
  std::reverse(backward_order.begin(), backward_order.end());
  return {forward, std::move(backward_order)};
}

// Numbers of layers per message, in the order they leave.
std::vector<std::size_t> sizes_of(const MergePlan& plan) {
  std::vector<std::size_t> sizes;
  for (const MergeGroup& g : plan.groups) sizes.push_back(g.last - g.first + 1);
  return sizes;
}

using Sizes = std::vector<std::size_t>;

// Checks a plan against the definition of its groups alone: they cover the layers from the last to the first, each
// message leaves once it is ready and the one before is through, and takes T of its bytes. Returns the iteration time.
double time_by_definition(const BackwardPass& pass, const MergePlan& plan, const TransferTime& time) {
  double free = pass.forward_seconds;
  std::size_t next = pass.layers.size();
  for (const MergeGroup& g : plan.groups) {
    EXPECT_EQ(g.last + 1, next);
    EXPECT_LE(g.first, g.last);
    std::uint64_t bytes = 0;
    for (std::size_t l = g.first; l <= g.last; ++l) bytes += pass.layers[l].bytes;
    double ready = pass.forward_seconds;
    for (std::size_t l = g.first; l < pass.layers.size(); ++l) ready += pass.layers[l].backward_seconds;
    EXPECT_EQ(g.bytes, bytes);
    EXPECT_NEAR(g.ready_seconds, ready, 1e-9);
    EXPECT_DOUBLE_EQ(g.start_seconds, std::max(g.ready_seconds, plan.groups.front().first == g.first ? 0 : free));
    EXPECT_DOUBLE_EQ(g.end_seconds, g.start_seconds + time(bytes));
    EXPECT_EQ(plan.communication_starts[g.first], g.start_seconds);
    free = g.end_seconds;
    next = g.first;
  }
  EXPECT_EQ(next, 0u);
  return free;
}

// The best of all 2^(L-1) groupings, each costed by itself.
double brute_force(const BackwardPass& pass, const TransferTime& time) {
  const std::size_t count = pass.layers.size();
  if (count == 0) return pass.forward_seconds;
  double best = -1;
  for (std::uint32_t cuts = 0; cuts < 1u << (count - 1); ++cuts) {
    double now = pass.forward_seconds, free = 0;
    std::uint64_t bytes = 0;
    for (std::size_t k = 0; k < count; ++k) {  // in backward order
      const LayerTiming& layer = pass.layers[count - 1 - k];
      now += layer.backward_seconds;
      bytes += layer.bytes;
      if (k + 1 < count && (cuts >> k & 1u) == 0) continue;
      free = std::max(free, now) + time(bytes);
      bytes = 0;
    }
    if (best < 0 || free < best) best = free;
  }
  return best;
}

// Algorithm 1 as the paper writes it, every τ_c computed again after every merge. Returns t_iter.
double greedy_as_printed(const BackwardPass& pass, const AffineTime& time) {
  if (pass.layers.empty()) return pass.forward_seconds;
  const int last = static_cast<int>(pass.layers.size()) - 1;
  const auto at = [](int l) { return static_cast<std::size_t>(l); };
  std::vector<double> tau_b(pass.layers.size()), tau_c(pass.layers.size()), t_c(pass.layers.size());
  std::vector<std::uint64_t> p(pass.layers.size());
  for (int l = last; l >= 0; --l) {
    p[at(l)] = pass.layers[at(l)].bytes;
    t_c[at(l)] = time(p[at(l)]);
    tau_b[at(l)] = l == last ? pass.forward_seconds : tau_b[at(l + 1)] + pass.layers[at(l + 1)].backward_seconds;
  }
  const auto compute = [&] {
    for (int l = last; l >= 0; --l) {
      const double ready = tau_b[at(l)] + pass.layers[at(l)].backward_seconds;
      tau_c[at(l)] = l == last ? ready : std::max(tau_c[at(l + 1)] + t_c[at(l + 1)], ready);
    }
  };
  compute();
  for (int l = last; l >= 1; --l) {
    if (tau_b[at(l - 1)] + pass.layers[at(l - 1)].backward_seconds - tau_c[at(l)] >= time.a) continue;
    t_c[at(l)] = 0;
    p[at(l - 1)] += p[at(l)];
    t_c[at(l - 1)] = time(p[at(l - 1)]);
    compute();
  }
  return tau_c[0] + t_c[0];
}

// Whole numbers, so that sums are exact and comparisons may be too.
BackwardPass random_pass(Random* random, std::size_t layers) {
  BackwardPass pass;
  pass.forward_seconds = static_cast<double>(random->below(5));
  const std::uint64_t slow = 1 + random->below(12), large = 1 + random->below(12);
  for (std::size_t l = 0; l < layers; ++l)
    pass.layers.push_back({static_cast<double>(random->below(slow)), random->below(large)});
  return pass;
}
AffineTime random_time(Random* random) {
  return {static_cast<double>(random->below(15)), static_cast<double>(random->below(4))};
}

TEST(MergePlanner, TheSmallestCaseInWhichAlgorithm1IsNotOptimal) {
  const BackwardPass pass = pass_of(0, {{1, 2}, {2, 1}, {3, 1}});
  const AffineTime time{3, 1};
  const MergePlan greedy = merge_greedily(pass, time);
  EXPECT_EQ(greedy.iteration_seconds, 13);
  EXPECT_EQ(sizes_of(greedy), (Sizes{2, 1}));
  const MergePlan exact = merge_exactly(pass, time);
  EXPECT_EQ(exact.iteration_seconds, 11);
  EXPECT_EQ(sizes_of(exact), (Sizes{1, 2}));
}

TEST(MergePlanner, TheTimelineIsThePapers) {
  const BackwardPass pass = pass_of(4, {{1, 2}, {2, 1}, {3, 1}});
  const AffineTime time{3, 1};
  const MergePlan wfbp = merge_nothing(pass, time);
  EXPECT_EQ(wfbp.backward_starts, (std::vector<double>{7, 5, 4}));
  EXPECT_EQ(wfbp.communication_starts, (std::vector<double>{14, 10, 5}));
  EXPECT_EQ(wfbp.iteration_seconds, 18);
  // A merged layer's communication takes no time: its own start is only where the recurrence puts it.
  const MergePlan greedy = merge_greedily(pass, time);
  EXPECT_EQ(greedy.communication_starts, (std::vector<double>{13, 7, 5}));
}

// CANARY_MERGE_INSTANCES=10000 runs more of them than CI has time for, and prints how algorithm 1 does;
// CANARY_MERGE_SEED draws others.
TEST(MergePlanner, TheExactPlanIsTheBestOfAllGroupings) {
  const char* number = std::getenv("CANARY_MERGE_INSTANCES");
  const char* given = std::getenv("CANARY_MERGE_SEED");
  const bool quick = std::getenv("CANARY_TEST_QUICK") != nullptr;
  const int instances = number != nullptr ? std::atoi(number) : quick ? 200 : 1000;
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  Random random(seed);
  int worse = 0;
  double worst = 1, excess = 0;
  for (int i = 0; i < instances; ++i) {
    SCOPED_TRACE("CANARY_MERGE_SEED=" + std::to_string(seed) + ", instance " + std::to_string(i));
    const BackwardPass pass = random_pass(&random, static_cast<std::size_t>(random.below(15)));
    const AffineTime time = random_time(&random);
    const MergePlan exact = merge_exactly(pass, time);
    const double best = brute_force(pass, time);
    ASSERT_EQ(exact.iteration_seconds, best);
    ASSERT_EQ(time_by_definition(pass, exact, time), best);
    // Of two message costs the smaller one, as when a selector chooses between two algorithms: no affine function.
    const AffineTime other{time.a / 2, 2 * time.b};
    const auto smaller = [&](std::uint64_t bytes) { return std::min(time(bytes), other(bytes)); };
    ASSERT_EQ(merge_exactly(pass, smaller).iteration_seconds, brute_force(pass, smaller));

    const MergePlan greedy = merge_greedily(pass, time);
    ASSERT_EQ(time_by_definition(pass, greedy, time), greedy.iteration_seconds);
    ASSERT_EQ(greedy.iteration_seconds, greedy_as_printed(pass, time));
    ASSERT_GE(greedy.iteration_seconds, best);
    if (greedy.iteration_seconds == best) continue;
    ++worse;
    worst = std::max(worst, greedy.iteration_seconds / best);
    excess += greedy.iteration_seconds / best - 1;
  }
  if (number != nullptr) {
    std::printf(
        "algorithm 1 is slower in %.1f %% of %d passes of 0 to 14 layers, there by %.1f %% on average and %.2fx at "
        "most\n",
        100.0 * worse / instances, instances, worse > 0 ? 100 * excess / worse : 0, worst);
  }
  // Were it none, the instances would not tell the two apart.
  EXPECT_GT(worse, instances / 20) << "seed " << seed;
}

TEST(MergePlanner, TheExtremesFollowTheirClosedForms) {
  Random random(7);
  for (int i = 0; i < 200; ++i) {
    const BackwardPass pass = random_pass(&random, 1 + static_cast<std::size_t>(random.below(12)));
    const AffineTime time = random_time(&random);
    double backward = 0;
    std::uint64_t bytes = 0;
    for (const LayerTiming& layer : pass.layers) {
      backward += layer.backward_seconds;
      bytes += layer.bytes;
    }
    const MergePlan all = merge_everything(pass, time);
    EXPECT_EQ(all.groups.size(), 1u);
    EXPECT_EQ(all.iteration_seconds, pass.forward_seconds + backward + time.a + time.b * static_cast<double>(bytes));
    // WFBP ends with the longest of these: wait for a gradient, then send it and all that follow without a pause.
    double wfbp = 0, ready = pass.forward_seconds;
    for (std::size_t l = pass.layers.size(); l-- > 0;) {
      ready += pass.layers[l].backward_seconds;
      double rest = 0;
      for (std::size_t k = 0; k <= l; ++k) rest += time(pass.layers[k].bytes);
      wfbp = std::max(wfbp, ready + rest);
    }
    const MergePlan none = merge_nothing(pass, time);
    EXPECT_EQ(none.groups.size(), pass.layers.size());
    EXPECT_EQ(none.iteration_seconds, wfbp);
  }
}

TEST(MergePlanner, NoLayerCostsTheForwardPassAlone) {
  for (int policy = 0; policy < kMergePolicyCount; ++policy) {
    const MergePlan plan = plan_merges(static_cast<MergePolicy>(policy), {2.5, {}}, AffineTime{1, 1});
    EXPECT_EQ(plan.iteration_seconds, 2.5);
    EXPECT_TRUE(plan.groups.empty());
  }
}

TEST(MergePlanner, OneLayerIsOneMessage) {
  for (int policy = 0; policy < kMergePolicyCount; ++policy) {
    const MergePlan plan = plan_merges(static_cast<MergePolicy>(policy), {2, {{3, 10}}}, AffineTime{1, 0.5});
    EXPECT_EQ(plan.iteration_seconds, 2 + 3 + 1 + 5);
    EXPECT_EQ(sizes_of(plan), Sizes{1});
  }
}

TEST(MergePlanner, GradientsThatAreReadyTogetherTravelTogether) {
  // A normalisation's two tensors are ready with its layer's: waiting for them costs nothing.
  const BackwardPass pass = pass_of(1, {{2, 8}, {0, 1}, {0, 1}, {0, 4}});
  const AffineTime time{0.5, 1};
  for (const MergePlan& plan : {merge_exactly(pass, time), merge_greedily(pass, time)}) {
    EXPECT_EQ(sizes_of(plan), Sizes{4});
    EXPECT_EQ(plan.iteration_seconds, 3 + 0.5 + 14);
  }
}

TEST(MergePlanner, MessagesThatCostNothingToStartAreNotMergedByAlgorithm1) {
  const BackwardPass pass = pass_of(0, {{1, 1}, {1, 1}, {1, 1}});
  EXPECT_EQ(merge_greedily(pass, {0, 0.5}).groups.size(), 3u);
  EXPECT_EQ(merge_exactly(pass, AffineTime{0, 0.5}).iteration_seconds, 3.5);
}

TEST(MergePlanner, TimesThatAreNoneAreNamed) {
  EXPECT_TRUE(check({0, {{0, 0}}}).ok());
  EXPECT_EQ(check({-1, {}}).text(), "forward_seconds -1.000000: takes a time from 0 on");
  EXPECT_EQ(check({0, {{1, 1}, {-0.5, 1}}}).text(), "layer 1: backward_seconds -0.500000: takes a time from 0 on");
  EXPECT_FALSE(check({0, {{1.0 / 0.0, 1}}}).ok());
  EXPECT_FALSE(check({std::numeric_limits<double>::quiet_NaN(), {}}).ok());
}

constexpr AffineTime kK80{9.72e-4, 1.97e-9};  // 16 GPUs on 10GbE

TEST(ScalingLaw, ReturnsTheFitWhereItWasMade) {
  const AffineTime ring = scaled(ScalingLaw::kRing, kK80, 16, 16);
  EXPECT_DOUBLE_EQ(ring.a, kK80.a);
  EXPECT_DOUBLE_EQ(ring.b, kK80.b);
  const AffineTime fixed = scaled(ScalingLaw::kFixed, kK80, 16, 1024);
  EXPECT_DOUBLE_EQ(fixed.a, kK80.a);
  EXPECT_DOUBLE_EQ(fixed.b, kK80.b);
}

TEST(ScalingLaw, ARingsStartGrowsWithItsLengthAndATreesWithItsDepth) {
  const AffineTime ring = scaled(ScalingLaw::kRing, kK80, 16, 61);
  EXPECT_DOUBLE_EQ(ring.a, 4 * kK80.a);
  EXPECT_DOUBLE_EQ(ring.b, kK80.b * (60.0 / 61) / (15.0 / 16));
  const AffineTime tree = scaled(ScalingLaw::kDoubleTree, kK80, 16, 1024);
  EXPECT_DOUBLE_EQ(tree.a, kK80.a * 10 / 15);
  EXPECT_DOUBLE_EQ(tree.b, kK80.b * 16 / 15);
  const AffineTime printed = scaled(ScalingLaw::kDoubleTreeAsPrinted, kK80, 16, 1024);
  EXPECT_DOUBLE_EQ(printed.a, tree.a);
  EXPECT_DOUBLE_EQ(printed.b, tree.b / 2);
}

TEST(ScalingLaw, TwoWorkersAreAtTheirFormsLowerEnd) {
  // At n = 2 ring and tree exchange the same two messages; the ring sends half of the buffer in each.
  const AffineTime ring = scaled(ScalingLaw::kRing, kK80, 16, 2), tree = scaled(ScalingLaw::kDoubleTree, kK80, 16, 2);
  EXPECT_DOUBLE_EQ(ring.a, tree.a);
  EXPECT_DOUBLE_EQ(2 * ring.b, tree.b);
  for (const auto law : {ScalingLaw::kRing, ScalingLaw::kDoubleTree, ScalingLaw::kDoubleTreeAsPrinted})
    EXPECT_EQ(scaled(law, kK80, 16, 1)(1000), 0) << name_of(law);
}

}  // namespace
}  // namespace canarynet
