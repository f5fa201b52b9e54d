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

// A desk that takes another one's place.
struct NextDesk {
  NextDesk() { desk.succeed(); }
  std::vector<GroupAnswer> ask(std::uint32_t rank, std::uint32_t request, const std::vector<int>& list, bool carried) {
    std::vector<GroupAnswer> answers;
    desk.ask({}, rank, request, static_cast<int>(rank), list, &answers, carried);
    return answers;
  }
  std::vector<GroupAnswer> recall(const std::vector<int>& ranks, std::uint32_t flow, const std::vector<int>& list) {
    std::vector<GroupAnswer> answers;
    desk.recall({}, ranks, flow, list, &answers);
    return answers;
  }
  GroupDesk desk{6, 5_s};
};

TEST(GroupDesk, WhatAnotherDeskFormedIsToldToThoseWhoHadAskedForIt) {
  NextDesk d;
  EXPECT_TRUE(d.recall({1}, 9, {1, 2, 3}).empty());
  auto answers = d.ask(2, 4, {1, 2, 3}, true);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].flow, 9u);
  // Rank 3 asked before rank 1 said so, and asked twice.
  NextDesk late;
  EXPECT_TRUE(late.ask(3, 7, {1, 2, 3}, true).empty());
  EXPECT_TRUE(late.ask(3, 8, {1, 2, 3}, true).empty());
  answers = late.recall({1}, 9, {1, 2, 3});
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].request, 7u);
  EXPECT_EQ(answers[0].flow, 9u);
  // Its second request meets the others' next one.
  EXPECT_TRUE(late.ask(1, 3, {1, 2, 3}, false).empty());
  EXPECT_EQ(late.ask(2, 4, {1, 2, 3}, true)[0].flow, 9u);
  answers = late.ask(2, 5, {1, 2, 3}, false);
  ASSERT_EQ(answers.size(), 3u);
  for (const GroupAnswer& a : answers) EXPECT_GT(a.flow, 9u + GroupDesk::kFlowsLeft - 1);
  EXPECT_EQ(late.desk.lists(), 0u);
}

TEST(GroupDesk, WhatARankHadOfAnotherDeskItDoesNotGetAgain) {
  NextDesk d;
  d.recall({1}, 9, {1, 2});
  d.recall({2}, 9, {1, 2});
  EXPECT_TRUE(d.ask(1, 5, {1, 2}, true).empty());
  EXPECT_NE(d.ask(2, 5, {1, 2}, true)[0].flow, 9u);
  // Several ranks of one engine are told of at once.
  d.recall({1, 3}, 12, {1, 2, 3});
  EXPECT_TRUE(d.ask(3, 2, {1, 2, 3}, true).empty());
  EXPECT_EQ(d.ask(2, 6, {1, 2, 3}, true)[0].flow, 12u);
  // It has forgotten which ones it had.
  d.recall({3}, 20, {3, 4});
  d.desk.forgotten({4}, 30);
  EXPECT_TRUE(d.ask(4, 1, {3, 4}, true).empty());
  // What was not asked for before is new.
  d.recall({0}, 40, {0, 5});
  EXPECT_TRUE(d.ask(5, 1, {0, 5}, false).empty());
  EXPECT_GT(d.ask(0, 1, {0, 5}, false)[0].flow, 40u);
}

TEST(GroupDesk, NonsenseOfAnotherDeskIsPassedOver) {
  NextDesk d;
  EXPECT_TRUE(d.recall({1}, 9, {2, 3}).empty()) << "not its group";
  EXPECT_TRUE(d.recall({2, 1}, 9, {2, 3}).empty()) << "not of all of them";
  EXPECT_TRUE(d.recall({1}, 9, {1, 77}).empty()) << "no such rank";
  d.recall({1}, 10, {1, 2});
  d.recall({2}, 10, {2, 1});  // another list under this number
  EXPECT_EQ(d.ask(2, 1, {1, 2}, true)[0].flow, 10u);
  d.recall({1}, GroupDesk::kFlowsMax, {1, 2, 3});
  EXPECT_TRUE(d.ask(4, 1, {4, 5}, false).empty());
  const auto answers = d.ask(5, 1, {4, 5}, false);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_TRUE(answers[0].flow == GroupDesk::kFlowsMax || answers[0].why.code() == CANARY_LIMIT);
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
