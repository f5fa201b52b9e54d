// How a bundle measures and plans: times are handed in, as a network with a start-up time would make them.
#include "collectives/bundle_tuner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

namespace canarynet {
namespace {

using Then = BundleTuner::Then;
using Ends = std::vector<std::uint32_t>;

// A rank's iterations: tensor t is ready at (t + 1) x `step` after the iteration's beginning (`forward` comes before),
// and messages of a + b·p leave one after the other.
struct Rank {
  Rank(std::vector<std::uint64_t> sizes, MergePolicy policy = MergePolicy::kExact)
      : bytes(std::move(sizes)), tuner(bytes, policy) {}

  Nanos iteration_end(std::vector<Nanos>* submitted, std::vector<Nanos>* done) const {
    Nanos free = clock;
    std::size_t first = 0;
    for (std::size_t t = 0; t < bytes.size(); ++t)
      submitted->push_back(clock + forward + step * static_cast<std::int64_t>(t + 1));
    for (const std::uint32_t end : tuner.ends()) {
      std::uint64_t sum = 0;
      for (; first < end; ++first) sum += bytes[first];
      free = std::max(free, (*submitted)[end - 1]) + a + Nanos{b_per_byte * static_cast<std::int64_t>(sum)};
      done->push_back(free);
    }
    return free;
  }
  Then iterate() {
    std::vector<Nanos> submitted, done;
    const Nanos end = iteration_end(&submitted, &done);
    const Then then = tuner.end_iteration({clock, submitted, done});
    took = end - clock;
    clock = end;
    return then;
  }
  // Alone, or as rank 0.
  Then step_on() {
    const Then then = iterate();
    if (then == Then::kPlan) {
      tuner.make_plan();
      EXPECT_TRUE(tuner.adopt().ok());
    } else if (then == Then::kJudge) {
      tuner.judge();
      tuner.obey();
    }
    return then;
  }
  Ends ends() const { return {tuner.ends().begin(), tuner.ends().end()}; }

