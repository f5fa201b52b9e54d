// The rows of a measured table: made from what links have shown, stable, and judged by what operations took.
#include "collectives/table_costs.h"

#include <gtest/gtest.h>

#include "collectives/measured_table.h"

namespace canarynet {
namespace {

TEST(MeasuredTable, SizesFallIntoClassesByPowersOfFour) {
  EXPECT_EQ(size_class(0), 0);
  EXPECT_EQ(size_class(4095), 0);
  EXPECT_EQ(size_class(4096), 1);
  EXPECT_EQ(size_class(std::uint64_t{256} << 20), 9);
  EXPECT_EQ(size_class(~std::uint64_t{0}), 9);
  for (int c = 1; c < kSizeClasses; ++c) {
    EXPECT_EQ(size_class(class_begin(c)), c);
    EXPECT_EQ(size_class(class_begin(c) - 1), c - 1);
  }
}

MeasuredRow row(Collective collective, int size_class, PlannerId planner) {
  MeasuredRow r;
  r.collective = collective;
  r.size_class = size_class;
  r.planner = planner;
  return r;
}

TEST(MeasuredTable, IsTheSameBehindTheWireAndAnotherOneHasAnotherIdentity) {
  const MeasuredTable table(
      7, {row(Collective::kBroadcast, 3, PlannerId::kTree), row(Collective::kAllReduce, 5, PlannerId::kMesh)});
  const std::vector<wire::DecisionRow> bytes = table.to_wire();
  MeasuredTable read;
  ASSERT_EQ(
      MeasuredTable::from_wire(7, wire::ListIn<wire::DecisionRow>(std::as_bytes(std::span(bytes))), 128 << 10, &read),
      nullptr);
  EXPECT_EQ(read.identity(), table.identity());
  ASSERT_NE(read.find(Collective::kAllReduce, class_begin(5)), nullptr);
  EXPECT_EQ(read.find(Collective::kAllReduce, class_begin(5))->planner, PlannerId::kMesh);
  EXPECT_EQ(read.find(Collective::kAllReduce, class_begin(4)), nullptr);
  EXPECT_EQ(read.find(Collective::kReduce, class_begin(5)), nullptr);
  EXPECT_NE(MeasuredTable(8, read.rows()).identity(), table.identity());
  EXPECT_NE(MeasuredTable(7, {row(Collective::kBroadcast, 3, PlannerId::kTree)}).identity(), table.identity());
  EXPECT_EQ(MeasuredTable().identity(), 0u);
  EXPECT_EQ(table_name(table.identity()).rfind("table 7 (checksum ", 0), 0u);
}

// Four hosts on one flat rail. A mesh takes 2 message times, the ring, which is the static choice here, 6.
class Costing : public ::testing::Test {
 protected:
  Costing() : reach(Reachability::full(4, 1)) {
    group.ranks = 4;
    group.reach = &reach;
    one.bytes = 512 << 10;
    one.element_bytes = 4;
  }
  void measure(std::uint32_t alpha_us, std::uint32_t beta_kbps) {
    links.clear();
    for (int a = 0; a < 4; ++a) {
      for (int b = 0; b < 4; ++b) {
        if (a != b) links.push_back({a, b, 0, alpha_us, beta_kbps});
      }
    }
  }
  void took(PlannerId id, double seconds) { one.took[static_cast<std::size_t>(id)][0] = seconds; }
  // The row for the class; decides nothing if there is none.
  MeasuredRow make(const MeasuredTable& present = {}) {
    CostModel model;
    bool known = false;
    LinkCosts costs = fill_costs(group, links, &model, &known);
    TableCosting costing(group, 128 << 10, std::move(costs), known, model, {one}, present);
    while (costing.step()) ++steps;
    const std::vector<MeasuredRow> rows = std::move(costing).rows();
    MeasuredRow none;
    none.keeps_static = true;
    return rows.empty() ? none : rows.front();
  }
  static MeasuredTable table_of(const MeasuredRow& row) { return MeasuredTable(1, {row}); }

  Reachability reach;
  PlanRequest group;
  CostedClass one;
  std::vector<LinkMeasure> links;
  int steps = 0;
};

TEST_F(Costing, LongLinksAskForFewMessageTimesAndShortOnesKeepTheStaticChoice) {
  measure(20'000, 25'000);
  EXPECT_FALSE(make().keeps_static);
  EXPECT_EQ(make().planner, PlannerId::kMesh);
  EXPECT_EQ(make().runner_up == PlannerId::kMesh, false);
  measure(100, 25'000);
  const MeasuredRow kept = make();
  EXPECT_TRUE(kept.keeps_static);
  EXPECT_EQ(kept.planner, PlannerId::kRing);
  EXPECT_NE(kept.predicted_us, 0u);
}

TEST_F(Costing, AChoiceThatIsNotDearerThanTheStaticOneStays) {
  measure(20'000, 25'000);
  const MeasuredTable table = table_of(make());
  measure(400, 25'000);  // a mesh is cheaper by less than a tenth: it would not be chosen anew
  EXPECT_TRUE(make().keeps_static);
  EXPECT_FALSE(make(table).keeps_static);
}

TEST_F(Costing, AChoiceThatTurnsOutBadlyIsTakenBackAndNotTriedAgain) {
  measure(20'000, 25'000);
  took(PlannerId::kRing, 0.150);
  const MeasuredRow tried = make();
  ASSERT_FALSE(tried.keeps_static);
  one.took[static_cast<std::size_t>(tried.planner)][tried.piece_bytes != 0 ? 1 : 0] = 0.400;
  const MeasuredRow after = make(table_of(tried));
  EXPECT_FALSE(after.decides_as(tried));
  EXPECT_FALSE(make(table_of(after)).decides_as(tried));
}

TEST_F(Costing, WithoutARateWhatIsNotSmallWaitsForTheTimeOfWhatRuns) {
  measure(20'000, 0);
  make();
  EXPECT_EQ(steps, 0);
  took(PlannerId::kRing, 0.151);  // 6 message times, and 31 ms for 1.5 times the bytes
  EXPECT_EQ(make().planner, PlannerId::kMesh);
  took(PlannerId::kRing, 20);  // it is the bytes
  EXPECT_TRUE(make().keeps_static);
}

TEST_F(Costing, ALinkThatNobodyMeasuredIsAsFastAsItsNics) {
  links = {{0, 1, 0, 100, 1000}, {2, 3, 0, 100, 50}, {3, 0, 0, 100, 2000}};
  CostModel model;
  bool known = false;
  const LinkCosts costs = fill_costs(group, links, &model, &known);
  EXPECT_TRUE(known);
  EXPECT_DOUBLE_EQ(costs.of(0, 3, 0).beta, 1 / 50e3) << "into host 3 nobody saw more";
  EXPECT_DOUBLE_EQ(costs.of(0, 2, 0).beta, 1 / 1000e3) << "nothing is known of the way into host 2: the median";
}

TEST_F(Costing, NoWalkIsLongerThanItMay) {
  for (const int ranks : {4, 16, 64}) {
    reach = Reachability::full(ranks, 1);
    group.ranks = ranks;
    one.bytes = std::uint64_t{256} << 20;
    measure(100, 25'000);
    CostModel model;
    bool known = false;
    LinkCosts costs = fill_costs(group, links, &model, &known);
    TableCosting costing(group, 128 << 10, std::move(costs), known, model, {one}, {});
    for (int i = 0; i < 100 && costing.step(); ++i) {
    }
    EXPECT_EQ(std::move(costing).rows().size(), ranks == 64 ? 0u : 1u) << ranks;
  }
}

}  // namespace
}  // namespace canarynet
