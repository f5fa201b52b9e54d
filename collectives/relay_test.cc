// mesh_relay on wirings that lack edges: proven, balanced, and refused only where nothing joins two ranks.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "collectives/checker.h"

namespace canarynet {
namespace {

constexpr Collective kAll[] = {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                               Collective::kBroadcast, Collective::kBarrier,       Collective::kReduce,
                               Collective::kGather,    Collective::kScatter,       Collective::kAllToAll,
                               Collective::kAllGatherV};

void prove_all(const Reachability& reach, const std::string& what) {
  const int n = reach.ranks();
  for (const Collective collective : kAll) {
    for (const int root : {0, n - 1}) {
      if (root != 0 && !has_root(collective)) continue;
      for (const std::uint64_t count : {1, 4000}) {
        const Status status =
            check_planner(PlannerId::kMeshRelay,
                          {.collective = collective, .ranks = n, .count = count, .root = root, .reach = &reach});
        ASSERT_TRUE(status.ok()) << what << ": " << status.to_string();
      }
    }
  }
}

// A tree and some more edges, so that everything is connected.
Reachability random_wiring(int n, Random* random) {
  Reachability reach(n);
  for (int a = 1; a < n; ++a) {
    const int b = static_cast<int>(random->below(static_cast<std::uint64_t>(a)));
    reach.set(a, b, 1u << random->below(3), 1u << random->below(3));
  }
  for (std::uint64_t more = random->below(static_cast<std::uint64_t>(n) * 3); more > 0; --more) {
    const int a = static_cast<int>(random->below(static_cast<std::uint64_t>(n)));
    const int b = static_cast<int>(random->below(static_cast<std::uint64_t>(n)));
    if (a != b) reach.set(a, b, 1, 1);
  }
  return reach;
}

TEST(MeshRelay, PlansAreProvenOnAnyConnectedWiring) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const int n = 2 + static_cast<int>(random.below(10));
    ASSERT_NO_FATAL_FAILURE(prove_all(random_wiring(n, &random), "seed " + std::to_string(seed)));
  }
  Reachability line(7), star(7);
  for (int r = 0; r < 6; ++r) line.set(r, r + 1, 1, 1);
  for (int r = 0; r < 7; ++r) {
    if (r != 3) star.set(3, r, 1, 1);
  }
  for (const int n : {1, 2, 3, 17}) ASSERT_NO_FATAL_FAILURE(prove_all(Reachability::full(n, 2), "full"));
  // Up to 64 ranks, the largest of them but for what costs the proof the square of the pairs.
  for (const BCubeShape shape : {BCubeShape{8, 2}, BCubeShape{2, 5}, BCubeShape{6, 2}}) {
    const auto cube = Reachability::bcube(shape.r, shape.levels);
    for (const Collective collective : {Collective::kAllReduce, Collective::kBroadcast, Collective::kBarrier}) {
      const Status status =
          check_planner(PlannerId::kMeshRelay,
                        {.collective = collective, .ranks = cube.ranks(), .count = 1 << 16, .root = 5, .reach = &cube});
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
  }
  ASSERT_NO_FATAL_FAILURE(prove_all(line, "line"));
  ASSERT_NO_FATAL_FAILURE(prove_all(star, "star"));
  ASSERT_NO_FATAL_FAILURE(prove_all(Reachability::bcube(3, 2), "bcube(3,2)"));
  ASSERT_NO_FATAL_FAILURE(prove_all(Reachability::bcube(2, 4), "bcube(2,4)"));
}

TEST(MeshRelay, AMissingEdgeCostsOneRelayAndRelaysTakeTurns) {
  // Two pairs of eight ranks don't meet.
  auto reach = Reachability::full(8, 1);
  reach.set(0, 1, 0, 0);
  reach.set(2, 3, 0, 0);
  const PlanRequest request{.collective = Collective::kAllToAll, .ranks = 8, .count = 32, .reach = &reach};
  std::vector<int> relayed(8);
  int sends = 0;
  for (int r = 0; r < 8; ++r) {
    Plan plan;
    planner(PlannerId::kMeshRelay).plan(request, r, &plan);
    for (const Step& s : plan.steps) {
      if (s.kind != StepKind::kSend) continue;
      ++sends;
      relayed[static_cast<std::size_t>(r)] += s.src == Buffer::kScratch;
    }
  }
  EXPECT_EQ(sends, 8 * 7 + 4);
  EXPECT_EQ(*std::max_element(relayed.begin(), relayed.end()), 1) << "four messages, four relays";
  // On BCube(4,2) a rank is two hops from 9 others, so on average a rank relays 9 blocks.
  const auto cube = Reachability::bcube(4, 2);
  const PlanRequest cubic{.collective = Collective::kAllToAll, .ranks = 16, .count = 32, .reach = &cube};
  int least = 1 << 30, most = 0;
  for (int r = 0; r < 16; ++r) {
    Plan plan;
    planner(PlannerId::kMeshRelay).plan(cubic, r, &plan);
    int here = 0;
    for (const Step& s : plan.steps) here += s.kind == StepKind::kSend && s.src == Buffer::kScratch;
    least = std::min(least, here);
    most = std::max(most, here);
  }
  EXPECT_LE(most - least, 4) << least << " to " << most << " of 9 on average";
}

// What each rank sends, by peer.
std::vector<std::uint64_t> sent(PlannerId id, const PlanRequest& request, int rank) {
  std::vector<std::uint64_t> leaves, bytes(static_cast<std::size_t>(request.ranks));
  planner(id).leaves(request, &leaves);
  Plan plan;
  planner(id).plan(request, rank, &plan);
  for (const Step& s : plan.steps) {
    if (s.kind == StepKind::kSend) bytes[static_cast<std::size_t>(s.peer)] += leaves[s.leaf_end] - leaves[s.leaf_begin];
  }
  return bytes;
}

TEST(MeshRelay, WhereAllMeetItSendsWhatTheMeshSends) {
  const auto reach = Reachability::full(6, 1);
  for (const Collective collective : kAll) {
    const PlanRequest request{.collective = collective, .ranks = 6, .count = 6 * 3200, .root = 2, .reach = &reach};
    for (int rank = 0; rank < 6; ++rank)
      EXPECT_EQ(sent(PlannerId::kMeshRelay, request, rank), sent(PlannerId::kMesh, request, rank))
          << name_of(collective) << " rank " << rank;
  }
}

TEST(MeshRelay, RefusalsNameWhatIsApart) {
  auto reach = Reachability::full(4, 1);
  for (int r = 0; r < 3; ++r) reach.set(3, r, 0, 0);
  const Status apart = planner(PlannerId::kMeshRelay).check({.ranks = 4, .count = 1, .reach = &reach});
  EXPECT_EQ(apart.code(), CANARY_UNREACHABLE);
  EXPECT_EQ(apart.text(), "mesh_relay needs a way from rank 0 to rank 3, but no ranks between join them");
  EXPECT_EQ(planner(PlannerId::kMeshRelay)
                .check({.collective = Collective::kAllToAllV, .ranks = 4, .count = 1, .reach = &reach})
                .text(),
            "mesh_relay does not define all_to_all_v");
  const auto many = Reachability::full(257, 1);
  EXPECT_EQ(planner(PlannerId::kMeshRelay).check({.ranks = 257, .count = 1, .reach = &many}).code(), CANARY_LIMIT);
}

}  // namespace
}  // namespace canarynet
