// The rows of a measured table: made from what links have shown, stable, and judged by what operations took.
#include "collectives/table_costs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "collectives/measured_table_test_util.h"
#include "compress/codec_ask.h"

namespace canarynet {
namespace {

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
  CostedClass::Known& known(PlannerId id, bool smaller = false) {
    return one.known[static_cast<std::size_t>(id)][smaller ? 1 : 0];
  }
  double& took(PlannerId id, bool smaller = false) { return known(id, smaller).took; }
  void keep_costs() {
    for (const TableCosting::Cost& c : found) {
      CostedClass::Known& k = known(c.planner, c.variant != 0);
      if (k.took > 0) k.cost = c.seconds, k.least = c.least;
    }
  }
  // The row for the class; decides nothing if there is none.
  MeasuredRow make(const MeasuredTable& present = {}, bool may_try = true) {
    CostModel model;
    RatesKnown known;
    LinkCosts costs = fill_costs(group, links, &model, &known);
    TableCosting costing(group, 128 << 10, std::move(costs), known, model, {one}, present, may_try);
    while (costing.step()) ++steps;
    trying = costing.trying();
    would_try = costing.would_try();
    guessed_beta = costing.guessed_beta();
    found = costing.costs();
    const std::vector<MeasuredRow> rows = std::move(costing).rows();
    MeasuredRow none;
    none.keeps_static = true;
    return rows.empty() ? none : rows.front();
  }
  // Lets every row that is to be tried run, for so long as `time_of` says, until one stays.
  MeasuredRow settle(const std::function<double(const MeasuredRow&)>& time_of) {
    MeasuredRow row = make();
    for (trials = 0; trying && trials < 30; ++trials) {
      one.on_trial = true;
      keep_costs();
      took(row.planner, row.piece_bytes != 0) = time_of(row);
      row = make(table_of(row));
    }
    one.on_trial = false;
    return row;
  }
  double cost_of(PlannerId id, bool smaller = false) const {
    for (const TableCosting::Cost& c : found) {
      if (c.planner == id && c.variant == variant_of(smaller, false)) return c.seconds;
    }
    return 0;
  }
  static MeasuredTable table_of(const MeasuredRow& row) { return MeasuredTable(1, {row}); }

