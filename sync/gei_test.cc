// The index of gradient exchanges: the worked examples of the paper, and random histories against a plain model.
#include "sync/gei.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/random.h"
#include "sync/property_test_util.h"

namespace canarynet::sync {
namespace {

Contributors of(int workers, std::initializer_list<std::pair<int, IterationRange>> members) {
  Contributors set(workers);
  for (const auto& [w, range] : members) set.add(w, range);
  return set;
}

TEST(WorkerSet, HoldsAnyNumberOfWorkers) {
  for (const int n : {1, 2, 63, 64, 65, 128, 1000}) {
    WorkerSet set(n);
    EXPECT_TRUE(set.empty());
    EXPECT_EQ(set.next(), -1);
    set.add(n - 1);
    EXPECT_TRUE(set.has(n - 1));
    EXPECT_EQ(set.next(), n - 1);
    EXPECT_EQ(set.next(n), -1);
    EXPECT_EQ(WorkerSet::all(n).count(), n);
    set.remove(n - 1);
    EXPECT_TRUE(set.empty());
  }
}

// Canary, figure 16b: r_(4)[6] = 233 = 0b1110'1001 holds the workers 1, 4, 6, 7 and 8 (bit j - 1 is worker j).
TEST(Gei, TheWorkedExampleOfThePaper) {
  Gei gei(8, 10, 21);
  for (const int worker : {1, 4, 6, 7, 8}) gei.merge(6, of(8, {{worker - 1, {4, 4}}}));
  EXPECT_EQ(gei.row(4, 6).bits(), 233u);
  EXPECT_EQ(gei.row(4, 6).bits(), 0b11101001u);
  EXPECT_TRUE((gei.row(4, 6).bits() & 0b00001000u) != 0) << "worker 4's own code";
  std::vector<int> members;
  for (int w = gei.row(4, 6).next(); w >= 0; w = gei.row(4, 6).next(w + 1)) members.push_back(w + 1);
  EXPECT_EQ(members, (std::vector<int>{1, 4, 6, 7, 8}));
  EXPECT_EQ(gei.row(4, 5).bits(), 0u);
  EXPECT_EQ(gei.newest(), 4);
}

// The pseudocode's `== 1` would see worker 1 only, and its sum of 2^z would be no count.
TEST(Gei, ProportionCountsTheColayersOfEveryWorker) {
  Gei gei(8, 10, 21);
  for (const int z : {0, 3, 9}) gei.merge(z, of(8, {{3, {1, 1}}, {7, {1, 1}}}));
  gei.merge(5, of(8, {{7, {1, 1}}}));
  EXPECT_EQ(gei.proportion(3, 1), 3);
  EXPECT_EQ(gei.proportion(7, 1), 4);
  EXPECT_EQ(gei.proportion(0, 1), 0);
}

TEST(Gei, OvertimeNeedsBothBoundsToBeBroken) {
  const Thresholds thresholds = Thresholds::canary(2, 2);
  Gei gei(4, 3, gei_rows(2));
  gei.enter(5);
  EXPECT_FALSE(gei.overtime(0, 3, thresholds)) << "two behind is within the bound";
  gei.enter(6);
  EXPECT_TRUE(gei.overtime(0, 3, thresholds));
  gei.merge(0, of(4, {{0, {3, 3}}}));
  EXPECT_TRUE(gei.overtime(0, 3, thresholds)) << "one colayer of two";
  gei.merge(2, of(4, {{0, {3, 3}}}));
  EXPECT_FALSE(gei.overtime(0, 3, thresholds)) << "enough of the iteration is in: the rest may follow";
  EXPECT_TRUE(gei.overtime(1, 3, thresholds));
}

TEST(Gei, BeyondTheRowsOfTheBoundNothingIsMerged) {
  Gei gei(2, 2, 20);  // more rows than the bound 2 needs
  gei.merge(0, of(2, {{0, {3, 3}}}));
  gei.enter(7);
  EXPECT_FALSE(gei.overtime(0, 3, Thresholds::canary(2, 1)));
  gei.enter(8);
  EXPECT_TRUE(gei.overtime(0, 3, Thresholds::canary(2, 1)));
}

TEST(Gei, ThresholdsMayChangeWhileItRuns) {
  Gei gei(2, 4, gei_rows(18));
  gei.enter(10);
  EXPECT_FALSE(gei.overtime(0, 5, Thresholds::canary(18, 4)));
  EXPECT_TRUE(gei.overtime(0, 5, Thresholds::canary(4, 4)));
  EXPECT_FALSE(gei.overtime(0, 5, Thresholds::canary(4, 0))) << "no colayer is asked for";
  EXPECT_FALSE(gei.overtime(0, 1, Thresholds::asp(4)));
}

TEST(Gei, RowsCarryTheVersionOfTheirLayout) {
  Gei gei(4, 10, 8);
  gei.enter(3);
  gei.change_layout(5, 2, 6);
  gei.enter(4);
  EXPECT_EQ(gei.colayers(4), 10);
  gei.enter(6);
  EXPECT_EQ(gei.layout(4), 0);
  EXPECT_EQ(gei.layout(5), 2);
  EXPECT_EQ(gei.colayers(6), 6);
  EXPECT_TRUE(gei.row(6, 7).empty()) << "a colayer that is no more";
}

// Rule 13: s + 3 rows are enough for every question that the rule asks.
TEST(Gei, RandomHistoriesAgreeWithAMapThatForgetsNothing) {
  for_each_seed("GEI", 150, [](std::uint64_t seed) {
    Random random(seed);
    const int n = 1 + static_cast<int>(random.below(64));
    const int k = 1 + static_cast<int>(random.below(10));
    const auto s = static_cast<Iteration>(random.below(20));
    const Thresholds thresholds = Thresholds::canary(s, static_cast<int>(random.below(k + 1)));
    Gei gei(n, k, gei_rows(s));
    std::set<std::tuple<Iteration, int, int>> merged;
    Iteration newest = 0;
    for (int event = 0; event < 60; ++event) {
      if (random.below(3) == 0) {
        newest += static_cast<Iteration>(random.below(3));
        gei.enter(newest);
      } else {
        const int z = static_cast<int>(random.below(k));
        Contributors set(n);
        for (int w = 0; w < n; ++w) {
          const auto last = std::max<Iteration>(1, newest + 1 - static_cast<Iteration>(random.below(s + 6)));
          const auto first = std::max<Iteration>(1, last - static_cast<Iteration>(random.below(3)));
          if (random.below(4) != 0) continue;
          set.add(w, {first, last});
          newest = std::max(newest, last);
          for (Iteration t = first; t <= last; ++t) merged.insert({t, z, w});
        }
        gei.merge(z, set);
      }
      ASSERT_EQ(gei.newest(), newest);
      const int w = static_cast<int>(random.below(n));
      for (Iteration t = std::max<Iteration>(1, newest - s - 2); t <= newest; ++t) {
        int proportion = 0;
        for (int z = 0; z < k; ++z) {
          const bool is = merged.count({t, z, w}) != 0;
          proportion += is ? 1 : 0;
          // A gradient that was merged before its row began again is forgotten with the row, never the other way.
          ASSERT_EQ(gei.row(t, z).has(w), is) << "t " << t << " z " << z << " w " << w;
        }
        ASSERT_EQ(gei.proportion(w, t), proportion);
        ASSERT_EQ(gei.overtime(w, t, thresholds), newest - t > s && proportion < thresholds.proportion);
      }
    }
  });
}

TEST(Gei, APullTakesOverWhatTheOtherKnows) {
  Gei mine(4, 2, 6);
  Gei theirs(4, 2, 6);
  mine.merge(0, of(4, {{0, {1, 2}}}));
  theirs.merge(0, of(4, {{1, {2, 4}}}));
  mine.merge(theirs);
  EXPECT_EQ(mine.newest(), 4);
  EXPECT_EQ(mine.row(2, 0).bits(), 0b11u);
  EXPECT_EQ(mine.row(4, 0).bits(), 0b10u);
}

TEST(Contributors, AGradientThatComesTwiceIsFound) {
  Contributors a = of(70, {{1, {3, 5}}, {69, {2, 2}}});
  const Contributors before = a;
  EXPECT_FALSE(a.unite(of(70, {{0, {1, 1}}, {69, {7, 7}}})));
  EXPECT_TRUE(a == before);
  EXPECT_TRUE(a.unite(of(70, {{0, {1, 1}}})));
  EXPECT_EQ(a.gradients(), 5);
  EXPECT_EQ(a.oldest(), 1);
  EXPECT_EQ(a.newest(), 5);
}

TEST(Contributors, TheHashTellsSetsAndIterationsApart) {
  std::map<std::uint32_t, Contributors> seen;
  for (int w = 0; w < 8; ++w) {
    for (Iteration first = 1; first < 12; ++first) {
      for (Iteration last = first; last < 12; ++last) {
        const Contributors set = of(8, {{w, {first, last}}});
        const auto [at, fresh] = seen.emplace(set.hash(), set);
        EXPECT_TRUE(fresh) << w << " " << first << ".." << last;
      }
    }
  }
  EXPECT_EQ(Contributors(8).hash(), 0u);
}

}  // namespace
}  // namespace canarynet::sync
