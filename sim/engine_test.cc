// The engine's behaviour in scripted scenarios on virtual time.
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

TEST(Engine, AllReduceUsesAllRails) {
  Cluster c(flat_cluster(4, 2));
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(4, 1 << 20));
  op.submit_all();
  op.expect_exact();
  const auto a = c.fabric().nic_counters(0, 0).tx_bytes, b = c.fabric().nic_counters(0, 1).tx_bytes;
  EXPECT_GT(std::min(a, b) * 10, std::max(a, b) * 8) << a << " and " << b;
}

TEST(Engine, UnequalRailsCarryByTheirRates) {
  ClusterOptions o = flat_cluster(2, 2);
  Cluster c(o);
  for (int h = 0; h < 2; ++h) {
    c.fabric().nic(h, 0) = NicOptions::link(100_us, BytesPerSec::from_mbit(800));
    c.fabric().nic(h, 1) = NicOptions::link(100_us, BytesPerSec::from_mbit(200));
  }
  ASSERT_TRUE(c.join());
  AllRanks warm(c, sum(2, 1 << 20));
  warm.submit_all();
  warm.expect_exact();
  const Nanos began = c.now();
  AllRanks op(c, sum(2, 4 << 20));
  op.submit_all();
  op.expect_exact();
  // 2(n-1)/n * 16 MiB over 1000 Mbit/s = 134 ms.
  EXPECT_LT((c.now() - began).seconds(), 0.134 / 0.9);
}

// Were each of eight hosts to begin with host 0, its NIC would get all first pieces, and nothing after them.
TEST(Engine, InAMeshEveryNicReceivesAllTheTime) {
  ClusterOptions o = flat_cluster(8, 1);
  o.settings.algo = "mesh";
  o.fabric.nic = NicOptions::link(50_us, BytesPerSec::from_mbit(100));
  Cluster c(std::move(o));
  ASSERT_TRUE(c.join());
  Nanos took;
  for (int i = 0; i < 3; ++i) {
    const Nanos began = c.now();
    AllRanks op(c, sum(8, 1 << 14));
    op.submit_all();
    op.expect_exact();
    took = c.now() - began;
  }
  // 2(n-1)/n * 64 KiB over 100 Mbit/s = 9.18 ms, and two message times.
  EXPECT_LT(took.seconds(), 1.1 * (9.18e-3 + 0.1e-3));
}

TEST(Engine, FollowsRatesThatAreSwapped) {
  Cluster c(flat_cluster(2, 2));
  const auto set = [&](int fast, int slow) {
    for (int h = 0; h < 2; ++h) {
      c.fabric().nic(h, fast) = NicOptions::link(100_us, BytesPerSec::from_mbit(800));
      c.fabric().nic(h, slow) = NicOptions::link(100_us, BytesPerSec::from_mbit(200));
    }
  };
  set(0, 1);
  ASSERT_TRUE(c.join());
  AllRanks warm(c, sum(2, 4 << 20));
  warm.submit_all();
  warm.expect_exact();
  set(1, 0);
  const Nanos began = c.now();
  AllRanks op(c, sum(2, 8 << 20));
  op.submit_all();
  op.expect_exact();
  EXPECT_LT((c.now() - began).seconds(), 0.268 / 0.8);
}

TEST(Engine, ASilentNicDeathCostsAStallAndNoResult) {
  Cluster c(flat_cluster(4, 2));
  for (int h = 0; h < 4; ++h) {
    for (int r = 0; r < 2; ++r) c.fabric().nic(h, r) = NicOptions::link(50_us, BytesPerSec::from_mbit(1000));
  }
  ASSERT_TRUE(c.join());
  AllRanks warm(c, sum(4, 1 << 20));
  warm.submit_all();
  warm.expect_exact();
  AllRanks op(c, sum(4, 4 << 20));
  op.submit_all();
  c.run_for(20_ms);
  ASSERT_FALSE(op.all_done());
  c.fabric().nic_down(1, 1, NicDeath::kSilent);
  op.expect_exact(2_s);
  // Given up on both sides of the dead NIC, and used again after its return.
  c.run_for(500_ms);
  c.fabric().nic_up(1, 1);
  c.run_for(2_s);
  const auto before = c.fabric().nic_counters(1, 1).tx_bytes;
  AllRanks after(c, sum(4, 4 << 20));
  after.submit_all();
  after.expect_exact();
  const auto carried = c.fabric().nic_counters(1, 1).tx_bytes - before;
  EXPECT_GT(carried, (2 * 3 * (std::uint64_t{16} << 20) / 4) / 2 * 8 / 10) << "80 % of its share";
  EXPECT_GT(c.engine(1).rail_stats(1).failovers, 0u);
}

