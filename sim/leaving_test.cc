// Ranks that leave in good order while others are still at work. Virtual time.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

TEST(Leaving, IsNoDeath) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(3, 100'000));
  op.submit_all();
  op.expect_exact();
  ASSERT_NO_FATAL_FAILURE(leave_and_end(c, 2));
  c.run_for(3_s);
  OpTicket t;
  float v = 1;
  c.all_reduce(0, &v, &v, 1, CANARY_F32, CANARY_SUM, &t);
  ASSERT_TRUE(c.run_until([&] { return t.done(); }, 5_s));
  EXPECT_EQ(t.code, CANARY_PEER_DIED);
  EXPECT_NE(t.status.text().find("left the job"), std::string::npos) << t.status.text();
}

TEST(Leaving, OperationsAgainstARankThatHasLeftStillEnd) {
  // A root's small broadcasts are done once they are sent: it may leave long before the others call.
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  std::vector<std::unique_ptr<AllRanks>> ops;
  for (std::uint64_t i = 0; i < 6; ++i) {
    ops.push_back(std::make_unique<AllRanks>(c, broadcast(2, 100, 1, i)));
    ops.back()->submit(1);
  }
  ASSERT_TRUE(c.run_until([&] { return ops.back()->done(1); }, 1_s));
  ASSERT_NO_FATAL_FAILURE(leave_and_end(c, 1));
  c.run_for(100_ms);
  for (auto& op : ops) op->submit(0);
  for (auto& op : ops) op->expect_exact(2_s);
}

// The root's part of a small broadcast is done once it is sent, and the root leaves. Rank `late` takes its time: nobody
// may conclude meanwhile that the root left without having called.
void expect_root_known_to_have_called(Cluster& c, int root, int late) {
  AllRanks op(c, broadcast(c.ranks(), 100, root));
  op.submit_all_but(late);
  ASSERT_TRUE(c.run_until([&] { return op.done(root); }, 1_s));
  ASSERT_NO_FATAL_FAILURE(leave_and_end(c, root));
  c.run_for(3_s);
  op.submit(late);
  op.expect_exact(2_s);
}

TEST(Leaving, WhatARankHadEnteredIsKnownAfterItLeft) {
  // Rank 2 has nothing to do with the root of a ring's broadcast, and no beat has said yet that the root called.
  ClusterOptions o = flat_cluster(12, 1);
  o.settings.algo = "ring";
  o.settings.heartbeat_interval = 300_ms;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  expect_root_known_to_have_called(c, 6, 9);
}

// Frames that a rank has sent and still owes open its channel also while it leaves: 7 sends to 2, which dials and does
// not call.
TEST(Leaving, WhatItOwesIsDeliveredOverAChannelThatIsYetToBeMade) {
  ClusterOptions o = flat_cluster(12, 1);
  o.settings.connect_at_join = 0;
  o.settings.algo = "mesh";
  Cluster c(o);
  ASSERT_TRUE(c.join());
  AllRanks op(c, broadcast(12, 100, 7));
  op.submit(7);
  ASSERT_TRUE(op.done(7));
  ASSERT_NO_FATAL_FAILURE(leave_and_end(c, 7));
  c.run_for(100_ms);
  for (int r = 0; r < 12; ++r) {
    if (r != 7) op.submit(r);
  }
  op.expect_exact(2_s);
}

// In a large job hardly any rank has a channel to the one that leaves: control tells the others, also of rank 0, which
// is asked for nothing any more.
TEST(Leaving, WhatARankHadEnteredIsKnownWithoutAChannelToIt) {
  for (const int root : {6, 0}) {
    ClusterOptions o = flat_cluster(12, 1);
    o.settings.connect_at_join = 0;
    o.settings.algo = "ring";
    Cluster c(o);
    ASSERT_TRUE(c.join());
    ASSERT_NO_FATAL_FAILURE(expect_root_known_to_have_called(c, root, 9)) << root;
  }
}

TEST(Leaving, WhatARankHadEnteredIsKnownToThoseWhoHearOfItThroughOthersOnly) {
  // In BCube most ranks have a channel.
  const int levels = quick() ? 5 : 6;
  ClusterOptions o;
  o.hosts = 1 << levels;
  o.wiring = Wiring::bcube(2, levels);
  o.fabric.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(10'000));
  Cluster c(o);
  ASSERT_TRUE(c.join());
  expect_root_known_to_have_called(c, 1, o.hosts - 2);
}

// A coordinator that finds all control connections to an engine refused says that its process has ended. A firewall
// refuses as well, and the lanes know better.
class SaidToHaveEnded : public ::testing::TestWithParam<bool> {
 protected:
  SaidToHaveEnded() : cluster(options()) {}
  static ClusterOptions options() {
    ClusterOptions o = flat_cluster(3, 1);
    o.settings.progress_thread = GetParam();
    o.fabric.control_over_rails = false;
    return o;
  }
  void say() { cluster.engine(2).on_engine_ended(1, "connections are refused"); }
  void flap() {
    cluster.fabric().nic_down(2, 0, NicDeath::kBothEnds);
    cluster.run_for(200_ms);
    cluster.fabric().nic_up(2, 0);
    cluster.run_for(500_ms);
  }
  Cluster cluster;
};
INSTANTIATE_TEST_SUITE_P(By, SaidToHaveEnded, ::testing::Bool(),
                         [](const auto& by) { return by.param ? "threads" : "callers"; });

TEST_P(SaidToHaveEnded, CountsOnceTheLastLaneIsGone) {
  ASSERT_TRUE(cluster.join());
  AllRanks before(cluster, sum(3, 1000));
  before.submit_all();
  before.expect_exact(1_s);
  say();
  cluster.run_for(2_s);
  AllRanks during(cluster, sum(3, 1000, 2));
  during.submit_all();
  during.expect_exact(1_s);
  // It ends, and the coordinator, which says so at once, is not heard.
  cluster.fabric().block(0, 2);
  cluster.kill(1, CrashKind::kHangup);
  AllRanks after(cluster, sum(3, 1000, 3));
  after.submit(2);
  ASSERT_TRUE(cluster.run_until([&] { return after.done(2); }, 1_s));
  EXPECT_EQ(after.ticket(2).status.code(), CANARY_PEER_DIED) << after.ticket(2).status.to_string();
  const std::string text = after.ticket(2).status.text();
  EXPECT_NE(text.find("connections are refused"), std::string::npos) << text;
}

TEST_P(SaidToHaveEnded, WaitsForALaneOnProbation) {
  ASSERT_TRUE(cluster.join());
  for (int i = 0; i < 6; ++i) flap();  // each return that fails doubles the probation
  ASSERT_TRUE(cluster.engine(2).stands(1));
  say();
  cluster.run_for(5_s);
  AllRanks op(cluster, sum(3, 1000));
  op.submit_all();
  op.expect_exact(1_s);
}

}  // namespace
}  // namespace canarynet
