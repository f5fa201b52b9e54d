#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "collectives/planners_test_util.h"

namespace canarynet {
namespace {

constexpr PlannerId kFlat[] = {PlannerId::kRing,        PlannerId::kMesh,        PlannerId::kHalvingDoubling,
                               PlannerId::kTree,        PlannerId::kDoubleTree,  PlannerId::kParameterServer,
                               PlannerId::kRingPerRail, PlannerId::kHierarchical};

// Every BCube shape of n ranks.
std::vector<BCubeShape> shapes_of(int n) {
  std::vector<BCubeShape> shapes;
  for (int r = 2; r <= n; ++r) {
    int product = 1, levels = 0;
    while (product < n) {
      product *= r;
      ++levels;
    }
    if (product == n) shapes.push_back({r, levels});
  }
  return shapes;
}

TEST(Planners, FlatPlansAreProvenForUpTo64Ranks) {
  for (int n = 1; n <= 64; ++n) {
    if (left_out(n)) continue;
    const auto reach = Reachability::full(n, 2);
    for (const Collective collective : kAll) {
      for (const PlannerId id : kFlat) {
        if (!planner(id).defines(collective, n)) continue;
        for (const int root : {0, n / 2, n - 1}) {
          if (root != 0 && !has_root(collective)) continue;
          ASSERT_NO_FATAL_FAILURE(prove(id, {.collective = collective, .ranks = n, .root = root, .reach = &reach}));
        }
      }
    }
  }
}

TEST(Planners, ParameterServersAreProvenForAnyNumberOfServers) {
  for (const int n : {1, 2, 3, 8, 13}) {
    const auto reach = Reachability::full(n, 1);
    for (const int servers : {2, n / 2, n, n + 5}) {
      ASSERT_NO_FATAL_FAILURE(prove(PlannerId::kParameterServer, {.ranks = n, .reach = &reach, .servers = servers}));
    }
  }
}

TEST(Planners, BCubePlansAreProvenOnPureBCubeWiringForUpTo64Ranks) {
  const int most = std::getenv("CANARY_TEST_QUICK") != nullptr ? 36 : 64;  // 49 and 64 take most of the time
  for (int n = 1; n <= most; ++n) {
    for (const BCubeShape shape : shapes_of(n)) {
      const auto reach = Reachability::bcube(shape.r, shape.levels);
      for (const Collective collective : kAll) {
        for (const PlannerId id : {PlannerId::kBCube, PlannerId::kBCubeX}) {
          if (!planner(id).defines(collective, n)) continue;
          for (const int root : {0, n / 2, n - 1}) {
            if (root != 0 && !has_root(collective)) continue;
            ASSERT_NO_FATAL_FAILURE(
                prove(id, {.collective = collective, .ranks = n, .root = root, .reach = &reach, .bcube = shape}));
          }
        }
      }
    }
  }
}

TEST(Planners, OneRankCopiesAndFinishesWhereThereIsAReduction) {
  const auto reach = Reachability::full(1, 1);
  for (const Planner& one : planners()) {
    for (const Collective collective : kAll) {
      if (!one.defines(collective, 1)) continue;
      const PlanRequest request{.collective = collective, .count = 10, .reach = &reach};
      EXPECT_TRUE(check_planner(one.id, request).ok());
      const Plan plan = plan_of(one.id, request, 0);
      if (collective == Collective::kBarrier) {
        EXPECT_TRUE(plan.steps.empty());
        continue;
      }
      ASSERT_EQ(plan.steps.size(), 1u);
      EXPECT_EQ(plan.steps[0].kind, StepKind::kCopy);
      EXPECT_EQ(plan.steps[0].finish, reduces(collective));
    }
  }
}

// The bytes that a rank sends, by preferred rail.
std::map<int, std::uint64_t> sent(const Plan& plan, const std::vector<std::uint64_t>& leaves,
                                  std::uint32_t element_bytes) {
  std::map<int, std::uint64_t> bytes;
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::kSend)
      bytes[step.rail] += (leaves[step.leaf_end] - leaves[step.leaf_begin]) * element_bytes;
  }
  return bytes;
}

