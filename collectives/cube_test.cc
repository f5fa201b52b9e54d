// How bcube cuts a buffer where the rails of its levels are not of one speed.
#include "collectives/cube.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "collectives/checker.h"
#include "collectives/cost.h"

namespace canarynet {
namespace {

// The slowest rail's load / rate, for parts that add up to 1: the form in docs/collectives.md.
double slowest(int r, const std::vector<double>& parts, const std::vector<std::uint64_t>& rates) {
  const std::size_t levels = parts.size();
  double worst = 0;
  for (std::size_t l = 0; l < levels; ++l) {
    double load = 0, share = (r - 1.0) / r;
    for (std::size_t j = 0; j < levels; ++j, share /= r) load += 2 * parts[(l + levels - j) % levels] * share;
    worst = std::max(worst, load / static_cast<double>(rates[l]));
  }
  return worst;
}

std::vector<double> parts_of(int r, const std::vector<std::uint64_t>& rates) {
  const std::vector<std::uint64_t> weights = part_weights(r, rates);
  double sum = 0;
  for (const std::uint64_t w : weights) sum += static_cast<double>(w);
  std::vector<double> parts;
  for (const std::uint64_t w : weights) parts.push_back(static_cast<double>(w) / sum);
  return parts;
}

// The best of all cuts in `grains` equal grains.
double best_of_grid(int r, const std::vector<std::uint64_t>& rates, int grains, std::vector<double>* parts, int left) {
  if (parts->size() + 1 == rates.size()) {
    parts->push_back(static_cast<double>(left) / grains);
    const double worst = slowest(r, *parts, rates);
    parts->pop_back();
    return worst;
  }
  double best = 1e300;
  for (int g = 0; g <= left; ++g) {
    parts->push_back(static_cast<double>(g) / grains);
    best = std::min(best, best_of_grid(r, rates, grains, parts, left - g));
    parts->pop_back();
  }
  return best;
}

TEST(PartWeights, NoOtherCutIsDoneSooner) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    const int r = 2 + static_cast<int>(random.below(4));
    const std::size_t levels = 2 + random.below(3);
    std::vector<std::uint64_t> rates;
    for (std::size_t l = 0; l < levels; ++l) rates.push_back(1 + random.below(std::uint64_t{1} << random.below(21)));
    SCOPED_TRACE("seed " + std::to_string(seed));
    const double ours = slowest(r, parts_of(r, rates), rates);
    const int grains = levels == 2 ? 2000 : levels == 3 ? 120 : 40;
    std::vector<double> parts;
    const double grid = best_of_grid(r, rates, grains, &parts, grains);
    EXPECT_LE(ours, grid * (1 + 1e-12));
    // The grid is near: moving every part by a grain changes no load by more than this.
    const double least = static_cast<double>(*std::min_element(rates.begin(), rates.end()));
    EXPECT_GE(ours, grid - 2.0 * static_cast<double>(levels) / grains / least);
  }
}

TEST(PartWeights, NoRailDoesMoreThanTheCutOfItsLevelLetsThrough) {
  // 500 and 125 Mbit/s on BCube(2, 2) carry at most 60 % of their sum; the second rail takes what it can.
  EXPECT_EQ(part_weights(2, std::vector<std::uint64_t>{4, 1}), (std::vector<std::uint64_t>{3, 0}));
  EXPECT_EQ(part_weights(2, std::vector<std::uint64_t>{1, 4}), (std::vector<std::uint64_t>{0, 3}));
  EXPECT_EQ(part_weights(2, std::vector<std::uint64_t>{4, 3}), (std::vector<std::uint64_t>{5, 2}));
  EXPECT_EQ(part_weights(3, std::vector<std::uint64_t>{7, 7, 7}), (std::vector<std::uint64_t>{14, 14, 14}));
}

constexpr Collective kCut[] = {Collective::kAllReduce, Collective::kReduce,        Collective::kBroadcast,
                               Collective::kAllGather, Collective::kReduceScatter, Collective::kGather,
                               Collective::kScatter,   Collective::kAllGatherV};

std::vector<std::uint64_t> leaves_of(PlannerId id, const PlanRequest& request) {
  std::vector<std::uint64_t> leaves;
  planner(id).leaves(request, &leaves);
  return leaves;
}

// [rank * kRailsMax + rail]
std::vector<double> rates_of(int ranks, const std::vector<double>& of_rails) {
  std::vector<double> rates(static_cast<std::size_t>(ranks) * kRailsMax, 1);
  for (std::size_t i = 0; i < rates.size(); ++i) {
    if (i % kRailsMax < of_rails.size()) rates[i] = of_rails[i % kRailsMax];
  }
  return rates;
}

