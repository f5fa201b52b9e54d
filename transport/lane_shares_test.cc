#include "transport/lane_shares.h"

#include <gtest/gtest.h>

namespace canarynet {
namespace {

constexpr std::uint64_t kMB = 1'000'000;

bool look(LaneShares* shares, Nanos now, std::vector<std::uint64_t> sent) { return shares->changed(now, sent); }

TEST(LaneShares, TheFirstSharesAreToldAndThenOnlyNoticeableChanges) {
  LaneShares shares;
  EXPECT_FALSE(look(&shares, 1_s, {0, 0})) << "nothing was sent";
  EXPECT_TRUE(look(&shares, 2_s, {80 * kMB, 20 * kMB}));
  EXPECT_EQ(shares.share(0), 80);
  EXPECT_EQ(shares.share(1), 20);
  EXPECT_FALSE(look(&shares, 3_s, {155 * kMB, 45 * kMB})) << "75 and 25 percent";
  EXPECT_TRUE(look(&shares, 4_s, {225 * kMB, 75 * kMB})) << "70 and 30 percent, beside what was told";
  EXPECT_EQ(shares.share(0), 70);
}

TEST(LaneShares, ALaneThatTakesNoPartAnyMoreIsNoticed) {
  LaneShares shares;
  look(&shares, 1_s, {0, 0});
  EXPECT_TRUE(look(&shares, 2_s, {50 * kMB, 50 * kMB}));
  EXPECT_TRUE(look(&shares, 3_s, {150 * kMB, 50 * kMB}));
  EXPECT_EQ(shares.share(1), 0);
}

TEST(LaneShares, SeldomAndNotOutOfAFewBytes) {
  LaneShares shares;
  look(&shares, 1_s, {0, 0});
  EXPECT_FALSE(look(&shares, 1_s + LaneShares::kInterval / 2, {80 * kMB, 20 * kMB})) << "too soon";
  EXPECT_TRUE(look(&shares, 3_s, {80 * kMB, 20 * kMB}));
  EXPECT_FALSE(look(&shares, 4_s, {80 * kMB, 20 * kMB + 1000})) << "heartbeats";
}

}  // namespace
}  // namespace canarynet