TEST(Planners, BCubeLoadsEveryRailOfEveryRankEqually) {
  struct Row {
    BCubeShape shape;
    std::uint64_t numerator, denominator;  // of M, per rail: (2/L)(1-1/n)
  };
  for (const Row& row : {Row{{3, 2}, 8, 9}, Row{{2, 3}, 7, 12}, Row{{4, 2}, 15, 16}}) {
    const auto reach = Reachability::bcube(row.shape.r, row.shape.levels);
    const int n = reach.ranks();
    const std::uint64_t count = 32ull * n * row.shape.levels * 12;  // whole units per leaf
    const PlanRequest request{.ranks = n, .count = count, .reach = &reach, .bcube = row.shape};
    const auto leaves = leaves_of(PlannerId::kBCube, request);
    for (int rank = 0; rank < n; ++rank) {
      const auto bytes = sent(plan_of(PlannerId::kBCube, request, rank), leaves, 4);
      ASSERT_EQ(bytes.size(), static_cast<std::size_t>(row.shape.levels));
      for (const auto& [rail, b] : bytes)
        EXPECT_EQ(b * row.denominator, count * 4 * row.numerator) << "rank " << rank << " rail " << rail;
    }
  }
}

// The paper's table 2: 2L-1 steps, and per rail (2/L)(1-1/r^(L-1)) + (r-1)/(L r^(L-1)) of the buffer.
TEST(Planners, BCubeXSavesAStepAndMovesWhatThePaperSays) {
  for (int n = 2; n <= 64; ++n) {
    for (const BCubeShape shape : shapes_of(n)) {
      const auto reach = Reachability::bcube(shape.r, shape.levels);
      const auto levels = static_cast<std::uint64_t>(shape.levels), r = static_cast<std::uint64_t>(shape.r);
      const std::uint64_t kept = static_cast<std::uint64_t>(n) / r;  // r^(L-1)
      const std::uint64_t count = 32 * kept * levels * 12;           // whole units per leaf
      const PlanRequest request{.ranks = n, .count = count, .reach = &reach, .bcube = shape};
      const auto leaves = leaves_of(PlannerId::kBCubeX, request);
      EXPECT_EQ(leaves.size(), kept * levels + 1);
      SCOPED_TRACE("bcube_x(" + std::to_string(shape.r) + "," + std::to_string(shape.levels) + ")");
      int last_round = 0;
      for (int rank = 0; rank < n; ++rank) {
        const Plan plan = plan_of(PlannerId::kBCubeX, request, rank);
        for (const Step& s : plan.steps) last_round = std::max(last_round, int{s.round});
        const auto bytes = sent(plan, leaves, 4);
        ASSERT_EQ(bytes.size(), levels);
        for (const auto& [rail, b] : bytes) EXPECT_EQ(b * levels * kept, count * 4 * (2 * (kept - 1) + r - 1)) << rail;
      }
      EXPECT_EQ(last_round + 1, 2 * shape.levels - 1);
    }
  }
}

TEST(Planners, AtEveryBCubeStepEachRailCarriesTheSameBytes) {
  const BCubeShape shape{3, 2};
  const auto reach = Reachability::bcube(3, 2);
  const PlanRequest request{.ranks = 9, .count = 32 * 18, .reach = &reach, .bcube = shape};
  const auto leaves = leaves_of(PlannerId::kBCube, request);
  const Plan plan = plan_of(PlannerId::kBCube, request, 4);
  std::map<std::pair<int, int>, std::uint64_t> bytes;  // (round, rail)
  for (const Step& s : plan.steps) {
    if (s.kind == StepKind::kSend) bytes[{s.round, s.rail}] += leaves[s.leaf_end] - leaves[s.leaf_begin];
  }
  const std::uint64_t total = request.total();
  for (int rail = 0; rail < 2; ++rail) {
    EXPECT_EQ((bytes[{0, rail}]), total / 3);
    EXPECT_EQ((bytes[{1, rail}]), total / 9);
    EXPECT_EQ((bytes[{2, rail}]), total / 9);
    EXPECT_EQ((bytes[{3, rail}]), total / 3);
  }
}

