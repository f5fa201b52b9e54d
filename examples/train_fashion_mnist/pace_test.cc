#include "examples/train_fashion_mnist/pace.h"

#include <gtest/gtest.h>

namespace train {
namespace {

TEST(Pace, ASlowRankTakesAsManyTimesAsLong) {
  EXPECT_DOUBLE_EQ(sleep_of(10, 0, 1), 0);
  EXPECT_DOUBLE_EQ(sleep_of(10, 0, 4), 30);
  EXPECT_DOUBLE_EQ(sleep_of(10, 60, 1), 50);
  EXPECT_DOUBLE_EQ(sleep_of(10, 60, 4), 230);
  EXPECT_DOUBLE_EQ(sleep_of(70, 60, 1), 0);
}

TEST(Pace, AnIterationSleepsInItsParts) {
  Pace pace(20, 2, 4);
  for (const double computed : {0.0, 10.0}) {
    pace.computed(computed);
    pace.after_forward();
    for (int bucket = 0; bucket < 4; ++bucket) pace.before_bucket();
    EXPECT_GE(pace.taken(), 40 - computed);
    EXPECT_EQ(pace.taken(), 0);
  }
}

}  // namespace
}  // namespace train