TEST(Engine, ADeadRankIsNamedByEverySurvivor) {
  for (const int victim : {0, 2}) {
    for (const CrashKind kind : {CrashKind::kHangup, CrashKind::kSilent}) {
      Cluster c(impatient(flat_cluster(4, 2)));
      ASSERT_TRUE(c.join());
      AllRanks op(c, sum(4, 4 << 20));
      op.submit_all();
      c.run_for(300_us);
      ASSERT_FALSE(op.all_done());
      c.kill(victim, kind);
      const Nanos died = c.now();
      const auto survivors_done = [&] { return op.all_done_but(victim); };
      ASSERT_TRUE(c.run_until(survivors_done, kind == CrashKind::kHangup ? 500_ms : 1500_ms)) << "victim " << victim;
      for (int r = 0; r < 4; ++r) {
        if (r == victim) continue;
        EXPECT_EQ(op.ticket(r).status.detail().rank, victim) << op.ticket(r).status.to_string();
        EXPECT_EQ(op.ticket(r).code, kind == CrashKind::kHangup ? CANARY_PEER_DIED : CANARY_PEER_SILENT);
        EXPECT_NE(op.ticket(r).status.text().find("host-" + std::to_string(victim)), std::string::npos);
      }
      EXPECT_LE(c.now() - died, kind == CrashKind::kHangup ? 100_ms : 1500_ms);
      // The group is dead on all, with the same verdict.
      AllRanks next(c, sum(4, 10));
      const int r = victim == 0 ? 1 : 0;
      next.submit(r);
      ASSERT_TRUE(next.done(r));
      EXPECT_EQ(next.ticket(r).status.detail().rank, victim);
    }
  }
}

// An engine may hear nothing about a rank for long; then the rank is named, as for every other collective.
TEST(Engine, AllToAllVWithNothingToMoveStillWaitsForTheRankThatDoesNotCall) {
  ClusterOptions o = flat_cluster(3);
  o.settings.entry_limit = 2_s;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  const std::vector<std::uint64_t> none(12, 0);
  OpTicket tickets[2];
  for (int r = 0; r < 2; ++r) {
    c.submit(c.world(r), {.collective = Collective::kAllToAllV, .counts = none}, &tickets[r]);
  }
  c.run_for(1_s);
  EXPECT_FALSE(tickets[0].done() || tickets[1].done());
  ASSERT_TRUE(c.run_until([&] { return tickets[0].done() && tickets[1].done(); }, 2_s));
  EXPECT_EQ(tickets[0].code, CANARY_ENTRY_TIMEOUT);
  EXPECT_EQ(tickets[1].status.detail().rank, 2);
}

TEST(Engine, ALateRankIsWaitedForAndOneThatNeverCallsIsNamed) {
  ClusterOptions o = flat_cluster(3);
  o.settings.entry_limit = 5_s;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  AllRanks late(c, sum(3, 1 << 20));
  late.submit(0);
  late.submit(2);
  c.run_for(3_s);
  EXPECT_FALSE(late.done(0));
  late.submit(1);
  late.expect_exact();

  AllRanks never(c, sum(3, 1000));
  never.submit(0);
  never.submit(2);
  ASSERT_TRUE(c.run_until([&] { return never.done(0) && never.done(2); }, 6_s));
  EXPECT_EQ(never.ticket(0).code, CANARY_ENTRY_TIMEOUT);
  EXPECT_EQ(never.ticket(0).status.detail().rank, 1);
  EXPECT_EQ(never.ticket(2).code, CANARY_ENTRY_TIMEOUT);
}

TEST(Engine, TheCallersDeadlineEndsTheOperation) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  float v = 1;
  OpTicket t;
  c.submit(c.world(0),
           {.collective = Collective::kAllReduce,
            .input = &v,
            .output = &v,
            .count = 1,
            .type = CANARY_F32,
            .redop = CANARY_SUM,
            .time_limit = 100_ms},
           &t);
  ASSERT_TRUE(c.run_until([&] { return t.done(); }, 300_ms));
  EXPECT_EQ(t.code, CANARY_DEADLINE);
  EXPECT_NE(t.status.text().find("not entered by rank 1"), std::string::npos) << t.status.text();
}