TEST(Planners, FlatAllReduceMovesTwiceTheBufferLessOneShare) {
  for (const PlannerId id : {PlannerId::kRing, PlannerId::kMesh, PlannerId::kHalvingDoubling}) {
    const auto reach = Reachability::full(8, 1);
    const PlanRequest request{.ranks = 8, .count = 32 * 8 * 5, .reach = &reach};
    for (int rank = 0; rank < 8; ++rank) {
      const auto bytes = sent(plan_of(id, request, rank), leaves_of(id, request), 4);
      ASSERT_EQ(bytes.size(), 1u);
      EXPECT_EQ(bytes.begin()->second * 8, request.count * 4 * 2 * 7) << name_of(id);
    }
  }
}

TEST(Planners, ADoubleTreeLoadsNoRankWithMoreThanTwiceTheBuffer) {
  for (const int n : {2, 3, 4, 7, 8, 15, 16, 33, 64}) {
    const auto reach = Reachability::full(n, 1);
    const PlanRequest request{.ranks = n, .count = 32 * 1024, .reach = &reach};
    const auto leaves = leaves_of(PlannerId::kDoubleTree, request);
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_LE(sent(plan_of(PlannerId::kDoubleTree, request, rank), leaves, 1)[-1], 2 * request.count)
          << n << " " << rank;
    }
  }
}

TEST(Planners, RingPerRailGivesEveryRailAnEqualShare) {
  const auto reach = Reachability::full(4, 3);
  const PlanRequest request{.ranks = 4, .count = 32 * 12, .reach = &reach};
  for (int rank = 0; rank < 4; ++rank) {
    const auto bytes =
        sent(plan_of(PlannerId::kRingPerRail, request, rank), leaves_of(PlannerId::kRingPerRail, request), 1);
    ASSERT_EQ(bytes.size(), 3u);
    for (const auto& [rail, b] : bytes) EXPECT_EQ(b, request.count * 6 / 4 / 3) << "rail " << rail;
  }
}

TEST(Planners, RingPerRailTakesTheRailsThatAllNeighboursShare) {
  auto reach = Reachability::full(4, 3);
  reach.set(1, 2, 0b110, 0b110);
  PlanRequest request{.ranks = 4, .count = 1000, .reach = &reach};
  std::map<int, std::uint64_t> bytes =
      sent(plan_of(PlannerId::kRingPerRail, request, 0), leaves_of(PlannerId::kRingPerRail, request), 1);
  EXPECT_EQ(bytes.size(), 2u);
  EXPECT_EQ(bytes.count(0), 0u);
  const auto large = Reachability::full(2100, 16);
  EXPECT_EQ(planner(PlannerId::kRingPerRail).check({.ranks = 2100, .count = 1000, .reach = &large}).code(),
            CANARY_LIMIT)
      << "tags have 16 bits";
  reach.set(2, 3, 0b001, 0b001);
  EXPECT_EQ(planner(PlannerId::kRingPerRail).check(request).code(), CANARY_UNREACHABLE);
}

int rounds_of(PlannerId id, const PlanRequest& request) {
  int last = -1;
  for (int rank = 0; rank < request.ranks; ++rank) {
    for (const Step& s : plan_of(id, request, rank).steps) last = std::max(last, int{s.round});
  }
  return last + 1;
}

