#include "control/entry_desk.h"

#include <gtest/gtest.h>

namespace canarynet::control {
namespace {

constexpr GroupEpoch kGroup{5, 1};

TEST(EntryDesk, MergesWhatEverybodyKnowsAndTellsItOnce) {
  EntryDesk desk(600_ms);
  desk.open(3);
  EXPECT_TRUE(desk.ask(1_s, kGroup));
  EXPECT_FALSE(desk.ask(1100_ms, kGroup)) << "one inquiry at a time";
  desk.answer(0, {kGroup, {7, 5, 5}, {}});
  desk.answer(2, {kGroup, {6, 6}, {}});
  EXPECT_TRUE(desk.poll(1100_ms).empty());
  desk.answer(1, {kGroup, {}, {}});  // does not know the group
  EXPECT_LE(desk.next_deadline(), 1100_ms);
  const auto told = desk.poll(1100_ms);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].group, kGroup);
  EXPECT_EQ(told[0].by_rank, (std::vector<std::uint32_t>{7, 6, 5}));
  EXPECT_EQ(told[0].heard, (std::vector<std::uint32_t>{0, 2})) << "what an engine without the group says is no news";
  EXPECT_EQ(desk.next_deadline(), Nanos::max());
}

TEST(EntryDesk, WaitsForNobodyWhoIsGoneAndNotForEverForTheOthers) {
  EntryDesk desk(600_ms);
  desk.open(3);
  desk.forget(1);
  EXPECT_TRUE(desk.ask(1_s, kGroup));
  desk.answer(0, {kGroup, {7}, {}});
  desk.answer(9, {kGroup, {8}, {}});
  desk.answer(1, {kGroup, {9}, {}});
  EXPECT_TRUE(desk.poll(1599_ms).empty());
  const auto told = desk.poll(1600_ms);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].by_rank, (std::vector<std::uint32_t>{7}));
  EXPECT_EQ(told[0].heard, (std::vector<std::uint32_t>{0}));
  EXPECT_TRUE(desk.ask(2_s, kGroup));
  desk.answer(0, {kGroup, {7}, {}});
  desk.answer(2, {kGroup, {7}, {}});
  EXPECT_EQ(desk.poll(2_s).size(), 1u) << "all are here but the one who has gone";
}

TEST(EntryDesk, NumbersWrap) {
  EntryDesk desk(600_ms);
  desk.open(2);
  desk.ask(1_s, kGroup);
  desk.answer(0, {kGroup, {0xfffffff0u, 3}, {}});
  desk.answer(1, {kGroup, {2, 0xfffffff0u}, {}});
  EXPECT_EQ(desk.poll(1_s).at(0).by_rank, (std::vector<std::uint32_t>{2, 3}));
}

}  // namespace
}  // namespace canarynet::control
