#include "control/miss_desk.h"

#include <gtest/gtest.h>

namespace canarynet::control {
namespace {

constexpr GroupEpoch kWorld{1, 1};

Roster roster_of(int engines) {
  Roster roster;
  for (int e = 0; e < engines; ++e) {
    EngineInfo info;
    info.engine = static_cast<std::uint32_t>(e);
    info.ranks = {e};
    info.host_name = "h" + std::to_string(e);
    info.pid = 100 + e;
    for (int rail = 0; rail < 2; ++rail) {
      info.rails.push_back(
          {"nic" + std::to_string(rail),
           Address::ipv4(10, static_cast<std::uint8_t>(rail), 0, static_cast<std::uint8_t>(e + 1), 24, 1),
           {}});
    }
    roster.engines.push_back(info);
  }
  return roster;
}

class MissDeskTest : public ::testing::Test {
 protected:
  void open(int engines) {
    roster = roster_of(engines);
    desk.open(roster);
  }
  static Missed missed(std::uint32_t engine, bool waits = true) {
    return {engine, waits ? std::vector<GroupEpoch>{kWorld} : std::vector<GroupEpoch>{}, Obstacle::kNone, ""};
  }
  Roster roster;
  MissDesk desk{100_ms};
};

// When two ends miss each other, or many do, the one that can't make the connection knows why.
TEST_F(MissDeskTest, TheEndWhereTheObstacleLiesIsTheCulpritAndTheTextSaysWhatItIs) {
  const auto why = [](std::uint32_t engine, Obstacle at) {
    return Missed{engine, {kWorld}, at, ": no descriptor is left"};
  };
  struct Case {
    std::uint32_t reporter;
    Missed missed;
    int culprit;
  };
  for (const Case& t : {Case{1, why(3, Obstacle::kHere), 1}, Case{1, why(3, Obstacle::kThere), 3},
                        Case{3, why(1, Obstacle::kHere), 3}, Case{3, why(1, Obstacle::kThere), 1}}) {
    for (const bool both : {false, true}) {
      desk = MissDesk(100_ms);
      open(4);
      desk.report(1_s, t.reporter, {t.missed});
      if (both) desk.report(1_s, t.missed.engine, {missed(t.reporter)});
      // Somebody else is missed by more, for whatever reason.
      desk.report(1_s, 0, {missed(2, false), missed(t.reporter == 1 ? 3 : 1, false)});
      const auto verdicts = desk.poll(1100_ms);
      ASSERT_EQ(verdicts.size(), 1u);
      EXPECT_EQ(verdicts[0].rank, t.culprit) << verdicts[0].text;
      const std::string end =
          " while control is alive; rank " + std::to_string(t.reporter) + " says: no descriptor is left";
      EXPECT_TRUE(verdicts[0].text.ends_with(end)) << verdicts[0].text;
    }
  }
}

TEST_F(MissDeskTest, TheEndOfMostMissingPairsIsTheCulprit) {
  open(4);
  desk.report(1_s, 2, {missed(0), missed(1), missed(3)});  // the cut one speaks first
  desk.report(1010_ms, 0, {missed(2)});
  desk.report(1020_ms, 3, {missed(2, false)});
  EXPECT_TRUE(desk.poll(1099_ms).empty());
  EXPECT_EQ(desk.next_deadline(), 1100_ms);
  const auto verdicts = desk.poll(1100_ms);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].code, CANARY_NO_PATH);
  EXPECT_EQ(verdicts[0].rank, 2);
  EXPECT_EQ(verdicts[0].flow, 1u);
  EXPECT_EQ(
      verdicts[0].text,
      "no lane to rank 2 (host h2, pid 102) works: ranks 0, 1, 3 can't reach it, the first of them over nic0>nic0, "
      "nic1>nic1 while control is alive");
  EXPECT_TRUE(desk.poll(5_s).empty()) << "told once";
}

