#include "transport/loss_watch.h"

#include <gtest/gtest.h>

namespace canarynet {
namespace {

WayLosses after(std::uint64_t segments, std::uint64_t resent, Nanos round_trip) {
  return {.segments = segments, .resent = resent, .round_trip = round_trip, .least_round_trip = 20_ms};
}

TEST(LossWatch, LossesWithoutAQueueAreTheWaysOwn) {
  LossWatch watch;
  EXPECT_FALSE(watch.look(after(2'000, 10, 20'500_us))) << "ten may be chance";
  EXPECT_TRUE(watch.look(after(4'000, 20, 20'500_us)));
}

TEST(LossWatch, AFullQueueIsCongestion) {
  LossWatch watch;
  for (std::uint64_t i = 1; i <= 100; ++i) EXPECT_FALSE(watch.look(after(i * 2'000, i * 10, 30_ms)));
  EXPECT_FALSE(watch.look(after(210'000, 1'010, 20_ms))) << "only what is new counts as lost without a queue";
}

TEST(LossWatch, FewInALongTimeAreNothing) {
  LossWatch watch;
  for (std::uint64_t i = 1; i <= 100; ++i) EXPECT_FALSE(watch.look(after(i * 100'000, i * 40, 20_ms)));
}

}  // namespace
}  // namespace canarynet
