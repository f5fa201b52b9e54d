#include "collectives/selector.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "compress/spec.h"

namespace canarynet {
namespace {

constexpr Collective kAll[] = {Collective::kAllReduce,  Collective::kReduceScatter, Collective::kAllGather,
                               Collective::kBroadcast,  Collective::kBarrier,       Collective::kReduce,
                               Collective::kGather,     Collective::kScatter,       Collective::kAllToAll,
                               Collective::kAllGatherV, Collective::kAllToAllV};

PlannerId chosen(const PlanRequest& request, const char* rules = "") {
  const auto result = select_planner(request, DecisionTable::parse(rules).value());
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return result.ok() ? result.value() : PlannerId::kRing;
}

TEST(Selector, WhatItPicksCanAlwaysRun) {
  for (int n = 1; n <= 40; ++n) {
    const auto reach = Reachability::full(n, 2);
    for (const Collective collective : kAll) {
      for (const std::uint64_t count : {0, 1, 10'000, 100'000'000}) {
        const PlanRequest request{.collective = collective, .ranks = n, .count = count, .reach = &reach};
        const Planner& picked = planner(chosen(request));
        EXPECT_TRUE(picked.defines(collective, n));
        EXPECT_TRUE(picked.check(request).ok());
      }
    }
  }
}

TEST(Selector, FlatWiringTakesFewMessagesWhenSmallAndTheRingWhenLarge) {
  const auto small_group = Reachability::full(8, 2);
  PlanRequest request{.ranks = 8, .count = 100, .reach = &small_group};
  EXPECT_EQ(chosen(request), PlannerId::kMesh);
  request.count = 100'000'000;
  EXPECT_EQ(chosen(request), PlannerId::kRing);
  const auto large_group = Reachability::full(64, 2);
  request.ranks = 64;
  request.reach = &large_group;
  EXPECT_EQ(chosen(request), PlannerId::kRing);
  request.count = 100'000;  // 400 kB: 64 segments of less than a piece
  EXPECT_EQ(chosen(request), PlannerId::kHalvingDoubling);
  request.count = 10;
  EXPECT_EQ(chosen(request), PlannerId::kHalvingDoubling);
  request.collective = Collective::kBroadcast;
  EXPECT_NE(chosen(request), PlannerId::kHalvingDoubling);
}

TEST(Selector, RanksOfOneHostWithoutACoreEachTakeTheTree) {
  Reachability memory(4);
  for (int a = 0; a < 4; ++a) {
    for (int b = a + 1; b < 4; ++b) memory.set(a, b, Reachability::kHostBit, Reachability::kHostBit);
  }
  for (const std::uint64_t count : {1, 1024, 16 * 1024, 64 * 1024}) {
    PlanRequest request{.ranks = 4, .count = count, .reach = &memory, .cores = 2};
    EXPECT_EQ(chosen(request), PlannerId::kTree) << count;
    for (const int cores : {0, 4, 64}) {
      request.cores = cores;
      EXPECT_NE(chosen(request), PlannerId::kTree) << count << ", " << cores << " cores";
    }
  }
  PlanRequest request{.ranks = 4, .count = 1 << 20, .reach = &memory, .cores = 2};
  EXPECT_NE(chosen(request), PlannerId::kTree);
  const auto rails = Reachability::full(4, 2);
  request.count = 1024;
  request.reach = &rails;
  EXPECT_NE(chosen(request), PlannerId::kTree) << "over NICs";
}

TEST(Selector, TwoOrFourRanksExchangeSmallSumsWhole) {
  for (const int n : {2, 3, 4, 8}) {
    const auto reach = Reachability::full(n, 2);
    PlanRequest request{.ranks = n, .count = 1024, .reach = &reach};
    const bool few = n == 2 || n == 4;
    EXPECT_EQ(chosen(request), few ? PlannerId::kHalvingDoubling : PlannerId::kMesh) << n;
    request.count = 1025;
    EXPECT_EQ(chosen(request), PlannerId::kMesh) << n;
    request.count = 1024;
    request.collective = Collective::kReduceScatter;
    EXPECT_EQ(chosen(request), PlannerId::kMesh) << n;
  }
}

TEST(Selector, BCubeWiringTakesBCube) {
  const auto reach = Reachability::bcube(3, 2);
  for (const Collective collective : kAll) {
    if (collective == Collective::kAllToAllV) continue;
    for (const std::uint64_t count : {1, 100'000'000}) {
      const PlanRequest request{.collective = collective, .ranks = 9, .count = count, .reach = &reach, .bcube = {3, 2}};
      EXPECT_EQ(chosen(request), PlannerId::kBCube);
    }
  }
}

TEST(Selector, HostsWhoseRanksShareAnEngineTakeHierarchical) {
  const std::vector<int> host_of = {0, 0, 0, 3, 3};
  auto reach = Reachability::full(5, 1);
  PlanRequest request{.ranks = 5, .reach = &reach, .host_of = host_of};
  EXPECT_EQ(chosen(request), PlannerId::kMesh) << "ranks of one host that meet over NICs only gain nothing";
  for (int a = 0; a < 5; ++a) {
    for (int b = 0; b < 5; ++b) {
      if (a != b && host_of[a] == host_of[b]) reach.set(a, b, Reachability::kLocalBit, Reachability::kLocalBit);
    }
  }
  for (const Collective collective : kAll) {
    if (!planner(PlannerId::kHierarchical).defines(collective, 5)) continue;
    for (const std::uint64_t count : {1, 1'000, 100'000'000}) {
      request.collective = collective;
      request.count = count;
      EXPECT_EQ(chosen(request), PlannerId::kHierarchical) << name_of(collective);
    }
  }
  EXPECT_EQ(chosen(request, "ring"), PlannerId::kRing);
  // The same holds for processes that share memory.
  reach.set(0, 1, Reachability::kHostBit, Reachability::kHostBit);
  EXPECT_EQ(chosen(request), PlannerId::kHierarchical);
  const std::vector<int> one_host(5, 2);
  request.host_of = one_host;
  EXPECT_NE(chosen(request), PlannerId::kHierarchical);
  request.host_of = {};
  EXPECT_NE(chosen(request), PlannerId::kHierarchical);
  // If hosts can't meet as this planner needs them to, the next one is chosen.
  request.host_of = host_of;
  reach.set(0, 3, 0, 0);
  EXPECT_NE(chosen(request), PlannerId::kHierarchical);
}

TEST(Selector, RanksOfOneEngineTakeTheMesh) {
  Reachability reach(6);
  for (int a = 0; a < 6; ++a) {
    for (int b = a + 1; b < 6; ++b) reach.set(a, b, Reachability::kLocalBit, Reachability::kLocalBit);
  }
  for (const Collective collective : kAll) {
    for (const std::uint64_t count : {1, 100'000'000}) {
      const PlanRequest request{.collective = collective, .ranks = 6, .count = count, .reach = &reach};
      EXPECT_EQ(chosen(request), PlannerId::kMesh);
    }
  }
}

TEST(Selector, ARingOfRailsTakesTheRing) {
  Reachability reach(5);
  for (int a = 0; a < 5; ++a) reach.set(a, (a + 1) % 5, 1, 1);
  for (const Collective collective : kAll) {
    if (is_pairwise(collective)) continue;
    for (const std::uint64_t count : {1, 100'000'000}) {
      const PlanRequest request{.collective = collective, .ranks = 5, .count = count, .reach = &reach};
      EXPECT_EQ(chosen(request), PlannerId::kRing);
    }
  }
}

TEST(Selector, AllToAllIsRelayedOrRefusedByNameWhereSomePairCannotMeet) {
  const auto refused = [](const PlanRequest& request, const char* ranks) {
    const auto result = select_planner(request, {});
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), CANARY_UNREACHABLE);
    EXPECT_NE(result.status().text().find(ranks), std::string::npos) << result.status().text();
  };
  // On BCube wiring blocks are forwarded, unless the rank that forwards does not know their length.
  const auto cube = Reachability::bcube(2, 2);
  refused({.collective = Collective::kAllToAllV, .ranks = 4, .reach = &cube, .bcube = {2, 2}}, "ranks 0 and 3");
  auto torn = Reachability::full(3, 1);
  torn.set(1, 2, 0, 0);
  refused({.collective = Collective::kAllToAllV, .ranks = 3, .count = 10, .reach = &torn}, "ranks 1 and 2");
  EXPECT_EQ(chosen({.collective = Collective::kAllToAll, .ranks = 3, .count = 10, .reach = &torn}),
            PlannerId::kMeshRelay);
  torn.set(0, 2, 0, 0);
  refused({.collective = Collective::kAllToAll, .ranks = 3, .count = 10, .reach = &torn}, "rank 2");
}

TEST(Selector, WhereAPairCannotMeetSmallSumsAreRelayedAndLargeOnesGoRound) {
  auto torn = Reachability::full(4, 1);
  torn.set(0, 1, 0, 0);
  const std::vector<std::uint16_t> order{0, 2, 1, 3};
  const PlanRequest request{.ranks = 4, .count = 256, .reach = &torn, .ring_order = order};
  EXPECT_EQ(chosen(request), PlannerId::kMeshRelay) << "4 message times; a ring takes 6";
  PlanRequest large = request;
  large.count = 4 << 20;
  EXPECT_EQ(chosen(large), PlannerId::kRing);
}

// Only two ranks know what passes between them, so the choice must not look at it.
TEST(Selector, TheCountsOfOneRankDoNotDecide) {
  const auto reach = Reachability::full(3, 1);
  PlanRequest request{.collective = Collective::kAllToAllV, .ranks = 3, .reach = &reach};
  const std::vector<std::uint64_t> few(12, 1), many(12, 1'000'000'000);
  request.counts = few;
  const PlannerId picked = chosen(request);
  request.counts = many;
  EXPECT_EQ(chosen(request), picked);
}

TEST(Selector, AForcedPlannerIsTakenRefusedOrReplaced) {
  const auto reach = Reachability::full(4, 1);
  PlanRequest request{.ranks = 4, .count = 1'000'000, .reach = &reach};
  EXPECT_EQ(chosen(request, "halving_doubling"), PlannerId::kHalvingDoubling);
  const auto refused = select_planner(request, DecisionTable::parse("bcube").value());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().text().find("n = 4"), std::string::npos);
  request.collective = Collective::kBroadcast;  // halving_doubling does not define it
  EXPECT_NE(chosen(request, "halving_doubling"), PlannerId::kHalvingDoubling);

  auto torn = Reachability::full(4, 1);
  torn.set(1, 2, 0, 0);
  request.reach = &torn;
  request.collective = Collective::kAllReduce;
  const auto apart = select_planner(request, DecisionTable::parse("mesh").value());
  ASSERT_FALSE(apart.ok());
  EXPECT_EQ(apart.status().code(), CANARY_UNREACHABLE);
  EXPECT_NE(apart.status().text().find("ranks 1 and 2"), std::string::npos);
}

// Two ranks that complete one sum would each decode something else.
TEST(Selector, PlansForCodecsCompleteEveryElementOnOneRank) {
  int refused = 0;
  for (const int n : {2, 3, 4, 5, 6, 8, 9}) {
    const auto reach = Reachability::full(n, 2);
    for (const std::uint64_t count : {std::uint64_t{500}, std::uint64_t{1'000'000}}) {
      const PlanRequest request{.ranks = n, .count = count, .reach = &reach, .bcube = find_bcube(reach, 2)};
      for (const Planner& one : planners()) {
        if (!one.check(request).ok()) continue;
        std::vector<std::uint64_t> leaves;
        one.leaves(request, &leaves);
        std::vector<int> completed(leaves.size() - 1);
        for (int r = 0; r < n; ++r) {
          Plan plan;
          one.plan(request, r, &plan);
          for (const Step& s : plan.steps) {
            for (std::uint32_t leaf = s.leaf_begin; s.finish && leaf < s.leaf_end; ++leaf) ++completed[leaf];
          }
        }
        for (std::size_t leaf = 0; leaf + 1 < leaves.size(); ++leaf) {
          if (leaves[leaf] == leaves[leaf + 1]) continue;
          EXPECT_EQ(completed[leaf] == 1, completes_once(one.id, request)) << name_of(one.id) << " n " << n;
        }
        refused += !completes_once(one.id, request);
      }
      const auto picked = select_coded_planner(request, {});
      ASSERT_TRUE(picked.ok());
      EXPECT_TRUE(completes_once(picked.value(), request));
      EXPECT_EQ(picked.value(), PlannerId::kMesh) << "it encodes every value twice";
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(Selector, ARowOfACodecIsForOperationsThatCarryWhatThatMakes) {
  const auto reach = Reachability::full(4, 2);
  const PlanRequest request{.ranks = 4, .count = 1000, .reach = &reach};
  const std::uint32_t int8 = codec_number(parse_codec("int8").value()).value();
  const std::uint32_t topk = codec_number(parse_codec("artopk:star:0.1").value()).value();
  MeasuredRow row;
  row.size_class = size_class(4000);
  row.asked = int8;
  row.planner = PlannerId::kTree;
  const auto planner_by = [&](std::vector<MeasuredRow> rows, std::uint32_t codec, const char* forced = "") {
    const auto choice =
        choice_of_rows(request, DecisionTable::parse(forced).value(), MeasuredTable(1, std::move(rows)), codec);
    EXPECT_TRUE(choice.ok());
    return choice.value() ? std::optional(choice.value()->planner) : std::nullopt;
  };
  EXPECT_EQ(planner_by({row}, int8), PlannerId::kTree);
  EXPECT_EQ(planner_by({row}, topk), std::nullopt);
  EXPECT_EQ(planner_by({row}, 0), std::nullopt);
  EXPECT_EQ(planner_by({row}, int8, "all_reduce=ring"), PlannerId::kRing);
  // Encoded pieces need one rank that completes each; the values of top-k travel as they are.
  row.planner = PlannerId::kHalvingDoubling;
  EXPECT_EQ(planner_by({row}, int8), std::nullopt);
  row.asked = topk;
  EXPECT_EQ(planner_by({row}, topk), PlannerId::kHalvingDoubling);
  EXPECT_EQ(planner_by({}, topk, "halving_doubling"), PlannerId::kHalvingDoubling);
  EXPECT_FALSE(choice_of_rows(request, DecisionTable::parse("halving_doubling").value(), {}, int8).ok());
}

TEST(Selector, WhenNobodyCanMeetTheRanksAreNamed) {
  const Reachability reach(3);
  const auto result = select_planner({.ranks = 3, .count = 10, .reach = &reach}, {});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), CANARY_UNREACHABLE);
  EXPECT_NE(result.status().text().find("ranks 0 and 1"), std::string::npos) << result.status().text();
}

}  // namespace
}  // namespace canarynet
