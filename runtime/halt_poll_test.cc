#include "runtime/halt_poll.h"

#include <gtest/gtest.h>

namespace canarynet {
namespace {

constexpr Nanos kLongest = 200_us;
constexpr Nanos kStep = 2_us;

// A thread with nothing to do until `next`: polls while it may, then sleeps until then. Returns how long it polled.
Nanos wait(HaltPoll* poll, Nanos* now, Nanos next) {
  const Nanos began = *now;
  Nanos polled{};
  while (*now < next && poll->goes_on(*now, *now - began)) {
    *now = *now + kStep;
    polled = *now - began;
  }
  poll->stop();
  *now = std::max(*now, next);
  poll->found(*now, *now - began);
  return polled;
}

TEST(HaltPoll, SleepsAtOnceUntilRepliesComeSoon) {
  HaltPoll poll(kLongest);
  Nanos now = 1_s;
  EXPECT_EQ(wait(&poll, &now, now + 100_us), Nanos{});
  EXPECT_GE(wait(&poll, &now, now + 100_us), 100_us) << "the wait before was short: this one is polled through";
}

TEST(HaltPoll, GrowsFromWaitsThatSleepMadeLonger) {
  HaltPoll poll(kLongest);
  Nanos now = 1_s;
  wait(&poll, &now, now + kLongest * 3);
  EXPECT_GT(wait(&poll, &now, now + 100_us), Nanos{});
}

TEST(HaltPoll, OneLongPauseAmongRepliesDoesNotEndIt) {
  HaltPoll poll(kLongest);
  Nanos now = 1_s;
  wait(&poll, &now, now + 50_us);
  for (int round = 0; round < 100; ++round) {
    const Nanos in_vain = wait(&poll, &now, now + 2_ms);
    EXPECT_LE(in_vain, kLongest + kStep);
    EXPECT_GE(wait(&poll, &now, now + 50_us), 50_us) << round;
  }
}

TEST(HaltPoll, AnIdleThreadStopsAfterFourWaits) {
  HaltPoll poll(kLongest);
  Nanos now = 1_s;
  wait(&poll, &now, now + 50_us);
  Nanos polled{};
  for (int beat = 0; beat < 1000; ++beat) polled = polled + wait(&poll, &now, now + 200_ms);
  EXPECT_LE(polled, (kLongest + kStep) * 4);
}

TEST(HaltPoll, RegularWorkThatIsAlwaysTooLateCostsLittle) {
  HaltPoll poll(kLongest);
  Nanos now = 1_s;
  Nanos polled{};
  const Nanos began = now;
  for (int i = 0; i < 10'000; ++i) polled = polled + wait(&poll, &now, now + 600_us);
  EXPECT_LT(polled.count * 8, (now - began).count) << "an eighth of the time";
  EXPECT_GT(polled, Nanos{}) << "it tries again now and then";
}

TEST(HaltPoll, WhoLosesItsCoreWhilePollingSleeps) {
  HaltPoll poll(kLongest);
  Nanos now = 1_s;
  wait(&poll, &now, now + 50_us);
  ASSERT_TRUE(poll.goes_on(now, Nanos{}));
  EXPECT_FALSE(poll.goes_on(now + 180_us, 180_us));
  poll.stop();
  now = now + 180_us;
  poll.found(now, 180_us);
  EXPECT_EQ(wait(&poll, &now, now + 50_us), Nanos{}) << "for a while";
  now = now + 20_ms;
  wait(&poll, &now, now + 50_us);
  EXPECT_GT(wait(&poll, &now, now + 50_us), Nanos{});
}

TEST(HaltPoll, ALostCoreIsNoticedThoughThereWasWorkAfterIt) {
  HaltPoll poll(kLongest);
  Nanos now = 1_s;
  wait(&poll, &now, now + 50_us);
  ASSERT_TRUE(poll.goes_on(now, Nanos{}));
  now = now + 3_ms;
  poll.found(now, 3_ms);
  EXPECT_EQ(wait(&poll, &now, now + 50_us), Nanos{});
}

TEST(HaltPoll, WhoNeverHasACoreOfItsOwnTriesEverMoreRarely) {
  HaltPoll poll(kLongest);
  Nanos now = 1_s;
  int tries = 0;
  for (const Nanos end = now + 60_s; now < end;) {
    wait(&poll, &now, now + 50_us);
    if (!poll.goes_on(now, Nanos{})) {
      poll.stop();
      continue;
    }
    ++tries;
    now = now + 3_ms;
    poll.found(now, 3_ms);
  }
  EXPECT_GT(tries, 30);
  EXPECT_LT(tries, 60);
}

TEST(HaltPoll, OfNoLengthNeverPolls) {
  HaltPoll poll;
  Nanos now = 1_s;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(wait(&poll, &now, now + Nanos{1}), Nanos{});
}

}  // namespace
}  // namespace canarynet
