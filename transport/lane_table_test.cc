// Keys of lanes that have gone, and turns.
#include "transport/lane_table.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace canarynet {
namespace {

struct Seat {
  std::uint64_t key_ = 0;
  bool pending_ = false;
  int turns = 0;
  std::size_t on_pending() { return static_cast<std::size_t>(++turns); }
};
using Table = LaneTable<Seat>;

TEST(LaneTable, AKeyNamesNobodyOnceItsLaneHasGoneThoughItsPlaceIsTaken) {
  Table table;
  Seat first, second;
  table.add(first);
  const std::uint64_t key = first.key_;
  EXPECT_GE(key, Table::kFirstKey);
  EXPECT_EQ(key & Table::kFactoryBit, 0u);
  EXPECT_EQ(table.find(key), &first);
  table.remove(first);
  EXPECT_EQ(table.find(key), nullptr);
  table.add(second);
  EXPECT_EQ(table.size(), 1u);
  EXPECT_NE(second.key_, key);
  EXPECT_EQ(table.find(key), nullptr);
  EXPECT_EQ(table.visit(key, [](Seat&) { return std::size_t{1}; }), 0u);
  EXPECT_EQ(table.visit(second.key_, [](Seat&) { return std::size_t{1}; }), 1u);
}

TEST(LaneTable, ATurnIsTakenOnceAndNotByWhoHasGone) {
  Table table;
  Seat stays, goes;
  table.add(stays);
  table.add(goes);
  EXPECT_TRUE(table.schedule(stays));
  EXPECT_FALSE(table.schedule(stays));
  EXPECT_TRUE(table.schedule(goes));
  table.remove(goes);
  EXPECT_EQ(table.run_pending(), 1u);
  EXPECT_EQ(stays.turns, 1);
  EXPECT_EQ(goes.turns, 0);
  EXPECT_FALSE(table.pending());
  EXPECT_TRUE(table.schedule(stays));  // in time for the next one
  EXPECT_TRUE(table.pending());
}

TEST(LaneTable, LanesMayComeAndGoWhileTheyAreCounted) {
  Table table;
  std::vector<std::unique_ptr<Seat>> seats;
  const auto add = [&] { table.add(*seats.emplace_back(std::make_unique<Seat>())); };
  add();
  int met = 0;
  table.for_each([&](Seat&) {
    if (++met < 100) add();
  });
  EXPECT_EQ(met, 100);
  EXPECT_EQ(table.size(), 100u);
}

TEST(LaneTableDeathTest, ALaneLeavesOnce) {
  Table table;
  Seat lane, other;
  table.add(lane);
  table.remove(lane);
  EXPECT_DEATH(table.remove(lane), "leaves the table that it is in, once");
  table.add(other);
  EXPECT_DEATH(table.remove(lane), "leaves the table that it is in, once") << "although its place is taken again";
}

}  // namespace
}  // namespace canarynet
