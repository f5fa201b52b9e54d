#include "sync/handover.h"

#include <gtest/gtest.h>

#include "sync/meetings_test_util.h"

namespace canarynet::sync {
namespace {

TEST(Handover, WhereAllMeetTheFirstOneThatIsNotBehindServesAll) {
  Handover handover(5, Meetings());
  EXPECT_EQ(handover.choose(WorkerSet::all(5), set_of(5, {0, 2})), 1);
  EXPECT_TRUE(handover.left_out().empty());
}

TEST(Handover, OnlyWhoIsHereCanBeTheSource) {
  Handover handover(5, Meetings());
  EXPECT_EQ(handover.choose(set_of(5, {0, 2, 4}), set_of(5, {0})), 2);
}

TEST(Handover, WithoutAnybodyWhoHasTheNewestStateThereIsNoSource) {
  Handover handover(3, Meetings());
  EXPECT_EQ(handover.choose(WorkerSet::all(3), WorkerSet::all(3)), -1);
  EXPECT_EQ(handover.choose(WorkerSet(3), WorkerSet(3)), -1);
}

// 0 1 2
// 3 4 5
// 6 7 8
TEST(Handover, TheSourceIsOneThatLeavesNobodyOut) {
  Handover handover(9, rows_and_columns(9, 3));
  EXPECT_EQ(handover.choose(WorkerSet::all(9), set_of(9, {4, 8})), 5) << "0, 1, 2 and 3 do not meet both of them";
  EXPECT_TRUE(handover.left_out().empty());
}

TEST(Handover, AWayFromTheSourceMayLeadThroughAnotherOneThatIsBehind) {
  Handover handover(9, rows_and_columns(9, 3));
  EXPECT_EQ(handover.choose(set_of(9, {0, 1, 4, 5}), set_of(9, {1, 4, 5})), 0) << "5 is reached through 1 and 4";
  EXPECT_TRUE(handover.left_out().empty());
}

TEST(Handover, AsFewAsPossibleAreLeftOut) {
  Handover handover(9, rows_and_columns(9, 3));
  EXPECT_EQ(handover.choose(WorkerSet::all(9), set_of(9, {3, 5, 7})), 4);
  EXPECT_TRUE(handover.left_out().empty());
  EXPECT_EQ(handover.choose(set_of(9, {0, 1, 3, 5, 7}), set_of(9, {3, 5, 7})), 0);
  EXPECT_TRUE(handover.left_out() == set_of(9, {7})) << "1 would leave out 3 and 5";
}

// 0 - 1 - 2 - 3 - 4, of whom 0 and 3 are behind: the way from the others to 4 leads through 3.
TEST(Handover, NobodyIsLeftOutThroughWhomTheOthersExchange) {
  Meetings line(5);
  for (int w = 1; w < 5; ++w) line.add(w - 1, w);
  Handover handover(5, line);
  EXPECT_EQ(handover.choose(WorkerSet::all(5), set_of(5, {0, 3})), 2) << "1 would leave out 3";
  EXPECT_TRUE(handover.left_out() == set_of(5, {0}));
}

TEST(Handover, WhoCannotExchangeHasNoSource) {
  Handover handover(4, rows_and_columns(4, 2));
  EXPECT_EQ(handover.choose(set_of(4, {0, 3}), WorkerSet(4)), -1);
  EXPECT_TRUE(handover.left_out().empty());
}

}  // namespace
}  // namespace canarynet::sync