TEST(Parts, EqualRatesCutAsNone) {
  for (const BCubeShape shape : {BCubeShape{2, 2}, BCubeShape{3, 2}, BCubeShape{2, 3}}) {
    const auto reach = Reachability::bcube(shape.r, shape.levels);
    const auto equal = rates_of(reach.ranks(), std::vector<double>(3, 1.25e9));
    // NICs that no level's rail is do not count, and a rank whose NICs are faster throughout waits for the others.
    auto more = rates_of(reach.ranks(), std::vector<double>(3, 1.25e9));
    for (std::size_t l = 0; l < kRailsMax; ++l) more[2 * kRailsMax + l] *= 3;
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(reach.ranks()); ++rank) more[rank * kRailsMax + 9] = 5;
    for (const Collective collective : kCut) {
      for (const std::uint64_t count : {0, 1, 1000, 1'000'003}) {
        PlanRequest request{
            .collective = collective, .ranks = reach.ranks(), .count = count, .reach = &reach, .bcube = shape};
        const auto none = leaves_of(PlannerId::kBCube, request);
        for (const auto& rates : {equal, more}) {
          request.rail_rates = rates;
          EXPECT_EQ(leaves_of(PlannerId::kBCube, request), none) << name_of(collective) << " " << count;
        }
      }
    }
  }
}

// Each rail of each rank sends what the form says: in proportion to its rate if the wiring lets it.
TEST(Parts, UnevenRailsAreDoneAtTheSameMoment) {
  const BCubeShape shape{3, 2};
  const auto reach = Reachability::bcube(3, 2);
  const auto rates = rates_of(9, {1.25e9, 0.75e9});
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
    PlanRequest request{.collective = collective,
                        .ranks = 9,
                        .count = 32 * 9 * 12'000,
                        .reach = &reach,
                        .bcube = shape,
                        .rail_rates = rates};
    const auto leaves = leaves_of(PlannerId::kBCube, request);
    for (int rank = 0; rank < 9; ++rank) {
      Plan plan;
      planner(PlannerId::kBCube).plan(request, rank, &plan);
      double sent[2] = {};
      for (const Step& s : plan.steps) {
        if (s.kind == StepKind::kSend) sent[s.rail] += static_cast<double>(leaves[s.leaf_end] - leaves[s.leaf_begin]);
      }
      EXPECT_NEAR(sent[0] / sent[1], 1.25 / 0.75, 1e-3) << name_of(collective) << " rank " << rank;
      const double all = (collective == Collective::kAllReduce ? 2 : 1) * 8.0 / 9 * static_cast<double>(leaves.back());
      EXPECT_NEAR(sent[0] + sent[1], all, 1e-3 * all);
    }
    // The walk over the real rates sees the gain over even parts: 2 x 0.75 of 1.25 + 0.75.
    const CostModel model{.beta = 8e-10, .piece_bytes = 128 * 1024};
    const double ours = walk_cost(PlannerId::kBCube, request, 2, model);
    const double bytes = static_cast<double>(request.total() * 4) * (collective == Collective::kAllReduce ? 2 : 1);
    EXPECT_NEAR(ours / (bytes * 8 / 9 / 2e9), 1, 0.1) << name_of(collective);
  }
}

TEST(Parts, ALevelIsAsFastAsItsSlowestNic) {
  const auto reach = Reachability::bcube(2, 2);
  auto rates = rates_of(4, {1e9, 1e9});
  rates[3 * kRailsMax + 1] = 0.5e9;  // of one rank
  const PlanRequest request{.ranks = 4, .count = 32 * 4 * 3000, .reach = &reach, .bcube = {2, 2}, .rail_rates = rates};
  EXPECT_EQ(leaves_of(PlannerId::kBCube, request)[4], request.count);  // u = (2, 1): m = (3, 0)
  auto other = Reachability::bcube(2, 2);
  other.set(0, 1, 0b10, 0b10);
  PlanRequest bent = request;
  bent.reach = &other;
  EXPECT_EQ(leaves_of(PlannerId::kBCube, bent)[4], request.count / 2) << "rail 0 is not what joins 0 and 1";
}

TEST(Parts, PlansWithUnevenPartsAreProven) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const BCubeShape shapes[] = {{2, 2}, {3, 2}, {2, 3}, {4, 2}, {2, 4}, {3, 3}};
    const BCubeShape shape = shapes[random.below(std::size(shapes))];
    const auto reach = Reachability::bcube(shape.r, shape.levels);
    std::vector<double> of_rails;
    for (int l = 0; l < shape.levels; ++l) of_rails.push_back(1e6 * static_cast<double>(1 + random.below(1000)));
    const auto rates = rates_of(reach.ranks(), of_rails);
    for (const Collective collective : kCut) {
      const PlanRequest request{.collective = collective,
                                .ranks = reach.ranks(),
                                .count = random.below(100'000),
                                .root = static_cast<int>(random.below(static_cast<std::uint64_t>(reach.ranks()))),
                                .reach = &reach,
                                .bcube = shape,
                                .rail_rates = rates};
      for (const PlannerId id : {PlannerId::kBCube, PlannerId::kBCubeX}) {
        if (!planner(id).defines(collective, request.ranks)) continue;
        const Status status = check_planner(id, request);
        ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.to_string();
        const auto leaves = leaves_of(id, request);
        for (const std::uint64_t leaf : leaves)
          EXPECT_TRUE(in_blocks(collective) || leaf % 32 == 0 || leaf == request.total()) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace canarynet
