// Engines that serve several ranks each: the bytes that cross the network per host, groups of uneven hosts, ranks that
// leave one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

oracle::Shape shape_of(Collective collective, int ranks, std::uint64_t count) {
  oracle::Shape s;
  s.collective = collective;
  s.ranks = ranks;
  s.count = count;
  s.type = CANARY_F32;
  s.redop = CANARY_SUM;
  s.root = ranks / 2;
  return s;
}

std::uint64_t sent_by(Cluster& c, int host) {
  std::uint64_t bytes = 0;
  for (std::size_t rail = 0; rail < c.engine(host).rails().size(); ++rail)
    bytes += c.engine(host).rail_stats(static_cast<int>(rail)).lanes.bytes_sent;
  return bytes;
}

// A root's small pieces are copied, so its run is complete as soon as they have left; it ends when the others'
// signatures have come. Until then it has nothing to do, and the engine does something else.
TEST(LocalRanks, OfWhichOneWaitsForSignaturesOnlyLeaveTheEngineTime) {
  Cluster c(flat_cluster(2, 1, 2));
  ASSERT_TRUE(c.join());
  AllRanks op(c, broadcast(4, 100));
  op.submit(0);
  op.submit(1);
  c.run_for(50_ms);
  op.submit(2);
  op.submit(3);
  ASSERT_NO_FATAL_FAILURE(op.expect_exact());
}

TEST(LocalRanks, AHostSendsTheSameBytesHoweverManyRanksItHas) {
  for (const auto& [hosts, each] : {std::pair{2, 8}, {3, 2}, {4, 3}}) {
    Cluster c(flat_cluster(hosts, 2, each));
    ASSERT_TRUE(c.join());
    // The first operation finds out what the lanes carry, partly with probes.
    AllRanks first(c, shape_of(Collective::kAllReduce, hosts * each, 1 << 20));
    first.submit_all();
    first.expect_exact();
    AllRanks op(c, shape_of(Collective::kAllReduce, hosts * each, 1 << 20));
    std::vector<std::uint64_t> before;
    for (int h = 0; h < hosts; ++h) before.push_back(sent_by(c, h));
    op.submit_all();
    op.expect_exact();
    EXPECT_STREQ(c.world(0)->last_algorithm.load(), "hierarchical") << "by itself, where ranks share an engine";
    const double needed = 2.0 * (hosts - 1) / hosts * (4 << 20);
    for (int h = 0; h < hosts; ++h)
      EXPECT_NEAR(static_cast<double>(sent_by(c, h) - before[static_cast<std::size_t>(h)]) / needed, 1, 0.02)
          << hosts << " " << h;
  }
}

TEST(LocalRanks, GroupsOfUnevenHostsAreExactInEveryCollective) {
  Cluster c(flat_cluster(3, 2, 4));
  ASSERT_TRUE(c.join());
  for (const std::vector<int>& list : std::vector<std::vector<int>>{
           {0, 1, 2, 3, 4}, {11, 0, 4, 1, 8, 5, 2}, {3, 7, 11}, {0, 4, 5, 6, 7, 8}, {0, 1, 2, 3}, {9, 2, 10}}) {
    const auto members = form_group(c, list);
    const int n = static_cast<int>(list.size());
    for (int k = 0; k < kCollectiveCount; ++k) {
      const auto collective = static_cast<Collective>(k);
      if (!planner(PlannerId::kHierarchical).defines(collective, n)) continue;
      for (const std::uint64_t count : {std::uint64_t{7}, std::uint64_t{300'000}}) {
        AllRanks op(c, shape_of(collective, n, collective == Collective::kBarrier ? 0 : count), k % 2 == 0);
        for (int i = 0; i < n; ++i) op.submit(i, members[static_cast<std::size_t>(i)]);
        op.expect_exact();
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Lanes have to wait while a cycle lasts.
TEST(LocalRanks, ACycleMovesABoundedPartOfALargeOperation) {
  Cluster c(flat_cluster(1, 1, 4));
  ASSERT_TRUE(c.join());
  AllRanks op(c, shape_of(Collective::kAllReduce, 4, 4 << 20));  // 16 MiB: 6 x 16 MiB pass between the ranks
  const std::uint64_t before = c.polls();
  op.submit_all();
  op.expect_exact();
  EXPECT_GE(c.polls() - before, 40u);
}

TEST(LocalRanks, ARankThatLeavesBreaksNothingUntilItIsNeeded) {
  Cluster c(flat_cluster(2, 1, 3));
  ASSERT_TRUE(c.join());
  const auto others = form_group(c, {0, 2, 3, 5});
  {
    // The engine's own part is done while the others' is not.
    AllRanks op(c, shape_of(Collective::kBroadcast, 6, 200'000));
    for (int r = 0; r < 6; ++r) {
      if (r != 5) op.submit(r);
    }
    ASSERT_TRUE(c.run_until([&] { return op.done(1); }, 5_s));
    c.engine(0).retire(1);
    op.submit(5);
    op.expect_exact();
  }
  {
    AllRanks op(c, shape_of(Collective::kAllReduce, 4, 10'000));
    for (int i = 0; i < 4; ++i) op.submit(i, others[static_cast<std::size_t>(i)]);
    op.expect_exact();
  }
  AllRanks op(c, shape_of(Collective::kAllReduce, 6, 100));
  for (int r = 0; r < 6; ++r) {
    if (r != 1) op.submit(r);
  }
  ASSERT_TRUE(c.run_until(
      [&] {
        for (int r = 0; r < 6; ++r) {
          if (r != 1 && !op.done(r)) return false;
        }
        return true;
      },
      5_s));
  for (int r = 0; r < 6; ++r) {
    if (r == 1) continue;
    EXPECT_EQ(op.ticket(r).code, CANARY_PEER_DIED);
    EXPECT_EQ(op.ticket(r).status.detail().rank, 1);
    EXPECT_NE(op.ticket(r).status.text().find("rank 1 left the job"), std::string::npos) << op.ticket(r).status.text();
  }
}

}  // namespace
}  // namespace canarynet
