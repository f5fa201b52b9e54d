#include "control/group_desk.h"

#include <gtest/gtest.h>

#include "control/text.h"

namespace canarynet::control {
namespace {

TEST(GroupDesk, SecondRequestOfOneRankWaitsForTheSecondOfTheOther) {
  GroupDesk desk(4, 10_s);
  std::vector<GroupAnswer> answers;
  desk.ask(0_ns, 1, 1, 1, {1, 2}, &answers);
  desk.ask(0_ns, 1, 2, 1, {1, 2}, &answers);
  EXPECT_TRUE(answers.empty());
  desk.ask(0_ns, 2, 1, 2, {1, 2}, &answers);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].request, 1u);
  EXPECT_EQ(answers[0].flow, 1u);
  answers.clear();
  desk.ask(0_ns, 2, 2, 2, {1, 2}, &answers);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].request, 2u);
  EXPECT_EQ(answers[1].flow, 2u);
}

TEST(GroupDesk, ARankThatAskedInAnotherOrderIsToldWithBoth) {
  GroupDesk desk(4, 10_s);
  std::vector<GroupAnswer> answers;
  desk.ask(0_ns, 1, 1, 1, {1, 3, 2}, &answers);
  desk.ask(0_ns, 2, 1, 2, {2, 1, 3}, &answers);
  EXPECT_TRUE(answers.empty()) << "other threads of both may ask for the other list";
  desk.poll(10_s, &answers);
  ASSERT_EQ(answers.size(), 2u);
  for (const GroupAnswer& a : answers) EXPECT_EQ(a.why.code(), CANARY_ENTRY_TIMEOUT);
  EXPECT_NE(answers[0].why.text().find("rank 2 asked for ranks 2, 1, 3: all must list them in the same order, here "
                                       "ranks 1, 3, 2"),
            std::string::npos)
      << answers[0].why.text();
  EXPECT_NE(answers[1].why.text().find("rank 1 asked for ranks 1, 3, 2: all must list them in the same order, here "
                                       "ranks 2, 1, 3"),
            std::string::npos)
      << answers[1].why.text();
}

TEST(GroupDesk, TwoListsOfTheSameRanksMayBeAskedForInAnyOrder) {
  GroupDesk desk(2, 10_s);
  std::vector<GroupAnswer> answers;
  desk.ask(0_ns, 0, 1, 0, {0, 1}, &answers);
  desk.ask(0_ns, 1, 1, 1, {1, 0}, &answers);
  desk.ask(0_ns, 0, 2, 0, {1, 0}, &answers);
  desk.ask(0_ns, 1, 2, 1, {0, 1}, &answers);
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_EQ(answers[0].flow, answers[1].flow);
  EXPECT_EQ(answers[2].flow, answers[3].flow);
  EXPECT_NE(answers[0].flow, answers[2].flow);
}

TEST(GroupDesk, WhoDoesNotAskIsNamed) {
  GroupDesk desk(4, 10_s);
  std::vector<GroupAnswer> answers;
  desk.ask(0_ns, 1, 1, 1, {3, 1}, &answers);
  EXPECT_TRUE(answers.empty());
  EXPECT_EQ(desk.next_deadline(), 10_s);
  desk.poll(10_s, &answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_NE(answers[0].why.text().find("rank 3 did not ask for the group of ranks 1, 3"), std::string::npos)
      << answers[0].why.text();
  EXPECT_EQ(desk.next_deadline(), Nanos::max());
}

TEST(GroupDesk, FlowNumbersEndInsteadOfBeginningAgain) {
  GroupDesk desk(2, 10_s);
  desk.skip_to_flow(GroupDesk::kFlowsMax);
  std::vector<GroupAnswer> answers;
  for (std::uint32_t request = 1; request <= 2; ++request) {
    desk.ask(0_ns, 0, request, 0, {0, 1}, &answers);
    desk.ask(0_ns, 1, request, 1, {0, 1}, &answers);
  }
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_EQ(answers[1].flow, GroupDesk::kFlowsMax);
  for (std::size_t i = 2; i < 4; ++i) EXPECT_EQ(answers[i].why.code(), CANARY_LIMIT);
}

TEST(GroupDesk, FormedGroupIsNotFailedByALaterDeath) {
  GroupDesk desk(4, 10_s);
  std::vector<GroupAnswer> answers;
  desk.ask(0_ns, 1, 1, 1, {1, 2}, &answers);
  desk.ask(0_ns, 2, 1, 2, {1, 2}, &answers);
  answers.clear();
  desk.ranks_gone({2}, Status(CANARY_PEER_DIED, "rank 2 died"), &answers);
  EXPECT_TRUE(answers.empty());
  desk.ask(0_ns, 1, 2, 1, {1, 2}, &answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].why.code(), CANARY_PEER_DIED);
}

// However often a survivor asks for a list that has a dead rank, nothing is kept of it.
TEST(GroupDesk, ListsOfDeadRanksAreForgotten) {
  GroupDesk desk(4, 10_s);
  std::vector<GroupAnswer> answers;
  desk.ask(0_ns, 1, 1, 1, {1, 2, 3}, &answers);
  desk.ranks_gone({3}, Status(CANARY_PEER_DIED, "rank 3 died"), &answers);
  EXPECT_EQ(desk.lists(), 0u);
  for (std::uint32_t request = 2; request < 100; ++request) desk.ask(0_ns, 1, request, 1, {1, 2, 3}, &answers);
  EXPECT_EQ(desk.lists(), 0u);
  ASSERT_EQ(answers.size(), 99u);
  for (const GroupAnswer& a : answers) EXPECT_EQ(a.why.code(), CANARY_PEER_DIED);
  EXPECT_EQ(desk.next_deadline(), Nanos::max());
}

TEST(GroupDesk, RankListsReadWell) {
  EXPECT_EQ(ranks_text({3}), "rank 3");
  EXPECT_EQ(ranks_text({0, 1}), "ranks 0, 1");
  EXPECT_EQ(ranks_text({0, 1, 2, 5, 7, 8, 9}), "ranks 0-2, 5, 7-9");
  std::vector<int> many;
  for (int i = 0; i < 4000; i += 2) many.push_back(i);
  EXPECT_LT(ranks_text(many).size(), 400u);
  EXPECT_NE(ranks_text(many).find("2000 in all"), std::string::npos);
}

}  // namespace
}  // namespace canarynet::control
