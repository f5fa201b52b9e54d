// A walk over the ranks that stand for all gives what the walk over all of them gives.
#include "collectives/walk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <set>
#include <tuple>

#include "base/random.h"
#include "collectives/walk_events.h"

namespace canarynet {
namespace {

constexpr Collective kAll[] = {Collective::kAllReduce,  Collective::kReduceScatter, Collective::kAllGather,
                               Collective::kBroadcast,  Collective::kBarrier,       Collective::kReduce,
                               Collective::kGather,     Collective::kScatter,       Collective::kAllToAll,
                               Collective::kAllGatherV, Collective::kAllToAllV};

struct Bed {
  Reachability reach;
  BCubeShape shape;
  int per_host = 1;
  std::vector<int> host_of = {};

  int ranks() const { return reach.ranks(); }
};

std::vector<Bed> beds() {
  std::vector<Bed> all;
  for (const int n : {2, 3, 4, 7, 8, 12, 16, 24}) all.push_back({Reachability::full(n, 2), {}});
  for (const BCubeShape shape : {BCubeShape{2, 2}, BCubeShape{3, 2}, BCubeShape{2, 3}, BCubeShape{4, 2}})
    all.push_back({Reachability::bcube(shape.r, shape.levels), shape});
  for (const auto& [hosts, each] : {std::pair{2, 4}, {3, 2}, {4, 4}, {8, 2}}) {
    Bed& bed = all.emplace_back(Bed{Reachability::full(hosts * each, 1), {}, each});
    for (int r = 0; r < hosts * each; ++r) bed.host_of.push_back(100 - r / each);
  }
  return all;
}

// Everything is cut evenly.
PlanRequest request_of(const Bed& bed, Collective collective, std::uint64_t units) {
  const auto n = static_cast<std::uint64_t>(bed.ranks());
  const std::uint64_t levels = bed.shape.levels > 0 ? static_cast<std::uint64_t>(bed.shape.levels) : 1;
  const std::uint64_t block = 32 * units * levels * 6;
  return {.collective = collective,
          .ranks = bed.ranks(),
          .count = in_blocks(collective) ? block : block * n,
          .reach = &bed.reach,
          .bcube = bed.shape,
          .host_of = bed.host_of};
}

bool runs(PlannerId id, const PlanRequest& request) {
  return planner(id).defines(request.collective, request.ranks) && planner(id).check(request).ok();
}

// Moving the ranks of one plan gives the plan of the moved rank, step by step.
TEST(Symmetry, PlansOfRanksThatStandForOthersAreTheirs) {
  int compared = 0;
  for (const Bed& bed : beds()) {
    for (const Collective collective : kAll) {
      for (const std::uint64_t units : {1, 4000}) {
        const PlanRequest request = request_of(bed, collective, units);
        for (const Planner& one : planners()) {
          if (!runs(one.id, request)) continue;
          const Symmetry symmetry = walked_ranks(one.id, request, {}, false);
          const bool in_order = symmetry.in_order;
          if (symmetry.cell == 0) continue;
          std::vector<std::uint64_t> leaves;
          one.leaves(request, &leaves);
          std::vector<Plan> plans(static_cast<std::size_t>(bed.ranks()));
          for (int r = 0; r < bed.ranks(); ++r) one.plan(request, r, &plans[static_cast<std::size_t>(r)]);
          for (int r = symmetry.cell; r < bed.ranks(); ++r) {
            const Plan &plan = plans[static_cast<std::size_t>(r)],
                       &model = plans[static_cast<std::size_t>(symmetry.in_cell(r))];
            const std::string what = std::string(name_of(one.id)) + " " + std::string(name_of(collective)) + " n " +
                                     std::to_string(bed.ranks()) + " rank " + std::to_string(r);
            ASSERT_EQ(plan.steps.size(), model.steps.size()) << what;
            ASSERT_EQ(plan.deps.size(), model.deps.size()) << what;
            if (in_order) {
              ASSERT_EQ(plan.deps, model.deps) << what;
            }
            std::map<std::tuple<int, StepKind, int, std::uint64_t>, int> kinds;  // round, kind, peer, length
            for (std::size_t i = 0; i < plan.steps.size(); ++i) {
              const Step &a = plan.steps[i], &b = model.steps[i];
              const auto length = [&](const Step& s) { return leaves[s.leaf_end] - leaves[s.leaf_begin]; };
              const int peer = a.peer < 0 ? -1 : symmetry.seen_from(r, a.peer, bed.ranks());
              ++kinds[{a.round, a.kind, peer, length(a)}];
              --kinds[{b.round, b.kind, b.peer, length(b)}];
              if (!in_order) continue;
              ASSERT_EQ(a.kind, b.kind) << what << " step " << i;
              ASSERT_EQ(a.rail, b.rail) << what << " step " << i;
              ASSERT_EQ(a.tag, b.tag) << what << " step " << i;
              ASSERT_EQ(a.deps_begin, b.deps_begin) << what << " step " << i;
              ASSERT_EQ(length(a), length(b)) << what;
              ASSERT_EQ(peer, b.peer) << what << " step " << i;
              if (b.peer >= 0) {
                ASSERT_EQ(symmetry.moved(b.peer, r - symmetry.in_cell(r), bed.ranks()), a.peer) << what;
              }
            }
            for (const auto& [kind, difference] : kinds) ASSERT_EQ(difference, 0) << what;
          }
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 100);
}

TEST(Walk, RanksThatStandForOthersTakeExactlyAsLong) {
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    Random random(seed);
    for (const Bed& bed : beds()) {
      for (const Collective collective : kAll) {
        const PlanRequest request = request_of(bed, collective, 1 + random.below(60));
        CostModel model{.alpha = 1e-6 * static_cast<double>(random.below(100)),
                        .beta = 1e-10 * static_cast<double>(random.below(20)),
                        .gamma = random.below(2) == 0 ? 0 : 2e-10,
                        .post = 1e-6 * static_cast<double>(random.below(5)),
                        .local_alpha = 1e-6 * static_cast<double>(random.below(3)),
                        .local_beta = 1e-11 * static_cast<double>(random.below(20)),
                        .piece_bytes = random.below(4) == 0 ? 0 : std::uint64_t{1000} << random.below(8)};
        const LinkCosts links({model.alpha, model.beta});
        if (random.below(3) == 0) model.links = &links;
        for (const Planner& one : planners()) {
          if (!runs(one.id, request)) continue;
          const Symmetry symmetry = walked_ranks(one.id, request, model, true);
          if (symmetry.cell == 0) continue;
          const double all = walk(one.id, request, 2, model, {});
          EXPECT_NEAR(walk(one.id, request, 2, model, symmetry), all, 1e-9 * all)
              << name_of(one.id) << " " << name_of(collective) << " n " << bed.ranks() << " x " << bed.per_host
              << " seed " << seed;
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 200);
}

TEST(Walk, NobodyStandsForOthersWhereRanksDiffer) {
  const auto cell = [](PlannerId id, const PlanRequest& request, const CostModel& model = {}, bool exactly = false) {
    return walked_ranks(id, request, model, exactly).cell;
  };
  auto reach = Reachability::full(8, 2);
  PlanRequest request{.ranks = 8, .count = 32 * 8 * 100, .reach = &reach};
  for (const PlannerId id : {PlannerId::kRing, PlannerId::kMesh, PlannerId::kHalvingDoubling}) {
    EXPECT_EQ(cell(id, request), 1) << name_of(id);
    LinkCosts links({1e-3, 1e-9});
    EXPECT_EQ(cell(id, request, {.links = &links}), 1) << name_of(id);
    links.set(3, 4, 0, {2e-3, 1e-9});
    EXPECT_EQ(cell(id, request, {.links = &links}), 0) << name_of(id);
    std::vector<double> rates(8 * kRailsMax, 1e9);
    PlanRequest told = request;
    told.rail_rates = rates;
    EXPECT_EQ(cell(id, told), 1) << name_of(id);
    rates[5 * kRailsMax] = 2e9;
    EXPECT_EQ(cell(id, told), 0) << name_of(id);
    auto bent = Reachability::full(8, 2);
    bent.set(4, 5, 1, 1);
    PlanRequest other = request;
    other.reach = &bent;
    EXPECT_EQ(cell(id, other), 0) << name_of(id);
    PlanRequest odd = request;
    odd.count += 32;  // a leaf is longer by a unit
    EXPECT_EQ(cell(id, odd, {}, true), 0) << name_of(id);
    EXPECT_EQ(cell(id, odd), 1) << name_of(id);
    EXPECT_EQ(cell(id, request, {}, true), id == PlannerId::kHalvingDoubling ? 0 : 1) << name_of(id);
  }
  EXPECT_EQ(cell(PlannerId::kTree, request), 0);
  request.collective = Collective::kBroadcast;
  EXPECT_EQ(cell(PlannerId::kRing, request), 0);
  const std::vector<int> hosts = {0, 0, 0, 1, 1, 2, 2, 2};
  request = {.ranks = 8, .count = 32 * 8 * 100, .reach = &reach, .host_of = hosts};
  EXPECT_EQ(cell(PlannerId::kRing, request), 0);
  EXPECT_EQ(cell(PlannerId::kHierarchical, request), 0);
}

// Leaves that differ by a unit cost next to nothing more than their mean.
TEST(Walk, RoundedLeavesCostAUnitMoreAtMost) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    Random random(seed);
    const int n = 65 + static_cast<int>(random.below(20));
    const auto reach = Reachability::full(n, 1);
    const PlanRequest request{
        .ranks = n,
        .count = 32 * static_cast<std::uint64_t>(n) * (20 + random.below(100)) + 1 + random.below(2000),
        .reach = &reach};
    const CostModel model{.alpha = 2e-5, .beta = 8e-10, .piece_bytes = 8192};
    for (const PlannerId id : {PlannerId::kRing, PlannerId::kMesh}) {
      const double all = walk(id, request, 1, model, {});
      const double quick = walk_cost(id, request, 1, model);
      EXPECT_GE(quick, all * (1 - 1e-9)) << name_of(id) << " seed " << seed;
      EXPECT_LE(quick, all + 2 * n * 128 * model.beta) << name_of(id) << " seed " << seed;
    }
  }
}

// Where plans repeat but for the order of leaves.
TEST(Walk, RanksThatStandForOthersInAnotherOrderAreClose) {
  double worst = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Random random(seed);
    const BCubeShape shapes[] = {{2, 6}, {4, 3}, {8, 2}, {2, 5}, {3, 3}};
    const BCubeShape shape = shapes[random.below(std::size(shapes))];
    const auto cube = Reachability::bcube(shape.r, shape.levels), flat = Reachability::full(64, 1);
    const CostModel model{.alpha = 1e-6 * static_cast<double>(1 + random.below(50)),
                          .beta = 8e-10,
                          .post = 1e-6 * static_cast<double>(random.below(8)),
                          .piece_bytes = std::uint64_t{1} << (12 + random.below(8))};
    for (const PlannerId id : {PlannerId::kBCube, PlannerId::kBCubeX, PlannerId::kHalvingDoubling}) {
      const bool halving = id == PlannerId::kHalvingDoubling;
      const PlanRequest request{.ranks = halving ? 64 : cube.ranks(),
                                .count = std::uint64_t{32} * 1728 * (1 + random.below(100)),
                                .reach = halving ? &flat : &cube,
                                .bcube = halving ? BCubeShape{} : shape};
      const int rails = halving ? 1 : shape.levels;
      const Symmetry symmetry = walked_ranks(id, request, model, false);
      if (symmetry.cell == 0) continue;
      const double all = walk(id, request, rails, model, {}), quick = walk(id, request, rails, model, symmetry);
      EXPECT_NEAR(quick / all, 1, 0.1) << name_of(id) << " seed " << seed;
      worst = std::max(worst, std::abs(quick / all - 1));
    }
  }
  std::printf("worst: %.2f %%\n", 100 * worst);
}

// The trees' walks take all ranks, so the work per message must stay small: no event is searched for among others, and
// no port looks through what waits for it.
TEST(Walk, TreesOf2048RanksTakeLittleWorkAMessage) {
  const auto flat = Reachability::full(2048, 1);
  const LinkCosts links({2e-5, 8e-10});
  for (const auto& [id, measured] : {std::pair{PlannerId::kTree, false},
                                     {PlannerId::kDoubleTree, false},
                                     {PlannerId::kTree, true},
                                     {PlannerId::kDoubleTree, true}}) {
    for (const double gamma : {0.0, 1e-10}) {
      CostModel model{.alpha = 2e-5, .beta = 8e-10, .gamma = gamma, .post = 5e-6, .piece_bytes = 1 << 20};
      if (measured) model.links = &links;
      const PlanRequest request{.ranks = 2048, .count = std::uint64_t{64} << 18, .reach = &flat};
      WalkWork work;
      EXPECT_GT(walk(id, request, 1, model, {}, &work), 0);
      EXPECT_GE(work.tasks, 2u * 2 * 2047 * (id == PlannerId::kTree ? 64 : 32)) << "a send and a receive a piece";
      EXPECT_LT(work.heaped, work.tasks / 4) << name_of(id) << " gamma " << gamma;
      EXPECT_LE(work.longest_queue, 32u) << name_of(id) << " gamma " << gamma;
    }
  }
}

TEST(WalkEvents, ComeInTheOrderOfTheirTimesWhateverTheirKinds) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    WalkEvents events;
    std::multiset<double> waiting;
    double now = 0;
    std::vector<WalkEvents::Event> moment;
    for (int i = 0; i < 3000; ++i) {
      for (std::uint64_t k = random.below(4); k-- > 0;) {
        // Equal steps, so that moments coincide; with an odd seed kinds take different times.
        const double at = now + 0.25 * static_cast<double>(random.below(seed % 2 == 0 ? 2 : 40));
        waiting.insert(at);
        events.push(at, static_cast<WalkEvents::Kind>(random.below(5)), 7);
      }
      const bool any = events.next(&now, &moment);
      ASSERT_EQ(any, !waiting.empty());
      if (!any) continue;
      ASSERT_EQ(now, *waiting.begin());
      ASSERT_EQ(moment.size(), waiting.count(now)) << "all of a moment at once";
      waiting.erase(now);
    }
    if (seed % 2 == 1) {
      EXPECT_GT(events.heaped(), 100u);
    }
  }
}

// Generous, since test machines are slow and shared; docs/collectives.md has measured times.
TEST(Walk, PlansOf2048RanksAreCostedAtOnce) {
  if (std::getenv("CANARY_TEST_QUICK") != nullptr) GTEST_SKIP() << "CANARY_TEST_QUICK is set";
  const auto flat = Reachability::full(2048, 1), cube = Reachability::bcube(2, 11);
  std::vector<int> host_of;
  for (int r = 0; r < 2048; ++r) host_of.push_back(r / 8);
  const LinkCosts links({2e-5, 8e-10});
  CostModel model{.alpha = 2e-5, .beta = 8e-10, .post = 5e-6, .piece_bytes = 1 << 20};
  for (const PlannerId id : {PlannerId::kRing, PlannerId::kHalvingDoubling, PlannerId::kTree, PlannerId::kDoubleTree,
                             PlannerId::kBCube, PlannerId::kHierarchical}) {
    PlanRequest request{.ranks = 2048, .count = std::uint64_t{64} << 18, .reach = &flat};
    if (id == PlannerId::kBCube) request.reach = &cube, request.bcube = {2, 11};
    if (id == PlannerId::kHierarchical) request.host_of = host_of;
    for (const bool measured : {false, true}) {
      model.links = measured ? &links : nullptr;
      const std::clock_t before = std::clock();
      EXPECT_GT(walk_cost(id, request, id == PlannerId::kBCube ? 11 : 1, model), 0);
      const double took = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
      std::printf("%s%s: %.2f s\n", std::string(name_of(id)).c_str(), measured ? ", measured links" : "", took);
      EXPECT_LT(took, 20) << name_of(id);
    }
  }
}

}  // namespace
}  // namespace canarynet
