#include "port/id_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "port/ticket.h"

namespace canarynet::port {
namespace {

TEST(IdTable, FindsWhatHasAPlaceAndNothingElse) {
  IdTable<int> table;
  int a = 1, b = 2;
  EXPECT_EQ(table.at(0), nullptr);
  EXPECT_EQ(table.at(IdTable<int>::kNowhere), nullptr);
  const auto first = table.add(&a), second = table.add(&b);
  EXPECT_EQ(table.at(first.place), &a);
  EXPECT_EQ(table.at(second.place), &b);
  EXPECT_EQ(table.at(second.place + 1), nullptr);
  EXPECT_EQ(table.at(1'000'000'000), nullptr);
  table.remove(first.place);
  EXPECT_EQ(table.at(first.place), nullptr);
  EXPECT_EQ(table.at(second.place), &b);
}

TEST(IdTable, UsesPlacesAgainAndTellsTheUsesApart) {
  IdTable<int> table;
  int a = 1;
  const auto first = table.add(&a);
  table.remove(first.place);
  const auto again = table.add(&a);
  EXPECT_EQ(again.place, first.place);
  EXPECT_NE(again.use, first.use);
  EXPECT_EQ(table.at(again.place, again.use), &a);
  EXPECT_EQ(table.at(first.place, first.use), nullptr) << "its use has ended";
}

TEST(IdTable, KeepsThePlacesOfThousandsWhileItGrows) {
  IdTable<int> table;
  std::vector<int> objects(5000);
  std::vector<std::uint32_t> places;
  for (int& object : objects) places.push_back(table.add(&object).place);
  for (std::size_t i = 0; i < objects.size(); ++i) ASSERT_EQ(table.at(places[i]), &objects[i]);
}

TEST(IdTable, IsReadWhileOthersComeAndGo) {
  IdTable<int> table;
  int stays = 7;
  const std::uint32_t place = table.add(&stays).place;
  std::atomic<bool> stop{false};
  std::thread changes([&] {
    std::vector<std::unique_ptr<int>> others;
    std::vector<std::uint32_t> places;
    for (int round = 0; round < 20; ++round) {
      for (int i = 0; i < 400; ++i) {
        others.push_back(std::make_unique<int>(i));
        places.push_back(table.add(others.back().get()).place);
      }
      for (; places.size() > 100; places.pop_back()) table.remove(places.back());
    }
    stop.store(true);
  });
  while (!stop.load()) {
    ASSERT_EQ(table.at(place), &stays);
    std::this_thread::yield();
  }
  changes.join();
}

TEST(Ticket, HasANameOfItsOwnForEveryUse) {
  const auto table = std::make_shared<TicketTable>();
  OpTicket ticket;
  EXPECT_EQ(ticket.id().place, kNoTicket.place) << "no command can name it yet";
  ticket.join_table(table);
  const TicketId first = ticket.id();
  EXPECT_EQ(table->at(first.place), &ticket);
  ticket.reset();
  EXPECT_EQ(ticket.id().place, first.place);
  EXPECT_FALSE(ticket.id() == first);
}

TEST(Ticket, LeavesItsTableWhenItEndsAndMayOutliveIt) {
  auto table = std::make_shared<TicketTable>();
  OpTicket outlives;
  outlives.join_table(table);
  std::uint32_t place = 0;
  {
    OpTicket ends;
    ends.join_table(table);
    place = ends.id().place;
    EXPECT_EQ(table->at(place), &ends);
  }
  EXPECT_EQ(table->at(place), nullptr);
  const auto other = std::make_shared<TicketTable>();
  table.reset();
  outlives.join_table(other);
  EXPECT_EQ(other->at(outlives.id().place), &outlives);
}

}  // namespace
}  // namespace canarynet::port
