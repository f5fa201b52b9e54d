// Tables that a rank makes up: one that decides unlike the others' is named, one that cannot be is not taken.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "compress/codec_ask.h"
#include "sim/cluster_test_util.h"
#include "sim/forger_test_util.h"

namespace canarynet {
namespace {

// Engine 1 is the first of this group: what it says decides.
struct Forged {
  Forged() : c(long_links()), joined(c.join()), members(form_group(c, {1, 0, 2})), forger(c) {}
  static ClusterOptions long_links() {
    ClusterOptions o = measuring(flat_cluster(3, 1));
    o.fabric.nic = NicOptions::link(20_ms, BytesPerSec::from_mbit(100));
    return o;
  }
  GroupMember* of_rank(int world) { return members[world == 1 ? 0 : world == 0 ? 1 : 2]; }
  wire::Header header(wire::DecisionFrame frame, std::uint32_t version, std::uint32_t op) {
    wire::Header h;
    h.kind = wire::Kind::kSignature;
    h.flow = of_rank(0)->group->decisions_number();
    h.epoch = of_rank(0)->group->epoch;
    h.step = static_cast<std::uint16_t>(frame);
    h.signature = version;
    h.op = op;
    return h;
  }
  bool propose(std::uint32_t version, std::vector<wire::DecisionRow> rows) {
    wire::Header h = header(wire::DecisionFrame::kTable, version, 0);
    h.payload_bytes = static_cast<std::uint32_t>(rows.size() * sizeof(wire::DecisionRow));
    return forger.send(h, rows.data());
  }
  bool commit(std::uint32_t version, std::uint32_t from) {
    return forger.send(header(wire::DecisionFrame::kCommit, version, from), "");
  }
  bool is_open() { return of_rank(0)->group->decisions->proposal_open(); }
  static wire::DecisionRow row(PlannerId planner) {
    wire::DecisionRow r;
    r.size_class = static_cast<std::uint8_t>(size_class(4000 * 4));
    r.planner = static_cast<std::uint8_t>(planner);
    return r;
  }
  std::unique_ptr<AllRanks> call() {
    auto op = std::make_unique<AllRanks>(c, sum(3, 4000));
    for (int r = 0; r < 3; ++r) op->submit(r, members[static_cast<std::size_t>(r)]);
    return op;
  }

