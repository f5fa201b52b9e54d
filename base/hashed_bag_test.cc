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

// Seven keys of each eight share a hash.
std::uint64_t hash_of(std::uint32_t key) { return key % 8 == 0 ? key : key / 64; }

TEST(HashedBag, GivesWhatWasAddedAndNothingElse) {
  HashedBag<Thing> bag;
  std::map<std::uint32_t, int> expected;
  Random random(4);
  for (int i = 0; i < 20'000; ++i) {
    const auto key = static_cast<std::uint32_t>(random.below(300));
    const auto known = expected.find(key);
    Thing* const found = bag.find(hash_of(key), of(key));
    ASSERT_EQ(found != nullptr, known != expected.end()) << i;
    if (found == nullptr) {
      bag.add(hash_of(key), {key, i});
      expected[key] = i;
    } else {
      ASSERT_EQ(found->value, known->second);
      Thing taken;
      ASSERT_TRUE(bag.take(hash_of(key), of(key), &taken));
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
  for (std::uint32_t key = 0; key < 100; ++key) {
    EXPECT_EQ(bag.find(hash_of(key), of(key)) != nullptr, key % 3 != 0) << key;
  }
  bag.clear();
  EXPECT_TRUE(bag.empty());
  bag.add(1, {1, 7});
  EXPECT_EQ(bag.find(1, of(1))->value, 7);
}

TEST(HashedBag, AnEmptyOneHasNothing) {
  HashedBag<Thing> bag;
  Thing taken;
  EXPECT_EQ(bag.find(1, of(1)), nullptr);
  EXPECT_FALSE(bag.take(1, of(1), &taken));
  bag.clear();
}

}  // namespace
}  // namespace canarynet
