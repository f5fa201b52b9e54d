// Compares the walk with the closed forms of docs/collectives.md, and shows where the two must differ.
#include "collectives/cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

namespace canarynet {
namespace {

constexpr double kAlpha = 1e-3, kBeta = 8e-10, kGamma = 2e-10;  // 10 Gbit/s

struct Case {
  PlannerId planner;
  Collective collective;
  int ranks;
  BCubeShape shape = {};
};

const Case kCases[] = {
    {PlannerId::kRing, Collective::kAllReduce, 8},
    {PlannerId::kRing, Collective::kAllReduce, 5},
    {PlannerId::kRing, Collective::kReduceScatter, 8},
    {PlannerId::kRing, Collective::kAllGather, 7},
    {PlannerId::kRing, Collective::kBroadcast, 6},
    {PlannerId::kMesh, Collective::kAllReduce, 8},
    {PlannerId::kMesh, Collective::kAllReduce, 5},
    {PlannerId::kMesh, Collective::kReduceScatter, 8},
    {PlannerId::kMesh, Collective::kAllGather, 8},
    {PlannerId::kBCube, Collective::kAllReduce, 4, {2, 2}},
    {PlannerId::kBCube, Collective::kAllReduce, 9, {3, 2}},
    {PlannerId::kBCube, Collective::kAllReduce, 8, {2, 3}},
    {PlannerId::kBCube, Collective::kAllReduce, 16, {4, 2}},
    {PlannerId::kBCubeX, Collective::kAllReduce, 4, {2, 2}},
    {PlannerId::kBCubeX, Collective::kAllReduce, 9, {3, 2}},
    {PlannerId::kBCubeX, Collective::kAllReduce, 8, {2, 3}},
    {PlannerId::kBCubeX, Collective::kAllReduce, 16, {4, 2}},
    {PlannerId::kBCubeX, Collective::kAllReduce, 64, {4, 3}},
    {PlannerId::kHalvingDoubling, Collective::kAllReduce, 8},
    {PlannerId::kHalvingDoubling, Collective::kAllReduce, 64},
    {PlannerId::kHalvingDoubling, Collective::kReduceScatter, 16},
    {PlannerId::kHalvingDoubling, Collective::kAllGather, 16},
    {PlannerId::kTree, Collective::kAllReduce, 8},
    {PlannerId::kTree, Collective::kBroadcast, 16},
    {PlannerId::kParameterServer, Collective::kAllReduce, 8},
    {PlannerId::kParameterServer, Collective::kBroadcast, 5},
    {PlannerId::kRing, Collective::kReduce, 6},
    {PlannerId::kMesh, Collective::kReduce, 8},
    {PlannerId::kHalvingDoubling, Collective::kReduce, 16},
    {PlannerId::kTree, Collective::kReduce, 8},
    {PlannerId::kParameterServer, Collective::kReduce, 5},
    {PlannerId::kMesh, Collective::kGather, 7},
    {PlannerId::kMesh, Collective::kScatter, 8},
    {PlannerId::kMesh, Collective::kAllToAll, 8},
    {PlannerId::kMesh, Collective::kAllToAll, 5},
    {PlannerId::kRing, Collective::kAllGatherV, 7},
    {PlannerId::kRingPerRail, Collective::kReduce, 8},
    {PlannerId::kRingPerRail, Collective::kAllReduce, 8},
    {PlannerId::kRingPerRail, Collective::kReduceScatter, 8},
    {PlannerId::kRingPerRail, Collective::kAllGather, 8},
};

// A request whose elements every planner here cuts into pieces of equal size.
PlanRequest request_of(const Case& c, const Reachability& reach) {
  const std::uint64_t count = std::uint64_t{32} * 5040 * 64;
  return {.collective = c.collective,
          .ranks = c.ranks,
          .count = in_blocks(c.collective) ? count / 16 : count,
          .reach = &reach,
          .bcube = c.shape};
}

TEST(Cost, TheWalkAgreesWithTheClosedForms) {
  for (const Case& c : kCases) {
    const bool cube = c.shape.levels != 0;
    const int rails = cube ? c.shape.levels : c.planner == PlannerId::kRingPerRail ? 2 : 1;
    const auto reach = cube ? Reachability::bcube(c.shape.r, c.shape.levels) : Reachability::full(c.ranks, rails);
    const PlanRequest request = request_of(c, reach);
    ASSERT_TRUE(planner(c.planner).check(request).ok());
    SCOPED_TRACE(std::string(name_of(c.planner)) + " " + std::string(name_of(c.collective)) + " n " +
                 std::to_string(c.ranks));
    const auto both = [&](const CostModel& model) {
      const auto form = closed_form(c.planner, request, rails, model);
      EXPECT_TRUE(form.ok()) << form.status().text();
      return std::pair{walk_cost(c.planner, request, rails, model), form.ok() ? form.value() : 0};
    };
    const auto [latency, latency_form] = both({.alpha = kAlpha});
    EXPECT_NEAR(latency, latency_form, 1e-9) << "the α term is exact";
    const auto [bytes, bytes_form] = both({.beta = kBeta});
    EXPECT_NEAR(bytes / bytes_form, 1, 0.01) << "β term";
    const auto [all, all_form] = both({.alpha = kAlpha, .beta = kBeta, .gamma = kGamma});
    EXPECT_NEAR(all / all_form, 1, 0.01) << "with γ";
  }
}

TEST(Cost, PostingCountsWhereOneRankSendsToMany) {
  const auto reach = Reachability::full(8, 1);
  const PlanRequest request{.ranks = 8, .count = 5040 * 64, .reach = &reach};
  for (const PlannerId id : {PlannerId::kMesh, PlannerId::kRing, PlannerId::kParameterServer}) {
    const CostModel model{.alpha = kAlpha, .beta = kBeta, .post = 1e-5};
    EXPECT_NEAR(walk_cost(id, request, 1, model), closed_form(id, request, 1, model).value(), 1e-6) << name_of(id);
  }
  const auto cube = Reachability::bcube(4, 2);
  const PlanRequest cubic{.ranks = 16, .count = 5040 * 64, .reach = &cube, .bcube = {4, 2}};
  const CostModel model{.alpha = kAlpha, .beta = kBeta, .post = 1e-5};
  for (const PlannerId id : {PlannerId::kBCube, PlannerId::kBCubeX})
    EXPECT_NEAR(walk_cost(id, cubic, 2, model), closed_form(id, cubic, 2, model).value(), 1e-5) << name_of(id);
}

TEST(Cost, ADoubleTreePipelinesWithinItsFill) {
  const std::uint64_t piece = 128 * 1024;
  const double piece_time = static_cast<double>(piece) * kBeta;
  for (const double gamma : {0.0, kGamma}) {
    for (const int n : {4, 8, 16, 64}) {
      SCOPED_TRACE("n " + std::to_string(n) + ", gamma " + std::to_string(gamma));
      const auto reach = Reachability::full(n, 1);
      const CostModel model{.alpha = 1e-5, .beta = kBeta, .gamma = gamma, .piece_bytes = piece};
      const auto both = [&](std::uint64_t pieces) {
        const PlanRequest request{.ranks = n, .count = piece * pieces / 4, .reach = &reach};
        return std::pair{walk_cost(PlannerId::kDoubleTree, request, 1, model),
                         closed_form(PlannerId::kDoubleTree, request, 1, model).value()};
      };
      const auto [walk, form] = both(1000);
      const auto [longer, longer_form] = both(2000);
      EXPECT_NEAR((longer - walk) / (longer_form - form), 1, 0.01) << "what a byte costs once the pipeline is full";
      // The pipeline fills up and down again: every level holds back a few pieces.
      const double levels = 2.0 * (std::bit_width(static_cast<unsigned>(n)) - 1);
      EXPECT_GT(walk, form * 0.999);
      EXPECT_LT(walk - form, 2.5 * levels * piece_time);
      if (n <= 16) {
        EXPECT_NEAR(walk / form, 1, 0.01) << "a thousand pieces hide it";
      }
    }
  }
}

TEST(Cost, RailsShareWhatNamesNone) {
  const auto reach = Reachability::full(4, 2);
  const PlanRequest request{.ranks = 4, .count = 5040 * 64, .reach = &reach};
  const CostModel model{.beta = kBeta};
  EXPECT_NEAR(walk_cost(PlannerId::kRing, request, 2, model) * 2, walk_cost(PlannerId::kRing, request, 1, model), 1e-9);
}

TEST(Cost, HierarchicalPaysForTheNetworkOncePerHost) {
  for (const auto& [hosts, each] : {std::pair{2, 8}, {4, 4}, {3, 1}, {1, 4}, {5, 2}}) {
    const int n = hosts * each;
    std::vector<int> host_of(static_cast<std::size_t>(n));
    for (int r = 0; r < n; ++r) host_of[static_cast<std::size_t>(r)] = r / each;
    const auto reach = Reachability::full(n, 1);
    for (const std::uint64_t count :
         {std::uint64_t{32} * 240, std::uint64_t{32} * 240 * 1024}) {  // straight, around the ring
      const PlanRequest request{.ranks = n, .count = count, .reach = &reach, .host_of = host_of};
      SCOPED_TRACE(std::to_string(hosts) + " x " + std::to_string(each) + " count " + std::to_string(count));
      const auto both = [&](const CostModel& model) {
        return std::pair{walk_cost(PlannerId::kHierarchical, request, 1, model),
                         closed_form(PlannerId::kHierarchical, request, 1, model).value()};
      };
      const auto [latency, latency_form] = both({.alpha = kAlpha, .local_alpha = kAlpha / 100});
      EXPECT_NEAR(latency, latency_form, 1e-9);
      const auto [bytes, bytes_form] = both({.beta = kBeta});
      EXPECT_NEAR(bytes, bytes_form, 0.01 * bytes_form) << "β term";
      const auto [all, all_form] = both({.alpha = kAlpha, .beta = kBeta, .local_alpha = kAlpha / 100});
      EXPECT_LE(all, all_form * 1.001) << "parts overlap";
      EXPECT_GE(all, std::max(latency, bytes) * 0.999);
      // The hosts' own part overlaps with the exchange, but not all of it.
      const double own = 2 * (each - 1) / static_cast<double>(each) * static_cast<double>(count * 4) * kBeta / 10;
      const double slower = walk_cost(PlannerId::kHierarchical, request, 1, {.beta = kBeta, .local_beta = kBeta / 10});
      EXPECT_GE(slower, std::max(bytes, own) * 0.999);
      EXPECT_LE(slower, (bytes + own) * 1.001);
    }
  }
  const std::vector<int> uneven = {0, 0, 1};
  const auto reach = Reachability::full(3, 1);
  EXPECT_FALSE(closed_form(PlannerId::kHierarchical, {.ranks = 3, .reach = &reach, .host_of = uneven}, 1, {}).ok());
}

TEST(Cost, RanksOfOneHostShareItsRails) {
  const std::vector<int> host_of = {0, 0, 1, 1};
  const auto reach = Reachability::full(4, 1);
  // Both ranks of host 0 send everything to host 1 through one port.
  const PlanRequest mesh{
      .collective = Collective::kAllGather, .ranks = 4, .count = 1 << 20, .reach = &reach, .host_of = host_of};
  const double block = double{1 << 22} * kBeta;
  EXPECT_NEAR(walk_cost(PlannerId::kMesh, mesh, 1, {.beta = kBeta}), 4 * block, block * 0.01);
  EXPECT_NEAR(walk_cost(PlannerId::kHierarchical, mesh, 1, {.beta = kBeta}), 2 * block, block * 0.01);
}

TEST(Cost, FormsAreRefusedWhereTheyDoNotHold) {
  const auto reach = Reachability::full(6, 1);
  const PlanRequest request{.ranks = 6, .count = 100, .reach = &reach};
  for (const PlannerId id : {PlannerId::kTree, PlannerId::kHalvingDoubling, PlannerId::kDoubleTree}) {
    EXPECT_FALSE(closed_form(id, request, 1, {}).ok());
    EXPECT_GT(walk_cost(id, request, 1, {.alpha = kAlpha}), 0) << "the walk knows any n";
  }
  for (const PlannerId id : {PlannerId::kRing, PlannerId::kMesh, PlannerId::kParameterServer}) {
    EXPECT_FALSE(closed_form(id, request, 1, {.piece_bytes = 64}).ok()) << "pieces overlap what the forms add up";
  }
}

}  // namespace
}  // namespace canarynet
