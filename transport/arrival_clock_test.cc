#include "transport/arrival_clock.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace canarynet {
namespace {

// By the peer's clock, which differs by so much.
std::uint64_t told(Nanos arrived, std::uint64_t differs) { return static_cast<std::uint64_t>(arrived.count) + differs; }

TEST(ArrivalClock, TellsTheTimeBeyondTheLeastWayWhateverThePeersClockSays) {
  for (const std::uint64_t differs : {0ull, 77'000'000'000ull, 0ull - 77'000'000'000, 1ull << 60}) {
    ArrivalClock clock;
    EXPECT_EQ(clock.queued(2_s, 1_s, told(1010_ms, differs), 20_ms), 0_ms) << "it is the least so far";
    EXPECT_EQ(clock.queued(2_s, 2_s - 100_ms, told(2_s - 85_ms, differs), 20_ms), 5_ms);
    EXPECT_EQ(clock.queued(2_s, 2_s - 100_ms, told(2_s - 92_ms, differs), 20_ms), 0_ms);
    EXPECT_EQ(clock.queued(2_s, 2_s - 100_ms, told(2_s - 85_ms, differs), 20_ms), 7_ms);
    EXPECT_EQ(clock.queued(2_s, 2_s - 24_ms, told(2_s - 5_ms, differs), 20_ms), 4_ms) << "beyond the round trip";
  }
}

TEST(ArrivalClock, ClocksMayDriftApartAndAQueueThatStandsForAMinuteIsStillOne) {
  ArrivalClock clock;
  const auto queued = [&](Nanos now, Nanos way, Nanos ahead) {
    return clock.queued(now, now - 100_ms, told(now - 100_ms + way, static_cast<std::uint64_t>(ahead.count)), 20_ms);
  };
  EXPECT_EQ(queued(1_s, 10_ms, 0_ms), 0_ms);
  for (Nanos now = 2_s; now < 60_s; now += 1_s) EXPECT_GT(queued(now, 30_ms, 0_ms), 15_ms);
  clock.forget();
  EXPECT_EQ(queued(61_s, 90_ms, 0_ms), 0_ms);
  // The peer's clock is fast by 20 ppm.
  for (Nanos now = 62_s; now < 3600_s; now += 1_s) EXPECT_LT(queued(now, 10_ms, now / 50'000), 1_ms);
}

// As when it had been suspended, or read long before the frame came.
TEST(ArrivalClock, AClockThatJumpsIsBelievedAgainFromThereOn) {
  ArrivalClock clock;
  const auto queued = [&](Nanos way) { return clock.queued(5_s, 4_s, told(4_s + way, 1'000'000'000'000), 20_ms); };
  EXPECT_EQ(queued(10_ms), 0_ms);
  EXPECT_EQ(queued(70_ms), 60_ms);
  EXPECT_EQ(queued(9_s), 0_ms);
  EXPECT_EQ(queued(9_s + 60_ms), 60_ms);
  EXPECT_EQ(queued(10_ms), 0_ms);
}

TEST(ArrivalClock, NothingThatAPeerTellsMakesItMoreThanWhatHasPassedBeyondARoundTrip) {
  Random random(1);
  ArrivalClock clock;
  for (int i = 0; i < 10'000; ++i) {
    const Nanos sent = 1_s * i;
    const std::uint64_t arrived = i % 3 == 0 ? random.next() : told(sent, random.next() % 1'000'000'000);
    const Nanos queued = clock.queued(sent + 20_ms, sent, arrived, 15_ms);
    EXPECT_GE(queued, 0_ms);
    EXPECT_LE(queued, 5_ms);
  }
}

}  // namespace
}  // namespace canarynet
