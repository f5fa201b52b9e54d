// Random lives from seeds. CANARY_SIM_SECONDS bounds the campaign (default 5 s per mode); CANARY_SIM_SEED replays one.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "sim/swarm.h"

namespace canarynet {
namespace {

double budget_seconds() {
  const char* text = std::getenv("CANARY_SIM_SECONDS");
  return text != nullptr ? std::atof(text) : 5.0;
}

void campaign(std::uint64_t first_seed, bool lethal, bool faults) {
  if (const char* one = std::getenv("CANARY_SIM_SEED")) {
    const SwarmReport r = run_swarm({std::strtoull(one, nullptr, 10), lethal, faults});
    EXPECT_TRUE(r.ok) << r.failure << "\n" << r.shape;
    return;
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(budget_seconds());
  std::uint64_t seed = first_seed, collectives = 0, faults_seen = 0;
  while (std::chrono::steady_clock::now() < end) {
    const SwarmReport r = run_swarm({seed, lethal, faults});
    ASSERT_TRUE(r.ok) << "seed " << seed << ": " << r.failure << "\n  " << r.shape << "\n  replay: CANARY_SIM_SEED=" << seed
                      << " swarm_test --gtest_filter=" << testing::UnitTest::GetInstance()->current_test_info()->test_suite_name() << "."
                      << testing::UnitTest::GetInstance()->current_test_info()->name();
    collectives += r.collectives;
    faults_seen += r.faults;
    ++seed;
  }
  std::printf("seeds %lu..%lu: %lu collectives, %lu faults, 0 wrong, 0 hangs\n", static_cast<unsigned long>(first_seed),
              static_cast<unsigned long>(seed - 1), static_cast<unsigned long>(collectives), static_cast<unsigned long>(faults_seen));
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
