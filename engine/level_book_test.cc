#include "engine/level_book.h"

#include <gtest/gtest.h>

namespace canarynet {
namespace {

using Counted = LevelBook::Counted;

// Four engines that all meet over one rail.
class Levels : public ::testing::Test {
 protected:
  void announce(int from, int to, std::uint32_t alpha_us, std::uint32_t beta_kbps, int rail = 0, int partner = 0) {
    const auto a = static_cast<std::uint16_t>(from), b = static_cast<std::uint16_t>(to);
    const auto r = static_cast<std::uint16_t>(rail);
    const wire::LinkLevel* const known = book.find(a, b, r);
    const auto serial = static_cast<std::uint16_t>(known != nullptr ? known->serial + 1 : 0);
    book.take({.from = a, .to = b, .rail = r, .serial = serial, .alpha_us = alpha_us, .beta_kbps = beta_kbps},
              static_cast<std::uint16_t>(partner));
  }
  void announce_all(std::uint32_t alpha_us, std::uint32_t beta_kbps) {
    for (int a = 0; a < 4; ++a) {
      for (int b = 0; b < 4; ++b) {
        if (a != b) announce(a, b, alpha_us, beta_kbps);
      }
    }
  }
  void announce_both(int a, int b, std::uint32_t alpha_us, std::uint32_t beta_kbps) {
    announce(a, b, alpha_us, beta_kbps);
    announce(b, a, alpha_us, beta_kbps);
  }
  const LevelBook::Level& of(int from, int to, int rail = 0) const {
    for (const LevelBook::Level& l : book.all()) {
      if (l.level.from == from && l.level.to == to && l.level.rail == rail) return l;
    }
    ADD_FAILURE() << "no level";
    return book.all().front();
  }
  Counted count(Nanos at, bool felt = false) { return book.count(at, felt); }