  Cluster c;
  bool joined;
  std::vector<GroupMember*> members;
  Forger forger;
};

TEST(Decision, ARankWithAnotherTableIsNamedEverywhere) {
  for (const bool same_planner : {false, true}) {
    Forged f;
    f.call()->expect_exact();
    // Even one that decides alike: it is another table.
    wire::DecisionRow row = Forged::row(same_planner ? PlannerId::kMesh : PlannerId::kTree);
    ASSERT_TRUE(f.propose(1, {row}));
    ASSERT_TRUE(f.is_open());
    ASSERT_TRUE(f.commit(1, f.of_rank(0)->entered + 10));
    ASSERT_FALSE(f.is_open());
    for (int i = 0; i < 8; ++i) f.call()->expect_exact();
    for (int r = 0; r < 3; ++r) EXPECT_EQ(f.of_rank(r)->entered, 9u);
    f.call()->expect_exact();
    auto op = f.call();
    ASSERT_TRUE(f.c.run_until([&] { return op->all_done(); }, 1_s));
    for (int r = 0; r < 3; ++r) {
      EXPECT_EQ(op->ticket(r).code, CANARY_MISMATCH);
      const std::string text = op->ticket(r).status.text();
      EXPECT_NE(text.find("rank 0 decides by table 1 (checksum "), std::string::npos) << text;
      EXPECT_NE(text.find("by no table"), std::string::npos) << text;
    }
  }
}

TEST(Decision, TablesThatCannotBeAreNotTaken) {
  Forged f;
  const auto refused = [&](const std::function<void(wire::DecisionRow&)>& change) {
    wire::DecisionRow row = Forged::row(PlannerId::kTree);
    change(row);
    EXPECT_TRUE(f.propose(1, {row}));
    return !f.is_open();
  };
  EXPECT_TRUE(refused([](auto& r) { r.collective = kCollectiveCount; }));
  EXPECT_TRUE(refused([](auto& r) { r.collective = static_cast<std::uint8_t>(Collective::kAllToAllV); }));
  EXPECT_TRUE(refused([](auto& r) { r.size_class = kSizeClasses; }));
  EXPECT_TRUE(refused([](auto& r) { r.planner = kPlannerCount; }));
  EXPECT_TRUE(refused([](auto& r) { r.runner_up = kPlannerCount; }));
  EXPECT_TRUE(refused([](auto& r) { r.keeps_static = 2; }));
  EXPECT_TRUE(refused([](auto& r) { r.piece_bytes = 256 * 1024; })) << "larger than the job's";
  EXPECT_TRUE(refused([](auto& r) { r.piece_bytes = 1000; }));
  EXPECT_TRUE(refused([](auto& r) { r.reason = kRowReasons; }));
  EXPECT_TRUE(refused([](auto& r) { r.planner = 0, r.in_order = 1; })) << "there is no order";
  EXPECT_TRUE(refused([](auto& r) { r.in_order = 2; }));
  EXPECT_TRUE(refused([](auto& r) { r.to_follow = 1; })) << "behind no trial";
  EXPECT_TRUE(refused([](auto& r) { r.reason = 1, r.to_follow = 1u << kPlannerCount; }));
  const std::uint32_t among = number_asked("int8,auto").value();
  const std::uint32_t int8 = number_asked("int8").value();
  EXPECT_TRUE(refused([&](auto& r) { r.asked = int8, r.planner = kPlannerCount; })) << "a codec's planner";
  EXPECT_TRUE(refused([&](auto& r) { r.asked = int8, r.runner_up = kPlannerCount; }));
  EXPECT_TRUE(
      refused([&](auto& r) { r.asked = int8, r.collective = static_cast<std::uint8_t>(Collective::kBroadcast); }));
  EXPECT_TRUE(refused([](auto& r) { r.asked = 15 | 1 << 4; })) << "no text asks so";
  EXPECT_TRUE(refused([&](auto& r) { r.asked = among, r.planner = 2; })) << "dense or int8";
  EXPECT_TRUE(refused([&](auto& r) { r.asked = among, r.planner = 0, r.runner_up = 2; }));
  EXPECT_TRUE(refused([&](auto& r) { r.asked = among, r.planner = 1, r.piece_bytes = 128; }));
  EXPECT_TRUE(refused([&](auto& r) { r.asked = among, r.planner = 1, r.reason = 1; }));
  EXPECT_TRUE(refused([&](auto& r) {
    r.asked = among, r.planner = 1, r.collective = static_cast<std::uint8_t>(Collective::kBroadcast);
  }));
  const wire::DecisionRow row = Forged::row(PlannerId::kTree);
  EXPECT_TRUE(f.propose(1, {row, row}));
  EXPECT_FALSE(f.is_open()) << "one row twice";
  EXPECT_TRUE(f.propose(1, {row}));
  EXPECT_TRUE(f.is_open());
  EXPECT_TRUE(f.propose(1, {row})) << "it came twice";
  EXPECT_FALSE(f.propose(2, {row})) << "not before it is known how the first one ended";
  EXPECT_TRUE(f.commit(1, f.of_rank(0)->entered + 2));
  EXPECT_FALSE(f.is_open());
  f.call()->expect_exact();
  f.call()->expect_exact();
  f.call()->expect_exact();
}

TEST(Decision, AProposalHoldsOperationsBeyondItsLimitAndNoOthers) {
  Forged f;
  ASSERT_TRUE(f.propose(1, {Forged::row(PlannerId::kTree)}));
  std::vector<std::unique_ptr<AllRanks>> ops;
  for (int i = 0; i < 8; ++i) ops.push_back(f.call());
  f.c.run_for(200_ms);
  EXPECT_EQ(f.of_rank(0)->entered, 4u);
  EXPECT_EQ(f.of_rank(2)->entered, 8u);
  EXPECT_TRUE(ops[3]->all_done());
  EXPECT_FALSE(ops[4]->all_done());
  EXPECT_EQ(f.of_rank(0)->group->entered[1], 5u) << "it was called: nobody may say that it was not";
  EXPECT_TRUE(f.forger.send(f.header(wire::DecisionFrame::kWithdraw, 1, 0), ""));
  for (auto& op : ops) op->expect_exact();
}

}  // namespace
}  // namespace canarynet