TEST(Planners, RoundsAreTheDocumentedMessageTimes) {
  const auto reach = Reachability::full(64, 6);
  for (const Collective collective : {Collective::kAllReduce, Collective::kBarrier}) {
    PlanRequest request{.collective = collective, .ranks = 64, .count = 1 << 20, .reach = &reach, .bcube = {2, 6}};
    EXPECT_EQ(rounds_of(PlannerId::kRing, request), 126);
    EXPECT_EQ(rounds_of(PlannerId::kBCube, request), 12);
    // Round 0 is the fold's: 63 ranks take the 5 + 5 rounds of 32 and two for the fold.
    EXPECT_EQ(rounds_of(PlannerId::kHalvingDoubling, request), 1 + 12);
    EXPECT_EQ(rounds_of(PlannerId::kTree, request), 12);
    EXPECT_EQ(rounds_of(PlannerId::kParameterServer, request), 2);
    request.ranks = 63;
    EXPECT_EQ(rounds_of(PlannerId::kHalvingDoubling, request), 12);
  }
  PlanRequest little{.ranks = 64, .count = 1024, .reach = &reach};
  EXPECT_EQ(rounds_of(PlannerId::kHalvingDoubling, little), 1 + 6) << "everything is exchanged at once";
  little.ranks = 63;
  EXPECT_EQ(rounds_of(PlannerId::kHalvingDoubling, little), 1 + 5 + 1);
  little.count = 1025;
  EXPECT_EQ(rounds_of(PlannerId::kHalvingDoubling, little), 12);
  PlanRequest request{.collective = Collective::kBroadcast, .ranks = 64, .root = 9, .reach = &reach, .bcube = {2, 6}};
  EXPECT_EQ(rounds_of(PlannerId::kRing, request), 63);
  EXPECT_EQ(rounds_of(PlannerId::kBCube, request), 12);
  EXPECT_EQ(rounds_of(PlannerId::kTree, request), 6);
  for (const Collective collective : {Collective::kReduce, Collective::kGather, Collective::kScatter}) {
    request.collective = collective;
    EXPECT_EQ(rounds_of(PlannerId::kRing, request), 63);
    EXPECT_EQ(rounds_of(PlannerId::kTree, request), 6);
    EXPECT_EQ(rounds_of(PlannerId::kBCube, request), collective == Collective::kReduce ? 12 : 6);
  }
}

TEST(Planners, BroadcastRootsSendNoMoreThanTheyMust) {
  const auto reach = Reachability::bcube(3, 2);
  const PlanRequest cube{
      .collective = Collective::kBroadcast, .ranks = 9, .count = 32 * 18, .root = 5, .reach = &reach, .bcube = {3, 2}};
  for (const auto& [rail, bytes] : sent(plan_of(PlannerId::kBCube, cube, 5), leaves_of(PlannerId::kBCube, cube), 1)) {
    EXPECT_EQ(bytes * 9, cube.count * 8) << rail;
  }
  const auto flat = Reachability::full(9, 1);
  const PlanRequest mesh{.collective = Collective::kBroadcast, .ranks = 9, .count = 32 * 8, .root = 5, .reach = &flat};
  EXPECT_EQ(sent(plan_of(PlannerId::kMesh, mesh, 5), leaves_of(PlannerId::kMesh, mesh), 1)[-1], mesh.count);
}

// The bytes that a rank receives.
std::uint64_t received(PlannerId id, const PlanRequest& request, int rank) {
  const auto leaves = leaves_of(id, request);
  std::uint64_t bytes = 0;
  for (const Step& step : plan_of(id, request, rank).steps) {
    if (step.kind == StepKind::kReceive || step.kind == StepKind::kReceiveReduce)
      bytes += (leaves[step.leaf_end] - leaves[step.leaf_begin]) * request.element_bytes;
  }
  return bytes;
}

TEST(Planners, RootsOfReduceReceiveTwoBuffersAtMostButForTheStar) {
  const auto reach = Reachability::full(8, 3);
  const PlanRequest request{.collective = Collective::kReduce,
                            .ranks = 8,
                            .count = 32 * 8 * 3,
                            .element_bytes = 4,
                            .root = 3,
                            .reach = &reach,
                            .bcube = {2, 3}};
  const std::uint64_t whole = request.count * 4;
  EXPECT_EQ(received(PlannerId::kRing, request, 3), whole);
  EXPECT_EQ(received(PlannerId::kRingPerRail, request, 3), whole);
  EXPECT_EQ(received(PlannerId::kDoubleTree, request, 3), whole);
  EXPECT_EQ(received(PlannerId::kMesh, request, 3), whole * 2 * 7 / 8);
  EXPECT_EQ(received(PlannerId::kHalvingDoubling, request, 3), whole * 2 * 7 / 8);
  EXPECT_EQ(received(PlannerId::kBCube, request, 3), whole * 2 * 7 / 8);
  EXPECT_EQ(received(PlannerId::kTree, request, 3), whole * 3);
  EXPECT_EQ(received(PlannerId::kParameterServer, request, 3), whole * 7);
}

