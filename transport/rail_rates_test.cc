#include "transport/rail_rates.h"

#include <gtest/gtest.h>

namespace canarynet {
namespace {

constexpr auto kRate = BytesPerSec::from_mbit(800);  // 100 bytes a microsecond
constexpr std::uint64_t kPiece = 100'000;            // a millisecond

TEST(RailRates, AFrameFindsWhatAllLanesOfItsRailHaveUnderWay) {
  RailRates rates;
  EXPECT_EQ(rates.join(0, kPiece, 1_s).bytes, Bytes{100'000});
  EXPECT_EQ(rates.join(1, kPiece, 1_s).bytes, Bytes{100'000});
  EXPECT_EQ(rates.join(0, kPiece, 1_s).bytes, Bytes{200'000});
  rates.leave(0, kPiece);
  EXPECT_EQ(rates.join(0, 1, 1_s).bytes, Bytes{100'001});
  EXPECT_EQ(rates.under_way(0), Bytes{100'001});
  EXPECT_EQ(rates.under_way(2), Bytes{});
}

TEST(RailRates, WhatAShaperLetsPassAfterAPauseProvesNothing) {
  RailRates rates;
  Nanos now = 1_s;
  rates.join(0, kPiece, now);
  for (int i = 0; i < 6; ++i) {
    now += 1_ms;
    EXPECT_EQ(rates.join(0, kPiece, now).proves, i >= 4) << i << ": 320 KiB go before";
    rates.leave(0, kPiece);
    rates.add_acked(0, kPiece, now);
  }
  now += 50_ms;
  EXPECT_TRUE(rates.join(0, kPiece, now).proves) << "while something is under way, a short pause is none";
  now += 1_s;
  EXPECT_FALSE(rates.join(0, kPiece, now).proves) << "what is under way to a peer that has stopped keeps no NIC busy";
  rates.leave(0, 3 * kPiece);
  for (int i = 0; i < 4; ++i) rates.add_acked(0, kPiece, now);
  EXPECT_TRUE(rates.join(0, kPiece, now).proves);
  rates.leave(0, kPiece);
  rates.add_acked(0, kPiece, now);
  now += 1_ms;
  EXPECT_FALSE(rates.join(0, kPiece, now).proves);
}

TEST(RailRates, ANicIsWaitedForByWhatAllLanesWereGiven) {
  RailRates rates;
  rates.join(0, kPiece, 1_s);
  EXPECT_EQ(rates.wait(0, 1_s).count, 0) << "nobody knows for how long";
  rates.leave(0, kPiece);
  rates.note_capacity(0, kRate);
  for (int i = 0; i < 3; ++i) rates.join(0, kPiece, 2_s);
  EXPECT_EQ(rates.wait(0, 2_s), 3_ms);
  EXPECT_EQ(rates.wait(1, 2_s).count, 0);
  EXPECT_EQ(rates.wait(0, 2_s + 1_ms), 2_ms);
  // All of it is there sooner than it could be: the NIC is free.
  rates.leave(0, 3 * kPiece);
  rates.add_acked(0, 3 * kPiece, 2_s + 1_ms);
  EXPECT_EQ(rates.wait(0, 2_s + 1_ms).count, 0);
  rates.join(0, kPiece, 3_s);
  EXPECT_EQ(rates.wait(0, 3_s), 1_ms) << "what was idle is not made up for";
}

// A NIC that was believed to be slow when it was given much would be waited for long after all of that is there.
TEST(RailRates, ANicIsWaitedForNoLongerThanWhatIsUnderWayTakes) {
  RailRates rates;
  rates.note_capacity(0, {kRate.count / 10});
  for (int i = 0; i < 10; ++i) rates.join(0, kPiece, 1_s);
  EXPECT_EQ(rates.wait(0, 1_s), 100_ms);
  rates.note_capacity(0, kRate);
  EXPECT_EQ(rates.wait(0, 1_s), 10_ms);
  rates.leave(0, 9 * kPiece);
  EXPECT_EQ(rates.wait(0, 1_s), 1_ms);
  EXPECT_EQ(rates.join(0, kPiece, 1_s).free_at, 1_s + 2_ms);
}

TEST(RailRates, TheHighestCapacityOfANicsLanesCountsAndIsForgottenSlowly) {
  RailRates rates;
  EXPECT_EQ(rates.capacity(0), BytesPerSec{});
  rates.note_capacity(0, {1000});
  rates.note_capacity(0, {500});
  EXPECT_GT(rates.capacity(0).count, 980);
  EXPECT_EQ(rates.capacity(1), BytesPerSec{});
  for (int i = 0; i < 500; ++i) rates.note_capacity(0, {500});
  EXPECT_LT(rates.capacity(0).count, 570);
}

}  // namespace
}  // namespace canarynet
