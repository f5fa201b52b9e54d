#include "base/growing_pool.h"

#include <gtest/gtest.h>

#include <set>

namespace canarynet {
namespace {

using Pool = GrowingPool<int>;

TEST(GrowingPool, GivesEveryPlaceOnceAndNoneBeyondItsLimit) {
  Pool pool(10);
  std::set<std::uint32_t> seen;
  for (int i = 0; i < 10; ++i) seen.insert(pool.take());
  EXPECT_EQ(seen.size(), 10u);
  EXPECT_EQ(*seen.rbegin(), 9u);
  EXPECT_EQ(pool.take(), Pool::kNone);
  EXPECT_EQ(pool.used(), 10u);
  pool.give_back(7);
  EXPECT_EQ(pool.used(), 9u);
  EXPECT_EQ(pool.take(), 7u);
}

TEST(GrowingPool, MakesNoMorePlacesThanItsHighWaterMark) {
  Pool pool(1000);
  EXPECT_EQ(pool.made(), 0u);
  for (int round = 0; round < 100; ++round) {
    std::uint32_t places[3];
    for (std::uint32_t& place : places) place = pool.take();
    for (const std::uint32_t place : places) pool.give_back(place);
  }
  EXPECT_EQ(pool.made(), 3u);
}

TEST(GrowingPool, KeepsReferencesAndContentsWhileItGrows) {
  Pool pool(100);
  int& first = pool[pool.take()];
  first = 77;
  for (std::uint32_t i = 1; i < 100; ++i) pool[pool.take()] = static_cast<int>(i);
  EXPECT_EQ(&first, &pool[0]);
  EXPECT_EQ(pool[0], 77);
  EXPECT_EQ(pool[99], 99);
}

TEST(GrowingPoolDeathTest, APlaceIsGivenBackOnceAndToItsPool) {
  Pool pool(4);
  const std::uint32_t place = pool.take();
  EXPECT_DEATH(pool.give_back(place + 1), "a place is given back once");
  pool.give_back(place);
  EXPECT_DEATH(pool.give_back(place), "a place is given back once");
}

TEST(GrowingPool, APlaceIsFreshWhenItIsFirstTaken) {
  struct Initialized {
    int value = 5;
  };
  GrowingPool<Initialized> pool(4);
  const std::uint32_t place = pool.take();
  EXPECT_EQ(pool[place].value, 5);
}

}  // namespace
}  // namespace canarynet
