#include "engine/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/random.h"

namespace canarynet {
namespace {

std::uint32_t number(Random& random, std::uint32_t bound) { return static_cast<std::uint32_t>(random.below(bound)); }

TEST(BlockPool, GivesEveryBlockOnceAndAllOfThemInTheEnd) {
  BlockPool pool(100);
  std::vector<bool> taken(100);
  for (int i = 0; i < 100; ++i) {
    const std::uint32_t at = pool.take(1);
    ASSERT_LT(at, 100u);
    ASSERT_FALSE(taken[at]);
    taken[at] = true;
  }
  EXPECT_EQ(pool.take(1), BlockPool::kNone);
}

// Freed in any order, neighbours are joined: one run of all is there again.
TEST(BlockPool, JoinsWhatIsFreedInAnyOrder) {
  Random random(7);
  BlockPool pool(97);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::uint32_t> firsts;
    for (std::uint32_t at = 0; (at = pool.take(1 + number(random, 9))) != BlockPool::kNone;) firsts.push_back(at);
    for (std::size_t i = firsts.size(); i > 1; --i) std::swap(firsts[i - 1], firsts[random.below(i)]);
    for (const std::uint32_t first : firsts) pool.release(first);
    const std::uint32_t all = pool.take(97);
    ASSERT_EQ(all, 0u) << "round " << round;
    pool.release(all);
  }
}

// Against a map of what is taken: runs never overlap, and nothing is refused while half of all is one free run.
TEST(BlockPool, RunsNeverOverlap) {
  constexpr std::uint32_t kBlocks = 500;
  Random random(11);
  BlockPool pool(kBlocks);
  std::map<std::uint32_t, std::uint32_t> taken;  // length by first
  for (int i = 0; i < 100'000; ++i) {
    if (random.below(2) == 0) {
      const std::uint32_t count = 1 + number(random, 64);
      std::uint32_t longest = 0, from = 0;
      for (const auto& [first, length] : taken) {
        longest = std::max(longest, first - from);
        from = first + length;
      }
      longest = std::max(longest, kBlocks - from);
      const std::uint32_t first = pool.take(count);
      if (first == BlockPool::kNone) {
        ASSERT_LT(longest, 2 * count) << "a run of twice the length is found always";
        continue;
      }
      ASSERT_LE(first + count, kBlocks);
      const auto next = taken.lower_bound(first);
      ASSERT_TRUE(next == taken.end() || first + count <= next->first);
      ASSERT_TRUE(next == taken.begin() || std::prev(next)->first + std::prev(next)->second <= first);
      taken.emplace(first, count);
    } else if (!taken.empty()) {
      auto at = taken.begin();
      std::advance(at, random.below(taken.size()));
      pool.release(at->first);
      taken.erase(at);
    }
  }
}

TEST(BlockPool, WithoutBlocksGivesNone) { EXPECT_EQ(BlockPool(0).take(1), BlockPool::kNone); }

}  // namespace
}  // namespace canarynet
