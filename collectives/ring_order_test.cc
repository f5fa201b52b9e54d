// Rings in any order are proven; the order that is chosen is compared with all orders.
#include "collectives/ring_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>

#include "base/random.h"
#include "collectives/checker.h"

namespace canarynet {
namespace {

using Order = std::vector<std::uint16_t>;

constexpr Collective kAll[] = {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                               Collective::kBroadcast, Collective::kBarrier,       Collective::kReduce,
                               Collective::kGather,    Collective::kScatter,       Collective::kAllGatherV};

Order shuffled(int n, Random* random) {
  Order order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random->below(i)]);
  return order;
}

TEST(RingOrder, RingsInAnyOrderAreProven) {
  for (int n = 1; n <= 64; ++n) {
    if (n > 20 && n % 11 != 0 && n != 64) continue;
    Random random(static_cast<std::uint64_t>(n));
    const Order order = shuffled(n, &random);
    // Only the edges of this ring.
    Reachability reach(n);
    for (std::size_t i = 0; n > 1 && i < order.size(); ++i) reach.set(order[i], order[(i + 1) % order.size()], 3, 3);
    for (const Collective collective : kAll) {
      for (const PlannerId id : {PlannerId::kRing, PlannerId::kRingPerRail}) {
        for (const int root : {0, n / 2, n - 1}) {
          if (root != 0 && !has_root(collective)) continue;
          for (const std::uint64_t count : {1, 100'003}) {
            const PlanRequest request{.collective = collective,
                                      .ranks = n,
                                      .count = count,
                                      .root = root,
                                      .reach = &reach,
                                      .ring_order = order};
            const Status status = check_planner(id, request);
            ASSERT_TRUE(status.ok()) << status.to_string() << " root " << root << " count " << count;
          }
        }
      }
    }
  }
}

TEST(RingOrder, RankOrderInWordsIsTheSamePlan) {
  const auto reach = Reachability::full(5, 2);
  const Order order = {0, 1, 2, 3, 4};
  for (const Collective collective : kAll) {
    for (const PlannerId id : {PlannerId::kRing, PlannerId::kRingPerRail}) {
      PlanRequest request{.collective = collective, .ranks = 5, .count = 5000, .root = 2, .reach = &reach};
      for (int rank = 0; rank < 5; ++rank) {
        Plan plain, told;
        planner(id).plan(request, rank, &plain);
        PlanRequest in_words = request;
        in_words.ring_order = order;
        planner(id).plan(in_words, rank, &told);
        EXPECT_EQ(to_string(plain, rank), to_string(told, rank));
      }
    }
  }
}

TEST(RingOrder, OrdersThatAreNoneAreRefused) {
  auto reach = Reachability::full(4, 1);
  const auto text = [&](const Order& order) {
    return planner(PlannerId::kRing).check({.ranks = 4, .reach = &reach, .ring_order = order}).text();
  };
  EXPECT_EQ(text({0, 1, 2}), "the ring's order has 3 ranks of 4");
  EXPECT_EQ(text({0, 1, 4, 2}), "the ring's order names rank 4 of 4");
  EXPECT_EQ(text({0, 1, 3, 1}), "the ring's order has rank 1 twice");
  EXPECT_EQ(text({0, 2, 1, 3}), "");
  reach.set(2, 1, 0, 0);
  EXPECT_EQ(text({0, 2, 1, 3}), "ring needs ranks 1 and 2 to meet, but they share no rail");
  EXPECT_EQ(text({0, 1, 3, 2}), "");
}

RingEdges random_edges(int n, Random* random) {
  RingEdges e{.n = n, .level = {}, .alpha = {}};
  const std::uint64_t levels = 1 + random->below(random->below(2) == 0 ? 4 : 100);
  const std::uint64_t missing = random->below(3) == 0 ? random->below(60) : 0;
  for (int a = 0; a < n; ++a) {
    for (int b = 0; b < n; ++b) {
      const bool none = a == b || random->below(100) < missing;
      e.level.push_back(none ? 0 : 1 + static_cast<std::uint32_t>(random->below(levels)));
      e.alpha.push_back(static_cast<std::int64_t>(random->below(1000)));
    }
  }
  return e;
}

// The slowest edge's level, and minus the sum of alphas, of an order; {0, 0} for none.
std::pair<std::uint32_t, std::int64_t> worth(const RingEdges& e, const Order& order) {
  if (order.empty()) return {0, 0};
  std::uint32_t level = ~std::uint32_t{0};
  std::int64_t alpha = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t edge = order[i] * static_cast<std::size_t>(e.n) + order[(i + 1) % order.size()];
    level = std::min(level, e.level[edge]);
    alpha -= e.alpha[edge];
  }
  return level == 0 ? std::pair<std::uint32_t, std::int64_t>{0, 0} : std::pair{level, alpha};
}