TEST_F(MissDeskTest, APairAloneIsNamedWithBothEnds) {
  open(3);
  desk.report(1_s, 1, {missed(0)});
  desk.report(1_s, 0, {missed(1)});
  const auto verdicts = desk.poll(2_s);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].rank, 1);
  EXPECT_EQ(
      verdicts[0].text,
      "rank 0 (host h0, pid 100) and rank 1 (host h1, pid 101) can't reach each other: no lane works over nic0>nic0, "
      "nic1>nic1 while control is alive");
}

// A host that hears nobody may be done itself, and wait for nothing; those whose last pieces it can't acknowledge do.
TEST_F(MissDeskTest, OneThatHearsNobodyAndWaitsForNothingIsNamedByThoseWhoWaitForIt) {
  const auto deaf = [](std::uint32_t engine) { return Missed{engine, {kWorld}, Obstacle::kNone, "", true}; };
  open(3);
  desk.report(1_s, 1, {missed(0, false), missed(2, false)});
  desk.report(3_s, 0, {deaf(1)});
  auto verdicts = desk.poll(4_s);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].rank, 1) << verdicts[0].text;
  // Of two that miss nobody else it is the one that is not heard, whether or not the deaf one has said so itself.
  for (const bool says : {true, false}) {
    desk = MissDesk(100_ms);
    open(2);
    if (says) desk.report(1_s, 1, {missed(0, false)});
    desk.report(3_s, 0, {deaf(1)});
    verdicts = desk.poll(4_s);
    ASSERT_EQ(verdicts.size(), 1u);
    EXPECT_EQ(verdicts[0].rank, 0) << verdicts[0].text;
  }
  // Said of both ends it is one pair: the one that two others don't hear is at fault.
  desk = MissDesk(100_ms);
  open(3);
  desk.report(1_s, 1, {missed(0), deaf(2)});
  desk.report(1_s, 0, {deaf(1)});
  desk.report(1_s, 2, {missed(0)});
  verdicts = desk.poll(4_s);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].rank, 0) << verdicts[0].text;
}

TEST_F(MissDeskTest, WhoHearsButIsNotHeardIsAtFault) {
  open(2);
  desk.report(1_s, 1, {missed(0)});
  const auto verdicts = desk.poll(2_s);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].rank, 0);
}

TEST_F(MissDeskTest, ALaneThatIsBackTakesTheComplaintBack) {
  open(3);
  desk.report(1_s, 1, {missed(0)});
  desk.report(1050_ms, 1, {});
  EXPECT_TRUE(desk.poll(2_s).empty());
  EXPECT_EQ(desk.next_deadline(), Nanos::max());
}

TEST_F(MissDeskTest, ManyGroupsAreJudgedTogether) {
  open(3);
  std::vector<GroupEpoch> groups;
  for (std::uint32_t g = 1; g <= 60'000; ++g) groups.push_back({g, 1});
  desk.report(1_s, 0, {{2, groups, Obstacle::kNone, ""}});
  desk.report(1_s, 1, {{2, groups, Obstacle::kNone, ""}});
  const auto verdicts = desk.poll(1100_ms);
  ASSERT_EQ(verdicts.size(), groups.size());
  EXPECT_EQ(verdicts.front().rank, 2);
  EXPECT_EQ(desk.next_deadline(), Nanos::max());
}

TEST_F(MissDeskTest, WhoHasGoneCountsNoMore) {
  open(4);
  desk.report(1_s, 1, {missed(0), missed(3)});
  desk.report(1_s, 2, {missed(0), missed(3)});
  desk.report(1_s, 3, {missed(0), missed(1), missed(2)});
  desk.forget(3);
  const auto verdicts = desk.poll(2_s);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].rank, 0);
  EXPECT_EQ(verdicts[0].text.find("rank 3"), std::string::npos) << verdicts[0].text;
}

TEST_F(MissDeskTest, ReportsOfEnginesThatDoNotExistAreIgnored) {
  open(2);
  desk.report(1_s, 7, {missed(0)});
  desk.report(1_s, 1, {missed(9), missed(1)});
  EXPECT_TRUE(desk.poll(2_s).empty());
}

}  // namespace
}  // namespace canarynet::control