TEST(Planners, GatherAndScatterCarryNoBlockIntoOrOutOfTheRootTwice) {
  const auto reach = Reachability::full(8, 3);
  for (const PlannerId id :
       {PlannerId::kRing, PlannerId::kMesh, PlannerId::kTree, PlannerId::kBCube, PlannerId::kRingPerRail}) {
    PlanRequest request{.collective = Collective::kGather,
                        .ranks = 8,
                        .count = 96,
                        .element_bytes = 4,
                        .root = 5,
                        .reach = &reach,
                        .bcube = {2, 3}};
    EXPECT_EQ(received(id, request, 5), request.count * 4 * 7) << name_of(id);
    request.collective = Collective::kScatter;
    std::uint64_t bytes = 0;
    for (const auto& [rail, b] : sent(plan_of(id, request, 5), leaves_of(id, request), 4)) bytes += b;
    EXPECT_EQ(bytes, request.count * 4 * 7) << name_of(id);
    EXPECT_EQ(received(id, request, 5), 0u) << name_of(id);
  }
}

TEST(Planners, BlocksOfAnyLengthAreGathered) {
  for (const int n : {2, 3, 4, 8, 9, 16}) {
    const auto reach = Reachability::full(n, 4);
    std::vector<std::uint64_t> counts;
    for (int i = 0; i < n; ++i) counts.push_back(i % 3 == 1 ? 0 : static_cast<std::uint64_t>(1000 * i + 7));
    const PlanRequest request{.collective = Collective::kAllGatherV,
                              .ranks = n,
                              .counts = counts,
                              .reach = &reach,
                              .bcube = find_bcube(reach, 4)};
    for (const Planner& one : planners()) {
      if (!one.defines(request.collective, n)) continue;
      const Status status = check_planner(one.id, request);
      EXPECT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(leaves_of(one.id, request).back(), request.total());
      std::vector<std::uint64_t> other = counts;
      other.pop_back();
      PlanRequest wrong = request;
      wrong.counts = other;
      EXPECT_EQ(one.check(wrong).code(), CANARY_INVALID_ARGUMENT);
    }
  }
}

TEST(Planners, AllToAllOnBCubeLoadsEveryRailOfEveryRankEqually) {
  for (const BCubeShape shape : {BCubeShape{2, 2}, BCubeShape{3, 2}, BCubeShape{2, 3}, BCubeShape{4, 3}}) {
    const auto reach = Reachability::bcube(shape.r, shape.levels);
    const int n = reach.ranks();
    const PlanRequest request{
        .collective = Collective::kAllToAll, .ranks = n, .count = 5, .reach = &reach, .bcube = shape};
    const auto leaves = leaves_of(PlannerId::kBCube, request);
    for (int rank = 0; rank < n; ++rank) {
      const auto bytes = sent(plan_of(PlannerId::kBCube, request, rank), leaves, 4);
      ASSERT_EQ(bytes.size(), static_cast<std::size_t>(shape.levels));
      for (const auto& [rail, b] : bytes)  // (1-1/r)M
        EXPECT_EQ(b * static_cast<std::uint64_t>(shape.r), static_cast<std::uint64_t>((shape.r - 1) * n * 5 * 4))
            << rail;
    }
  }
}

TEST(Planners, AllToAllHasOnePartnerEachWayInEveryRound) {
  const auto reach = Reachability::full(7, 1);
  const PlanRequest request{.collective = Collective::kAllToAll, .ranks = 7, .count = 32, .reach = &reach};
  std::map<int, std::vector<int>> targets;  // round → peers sent to
  for (int rank = 0; rank < 7; ++rank) {
    for (const Step& s : plan_of(PlannerId::kMesh, request, rank).steps) {
      if (s.kind == StepKind::kSend) targets[s.round].push_back(s.peer);
    }
  }
  ASSERT_EQ(targets.size(), 6u);
  for (auto& [round, peers] : targets) {
    std::sort(peers.begin(), peers.end());
    EXPECT_EQ(peers, (std::vector<int>{0, 1, 2, 3, 4, 5, 6})) << "round " << round;
  }
}

