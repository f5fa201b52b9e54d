// Random lives from seeds: a few of each mode, the same in every run. ctest's swarm_* entries run thousands
// (sim/swarm_main.cc). CANARY_SIM_SECONDS makes it go on for that long; CANARY_SIM_SEED replays one.
#include "sim/swarm.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>

namespace canarynet {
namespace {

constexpr std::uint64_t kSeeds = 100;
constexpr std::uint64_t kQuickSeeds = 15;

double budget_seconds() {
  const char* text = std::getenv("CANARY_SIM_SECONDS");
  return text != nullptr ? std::atof(text) : 0.0;
}

void campaign(SwarmOptions options, std::uint64_t seeds = kSeeds) {
  const std::uint64_t first_seed = options.seed;
  if (const char* one = std::getenv("CANARY_SIM_SEED")) {
    options.seed = std::strtoull(one, nullptr, 10);
    const SwarmReport r = run_swarm(options);
    EXPECT_TRUE(r.ok) << r.failure << "\n" << r.shape;
    std::printf("%s\n", r.shape.c_str());
    return;
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(budget_seconds());
  std::uint64_t seed = first_seed, collectives = 0, messages = 0, faults_seen = 0;
  const bool quick = std::getenv("CANARY_TEST_QUICK") != nullptr;
  const std::uint64_t last = first_seed + (quick ? (seeds * kQuickSeeds + kSeeds - 1) / kSeeds : seeds);
  while (seed < last || std::chrono::steady_clock::now() < end) {
    options.seed = seed;
    const SwarmReport r = run_swarm(options);
    ASSERT_TRUE(r.ok) << "seed " << seed << ": " << r.failure << "\n  " << r.shape
                      << "\n  replay: CANARY_SIM_SEED=" << seed << " swarm_test --gtest_filter="
                      << testing::UnitTest::GetInstance()->current_test_info()->test_suite_name() << "."
                      << testing::UnitTest::GetInstance()->current_test_info()->name();
    collectives += r.collectives;
    messages += r.messages;
    faults_seen += r.faults;
    ++seed;
  }
  std::printf("seeds %lu..%lu: %lu collectives, %lu messages, %lu faults, 0 wrong, 0 hangs\n",
              static_cast<unsigned long>(first_seed), static_cast<unsigned long>(seed - 1),
              static_cast<unsigned long>(collectives), static_cast<unsigned long>(messages),
              static_cast<unsigned long>(faults_seen));
}

TEST(Swarm, WithoutFaultsEverythingSucceeds) { campaign({1, false, false}); }
TEST(Swarm, LossyNetworksAndDyingNicsChangeNoResult) { campaign({1'000'000, false}); }
TEST(Swarm, WhatEndsAGroupIsNamedByAllAndNothingHangs) { campaign({2'000'000, true}); }
TEST(Swarm, MachinesWithSlowReadersAndPausesOfAllChangeNoResult) { campaign({3'000'000, false, true, true}); }
TEST(Swarm, WhatEndsAGroupInTheMiddleOfFramesIsNamedByAll) { campaign({4'000'000, true, true, true}); }
TEST(Swarm, TrainingLosesNoGradientAndSumsNoneTwice) { campaign({6'000'000, false, true, false, true}, 20); }
TEST(Swarm, TrainingGoesOnAfterDeathsOrNamesThem) { campaign({7'000'000, true, true, false, true}, 20); }

// The lives above must do what they are meant to do. The figures are low, since there are few lives.
TEST(Swarm, NearLivesStopReadersInTheMiddleOfFramesAndAllAtOnce) {
  SwarmReport sum;
  for (std::uint64_t seed = 5'000'000; seed < 5'000'040; ++seed) {
    const SwarmReport r = run_swarm({seed, true, true, true});
    ASSERT_TRUE(r.ok) << "seed " << seed << ": " << r.failure;
    sum.stops += r.stops;
    sum.given_up += r.given_up;
    sum.through_memory += r.through_memory;
  }
  EXPECT_GT(sum.stops, 10u);
  EXPECT_GT(sum.given_up, 3u);
  EXPECT_GT(sum.through_memory, 20u << 20);
}

TEST(Swarm, TrainingLivesDropGradientsSurviveDeathsAndAskCoordinators) {
  SwarmReport sum;
  for (std::uint64_t seed = 8'000'000; seed < 8'000'020; ++seed) {
    const SwarmReport r = run_swarm({seed, true, true, false, true});
    ASSERT_TRUE(r.ok) << "seed " << seed << ": " << r.failure;
    sum.dropped += r.dropped;
    sum.rounds += r.rounds;
    sum.survived += r.survived;
    sum.exchanges += r.exchanges;
    sum.answers += r.answers;
  }
  EXPECT_GT(sum.dropped, 5u);
  EXPECT_GT(sum.rounds, 500u);
  EXPECT_GT(sum.survived, 2u);
  EXPECT_GT(sum.exchanges, 300u);
  EXPECT_GT(sum.answers, 100u);
}

TEST(Swarm, ASeedReplaysBitForBit) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const SwarmOptions options{seed, seed % 2 == 0, true, seed % 4 < 2, seed > 4};
    const SwarmReport a = run_swarm(options), b = run_swarm(options);
    EXPECT_EQ(a.hash, b.hash) << "seed " << seed;
    EXPECT_EQ(a.virtual_time, b.virtual_time);
    EXPECT_NE(a.hash, run_swarm({seed + 100, options.lethal, true, options.near, options.training}).hash);
  }
}

}  // namespace
}  // namespace canarynet
