// Rules of CANARY_ALGO: what they choose, and what the error says of wrong ones.
#include "collectives/decision_table.h"

#include <gtest/gtest.h>

#include "collectives/selector.h"

namespace canarynet {
namespace {

constexpr std::uint64_t kKiB = 1024;

DecisionTable table_of(const char* text) {
  auto table = DecisionTable::parse(text);
  EXPECT_TRUE(table.ok()) << text << ": " << table.status().text();
  return table.ok() ? table.value() : DecisionTable();
}

// The planner that a row chooses, or "" if no row names the operation.
std::string_view planner_of(const DecisionTable& table, Collective collective, std::uint64_t bytes) {
  const Decision* row = table.find(collective, bytes);
  return row == nullptr ? "" : name_of(row->planner);
}

TEST(DecisionTable, APlannersNameForcesItForAllCollectivesItDefines) {
  const DecisionTable ring = table_of("ring");
  for (const std::uint64_t bytes : {std::uint64_t{0}, kKiB, Decision::kNoEnd}) {
    EXPECT_EQ(planner_of(ring, Collective::kAllReduce, bytes), "ring");
    EXPECT_EQ(planner_of(ring, Collective::kBroadcast, bytes), "ring");
    EXPECT_EQ(planner_of(ring, Collective::kAllToAll, bytes), "") << "a ring does not define it";
  }
  EXPECT_TRUE(table_of("").rows().empty());
}

TEST(DecisionTable, RulesChooseByCollectiveAndSize) {
  const DecisionTable table = table_of("all_reduce:0-64K=mesh,64K-=ring;broadcast=tree;all_to_all_v=mesh");
  EXPECT_EQ(planner_of(table, Collective::kAllReduce, 0), "mesh");
  EXPECT_EQ(planner_of(table, Collective::kAllReduce, 64 * kKiB - 1), "mesh");
  EXPECT_EQ(planner_of(table, Collective::kAllReduce, 64 * kKiB), "ring");
  EXPECT_EQ(planner_of(table, Collective::kAllReduce, Decision::kNoEnd), "ring");
  EXPECT_EQ(planner_of(table, Collective::kBroadcast, 5), "tree");
  EXPECT_EQ(planner_of(table, Collective::kAllToAllV, 0), "mesh");
  EXPECT_EQ(planner_of(table, Collective::kReduce, 5), "") << "left to the static choice";
}

TEST(DecisionTable, SizesThatNoRuleNamesAreLeftOpen) {
  const DecisionTable table = table_of("all_reduce:1MiB-2MiB=dbtree,-4096=halving_doubling;all_reduce:8M-=ring");
  EXPECT_EQ(planner_of(table, Collective::kAllReduce, 4095), "halving_doubling");
  EXPECT_EQ(planner_of(table, Collective::kAllReduce, 4096), "");
  EXPECT_EQ(planner_of(table, Collective::kAllReduce, 1024 * kKiB), "dbtree");
  EXPECT_EQ(planner_of(table, Collective::kAllReduce, 2048 * kKiB), "");
  EXPECT_EQ(planner_of(table, Collective::kAllReduce, 8192 * kKiB), "ring");
}

TEST(DecisionTable, ReadsWhatItWrites) {
  for (const char* text : {"all_reduce:0-64K=mesh,64K-=ring;broadcast=tree", "all_reduce:0-4097=mesh,1024K-=ring",
                           "barrier=tree", "bcube", ""}) {
    const DecisionTable table = table_of(text);
    EXPECT_EQ(table_of(table.to_string().c_str()).rows(), table.rows()) << table.to_string();
  }
  EXPECT_EQ(table_of("all_reduce:64K-=ring,0-64K=mesh;broadcast:-=tree").to_string(),
            "all_reduce:0-64K=mesh,64K-=ring;broadcast=tree");
}

TEST(DecisionTable, WrongRulesAreRefusedByName) {
  const struct {
    const char* text;
    std::vector<const char*> says;
  } cases[] = {
      {"rign", {"one of ring, mesh", "hierarchical", "all_reduce:0-64K=mesh"}},
      {"all_reduse=ring", {"\"all_reduse=ring\"", "all_reduce, reduce_scatter", "all_to_all_v"}},
      {"all_reduce=rign", {"no planner \"rign\"", "ring, mesh"}},
      {"all_reduce=", {"no planner \"\""}},
      {"all_reduce", {"one of ring"}},
      {"=ring", {"begins with no collective"}},
      {"broadcast=tree;", {"the rule \"\" has no \"=\""}},
      {"broadcast=tree;all_reduce", {"\"all_reduce\" has no \"=\""}},
      {"broadcast=halving_doubling", {"halving_doubling does not define broadcast"}},
      {"all_reduce:64K=ring", {"\"64K\" is no range", "0-64K"}},
      {"all_reduce:64K-ring", {"\"64K-ring\"", "has no \"=\""}},
      {"all_reduce:0-many=ring", {"\"many\"", "\"0-many\"", "4096, 64K, 1MiB"}},
      {"all_reduce:-1-4=ring", {"no size"}},
      {"all_reduce:64K-64K=ring", {"holds no size"}},
      {"all_reduce:0-64K=mesh,32K-=ring", {"two rules for all_reduce", "0-64K", "32K-"}},
      {"all_reduce=mesh;all_reduce:1M-=ring", {"two rules for all_reduce"}},
      {"all_reduce:32K-=mesh,0-64K=ring", {"two rules for all_reduce"}},
      {"all_to_all_v:0-64K=mesh", {"no common size of all_to_all_v", "all_to_all_v=planner"}},
      {"barrier:0-1=tree", {"no common size of barrier"}},
  };
  for (const auto& one : cases) {
    const auto table = DecisionTable::parse(one.text);
    ASSERT_FALSE(table.ok()) << one.text;
    EXPECT_EQ(table.status().code(), CANARY_INVALID_SETTING);
    for (const char* part : one.says) {
      EXPECT_NE(table.status().text().find(part), std::string::npos) << one.text << ": " << table.status().text();
    }
  }
}

TEST(DecisionTable, SizesAreOfTheLongestBufferOfARank) {
  const auto reach = Reachability::full(4, 1);
  const auto bytes = [&](Collective collective) {
    return operation_bytes({.collective = collective, .ranks = 4, .count = 10, .element_bytes = 4, .reach = &reach});
  };
  EXPECT_EQ(bytes(Collective::kAllReduce), 40U);
  EXPECT_EQ(bytes(Collective::kBroadcast), 40U);
  EXPECT_EQ(bytes(Collective::kAllGather), 160U);
  EXPECT_EQ(bytes(Collective::kReduceScatter), 160U);
  EXPECT_EQ(bytes(Collective::kAllToAll), 160U);
  EXPECT_EQ(bytes(Collective::kAllToAllV), 0U);
  EXPECT_EQ(bytes(Collective::kBarrier), 0U);
}

TEST(DecisionTable, TheSelectorFollowsItsRows) {
  const auto reach = Reachability::full(4, 1);
  const DecisionTable table = table_of("all_reduce:0-64K=dbtree,1M-=halving_doubling;broadcast=bcube");
  PlanRequest request{.ranks = 4, .count = 100, .reach = &reach};
  const auto chosen = [&] { return select_planner(request, table); };
  EXPECT_EQ(chosen().value(), PlannerId::kDoubleTree);
  request.count = 1024 * kKiB / 4 - 1;
  EXPECT_EQ(chosen().value(), select_planner(request, {}).value());
  request.count = 1024 * kKiB / 4;
  EXPECT_EQ(chosen().value(), PlannerId::kHalvingDoubling);
  request.collective = Collective::kBroadcast;
  ASSERT_FALSE(chosen().ok()) << "a row whose planner can't run is an error, not another planner";
  EXPECT_NE(chosen().status().text().find("forced planner bcube"), std::string::npos);
}

TEST(DecisionTable, APlannerMayHavePiecesOfItsOwn) {
  const auto table = DecisionTable::parse("all_reduce:0-64K=mesh,64K-=ring/32K;broadcast=tree/1152");
  ASSERT_TRUE(table.ok()) << table.status().text();
  EXPECT_EQ(table.value().find(Collective::kAllReduce, 1000)->piece_bytes, 0u);
  EXPECT_EQ(table.value().find(Collective::kAllReduce, 1 << 20)->piece_bytes, 32u << 10);
  EXPECT_EQ(table.value().find(Collective::kBroadcast, 0)->piece_bytes, 1152u);
  EXPECT_EQ(table.value().to_string(), "all_reduce:0-64K=mesh,64K-=ring/32K;broadcast=tree/1152");
  for (const char* wrong : {"all_reduce=ring/", "all_reduce=ring/1000", "all_reduce=ring/2M", "all_reduce=ring/x",
                            "all_reduce=/32K", "all_reduce=ring/512"})
    EXPECT_FALSE(DecisionTable::parse(wrong).ok()) << wrong;
}

}  // namespace
}  // namespace canarynet