  std::vector<std::uint64_t> bytes;
  BundleTuner tuner;
  Nanos clock{1'000'000}, forward{3'000'000}, step{100'000}, a{500'000}, took{};
  std::int64_t b_per_byte = 1;
};

const std::vector<std::uint64_t> kSizes = {4'000'000, 1000, 1000, 300'000, 1000, 2000, 4000, 1000};

TEST(BundleTuner, MeasuresAMessagePerTensorAndThenOneOfAll) {
  Rank r(kSizes);
  const Ends each = {1, 2, 3, 4, 5, 6, 7, 8}, whole = {8};
  for (const Ends& ends : {each, each, whole, whole}) {
    EXPECT_EQ(r.ends(), ends);
    EXPECT_EQ(r.tuner.plans(), 0u);
    r.step_on();
  }
  EXPECT_EQ(r.tuner.plans(), 1u);
}

// The network's own a and b are found, so the plan is that of the planner which knows them, and takes what it says.
TEST(BundleTuner, PlansWhatThePlannerWouldThatKnowsTheNetwork) {
  for (const std::int64_t a : {0, 20'000, 500'000, 5'000'000}) {
    for (const MergePolicy policy : {MergePolicy::kExact, MergePolicy::kMgWfbp}) {
      Rank r(kSizes, policy);
      r.a = {a};
      for (int i = 0; i < 4; ++i) r.step_on();
      BackwardPass pass{(r.forward + r.step).seconds(), {}};
      for (auto p = kSizes.rbegin(); p != kSizes.rend(); ++p) pass.layers.push_back({r.step.seconds(), *p});
      pass.layers.back().backward_seconds = 0;
      const MergePlan best = plan_merges(policy, pass, {Nanos{a}.seconds(), 1e-9});
      Ends expected;
      for (const MergeGroup& g : best.groups) expected.push_back(static_cast<std::uint32_t>(kSizes.size() - g.first));
      EXPECT_EQ(r.ends(), expected) << a;
      EXPECT_NEAR(r.tuner.expected_seconds(), best.iteration_seconds, 1e-6);
      EXPECT_NEAR(r.tuner.transfer_time().a, Nanos{a}.seconds(), 1e-9);
      r.step_on();
      EXPECT_NEAR(r.took.seconds(), best.iteration_seconds, 1e-6);
    }
  }
}

TEST(BundleTuner, StaysWithAPlanThatKeepsWhatItPromised) {
  Rank r(kSizes);
  for (int i = 0; i < 1004; ++i) EXPECT_EQ(r.step_on() == Then::kJudge, i >= 4 && (i - 3) % 100 == 0) << i;
  EXPECT_EQ(r.tuner.plans(), 1u);
  EXPECT_NEAR(r.tuner.median_seconds(), r.tuner.expected_seconds(), 1e-6);
}

TEST(BundleTuner, MeasuresAgainWhenIterationsTakeAFifthLongerOrLess) {
  for (const double factor : {0.7, 0.85, 1.15, 1.3}) {
    Rank r(kSizes);
    for (int i = 0; i < 4; ++i) r.step_on();
    const Ends first = r.ends();
    const double expected = r.tuner.expected_seconds();
    r.forward += Nanos::from_seconds(expected * (factor - 1));
    for (int i = 0; i < 100; ++i) EXPECT_EQ(r.tuner.plans(), 1u);
    for (int i = 0; i < 99; ++i) r.step_on();
    EXPECT_EQ(r.ends(), first);
    r.step_on();
    const bool again = factor < 0.8 || factor > 1.2;
    EXPECT_EQ(r.ends().size() == kSizes.size(), again) << factor;
    for (int i = 0; i < 4; ++i) r.step_on();
    EXPECT_EQ(r.tuner.plans(), again ? 2u : 1u);
  }
}

TEST(BundleTuner, ChangesItsGroupsWithTheNetworkAndBack) {
  Rank r(kSizes);
  r.a = {10'000};
  for (int i = 0; i < 104; ++i) r.step_on();
  const Ends quick = r.ends();
  r.a = {5'000'000};
  for (int i = 0; i < 204; ++i) r.step_on();
  const Ends slow = r.ends();
  EXPECT_LT(slow.size(), quick.size());
  r.a = {10'000};
  for (int i = 0; i < 304; ++i) r.step_on();
  EXPECT_EQ(r.ends(), quick);
  EXPECT_EQ(r.tuner.plans(), 3u);
}

// A model that is wrong by half does not make a bundle measure for ever.
TEST(BundleTuner, ExpectsOfAPlanThatComesOutAgainWhatItTook) {
  Rank r(kSizes);
  for (int i = 0; i < 4; ++i) r.step_on();
  int measured = 0;
  for (int i = 0; i < 1000; ++i) {
    const bool planned = r.tuner.ends().size() != 1 && r.tuner.ends().size() != kSizes.size();
    const Nanos forward = r.forward;
    if (planned) r.forward += 6_ms;  // what no measuring iteration shows
    measured += r.step_on() == Then::kPlan;
    r.forward = forward;
  }
  EXPECT_EQ(measured, 1);
}

// Ready times are the slowest rank's, message times those of the rank that waited least.
TEST(BundleTuner, RanksPlanFromTheSlowestOnesTensors) {
  std::vector<Rank> ranks(3, Rank(kSizes));
  ranks[1].step = {900'000};
  ranks[2].a = {9'000'000};  // as it sees them: it waits for rank 1
  Rank slow(kSizes);
  slow.step = {900'000};
  for (int i = 0; i < 4; ++i) {
    slow.step_on();
    for (Rank& r : ranks) EXPECT_EQ(r.iterate(), i == 3 ? Then::kPlan : Then::kGoOn);
  }
  const auto report = ranks[0].tuner.report();
  for (std::size_t w = 0; w < report.size(); ++w)
    report[w] = std::min({report[w], ranks[1].tuner.report()[w], ranks[2].tuner.report()[w]});
  ranks[0].tuner.make_plan();
  for (Rank& r : ranks) {
    std::copy_n(ranks[0].tuner.plan().begin(), r.tuner.plan().size(), r.tuner.plan().begin());
    EXPECT_TRUE(r.tuner.adopt().ok());
    EXPECT_EQ(r.ends(), slow.ends());
  }
}

TEST(BundleTuner, RefusesWhatIsNoPlan) {
  const std::vector<std::vector<std::int64_t>> wrong = {{0, 0, 0}, {4, 0, 0},  {2, 0, 0}, {2, 2, 3},
                                                        {3, 2, 3}, {-1, 3, 0}, {1, 2, 4}};
  for (const auto& words : wrong) {
    Rank r({10, 20, 30});
    std::copy(words.rbegin(), words.rend(), r.tuner.plan().rbegin());
    EXPECT_EQ(r.tuner.adopt().code(), CANARY_MISMATCH) << words[0];
    EXPECT_EQ(r.ends(), (Ends{1, 2, 3}));
  }
}

TEST(BundleTuner, TakesOneTensorAndTensorsOfNothing) {
  for (const std::vector<std::uint64_t>& sizes :
       {std::vector<std::uint64_t>{8}, {0}, {0, 0, 0}, {0, 5, 0}, {700, 700, 700}}) {
    Rank r(sizes);
    for (int i = 0; i < 300; ++i) r.step_on();
    ASSERT_FALSE(r.ends().empty());
    EXPECT_EQ(r.ends().back(), sizes.size());
  }
}

// --- the fit ---------------------------------------------------------------------------------------------------------

// What a network with these constants would have shown.
BundleTimes times_of(double a, double b, std::vector<std::uint64_t> bytes, double step) {
  BundleTimes times{std::move(bytes), {}, {}, a};
  double free = 0;
  for (std::size_t t = 0; t < times.bytes.size(); ++t) {
    times.ready.push_back(step * static_cast<double>(t));
    if (times.bytes[t] != 0) free = std::max(free, times.ready.back()) + a + b * static_cast<double>(times.bytes[t]);
    times.ends.push_back(free);
    times.whole_seconds += b * static_cast<double>(times.bytes[t]);
  }
  return times;
}

TEST(TransferFit, FindsTheNetworksConstants) {
  for (const double a : {0.0, 1e-5, 1e-3, 1e-2}) {
    for (const double b : {1e-10, 1e-8}) {
      for (const double step : {0.0, 1e-4, 1e-2}) {
        const auto fit = fit_transfer_time(times_of(a, b, {256, 256, 0, 4096, 60'000, 4'000'000, 256, 1000}, step));
        EXPECT_NEAR(fit.a, a, 1e-6 * a + 1e-9) << a << " " << b << " " << step;
        EXPECT_NEAR(fit.b, b, 1e-3 * b);
      }
    }
  }
}

// Messages that overlap end together: then one more costs little, whatever a single one takes.
TEST(TransferFit, TakesMessagesThatEndTogetherForCheapOnes) {
  BundleTimes times = times_of(1e-3, 1e-9, std::vector<std::uint64_t>(100, 1000), 0);
  for (double& end : times.ends) end = 2e-3;
  EXPECT_LT(fit_transfer_time(times).a, 1e-4);
}

TEST(TransferFit, OneMessageThatAPauseHeldUpChangesLittle) {
  BundleTimes times = times_of(1e-3, 1e-9, std::vector<std::uint64_t>(50, 100'000), 5e-3);
  times.ends.back() += 4e-3;
  EXPECT_NEAR(fit_transfer_time(times).a, 1e-3, 1e-4);
}

TEST(TransferFit, IsNeverNegative) {
  const auto never = [](const BundleTimes& times) {
    const auto fit = fit_transfer_time(times);
    EXPECT_GE(fit.a, 0);
    EXPECT_GE(fit.b, 0);
  };
  never({{100, 100}, {0, 0}, {5, 5}, 1e-3});
  never({{100, 100}, {1, 1}, {0, 0}, 1e-3});
  never({{100, 100}, {1, 1}, {2, 2}, -1});
  never({{0, 0}, {1, 1}, {2, 2}, 1});
}

}  // namespace
}  // namespace canarynet
