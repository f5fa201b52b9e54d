#include "base/hashed_bag.h"

#include <gtest/gtest.h>

#include <map>

#include "base/random.h"

namespace canarynet {
namespace {

struct Thing {
  std::uint32_t key = 0;
  int value = 0;
};

auto of(std::uint32_t key) {
  return [key](const Thing& t) { return t.key == key; };
}

// 56 of 64 keys share a hash.
std::uint64_t hash_of(std::uint32_t key) { return key % 8 == 0 ? key : key / 64; }

TEST(HashedBag, GivesWhatWasAddedAndNothingElse) {
  HashedBag<Thing> bag;
  std::map<std::uint32_t, int> expected;
  Random random(4);
  for (int i = 0; i < 20'000; ++i) {
    const auto key = static_cast<std::uint32_t>(random.below(300));
    const auto known = expected.find(key);
    Thing taken;
    const bool found = bag.take(hash_of(key), of(key), &taken);
    ASSERT_EQ(found, known != expected.end()) << i;
    if (!found) {
      bag.add(hash_of(key), {key, i});
      expected[key] = i;
    } else {
      ASSERT_EQ(taken.key, key);
      ASSERT_EQ(taken.value, known->second);
      ASSERT_FALSE(bag.take(hash_of(key), of(key), &taken));
      expected.erase(known);
    }
    ASSERT_EQ(bag.size(), expected.size());
  }
}

TEST(HashedBag, ErasesWhatItIsToldTo) {
  HashedBag<Thing> bag;
  for (std::uint32_t key = 0; key < 100; ++key) bag.add(hash_of(key), {key, 0});
  int asked = 0;
  bag.erase_if([&](const Thing& t) { return ++asked, t.key % 3 == 0; });
  EXPECT_EQ(asked, 100);
  EXPECT_EQ(bag.size(), 66u);
  Thing taken;
  for (std::uint32_t key = 0; key < 100; key += 2) {
    EXPECT_EQ(bag.take(hash_of(key), of(key), &taken), key % 3 != 0) << key;
  }
  EXPECT_EQ(bag.size(), 33u);
  bag.clear();
  EXPECT_EQ(bag.size(), 0u);
  bag.add(1, {1, 7});
  EXPECT_TRUE(bag.take(1, of(1), &taken));
  EXPECT_EQ(taken.value, 7);
}

TEST(HashedBag, AnEmptyOneHasNothing) {
  HashedBag<Thing> bag;
  Thing taken;
  EXPECT_FALSE(bag.take(1, of(1), &taken));
  bag.clear();
}

}  // namespace
}  // namespace canarynet
