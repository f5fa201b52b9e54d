#include "tools/perf/statistics.h"

#include <gtest/gtest.h>

namespace canarynet::perf {
namespace {

TEST(Percentile, IsASampleByNearestRank) {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  EXPECT_DOUBLE_EQ(percentile(samples, 0.99), 99);
  EXPECT_DOUBLE_EQ(percentile(samples, 1), 100);
  EXPECT_DOUBLE_EQ(percentile(samples, 0), 1);
  std::vector<double> few = {3, 1, 2};
  EXPECT_DOUBLE_EQ(percentile(few, 0.99), 3);
  std::vector<double> none;
  EXPECT_DOUBLE_EQ(percentile(none, 0.5), 0);
}

TEST(Median, TakesTheMeanOfTheMiddleTwo) {
  std::vector<double> even = {4, 1, 100, 2}, odd = {9, 1, 5}, none;
  EXPECT_DOUBLE_EQ(median(even), 3);
  EXPECT_DOUBLE_EQ(median(odd), 5);
  EXPECT_DOUBLE_EQ(median(none), 0);
}

TEST(BusFactor, IsThatOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(Op::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kReduceScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kAllGather, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kBroadcast, 4), 1);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kSendRecv, 4), 1);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kAllReduce, 1), 0);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kReduce, 4), 1);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kScatter, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(Op::kAllToAll, 8), 0.875);
}

TEST(LeastTraffic, IsWhatARingSends) {
  EXPECT_EQ(least_traffic(Op::kAllReduce, 1000, 4), 6000u);  // 4 ranks x 2 x 3/4
  EXPECT_EQ(least_traffic(Op::kReduceScatter, 1000, 4), 3000u);
  EXPECT_EQ(least_traffic(Op::kAllReduce, 1000, 1), 0u);
  EXPECT_EQ(least_traffic(Op::kReduce, 1000, 4), 3000u);
  EXPECT_EQ(least_traffic(Op::kAllToAll, 1000, 4), 3000u);  // 4 ranks x 3/4
  EXPECT_EQ(least_traffic(Op::kGather, 1000, 4), 750u);     // 3 blocks
}

}  // namespace
}  // namespace canarynet::perf
