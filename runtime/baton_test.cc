#include "runtime/baton.h"

#include <gtest/gtest.h>

namespace canarynet {
namespace {

TEST(BatonDeathTest, IsGivenByWhoeverTookIt) {
  Baton baton;
  EXPECT_DEATH(baton.give(), "the baton is given by the thread that took it");
  ASSERT_TRUE(baton.try_take());
  EXPECT_FALSE(baton.try_take());
  baton.give();
  EXPECT_DEATH(baton.give(), "the baton is given by the thread that took it");
}

TEST(BatonDeathTest, OnlyWhatWasAnnouncedIsTakenBack) {
  Baton baton;
  baton.want(1);
  EXPECT_TRUE(baton.wanted());
  baton.want(-1);
  EXPECT_FALSE(baton.wanted());
  EXPECT_DEATH(baton.want(-1), "was not announced");
}

}  // namespace
}  // namespace canarynet
