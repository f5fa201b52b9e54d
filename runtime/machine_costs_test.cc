// What a plan costs this machine's processor, as measured here.
#include "runtime/machine_costs.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/descriptor.h"

namespace canarynet {
namespace {

TEST(MachineCosts, AreThoseOfAProcessorOfOurTime) {
  const MachineCosts costs = measure_machine_costs();
  EXPECT_GT(costs.reduce_seconds, 1e-12) << "a terabyte a second";
  EXPECT_LT(costs.reduce_seconds, 1e-7);
  EXPECT_GT(costs.post_seconds, 1e-7) << "a system call";
  EXPECT_LT(costs.post_seconds, 5e-3);
  EXPECT_TRUE(costs.post_measured);
}

// A process that has no descriptors left still gets a choice.
TEST(MachineCosts, PostingTakesTheUsualTimeWhereNoConnectionCanBeMade) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer needs descriptors itself, to see what memory it may read";
#endif
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const MachineCosts costs = measure_machine_costs();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(costs.post_measured);
  EXPECT_EQ(costs.post_seconds, 10e-6);
  EXPECT_GT(costs.reduce_seconds, 0);
}

TEST(MachineCosts, MeasuringLeavesNoDescriptorBehind) {
  const auto lowest_free = [] {
    const Descriptor probe(dup(2));
    return probe.fd();
  };
  const int before = lowest_free();
  for (int i = 0; i < 3; ++i) measure_machine_costs();
  EXPECT_EQ(lowest_free(), before);
}

}  // namespace
}  // namespace canarynet