TEST(RingOrder, NoOtherOrderIsBetter) {
  int missed_level = 0, missed_alpha = 0, missed_cycle = 0, runs = 0;
  double lost = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    Random random(seed);
    const int n = 3 + static_cast<int>(random.below(seed % 20 == 0 ? 6 : 5));
    const RingEdges edges = random_edges(n, &random);
    Order order(static_cast<std::size_t>(n)), best;
    std::iota(order.begin(), order.end(), std::uint16_t{0});
    do {
      if (worth(edges, order) > worth(edges, best)) best = order;
      if (worth(edges, order).first != 0 && best.empty()) best = order;
    } while (std::next_permutation(order.begin() + 1, order.end()));
    const auto wanted = worth(edges, best);
    EXPECT_EQ(worth(edges, best_cycle(edges)), wanted) << "seed " << seed;
    const Order found = search_cycle(edges);
    EXPECT_TRUE(found.empty() || found.front() == 0);
    const auto got = worth(edges, found);
    ++runs;
    missed_cycle += got.first == 0 && wanted.first != 0;
    missed_level += got.first != 0 && got.first < wanted.first;
    if (got.first == wanted.first && got.second < wanted.second) {
      ++missed_alpha;
      lost += static_cast<double>(got.second - wanted.second) / static_cast<double>(wanted.second);
    }
  }
  std::printf("search of %d: %d missed the cycle, %d the level, %d the least alpha (by %.1f %% on average)\n", runs,
              missed_cycle, missed_level, missed_alpha, missed_alpha == 0 ? 0 : 100 * lost / missed_alpha);
  EXPECT_LE(missed_cycle, runs / 500);
  EXPECT_LE(missed_level, runs / 100);
  EXPECT_LE(missed_alpha, runs / 50);
}

// A good cycle hidden among slow edges.
TEST(RingOrder, LargeGroupsFindAHiddenCycle) {
  for (const int n : {16, 32, 64}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      Random random(seed);
      RingEdges e{.n = n, .level = {}, .alpha = {}};
      for (int i = 0; i < n * n; ++i) {
        e.level.push_back(i % (n + 1) == 0 ? 0 : 1 + static_cast<std::uint32_t>(random.below(50)));
        e.alpha.push_back(1000);
      }
      const Order hidden = shuffled(n, &random);
      for (std::size_t i = 0; i < hidden.size(); ++i)
        e.level[hidden[i] * static_cast<std::size_t>(n) + hidden[(i + 1) % hidden.size()]] = 60;
      const auto before = std::chrono::steady_clock::now();
      const Order found = search_cycle(e);
      const auto took = std::chrono::steady_clock::now() - before;
      const auto level = worth(e, found).first;
      std::printf("n %d seed %llu: level %u of 60, %.1f ms\n", n, static_cast<unsigned long long>(seed), level,
                  std::chrono::duration<double>(took).count() * 1e3);
      EXPECT_GE(level, 36u) << "n " << n << " seed " << seed;
      EXPECT_LT(took, std::chrono::seconds(2));
      EXPECT_EQ(search_cycle(e), found) << "the same again";
    }
  }
}

TEST(RingOrder, RanksOfAHostStandTogetherAndSlowLinksAreAvoided) {
  auto reach = Reachability::full(8, 1);
  const std::vector<int> host_of = {7, 3, 7, 3, 5, 5, 9, 9};
  PlanRequest request{.ranks = 8, .reach = &reach, .host_of = host_of};
  EXPECT_EQ(best_ring_order(request), (Order{0, 2, 1, 3, 4, 5, 6, 7})) << "hosts by their first ranks";
  LinkCosts links({1e-4, 1e-9});
  links.set(0, 1, 0, {1e-4, 4e-9});  // 7 to 3
  links.set(4, 6, 0, {1e-4, 4e-9});  // 5 to 9
  const Order order = best_ring_order(request, &links);
  ASSERT_EQ(order.size(), 8u);
  for (std::size_t i = 0; i < 8; i += 2) EXPECT_EQ(host_of[order[i]], host_of[order[i + 1]]);
  for (std::size_t i = 1; i < 8; i += 2) {
    const int from = host_of[order[i]], to = host_of[order[(i + 1) % 8]];
    EXPECT_FALSE((from == 7 && to == 3) || (from == 5 && to == 9));
  }
  const auto flat = Reachability::full(5, 2);
  EXPECT_EQ(best_ring_order({.ranks = 5, .reach = &flat}), (Order{0, 1, 2, 3, 4}));
  // A ring of cables in another order than the ranks'.
  Reachability cables(6);
  const int around[] = {0, 4, 2, 5, 1, 3};
  for (int i = 0; i < 6; ++i) cables.set(around[i], around[(i + 1) % 6], 1, 2);
  const Order found = best_ring_order({.ranks = 6, .reach = &cables});
  EXPECT_TRUE(planner(PlannerId::kRing).check({.ranks = 6, .reach = &cables, .ring_order = found}).ok());
  cables.set(0, 4, 0, 0);
  EXPECT_TRUE(best_ring_order({.ranks = 6, .reach = &cables}).empty());
}