TEST(Planners, MeshRoundsPairEveryRankWithOneOther) {
  const auto reach = Reachability::full(7, 1);
  const PlanRequest request{.ranks = 7, .count = 7 * 32, .reach = &reach};
  std::map<int, std::vector<int>> targets;  // round → peers sent to
  for (int rank = 0; rank < 7; ++rank) {
    for (const Step& s : plan_of(PlannerId::kMesh, request, rank).steps) {
      if (s.kind == StepKind::kSend) targets[s.round].push_back(s.peer);
    }
  }
  ASSERT_EQ(targets.size(), 12u);
  for (auto& [round, peers] : targets) {
    std::sort(peers.begin(), peers.end());
    EXPECT_EQ(peers, (std::vector<int>{0, 1, 2, 3, 4, 5, 6})) << "round " << round;
  }
}

TEST(Planners, BCubePrefersTheLevelsRailAndLeavesFlatWiringToTheChannel) {
  const BCubeShape shape{2, 2};
  auto reach = Reachability::full(4, 3);
  reach.set(0, 1, 0b100, 0b100);  // only rail 2: neither level's
  reach.set(0, 2, 0b101, 0b101);  // level 1's rail is missing, two others reach
  const PlanRequest request{.ranks = 4, .count = 512, .reach = &reach, .bcube = shape};
  for (const Step& s : plan_of(PlannerId::kBCube, request, 0).steps) EXPECT_EQ(s.rail, s.peer == 1 ? 2 : -1);
  for (const Step& s : plan_of(PlannerId::kBCube, request, 3).steps) EXPECT_EQ(s.rail, s.peer == 2 ? 0 : 1);
}

TEST(Planners, RefusalsNameTheRanksThatCannotMeet) {
  auto reach = Reachability::full(4, 2);
  reach.set(1, 2, 0, 0);
  const PlanRequest request{.ranks = 4, .count = 100, .reach = &reach, .bcube = {2, 2}};
  const Status ring = planner(PlannerId::kRing).check(request);
  EXPECT_EQ(ring.code(), CANARY_UNREACHABLE);
  EXPECT_EQ(ring.text(), "ring needs ranks 1 and 2 to meet, but they share no rail");
  EXPECT_EQ(planner(PlannerId::kMesh).check(request).text(),
            "mesh needs ranks 1 and 2 to meet, but they share no rail");
  EXPECT_TRUE(planner(PlannerId::kBCube).check(request).ok());  // 1 and 2 differ in both digits
  reach.set(3, 1, 0, 0);
  EXPECT_EQ(planner(PlannerId::kBCube).check(request).text(),
            "bcube needs ranks 1 and 3 to meet, but they share no rail");
  EXPECT_EQ(planner(PlannerId::kHalvingDoubling).check(request).code(), CANARY_UNREACHABLE);
}

TEST(Planners, ChecksAskForNoEdgeThatThePlanDoesNotUse) {
  // Without all the edges that no plan uses, check() and the checker must still pass; without a single used edge, both
  // must refuse.
  for (const Collective collective : kAll) {
    for (const Planner& one : planners()) {
      if (!one.defines(collective, 8)) continue;
      const auto full = Reachability::full(8, 3);
      PlanRequest request{
          .collective = collective, .ranks = 8, .count = 4096, .root = 3, .reach = &full, .bcube = {2, 3}};
      Reachability used(8);
      int a = -1, b = -1;
      for (int rank = 0; rank < 8; ++rank) {
        for (const Step& s : plan_of(one.id, request, rank).steps) {
          if (s.kind == StepKind::kCopy) continue;
          used.set(rank, s.peer, 7, 7);
          a = rank;
          b = s.peer;
        }
      }
      request.reach = &used;
      const bool star =
          collective == Collective::kBarrier || collective == Collective::kGather || collective == Collective::kScatter;
      const bool tight = one.id != PlannerId::kBCube && one.id != PlannerId::kBCubeX &&
                         one.id != PlannerId::kMeshRelay && one.id != PlannerId::kHalvingDoubling &&
                         (one.id != PlannerId::kMesh || star);
      if (tight) {
        EXPECT_TRUE(check_planner(one.id, request).ok()) << check_planner(one.id, request).to_string();
      }
      if (one.id == PlannerId::kMeshRelay) continue;  // it finds another way
      used.set(a, b, 0, 0);
      EXPECT_EQ(one.check(request).code(), CANARY_UNREACHABLE) << name_of(one.id) << " " << name_of(collective);
    }
  }
}

