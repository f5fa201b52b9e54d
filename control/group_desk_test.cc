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

TEST(GroupDesk, OrderOfTheListMatters) {
  GroupDesk desk(4, 10_s);
  std::vector<GroupAnswer> answers;
  desk.ask(0_ns, 1, 1, 1, {1, 2}, &answers);
  desk.ask(0_ns, 2, 1, 2, {2, 1}, &answers);
  EXPECT_TRUE(answers.empty());
  EXPECT_EQ(desk.next_deadline(), 10_s);
  desk.poll(10_s, &answers);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_NE(answers[0].why.text().find("rank 2 did not ask"), std::string::npos) << answers[0].why.text();
  EXPECT_NE(answers[1].why.text().find("rank 1 did not ask"), std::string::npos);
  EXPECT_EQ(desk.next_deadline(), Nanos::max());
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
