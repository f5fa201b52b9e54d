// Links that differ: how long a message over several of them takes, and a schedule.
#include "collectives/link_costs.h"

#include <gtest/gtest.h>

#include "collectives/cost.h"

namespace canarynet {
namespace {

constexpr double kAlpha = 1e-4, kBeta = 8e-10;  // 10 Gbit/s

TEST(LinkCosts, AShortMessageTakesTheNearRailAndALongOneBoth) {
  LinkCosts links;
  links.set(0, 1, 0, {.alpha = 1e-3, .beta = 1e-9});
  links.set(0, 1, 1, {.alpha = 11e-3, .beta = 1e-9});
  // 10 MB pass over the near rail before the far one would deliver its first byte.
  EXPECT_EQ(links.together(0, 1, 0b11, 1'000'000), (LinkCost{1e-3, 1e-9}));
  const LinkCost both = links.together(0, 1, 0b11, 30'000'000);
  EXPECT_DOUBLE_EQ(both.alpha, 1e-3);
  EXPECT_NEAR(both.beta * 30e6, 20e-3, 1e-9)
      << "20 MB by the near rail, 10 MB by the far one, which starts 10 ms later";
  EXPECT_DOUBLE_EQ(links.together(0, 1, 0b10, 1'000'000).beta, 1e-9);
  EXPECT_EQ(links.together(0, 1, 0b01, 0).alpha, 1e-3);
}

TEST(LinkCosts, TheOtherDirectionIsAnotherLink) {
  LinkCosts links({.alpha = kAlpha, .beta = kBeta});
  links.set(3, 4, 0, {.alpha = 1, .beta = 2});
  EXPECT_EQ(links.of(3, 4, 0), (LinkCost{1, 2}));
  EXPECT_EQ(links.of(4, 3, 0), (LinkCost{kAlpha, kBeta}));
  EXPECT_EQ(links.of(3, 4, 1), (LinkCost{kAlpha, kBeta}));
}

TEST(LinkCosts, EqualLinksCostWhatTheModelSays) {
  const LinkCosts links({.alpha = kAlpha, .beta = kBeta});
  for (const int rails : {1, 2}) {
    for (const std::uint64_t piece : {std::uint64_t{0}, std::uint64_t{128} * 1024}) {
      if (rails > 1 && piece != 0) continue;  // the model splits pieces over rails
      const auto reach = Reachability::full(8, rails);
      const PlanRequest request{.ranks = 8, .count = 5040 * 64, .reach = &reach};
      const CostModel plain{.alpha = kAlpha, .beta = kBeta, .post = 1e-5, .piece_bytes = piece};
      CostModel linked = plain;
      linked.links = &links;
      for (const PlannerId id : {PlannerId::kRing, PlannerId::kMesh, PlannerId::kHalvingDoubling, PlannerId::kTree}) {
        const double expected = walk_cost(id, request, rails, plain);
        EXPECT_NEAR(walk_cost(id, request, rails, linked), expected, 1e-6 * expected) << name_of(id);
      }
    }
  }
}

// The model splits a piece over the rails, a channel never does: it gives whole pieces to either.
TEST(LinkCosts, OverTwoEqualRailsAPieceTakesAsLongAsOverOneAndManyPiecesHalf) {
  const LinkCosts links({.alpha = kAlpha, .beta = kBeta});
  const auto one_rail = Reachability::full(8, 1), two_rails = Reachability::full(8, 2);
  for (const PlannerId id : {PlannerId::kRing, PlannerId::kMesh, PlannerId::kHalvingDoubling, PlannerId::kTree}) {
    const PlanRequest over_one{.ranks = 8, .count = 2048, .reach = &one_rail};
    PlanRequest over_two = over_one;
    over_two.reach = &two_rails;
    const CostModel whole{.links = &links, .piece_bytes = 16 << 10};
    if (id == PlannerId::kRing || id == PlannerId::kTree) {  // others send a peer several pieces at once
      const double one = walk_cost(id, over_one, 1, whole);
      EXPECT_NEAR(walk_cost(id, over_two, 2, whole), one, 1e-9 * one) << name_of(id);
    }
    over_two.count = 1 << 20;
    CostModel fine{.alpha = kAlpha, .beta = kBeta, .piece_bytes = 1 << 10};
    const double split = walk_cost(id, over_two, 2, fine);
    fine.links = &links;
    EXPECT_NEAR(walk_cost(id, over_two, 2, fine), split, 0.02 * split) << name_of(id);
  }
}

// A plan that gives each rail an equal part names rails, and the slow one is left alone where that is earlier.
TEST(LinkCosts, ARailThatAPlanNamesIsNoOrder) {
  const auto reach = Reachability::full(4, 2);
  LinkCosts links({.alpha = kAlpha, .beta = kBeta});
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < 4; ++b) {
      if (a != b) links.set(a, b, 1, {.alpha = kAlpha, .beta = 8 * kBeta});
    }
  }
  const PlanRequest request{
      .collective = Collective::kAllGather, .ranks = 4, .count = 8 << 10, .reach = &reach};  // 32 KiB each
  const CostModel model{.links = &links, .piece_bytes = 128 << 10};
  // Both rings take the fast rail, so that in each of three rounds one's half of a block is there behind the other's.
  const double part = 16384 * kBeta;
  EXPECT_NEAR(walk_cost(PlannerId::kRingPerRail, request, 2, model), 3 * (kAlpha + part) + part, 1e-9);
  // A rail that is not half as slow again has its ring to itself.
  for (int a = 0; a < 4; ++a) links.set(a, (a + 1) % 4, 1, {.alpha = kAlpha, .beta = 1.4 * kBeta});
  EXPECT_NEAR(walk_cost(PlannerId::kRingPerRail, request, 2, model), 3 * (kAlpha + 1.4 * part), 1e-9);
}