  LevelBook book;
};

TEST_F(Levels, WhatWasNotKnownCountsAtOnce) {
  EXPECT_EQ(count(1_s), Counted::kNothing);
  announce_all(100, 0);
  EXPECT_EQ(count(1_s), Counted::kNew);
  EXPECT_FALSE(book.rates_known());
  announce(0, 1, 100, 12'500);
  EXPECT_EQ(count(1100_ms), Counted::kNew);
  EXPECT_TRUE(book.rates_known());
  EXPECT_EQ(of(0, 1).alpha.counts, 100u);
  EXPECT_EQ(of(0, 1).beta.counts, 12'500u);
  EXPECT_EQ(count(1100_ms), Counted::kNothing);
  EXPECT_EQ(book.next(), Nanos::max());
}

TEST_F(Levels, ALongerWayAndAnotherRateCountOnceTheyHaveStood) {
  announce_all(100, 12'500);
  count(1_s);
  announce_both(0, 1, 2'000, 12'500);
  announce(2, 3, 100, 25'000);
  EXPECT_EQ(count(2_s), Counted::kNothing);
  EXPECT_EQ(of(0, 1).alpha.counts, 100u);
  EXPECT_EQ(of(2, 3).beta.counts, 12'500u);
  EXPECT_EQ(book.next(), 4_s);
  EXPECT_EQ(count(3999_ms), Counted::kNothing);
  EXPECT_EQ(count(4_s), Counted::kChanged);
  EXPECT_EQ(of(0, 1).alpha.counts, 2'000u);
  EXPECT_EQ(of(1, 0).alpha.counts, 2'000u);
  EXPECT_EQ(of(2, 3).beta.counts, 25'000u);
  EXPECT_EQ(book.next(), Nanos::max());
}

TEST_F(Levels, WhatDoesNotStandNeverCounts) {
  announce_all(100, 12'500);
  count(1_s);
  for (int i = 0; i < 10; ++i) {
    announce_both(0, 1, 2'000, 12'500);
    EXPECT_EQ(count(Nanos{i * 3'000'000'000LL} + 2_s), Counted::kNothing);
    announce_both(0, 1, 110, 12'500);
    EXPECT_EQ(count(Nanos{i * 3'000'000'000LL} + 3500_ms), Counted::kNothing) << "nearly what it was is what it was";
    EXPECT_EQ(book.next(), Nanos::max());
  }
  EXPECT_EQ(of(0, 1).alpha.counts, 100u);
}

TEST_F(Levels, AShorterWayCountsAtOnce) {
  announce_all(20'000, 12'500);
  count(1_s);
  announce(0, 1, 100, 12'500);
  EXPECT_EQ(count(2_s), Counted::kChanged);
  EXPECT_EQ(of(0, 1).alpha.counts, 100u);
  EXPECT_EQ(of(1, 0).alpha.counts, 100u) << "it is the same round trip";
}

// From one end the way seems longer where others' bytes are in front of its small frames.
TEST_F(Levels, OfBothEndsTheShorterWayIsRight) {
  announce_all(100, 12'500);
  count(1_s);
  announce(0, 1, 2'000, 12'500);
  EXPECT_EQ(count(2_s), Counted::kNothing);
  EXPECT_EQ(count(60_s), Counted::kNothing);
  EXPECT_EQ(of(0, 1).alpha.counts, 100u);
  announce(1, 0, 2'000, 12'500);
  count(61_s);
  EXPECT_EQ(count(63_s), Counted::kChanged);
  EXPECT_EQ(of(0, 1).alpha.counts, 2'000u);
}

TEST_F(Levels, TheOtherEndOfALinkIsThatOfItsRail) {
  announce(0, 1, 2'000, 0, 0, 1);
  announce(1, 0, 100, 0, 1, 0);
  announce(0, 1, 50, 0, 1, 2);
  EXPECT_EQ(count(1_s), Counted::kNew);
  EXPECT_EQ(of(0, 1, 0).alpha.counts, 100u);
  EXPECT_EQ(of(1, 0, 1).alpha.counts, 100u);
  EXPECT_EQ(of(0, 1, 1).alpha.counts, 50u);
}

TEST_F(Levels, WhatOperationsHaveFeltCountsAtOnceAndSoDoesWhatFollows) {
  announce_all(100, 12'500);
  count(1_s);
  announce_both(0, 1, 2'000, 12'500);
  EXPECT_EQ(count(2_s), Counted::kNothing);
  EXPECT_EQ(count(2100_ms, true), Counted::kChangedForSure);
  EXPECT_EQ(of(0, 1).alpha.counts, 2'000u);
  announce(1, 2, 100, 1'000);
  EXPECT_EQ(count(4_s), Counted::kChangedForSure) << "links are announced one after the other";
  announce(2, 3, 100, 1'000);
  EXPECT_EQ(count(4200_ms), Counted::kNothing) << "that was long ago";
}

TEST_F(Levels, ManyLinksThatChangeCountAtOnce) {
  announce_all(100, 12'500);
  count(1_s);
  for (int to = 1; to < 4; ++to) announce(0, to, 100, 1'250);
  EXPECT_EQ(count(2_s), Counted::kNothing);
  announce(1, 0, 100, 1'250);
  EXPECT_EQ(count(2100_ms), Counted::kChangedForSure) << "a NIC's";
  for (int to = 1; to < 4; ++to) EXPECT_EQ(of(0, to).beta.counts, 1'250u);
}

// The ends of a link measure a little apart, and each value has its own time.
TEST_F(Levels, ARateThatDipsOnALinkOfUnequalEndsDoesNotCountAtOnce) {
  announce_all(103, 12'500);
  count(1_s);
  announce(1, 0, 97, 12'500);
  EXPECT_EQ(count(2_s), Counted::kNothing);
  announce(0, 1, 103, 6'000);
  EXPECT_EQ(count(3_s), Counted::kNothing);
  announce_both(0, 1, 2'000, 6'000);
  EXPECT_EQ(count(4_s), Counted::kNothing);
  EXPECT_EQ(count(5_s), Counted::kChanged);
  EXPECT_EQ(of(0, 1).beta.counts, 6'000u);
  EXPECT_EQ(of(1, 0).beta.counts, 12'500u) << "it has differed for a second";
  EXPECT_EQ(of(0, 1).alpha.counts, 103u);
  EXPECT_EQ(count(6_s), Counted::kChanged);
  EXPECT_EQ(of(0, 1).alpha.counts, 2'000u);
  announce(0, 1, 2'000, 0);
  count(60_s);
  EXPECT_EQ(of(0, 1).beta.counts, 6'000u) << "what is not known is no news";
}

TEST_F(Levels, ARailThatMeetsSeveralHasNoOtherEnd) {
  announce(0, 1, 2'000, 0, 0, LevelBook::kNoRail);
  announce(1, 0, 100, 0, 0, LevelBook::kNoRail);
  count(1_s);
  EXPECT_EQ(of(0, 1).alpha.counts, 2'000u);
  EXPECT_EQ(of(1, 0).alpha.counts, 100u);
}

TEST_F(Levels, AnOlderLevelIsNoNews) {
  book.take({.from = 0, .to = 1, .rail = 0, .serial = 65535, .alpha_us = 100, .beta_kbps = 0}, 0);
  book.take({.from = 0, .to = 1, .rail = 0, .serial = 0, .alpha_us = 90, .beta_kbps = 0}, 0);
  book.take({.from = 0, .to = 1, .rail = 0, .serial = 65535, .alpha_us = 100, .beta_kbps = 0}, 0);
  EXPECT_EQ(book.find(0, 1, 0)->alpha_us, 90u);
  EXPECT_EQ(book.find(0, 1, 1), nullptr);
  EXPECT_EQ(book.find(1, 0, 0), nullptr);
}

}  // namespace
}  // namespace canarynet