TEST(Engine, APartitionErrsOnBothSides) {
  Cluster c(impatient(flat_cluster(4, 2)));
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(4, 4 << 20));
  op.submit_all();
  c.run_for(300_us);
  for (const int a : {0, 1}) {
    for (const int b : {2, 3}) c.fabric().block(a, b);
  }
  ASSERT_TRUE(c.run_until([&] { return op.all_done(); }, 3_s));
  for (int r = 0; r < 4; ++r) EXPECT_NE(op.ticket(r).code, CANARY_OK);
}

TEST(Engine, RailsCutWhileControlLivesIsNoPath) {
  Cluster c(impatient(flat_cluster(2, 2)));
  ASSERT_TRUE(c.join());
  c.run_for(2_s);
  AllRanks op(c, sum(2, 16 << 20));
  op.submit_all();
  c.run_for(300_us);
  c.fabric().block(0, 1, kBlockRails);
  ASSERT_TRUE(c.run_until([&] { return op.all_done(); }, 3_s));
  EXPECT_EQ(op.ticket(0).code, CANARY_NO_PATH) << op.ticket(0).status.to_string();
  EXPECT_NE(op.ticket(0).status.text().find("nic0>nic0, nic1>nic1"), std::string::npos) << op.ticket(0).status.text();
}

TEST(Engine, SeveralOperationsInFlightKeepTheirOrderAndResults) {
  ClusterOptions o = flat_cluster(3, 2);
  o.settings.ops_in_flight = 8;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  std::vector<std::unique_ptr<AllRanks>> ops;
  for (std::uint64_t i = 0; i < 40; ++i) ops.push_back(std::make_unique<AllRanks>(c, sum(3, i * 997 % 5000, i)));
  for (auto& op : ops) op->submit(0);
  for (auto& op : ops) op->submit(2);
  c.run_for(10_ms);
  for (auto& op : ops) op->submit(1);
  for (auto& op : ops) op->expect_exact();
}