TEST(LinkCosts, ASlowLinkHoldsUpTheRingThatUsesIt) {
  const auto reach = Reachability::full(4, 1);
  const PlanRequest request{.ranks = 4, .count = 16 << 20, .reach = &reach};
  const double bytes = 4.0 * (16 << 20);
  LinkCosts links({.alpha = kAlpha, .beta = kBeta});
  CostModel model{.alpha = kAlpha, .beta = kBeta, .piece_bytes = 1 << 20};
  const double even = walk_cost(PlannerId::kRing, request, 1, model);
  model.links = &links;
  links.set(2, 3, 0, {.alpha = kAlpha, .beta = 5 * kBeta});
  const double slow = walk_cost(PlannerId::kRing, request, 1, model);
  EXPECT_NEAR(slow, 2 * 0.75 * bytes * 5 * kBeta, 0.15 * slow) << "all of 2(n-1)/n M passes that link";
  // 0 → 2 is in no ring of ranks in order.
  links = LinkCosts({.alpha = kAlpha, .beta = kBeta});
  links.set(0, 2, 0, {.alpha = kAlpha, .beta = 5 * kBeta});
  EXPECT_NEAR(walk_cost(PlannerId::kRing, request, 1, model), even, 1e-9);
  EXPECT_GT(walk_cost(PlannerId::kMesh, request, 1, model), 1.2 * even);
}

TEST(LinkCosts, AFarLinkDelaysOnlyWhatGoesOverIt) {
  const auto reach = Reachability::full(4, 1);
  const PlanRequest request{.collective = Collective::kBroadcast, .ranks = 4, .count = 1, .reach = &reach};
  LinkCosts links({.alpha = kAlpha});
  links.set(0, 3, 0, {.alpha = 10 * kAlpha});
  const CostModel model{.links = &links};
  EXPECT_NEAR(walk_cost(PlannerId::kRing, request, 1, model), 3 * kAlpha, 1e-12) << "0, 1, 2, 3";
  EXPECT_NEAR(walk_cost(PlannerId::kParameterServer, request, 1, model), 10 * kAlpha, 1e-12);
}

TEST(LinkCosts, RanksOfOneHostUseItsLinks) {
  const std::vector<int> host_of = {0, 0, 1, 1};
  const auto reach = Reachability::full(4, 1);
  const PlanRequest request{
      .collective = Collective::kAllGather, .ranks = 4, .count = 1 << 20, .reach = &reach, .host_of = host_of};
  const double block = double{1 << 22} * kBeta;
  LinkCosts links({.beta = kBeta});
  links.set(0, 2, 0, {.beta = 3 * kBeta});
  links.set(2, 0, 0, {.beta = 3 * kBeta});
  EXPECT_NEAR(walk_cost(PlannerId::kHierarchical, request, 1, {.links = &links}), 6 * block, block * 0.01);
}

}  // namespace
}  // namespace canarynet
