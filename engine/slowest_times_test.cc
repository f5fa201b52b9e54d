#include "engine/slowest_times.h"

#include <gtest/gtest.h>

namespace canarynet {
namespace {

TEST(SlowestTimes, AnOperationsTimeIsTheLongestOfAllRanksAndKnownOnceAllHaveTold) {
  SlowestTimes times;
  int mine = 0;
  EXPECT_EQ(times.note(7, 8500, 3, &mine), nullptr);
  EXPECT_EQ(times.note(8, 40, 3, nullptr), nullptr);
  EXPECT_EQ(times.note(7, 17000, 3, nullptr), nullptr);
  const SlowestTimes::Entry* const all = times.note(7, 9000, 3, nullptr);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(all->op, 7u);
  EXPECT_EQ(all->us, 17000u);
  EXPECT_EQ(all->of, &mine);
}

TEST(SlowestTimes, WhatIsNeverCompleteMakesRoom) {
  SlowestTimes times;
  for (std::uint32_t op = 0; op < 1000; ++op) EXPECT_EQ(times.note(op, 1, 2, nullptr), nullptr);
  EXPECT_EQ(times.note(0, 1, 2, nullptr), nullptr) << "long forgotten";
  EXPECT_NE(times.note(999, 1, 2, nullptr), nullptr);
}

TEST(SlowestTimes, WhoDrawsMoreThinlyDrawsASubset) {
  int thin = 0;
  for (std::uint32_t op = 0; op < 1 << 14; ++op) {
    if (!SlowestTimes::drawn(op, 6)) continue;
    ++thin;
    EXPECT_TRUE(SlowestTimes::drawn(op, 3));
  }
  EXPECT_NEAR(thin, 256, 32);
}

}  // namespace
}  // namespace canarynet