  Reachability reach;
  PlanRequest group;
  CostedClass one;
  std::vector<LinkMeasure> links;
  int steps = 0, trials = 0;
  bool trying = false, would_try = false;
  double guessed_beta = 0;
  std::vector<TableCosting::Cost> found;
};

// Otherwise a group would go back to what the links had spoken against, until the new order has been tried.
TEST_F(Costing, ARingThatIsToStandInAnotherOrderStaysWhatDecides) {
  measure(100, 12'500);
  one.static_choice = PlannerId::kMesh;
  const MeasuredTable present(1, {in_order(row(Collective::kAllReduce, size_class(one.bytes), PlannerId::kRing))},
                              {0, 2, 1, 3});
  for (const std::vector<std::uint16_t>& order : {std::vector<std::uint16_t>{0, 3, 1, 2}, {}}) {
    CostModel model;
    RatesKnown known;
    LinkCosts costs = fill_costs(group, links, &model, &known);
    TableCosting costing(group, 128 << 10, std::move(costs), known, model, {one}, present, false, order);
    while (costing.step()) {
    }
    const std::vector<MeasuredRow> rows = std::move(costing).rows();
    ASSERT_FALSE(rows.empty());
    EXPECT_EQ(rows.front().planner, PlannerId::kRing);
    EXPECT_EQ(rows.front().in_order, !order.empty());
    EXPECT_FALSE(rows.front().keeps_static);
  }
}

TEST_F(Costing, NothingTakesThePlaceOfAPlannerThatHasNotRun) {
  measure(20'000, 25'000);
  const MeasuredRow row = make();
  EXPECT_TRUE(row.keeps_static);
  EXPECT_EQ(row.planner, PlannerId::kRing);
  EXPECT_NE(row.predicted_us, 0u);
  EXPECT_FALSE(trying);
}

// A codec of a quarter of the bytes, as its mesh and its ring cost.
TEST_F(Costing, EncodedPiecesAreFewerBytesAndTakeWorkBesides) {
  measure(400, 2'500);  // 512 KiB take 210 ms
  make();
  const double mesh = cost_of(PlannerId::kMesh);
  one.codec = number_asked("int8").value();
  one.encoding = {.piece_bytes = 128 << 10, .share = 0.25, .speed = {}, .feedback = true};
  EXPECT_EQ(make().asked, one.codec);
  EXPECT_NEAR(cost_of(PlannerId::kMesh), mesh / 4, 0.2 * mesh / 4);
  const double tree = cost_of(PlannerId::kTree), coded_mesh = cost_of(PlannerId::kMesh);
  one.encoding.speed = {1e-7, 1e-7};
  make();
  const auto work = [&](PlannerId id) {
    PlanRequest request = group;
    request.count = one.bytes / 4;
    return codec_work(one.encoding.speed, id, request, true);
  };
  EXPECT_NEAR(cost_of(PlannerId::kMesh), coded_mesh + work(PlannerId::kMesh), 1e-9);
  EXPECT_NEAR(cost_of(PlannerId::kTree), tree + work(PlannerId::kTree), 1e-9);
  // Rows of operations without a codec decide nothing here.
  const MeasuredRow plain = row(Collective::kAllReduce, size_class(one.bytes), PlannerId::kTree);
  took(PlannerId::kRing) = 0.3;
  EXPECT_NE(make(table_of(plain)).asked, 0u);
  for (const TableCosting::Cost& c : found) EXPECT_EQ(c.in_force, c.planner == PlannerId::kRing && c.variant == 0);
}

TEST_F(Costing, NoCodecIsTriedByAPlanInWhichSeveralRanksCompleteASum) {
  measure(400, 25'000);
  one.bytes = 4000;  // halving exchanges so little whole
  make();
  EXPECT_GT(cost_of(PlannerId::kHalvingDoubling), 0);
  one.codec = number_asked("int8").value();
  one.encoding = {.piece_bytes = 128 << 10, .share = 0.25, .speed = {}, .feedback = true};
  make();
  EXPECT_EQ(cost_of(PlannerId::kHalvingDoubling), 0);
  EXPECT_GT(cost_of(PlannerId::kMesh), 0);
}

// The values of AR-Topk are numbers like others.
TEST_F(Costing, ValuesOfArTopKTakeWhatOtherValuesDo) {
  measure(400, 25'000);
  make();
  const std::vector<TableCosting::Cost> plain = found;
  one.codec = number_asked("artopk:star:0.1").value();
  EXPECT_EQ(make().asked, one.codec);
  ASSERT_EQ(found.size(), plain.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].seconds, plain[i].seconds);
}

// Ways between ranks that a tree leaves apart are long: FlexComm's ART-tree, by what was measured.
TEST_F(Costing, ValuesOfArTopKGoByATreeWhereItsWaysAreTheShortOnes) {
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < 4; ++b) {
      const auto joins = [](int x, int y) { return (x == 0 && y <= 2) || (x == 2 && y == 3); };
      if (a != b) links.push_back({a, b, 0, joins(a, b) || joins(b, a) ? 100u : 40'000u, 12'500});
    }
  }
  one.codec = number_asked("artopk:star:0.1").value();
  one.bytes = 40'000;
  one.static_choice = PlannerId::kMesh;
  took(PlannerId::kMesh) = 0.085;
  const MeasuredRow row = make();
  EXPECT_EQ(row.planner, PlannerId::kTree);
  EXPECT_TRUE(row.on_trial());
  EXPECT_EQ(row.asked, one.codec);
}

// Nothing would tell how long it takes, and the round of trials would not end.
TEST_F(Costing, NothingIsTriedOfAClassThatIsIdle) {
  measure(20'000, 25'000);
  took(PlannerId::kRing) = 0.150;
  one.idle = true;
  EXPECT_FALSE(make().on_trial());
  EXPECT_FALSE(trying);
  EXPECT_FALSE(would_try);
  // What was on trial when its operations ended stays so, for when they come back.
  one.idle = false;
  const MeasuredRow trial = make();
  ASSERT_TRUE(trial.on_trial());
  one.idle = one.on_trial = true;
  const MeasuredRow later = make(table_of(trial));
  EXPECT_EQ(later.planner, trial.planner);
  EXPECT_TRUE(later.on_trial());
  EXPECT_FALSE(trying);
}

TEST_F(Costing, LongLinksAskForFewMessageTimes) {
  measure(20'000, 25'000);
  took(PlannerId::kRing) = 0.150;
  const MeasuredRow row = make();
  EXPECT_FALSE(row.keeps_static);
  EXPECT_EQ(row.planner, PlannerId::kMesh);
  EXPECT_NE(row.runner_up, PlannerId::kMesh);
  EXPECT_TRUE(trying);
}

TEST_F(Costing, WhatTheModelPutsCloseIsTriedAndTheBestMeasuredStays) {
  for (const PlannerId truth : {PlannerId::kRing, PlannerId::kMesh, PlannerId::kHalvingDoubling}) {
    measure(400, 25'000);  // all of them within 30 %
    one.known = {};
    took(PlannerId::kRing) = truth == PlannerId::kRing ? 0.030 : 0.050;
    std::vector<std::pair<PlannerId, bool>> tried;
    unsigned promised = 0, followed = 0;
    const MeasuredRow stays = settle([&](const MeasuredRow& row) {
      tried.emplace_back(row.planner, row.piece_bytes != 0);
      EXPECT_TRUE(row.on_trial());
      EXPECT_EQ(row.to_follow >> static_cast<unsigned>(row.planner) & 1, 0) << "that one runs now";
      followed |= 1u << static_cast<unsigned>(row.planner);
      promised |= row.to_follow;
      return row.planner == truth && row.piece_bytes == 0 ? 0.030 : 0.055;
    });
    EXPECT_EQ(stays.planner, truth) << name_of(truth);
    EXPECT_EQ(stays.piece_bytes, 0u);
    EXPECT_EQ(stays.keeps_static, truth == PlannerId::kRing);
    EXPECT_EQ(stays.predicted_us, 30'000u);
    EXPECT_EQ(stays.reason, RowReason::kFastest);
    EXPECT_EQ(promised & ~followed, 0u) << "what was to follow has run";
    EXPECT_NE(promised, 0u);
    EXPECT_FALSE(would_try);
    EXPECT_GE(tried.size(), 2u);
    std::sort(tried.begin(), tried.end());
    EXPECT_EQ(std::adjacent_find(tried.begin(), tried.end()), tried.end()) << "each once";
    for (const auto& [planner, smaller] : tried) {
      EXPECT_LE(cost_of(planner, smaller), 1.3001 * cost_of(stays.planner)) << name_of(planner);
      EXPECT_NE(planner, PlannerId::kTree) << "it costs twice as much";
    }
    EXPECT_TRUE(make(table_of(stays)).decides_as(stays)) << "it stays for good";
    EXPECT_FALSE(trial(stays).decides_as(stays)) << "or it would be called a trial for good";
  }
}

TEST_F(Costing, NothingIsTriedWhereThatIsNotItsTime) {
  measure(400, 25'000);
  took(PlannerId::kRing) = 0.040;
  EXPECT_TRUE(make({}, false).keeps_static);
  EXPECT_FALSE(trying);
  EXPECT_TRUE(would_try);
  measure(20'000, 25'000);
  took(PlannerId::kRing) = 0.150;
  EXPECT_EQ(make({}, false).planner, PlannerId::kMesh) << "half the time is worth it at once";
}

TEST_F(Costing, WhatWasTriedAndIsHardlyBetterReplacesNothing) {
  measure(400, 25'000);
  took(PlannerId::kMesh) = 0.100;
  took(PlannerId::kHalvingDoubling) = 0.097;
  took(PlannerId::kRing) = 0.200;
  MeasuredRow mesh = make();
  mesh.planner = PlannerId::kMesh;
  mesh.piece_bytes = 0;
  mesh.keeps_static = false;
  EXPECT_EQ(make(table_of(mesh), false).planner, PlannerId::kMesh);
  EXPECT_EQ(make(table_of(mesh), false).reason, RowReason::kStays);
  took(PlannerId::kHalvingDoubling) = 0.090;
  EXPECT_EQ(make(table_of(mesh), false).planner, PlannerId::kHalvingDoubling);
  one.on_trial = true;
  took(PlannerId::kHalvingDoubling) = 0.097;
  EXPECT_EQ(make(table_of(mesh), false).planner, PlannerId::kHalvingDoubling) << "the mesh was only tried";
  took(PlannerId::kRing) = 0.0975;
  EXPECT_TRUE(make(table_of(mesh), false).keeps_static) << "as good as the best";
  EXPECT_EQ(make(table_of(mesh), false).reason, RowReason::kAsFastAsStatic);
}

TEST_F(Costing, TimesHoldAsLongAsTheirPlannersCostTheSameAgainstTheOthers) {
  measure(20'000, 25'000);
  took(PlannerId::kRing) = 0.150;
  took(PlannerId::kMesh) = 0.300;
  took(PlannerId::kMesh, true) = 0.300;
  make();
  keep_costs();
  EXPECT_NE(make().planner, PlannerId::kMesh) << "it was tried";
  measure(2'000, 250'000);  // all of it is ten times as fast
  took(PlannerId::kRing) = 0.015;
  EXPECT_NE(make().planner, PlannerId::kMesh) << "a time is a time";
  const auto outdated = [&](PlannerId id) {
    return std::any_of(found.begin(), found.end(), [&](const auto& c) { return c.planner == id && c.outdated; });
  };
  EXPECT_FALSE(outdated(PlannerId::kMesh));
  MeasuredRow mesh = make();
  mesh.planner = PlannerId::kMesh;
  mesh.piece_bytes = 0;
  mesh.keeps_static = false;
  measure(100, 25'000);
  took(PlannerId::kMesh) = 0.040;
  make(table_of(mesh));
  EXPECT_FALSE(outdated(PlannerId::kMesh));
  EXPECT_TRUE(outdated(PlannerId::kRing)) << "it cost twice as much as a mesh, and doesn't any more";
  took(PlannerId::kRing) = 0.001;
  EXPECT_EQ(make(table_of(mesh), false).planner, PlannerId::kMesh) << "a time of another network decides nothing";
  EXPECT_TRUE(would_try);
}

// Where only more is known of the network all costs change as well, and no times.
TEST_F(Costing, ATimeOfBeforeTheNetworkChangedIsWorthNothingWhereItsCostHasChanged) {
  for (const bool before : {false, true}) {
    measure(400, 25'000);
    one.known = {};
    took(PlannerId::kRing) = 0.060;
    took(PlannerId::kMesh) = took(PlannerId::kMesh, true) = 0.055;
    make();
    keep_costs();
    for (const bool smaller : {false, true}) known(PlannerId::kMesh, smaller).before = before;
    EXPECT_EQ(make({}, false).reason, RowReason::kFastest) << "it costs what it did";
    measure(4'000, 2'500);
    took(PlannerId::kRing) = 0.600;
    EXPECT_EQ(make({}, false).planner, before ? PlannerId::kRing : PlannerId::kMesh);
  }
}

TEST_F(Costing, WhatIsOutdatedAndClearlyCheaperIsTriedAtOnce) {
  for (const bool outdated : {false, true}) {
    measure(20'000, 25'000);
    for (auto& of_planner : one.known) {
      for (CostedClass::Known& k : of_planner) k.took = 0.200;
    }
    took(PlannerId::kRing) = 0.150;
    make();
    keep_costs();
    // When it was tried it cost twice as much as the cheapest, and now it is that itself.
    if (outdated) known(PlannerId::kMesh).least /= 2;
    const MeasuredRow row = make({}, false);
    EXPECT_EQ(row.on_trial(), outdated);
    EXPECT_EQ(row.planner, outdated ? PlannerId::kMesh : PlannerId::kRing);
  }
}

// The first links that show a rate are those that are busy for long.
TEST_F(Costing, LinksThatShowNoRateAreFasterWhereWhatDecidesTellsSo) {
  measure(50, 0);
  links.front().beta_kbps = 3'125;
  one.bytes = 256 << 10;
  one.static_choice = PlannerId::kMesh;
  took(PlannerId::kMesh) = 0.0423;  // two shares over the one that is known
  make();
  EXPECT_GT(guessed_beta, 0);
  EXPECT_LT(guessed_beta, 0.1 / 3'125e3);
  took(PlannerId::kMesh) = 0.080;
  make();
  EXPECT_NEAR(guessed_beta, 0.4 / 3'125e3, 0.2 / 3'125e3);
  took(PlannerId::kMesh) = 0.126;
  make();
  EXPECT_DOUBLE_EQ(guessed_beta, 1 / 3'125e3) << "they may well be alike";
  took(PlannerId::kMesh) = 3;
  make();
  EXPECT_DOUBLE_EQ(guessed_beta, 1 / 3'125e3) << "never slower";
  one.bytes = 1 << 10;
  took(PlannerId::kMesh) = 0.0001;
  make();
  EXPECT_EQ(guessed_beta, 0) << "few bytes tell nothing of rates";
  measure(50, 3'125);
  one.bytes = 256 << 10;
  took(PlannerId::kMesh) = 0.0423;
  make();
  EXPECT_EQ(guessed_beta, 0) << "there is nothing to guess";
}

// Times of before a round would be compared with those of lanes that know each other better since.
TEST_F(Costing, WhatWasCloseBeforeARoundIsTriedAgainInIt) {
  measure(20'000, 25'000);
  took(PlannerId::kMesh) = 0.100;
  took(PlannerId::kMesh, true) = 0.200;
  took(PlannerId::kHalvingDoubling) = 0.110;
  took(PlannerId::kHalvingDoubling, true) = 0.200;
  took(PlannerId::kRing) = 0.150;
  MeasuredRow mesh = make();
  mesh.planner = PlannerId::kMesh;
  mesh.piece_bytes = 0;
  mesh.keeps_static = false;
  for (const bool aged : {false, true}) {
    for (const PlannerId id : {PlannerId::kMesh, PlannerId::kHalvingDoubling, PlannerId::kRing}) known(id).aged = aged;
    EXPECT_EQ(make(table_of(mesh)).planner, aged ? PlannerId::kHalvingDoubling : PlannerId::kMesh);
    EXPECT_EQ(trying, aged);
  }
}

// Something may have held up all operations by which it was timed.
TEST_F(Costing, WhatIsDoubtedIsTriedAgainWhereItCostsLessHoweverLongItTook) {
  measure(20'000, 25'000);
  MeasuredRow present = make();
  present.planner = PlannerId::kHalvingDoubling;
  present.piece_bytes = 0;
  present.keeps_static = false;
  for (auto& of_planner : one.known) {
    for (CostedClass::Known& k : of_planner) {
      k.took = 3;
      k.aged = true;
    }
  }
  took(PlannerId::kHalvingDoubling) = 0.1;
  make(table_of(present));
  EXPECT_FALSE(trying) << "all others took far longer before this round";
  ASSERT_LT(cost_of(PlannerId::kMesh), cost_of(PlannerId::kHalvingDoubling));
  ASSERT_GT(cost_of(PlannerId::kRing), cost_of(PlannerId::kHalvingDoubling));
  known(PlannerId::kRing).doubted = true;
  make(table_of(present));
  EXPECT_FALSE(trying) << "it costs more as well";
  known(PlannerId::kMesh).doubted = true;
  EXPECT_EQ(make(table_of(present)).planner, PlannerId::kMesh);
  EXPECT_TRUE(trying);
  known(PlannerId::kMesh).aged = false;
  make(table_of(present));
  EXPECT_FALSE(trying) << "it has been tried in this round";
}

TEST_F(Costing, WithoutARateWhatIsNotSmallWaitsForTheTimeOfWhatRuns) {
  measure(20'000, 0);
  make();
  EXPECT_EQ(steps, 0);
  took(PlannerId::kRing) = 0.151;  // 6 message times, and 31 ms for 1.5 times the bytes
  EXPECT_EQ(make().planner, PlannerId::kMesh);
  took(PlannerId::kRing) = 20;  // it is the bytes
  make({}, false);
  EXPECT_GT(cost_of(PlannerId::kMesh), 0.9 * cost_of(PlannerId::kRing));
}

TEST_F(Costing, ALinkThatNobodyMeasuredIsAsFastAsItsNics) {
  links = {{0, 1, 0, 100, 1000}, {2, 3, 0, 100, 50}, {3, 0, 0, 100, 2000}};
  CostModel model;
  RatesKnown known;
  const LinkCosts costs = fill_costs(group, links, &model, &known);
  EXPECT_TRUE(known.any);
  EXPECT_DOUBLE_EQ(costs.of(0, 3, 0).beta, 1 / 50e3) << "into host 3 nobody saw more";
  EXPECT_DOUBLE_EQ(costs.of(0, 2, 0).beta, 1 / 1000e3) << "nothing is known of the way into host 2: the median";
}

// Only ways to the slow one are ever busy for long. A double tree, of which it is a leaf, takes the least.
TEST_F(Costing, BesideASlowHostPlansAreTriedThatUseTheOthersMore) {
  reach = Reachability::full(8, 1);
  group.ranks = 8;
  one.bytes = 256 << 10;
  for (int a = 0; a < 8; ++a) {
    for (int b = 0; b < 8; ++b) {
      if (a != b) links.push_back({a, b, 0, 60, b == 7 ? 12'500u : 0});
    }
  }
  took(PlannerId::kRing) = 0.050;
  bool tried = false;
  const MeasuredRow stays = settle([&](const MeasuredRow& row) {
    const bool is = row.planner == PlannerId::kDoubleTree && row.piece_bytes != 0;
    tried |= is;
    return is ? 0.028 : 0.048;
  });
  EXPECT_TRUE(tried);
  EXPECT_EQ(stays.planner, PlannerId::kDoubleTree);
  EXPECT_LE(trials, 8) << "of fourteen that there are";
}

// Where ranks share hosts, plans that add up within a host first are candidates like all others.
TEST_F(Costing, HierarchicalPlansAreTriedInBothSizesOfPiecesAndSoAreOthers) {
  const std::vector<int> host_of{0, 0, 1, 1, 2, 2, 3, 3};
  reach = Reachability::full(8, 1);
  for (int r = 0; r < 8; r += 2) reach.set(r, r + 1, Reachability::kHostBit, Reachability::kHostBit);
  group.ranks = 8;
  group.host_of = host_of;
  one.static_choice = PlannerId::kHierarchical;
  const auto measure_hosts = [&](std::uint32_t kbps_of_last) {
    links.clear();
    for (int a = 0; a < 8; a += 2) {
      for (int b = 0; b < 8; b += 2) {
        if (a != b) links.push_back({a, b, 0, 100, a == 6 || b == 6 ? kbps_of_last : 62'500});
      }
    }
  };
  measure_hosts(62'500);
  took(PlannerId::kHierarchical) = 0.030;
  std::set<PlannerId> tried;
  const MeasuredRow finer = settle([&](const MeasuredRow& row) {
    tried.insert(row.planner);
    return row.planner == PlannerId::kHierarchical && row.piece_bytes != 0 ? 0.020 : 0.030;
  });
  EXPECT_EQ(finer.planner, PlannerId::kHierarchical);
  EXPECT_EQ(finer.piece_bytes, 32u << 10);
  EXPECT_FALSE(finer.keeps_static);
  EXPECT_TRUE(tried.contains(PlannerId::kRing)) << "by the model it takes less than 1.3 times as long";
  EXPECT_FALSE(tried.contains(PlannerId::kRingPerRail)) << "between hosts there is one rail";
  // A slow host sends each byte up the tree once, and receives it once.
  one.known = {};
  measure_hosts(6'250);
  took(PlannerId::kHierarchical) = 0.200;
  const MeasuredRow beside_slow =
      settle([](const MeasuredRow& row) { return row.planner == PlannerId::kTree ? 0.140 : 0.200; });
  EXPECT_EQ(beside_slow.planner, PlannerId::kTree);
  // Where hosts reach each other over different rails, such plans take too long to make.
  one.known = {};
  for (const int a : {0, 1, 2, 3}) {
    for (const int b : {4, 5, 6, 7}) reach.set(a, b, 2, 2);
  }
  steps = 0;
  make();
  EXPECT_EQ(steps, 0) << "nothing is walked";
  // Ranks of one host that meet over NICs only gain nothing by adding up first.
  one.known = {};
  reach = Reachability::full(8, 1);
  make();
  EXPECT_EQ(cost_of(PlannerId::kHierarchical), 0);
  // Where no two ranks share one, there is nothing to add up first.
  one.known = {};
  group.host_of = {};
  group.ranks = 4;
  reach = Reachability::full(4, 1);
  one.static_choice = PlannerId::kRing;
  measure(100, 62'500);
  make();
  EXPECT_EQ(cost_of(PlannerId::kHierarchical), 0);
  EXPECT_GT(cost_of(PlannerId::kMesh), 0);
}

TEST_F(Costing, RatesAreOfFewHostsWhereAllOthersAreBusyWithThoseAlone) {
  std::set<std::pair<int, int>> fast;
  const auto few = [&](int ranks, std::initializer_list<std::pair<int, int>> busy) {
    reach = Reachability::full(ranks, 1);
    group.ranks = ranks;
    links.clear();
    for (const auto& [a, b] : busy) links.push_back({a, b, 0, 60, fast.contains({a, b}) ? 62'500u : 12'500u});
    CostModel model;
    RatesKnown rates;
    const LinkCosts costs = fill_costs(group, links, &model, &rates);
    EXPECT_EQ(rates.any, busy.size() != 0);
    EXPECT_TRUE(!rates.of_few_hosts || costs.has_guesses());
    return rates.of_few_hosts;
  };
  EXPECT_FALSE(few(4, {}));
  EXPECT_FALSE(few(4, {{0, 1}})) << "a way between two";
  EXPECT_FALSE(few(4, {{0, 1}, {1, 0}}));
  EXPECT_TRUE(few(4, {{0, 3}, {2, 3}}));
  EXPECT_TRUE(few(4, {{0, 3}, {3, 2}, {3, 1}}));
  EXPECT_FALSE(few(4, {{0, 1}, {1, 2}, {2, 3}, {3, 0}})) << "a ring of equals";
  EXPECT_FALSE(few(4, {{0, 3}, {2, 3}, {1, 2}})) << "two others, too";
  EXPECT_FALSE(few(8, {{0, 7}, {1, 7}})) << "that may be anything";
  EXPECT_FALSE(few(8, {{0, 7}, {1, 7}, {2, 7}}));
  EXPECT_TRUE(few(8, {{0, 7}, {1, 7}, {2, 7}, {7, 3}}));
  EXPECT_TRUE(few(8, {{0, 7}, {1, 7}, {2, 7}, {3, 7}, {6, 0}, {6, 1}, {6, 2}, {6, 3}, {6, 7}})) << "two slow ones";
  EXPECT_FALSE(
      few(8, {{0, 7}, {1, 7}, {2, 7}, {3, 7}, {6, 0}, {6, 1}, {6, 2}, {6, 3}, {5, 0}, {5, 1}, {5, 2}, {5, 3}}));
  EXPECT_FALSE(few(4, {{0, 3}, {2, 3}, {3, 1}, {0, 1}}));
  fast.insert({0, 1});
  EXPECT_TRUE(few(4, {{0, 3}, {2, 3}, {3, 1}, {0, 1}})) << "a way between others that is fast";
}

// A tree's root sends the whole more than once, and fine pieces are many: such walks have more tasks than others.
TEST_F(Costing, TreesOfLongOperationsAndFinePiecesAreWalkedInLargerOnes) {
  for (const int ranks : {8, 16}) {
    SCOPED_TRACE(ranks);
    reach = Reachability::full(ranks, 1);
    group.ranks = ranks;
    links = {{0, 1, 0, 100, 62'500}};
    const auto tree_of_ring = [&](std::uint64_t bytes) {
      one.bytes = bytes;
      make();
      return cost_of(PlannerId::kTree) / cost_of(PlannerId::kRing);
    };
    const double in_the_same = tree_of_ring(2 << 20);
    ASSERT_GT(in_the_same, 1);
    tree_of_ring(4 << 20);
    for (const PlannerId id : {PlannerId::kRing, PlannerId::kMesh, PlannerId::kDoubleTree})
      EXPECT_GT(cost_of(id, true), 0) << name_of(id);
    for (const std::uint64_t bytes : {64 << 20, 256 << 20}) {
      EXPECT_NEAR(tree_of_ring(bytes), in_the_same, 0.25 * in_the_same) << bytes;
      EXPECT_GT(cost_of(PlannerId::kDoubleTree), 0) << bytes;
    }
  }
}

TEST_F(Costing, NoWalkIsLongerThanItMay) {
  for (const int ranks : {4, 16, 64}) {
    reach = Reachability::full(ranks, 1);
    group.ranks = ranks;
    one.bytes = std::uint64_t{256} << 20;
    measure(100, 25'000);
    CostModel model;
    RatesKnown known;
    LinkCosts costs = fill_costs(group, links, &model, &known);
    TableCosting costing(group, 128 << 10, std::move(costs), known, model, {one}, {}, true);
    for (int i = 0; i < 100 && costing.step(); ++i) {
    }
    EXPECT_EQ(std::move(costing).rows().size(), ranks == 64 ? 0u : 1u) << ranks;
  }
}

}  // namespace
}  // namespace canarynet
