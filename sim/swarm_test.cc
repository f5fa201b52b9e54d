// Random lives from seeds: the same 150 of each mode in every run. CANARY_SIM_SECONDS goes on for that long; CANARY_SIM_SEED replays one.
#include "sim/swarm.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>

namespace canarynet {
namespace {

constexpr std::uint64_t kSeeds = 150;
constexpr std::uint64_t kQuickSeeds = 40;

double budget_seconds() {
  const char* text = std::getenv("CANARY_SIM_SECONDS");
  return text != nullptr ? std::atof(text) : 0.0;
}

void campaign(std::uint64_t first_seed, bool lethal, bool faults) {
  if (const char* one = std::getenv("CANARY_SIM_SEED")) {
    const SwarmReport r = run_swarm({std::strtoull(one, nullptr, 10), lethal, faults});
    EXPECT_TRUE(r.ok) << r.failure << "\n" << r.shape;
    return;
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(budget_seconds());
  std::uint64_t seed = first_seed, collectives = 0, faults_seen = 0;
  const std::uint64_t last = first_seed + (std::getenv("CANARY_TEST_QUICK") != nullptr ? kQuickSeeds : kSeeds);
  while (seed < last || std::chrono::steady_clock::now() < end) {
    const SwarmReport r = run_swarm({seed, lethal, faults});
    ASSERT_TRUE(r.ok) << "seed " << seed << ": " << r.failure << "\n  " << r.shape
                      << "\n  replay: CANARY_SIM_SEED=" << seed << " swarm_test --gtest_filter="
                      << testing::UnitTest::GetInstance()->current_test_info()->test_suite_name() << "."
                      << testing::UnitTest::GetInstance()->current_test_info()->name();
    collectives += r.collectives;
    faults_seen += r.faults;
    ++seed;
  }
  std::printf("seeds %lu..%lu: %lu collectives, %lu faults, 0 wrong, 0 hangs\n", static_cast<unsigned long>(first_seed),
              static_cast<unsigned long>(seed - 1), static_cast<unsigned long>(collectives),
              static_cast<unsigned long>(faults_seen));
}

TEST(Swarm, WithoutFaultsEverythingSucceeds) { campaign(1, false, false); }
TEST(Swarm, LossyNetworksAndDyingNicsChangeNoResult) { campaign(1'000'000, false, true); }
TEST(Swarm, ADyingHostIsNamedByAllAndNothingHangs) { campaign(2'000'000, true, true); }

TEST(Swarm, ASeedReplaysBitForBit) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const SwarmOptions options{seed, seed % 2 == 0, true};
    const SwarmReport a = run_swarm(options), b = run_swarm(options);
    EXPECT_EQ(a.hash, b.hash) << "seed " << seed;
    EXPECT_EQ(a.virtual_time, b.virtual_time);
    EXPECT_NE(a.hash, run_swarm({seed + 100, options.lethal, true}).hash);
  }
}

}  // namespace
}  // namespace canarynet