// Six hosts whose links are alike, as measured: each a few per cent off.
class OrderByLinks : public ::testing::Test {
 protected:
  OrderByLinks() : reach(Reachability::full(6, 1)), links({1e-4, 1e-9}) {
    request.ranks = 6;
    request.reach = &reach;
    for (int a = 0; a < 6; ++a) {
      for (int b = 0; b < 6; ++b) {
        if (a != b) set(a, b, 1e-9);
      }
    }
  }
  void set(int from, int to, double beta, double alpha = 1e-4) {
    const auto noisy = [&](double x) { return x * (0.95 + 0.001 * static_cast<double>(random.below(100))); };
    links.set(from, to, 0, {noisy(alpha), noisy(beta)});
  }
  static bool joins(const Order& order, int a, int b) {
    for (std::size_t i = 0; i < order.size(); ++i) {
      const int from = order[i], to = order[(i + 1) % order.size()];
      if ((from == a && to == b) || (from == b && to == a)) return true;
    }
    return false;
  }

  Reachability reach;
  LinkCosts links;
  PlanRequest request;
  Random random{5};
};

TEST_F(OrderByLinks, LinksThatAreAlikeLeaveRanksInTheirOrder) {
  for (int i = 0; i < 20; ++i) {
    for (int a = 0; a < 6; ++a) set(a, (a + 1) % 6, 1e-9);
    EXPECT_EQ(order_by_links(request, links, {}), Order());
  }
}

TEST_F(OrderByLinks, ASlowOrFarPairNeedNotStandSideBySide) {
  for (const bool far : {false, true}) {
    SCOPED_TRACE(far);
    set(1, 2, far ? 1e-9 : 20e-9, far ? 5e-3 : 1e-4);
    set(2, 1, far ? 1e-9 : 20e-9, far ? 5e-3 : 1e-4);
    const Order order = order_by_links(request, links, {});
    ASSERT_EQ(order.size(), 6u);
    EXPECT_FALSE(joins(order, 1, 2));
    EXPECT_TRUE(planner(PlannerId::kRing).check({.ranks = 6, .reach = &reach, .ring_order = order}).ok());
    EXPECT_EQ(order_by_links(request, links, order), order) << "it stays";
    set(1, 2, 1e-9), set(2, 1, 1e-9);
    EXPECT_EQ(order_by_links(request, links, order), Order()) << "there is no reason any more";
  }
}

TEST_F(OrderByLinks, AnOrderStaysUntilAnotherOneIsClearlyBetter) {
  set(1, 2, 20e-9), set(2, 1, 20e-9);
  const Order order = order_by_links(request, links, {});
  ASSERT_EQ(order.size(), 6u);
  // One of its edges loses a tenth, then nearly all of its rate.
  const int a = order[4], b = order[5];
  set(a, b, 1.12e-9);
  EXPECT_EQ(order_by_links(request, links, order), order);
  set(a, b, 15e-9), set(b, a, 15e-9);
  const Order other = order_by_links(request, links, order);
  ASSERT_EQ(other.size(), 6u);
  EXPECT_FALSE(joins(other, 1, 2));
  EXPECT_FALSE(joins(other, a, b));
}

TEST_F(OrderByLinks, WhereNoOrderAvoidsAHostsLinksNoneIsBetter) {
  for (int a = 0; a < 5; ++a) set(a, 5, 20e-9), set(5, a, 20e-9);
  EXPECT_EQ(order_by_links(request, links, {}), Order());
}

TEST(RingOrder, RanksThatMeetOneAfterTheOtherNeedNoOrder) {
  const auto needs = [](const Reachability& reach, std::vector<int> host_of = {}) {
    return needs_order({.ranks = reach.ranks(), .reach = &reach, .host_of = host_of});
  };
  EXPECT_FALSE(needs(Reachability::full(1, 1)));
  EXPECT_FALSE(needs(Reachability::full(5, 1)));
  EXPECT_TRUE(needs(Reachability::bcube(2, 2))) << "ranks 1 and 2 don't meet";
  EXPECT_FALSE(needs(Reachability::full(4, 1), {0, 0, 1, 1}));
  EXPECT_TRUE(needs(Reachability::full(4, 1), {0, 1, 0, 1})) << "it would leave each host twice";
  EXPECT_FALSE(needs(Reachability::full(4, 1), {0, 1, 1, 0}));
  EXPECT_FALSE(needs(Reachability::full(3, 1), {4, 4, 4}));
}

}  // namespace
}  // namespace canarynet
