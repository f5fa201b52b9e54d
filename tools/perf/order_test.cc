#include "tools/perf/order.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace canarynet::perf {
namespace {

using Turns = std::vector<std::size_t>;

TEST(Turns, AreBlocksOfOneSizeOrSweepsUpAndDown) {
  EXPECT_EQ(turns_of(Order::kBlocks, 3, 2, 1), (Turns{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(turns_of(Order::kSweep, 3, 3, 1), (Turns{0, 1, 2, 2, 1, 0, 0, 1, 2}));
}

TEST(Turns, AtRandomHaveEverySizeAsOftenAndFollowTheSeed) {
  const Turns one = turns_of(Order::kRandom, 5, 40, 7);
  ASSERT_EQ(one.size(), 200u);
  for (std::size_t size = 0; size < 5; ++size) EXPECT_EQ(std::count(one.begin(), one.end(), size), 40);
  EXPECT_EQ(one, turns_of(Order::kRandom, 5, 40, 7)) << "ranks must agree";
  EXPECT_NE(one, turns_of(Order::kRandom, 5, 40, 8));
  EXPECT_NE(one, turns_of(Order::kSweep, 5, 40, 7));
  EXPECT_NE(one, turns_of(Order::kBlocks, 5, 40, 7));
}

}  // namespace
}  // namespace canarynet::perf