TEST(Planners, UndefinedAndUnknownIsRefusedWithItsReason) {
  const auto reach = Reachability::full(6, 1);
  PlanRequest request{.collective = Collective::kBroadcast, .ranks = 6, .count = 1, .reach = &reach};
  EXPECT_EQ(planner(PlannerId::kHalvingDoubling).check(request).text(), "halving_doubling does not define broadcast");
  request.collective = Collective::kGather;
  EXPECT_EQ(planner(PlannerId::kParameterServer).check(request).text(), "parameter_server does not define gather");
  request.collective = Collective::kBroadcast;
  const Status shape = planner(PlannerId::kBCube).check(request);
  EXPECT_EQ(shape.code(), CANARY_INVALID_ARGUMENT);
  EXPECT_NE(shape.text().find("n = 6"), std::string::npos);
  request.bcube = {2, 3};
  EXPECT_EQ(planner(PlannerId::kBCube).check(request).text(), "bcube(2,3) does not fit n = 6");
  request.root = 6;
  EXPECT_EQ(planner(PlannerId::kRing).check(request).code(), CANARY_INVALID_ARGUMENT);
  request.root = 0;
  request.ranks = 5;
  EXPECT_EQ(planner(PlannerId::kRing).check(request).code(), CANARY_INVALID_ARGUMENT);  // the matrix is of 6
}

TEST(Planners, PlansOf2048RanksStaySmall) {
  const auto reach = Reachability::full(2048, 11);
  for (const Collective collective : kAll) {
    for (const Planner& one : planners()) {
      const PlanRequest request{
          .collective = collective, .ranks = 2048, .count = 1 << 20, .root = 7, .reach = &reach, .bcube = {2, 11}};
      if (!one.defines(collective, 2048) || one.id == PlannerId::kMeshRelay) continue;
      ASSERT_TRUE(one.check(request).ok());
      for (const int rank : {0, 1023}) {
        const std::size_t steps = plan_of(one.id, request, rank).steps.size();
        const std::size_t limit = one.id == PlannerId::kHalvingDoubling ? 64
                                  : one.id == PlannerId::kBCube || one.id == PlannerId::kBCubeX
                                      ? (in_blocks(collective) ? 2 * 11 * 2048 : 4 * 11 * 11)
                                  : one.id == PlannerId::kRingPerRail ? 4 * 2048 * 11
                                                                      : 4 * 2048;
        EXPECT_LE(steps, limit) << name_of(one.id) << " " << name_of(collective);
        EXPECT_GT(steps, 0u);
      }
    }
  }
}

TEST(Planners, NamesRoundTripAndPlansPrint) {
  for (const Planner& one : planners()) {
    EXPECT_EQ(&planner(one.id), &one);
    PlannerId id{};
    ASSERT_TRUE(parse(name_of(one.id), &id));
    EXPECT_EQ(id, one.id);
  }
  PlannerId id{};
  EXPECT_FALSE(parse("star", &id));
  const auto reach = Reachability::full(2, 1);
  const PlanRequest request{.ranks = 2, .count = 64, .reach = &reach};
  EXPECT_EQ(to_string(plan_of(PlannerId::kMesh, request, 1), 1),
            "r1 s0 round 0  send to 0 leaves [0,1) input\n"
            "r1 s1 round 0  receive_reduce from 0 leaves [1,2) input>output finish\n"
            "r1 s2 round 1  send to 0 leaves [1,2) output after 1\n"
            "r1 s3 round 1  receive from 0 leaves [0,1) >output after 0\n");
}

}  // namespace
}  // namespace canarynet