TEST(Engine, FourRanksPerEngineEnteringInAnyOrder) {
  ClusterOptions o = flat_cluster(2, 2, 4);
  Cluster c(o);
  ASSERT_TRUE(c.join());
  for (int round = 0; round < 4; ++round) {
    AllRanks op(c, sum(8, 100'000, static_cast<std::uint64_t>(round)));
    for (int i = 0; i < 8; ++i) {
      op.submit((i * 5 + round) % 8);
      c.run_for(100_us);
    }
    op.expect_exact();
  }
}

TEST(Engine, GroupsOfAnySubsetRunBesideTheWorld) {
  Cluster c(flat_cluster(4, 2));
  ASSERT_TRUE(c.join());
  const std::vector<std::vector<GroupMember*>> groups = {form_group(c, {3, 1}), form_group(c, {0, 1, 2})};
  ASSERT_FALSE(HasFailure());
  EXPECT_NE(groups[0][0]->group->flow, groups[1][0]->group->flow);
  AllRanks world(c, sum(4, 50'000, 1));
  AllRanks pair(c, sum(2, 50'000, 2));
  AllRanks three(c, sum(3, 50'000, 3));
  world.submit_all();
  for (int i = 0; i < 2; ++i) pair.submit(i, groups[0][static_cast<std::size_t>(i)]);
  for (int i = 0; i < 3; ++i) three.submit(i, groups[1][static_cast<std::size_t>(i)]);
  world.expect_exact();
  pair.expect_exact();
  three.expect_exact();
}

TEST(Engine, AnAbortReachesEveryMemberWithItsReason) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(3, 1000));
  op.submit(0);
  op.submit(1);
  c.run_for(1_ms);
  abort_world(c, 2, "loss is NaN");
  ASSERT_TRUE(c.run_until([&] { return op.done(0) && op.done(1); }, 500_ms));
  for (const int r : {0, 1}) {
    EXPECT_EQ(op.ticket(r).code, CANARY_ABORTED);
    EXPECT_NE(op.ticket(r).status.text().find("loss is NaN"), std::string::npos);
  }
}

TEST(Engine, AVerdictReachesARankWhoseLanesAreCutOverControl) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(2, 1000));
  op.submit(0);
  c.run_for(1_ms);
  c.fabric().block(0, 1, kBlockRails);
  abort_world(c, 1, "loss is NaN");
  ASSERT_TRUE(c.run_until([&] { return op.done(0); }, 100_ms));
  EXPECT_EQ(op.ticket(0).code, CANARY_ABORTED) << op.ticket(0).status.to_string();
  EXPECT_EQ(op.ticket(0).status.detail().rank, 1);
}

TEST(Engine, AForcedPlannerWhoseRanksCannotMeetIsRefusedByName) {
  ClusterOptions o;
  o.hosts = 4;
  o.wiring = Wiring::bcube(2, 2);
  o.settings.algo = "mesh";
  Cluster c(o);
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(4, 100));
  op.submit_all();
  ASSERT_TRUE(op.all_done());
  EXPECT_EQ(op.ticket(1).code, CANARY_UNREACHABLE) << op.ticket(1).status.to_string();
  EXPECT_NE(op.ticket(1).status.text().find("rank"), std::string::npos);
}

TEST(Engine, ASmallEagerBudgetOnlyDelays) {
  ClusterOptions o = flat_cluster(4, 2);
  o.settings.eager_bytes = Bytes{16384};
  Cluster c(o);
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(4, 1 << 20));
  for (const int r : {1, 2, 3}) op.submit(r);
  c.run_for(50_ms);
  EXPECT_FALSE(op.done(1));
  op.submit(0);
  op.expect_exact();
}

TEST(Engine, ARootThatRunsAheadKeepsToTheEagerBudget) {
  // The room for what the receiver has parked stays charged after the root's operations are done: nothing is sent only
  // to be refused.
  ClusterOptions o = flat_cluster(2);
  o.settings.eager_bytes = Bytes{256 * 1024};
  Cluster c(o);
  ASSERT_TRUE(c.join());
  std::vector<std::unique_ptr<AllRanks>> ops;
  for (std::uint64_t i = 0; i < 300; ++i) {
    ops.push_back(std::make_unique<AllRanks>(c, broadcast(2, 1000, 0, i)));
    ops.back()->submit(0);
  }
  c.run_for(2_s);
  EXPECT_FALSE(ops.back()->done(0));
  RailStats sent = c.engine(0).rail_stats(0);
  EXPECT_EQ(sent.retransmits + c.engine(0).rail_stats(1).retransmits, 0u);
  for (auto& op : ops) op->submit(1);
  for (auto& op : ops) op->expect_exact(2_s);
}

TEST(Engine, AnAbortPassesOperationsThatWaitForRoom) {
  ClusterOptions o = flat_cluster(2);
  o.settings.ops_in_flight = 2;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  std::vector<std::unique_ptr<AllRanks>> ops;
  for (std::uint64_t i = 0; i < 5; ++i) {
    ops.push_back(std::make_unique<AllRanks>(c, sum(2, 1000, i)));
    ops.back()->submit(0);
  }
  abort_world(c, 0, "enough");
  ASSERT_TRUE(c.run_until([&] { return ops.back()->done(0); }, 500_ms));
  for (auto& op : ops) EXPECT_EQ(op->ticket(0).code, CANARY_ABORTED);
}

TEST(Engine, TheCoordinatorsSilenceIsNotTakenForThatOfRanksKnownByItAlone) {
  // Ranks 1 and 3 of BCube(3, 2) share no rail; each knows of the other by rank 0's beats, which are a little older
  // than rank 0's own lanes.
  for (int phase = 0; phase < 10; ++phase) {
    ClusterOptions o;
    o.hosts = 9;
    o.wiring = Wiring::bcube(3, 2);
    o.fabric.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(10'000));
    Cluster c(impatient(o));
    ASSERT_TRUE(c.join());
    c.run_for(1_s + 20_ms * phase);
    AllRanks op(c, sum(9, 1000));
    for (int r = 0; r < 8; ++r) op.submit(r);
    c.run_for(1_ms);  // its lanes were heard just now
    c.kill(0, CrashKind::kSilent);
    const auto survivors_done = [&] {
      for (int r = 1; r < 8; ++r) {
        if (!op.done(r)) return false;
      }
      return true;
    };
    ASSERT_TRUE(c.run_until(survivors_done, 2_s));
    for (int r = 1; r < 8; ++r)
      EXPECT_EQ(op.ticket(r).status.detail().rank, 0) << phase << ": " << op.ticket(r).status.to_string();
  }
}

}  // namespace
}  // namespace canarynet
