// The plans that know which ranks share a host: their proofs, and what crosses the border of each host.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "collectives/planners_test_util.h"

namespace canarynet {
namespace {

// [rank]: its host, for hosts with these numbers of ranks. `dealt`: rank 0 on host 0, rank 1 on host 1, … instead of
// host by host.
std::vector<int> hosts_with(const std::vector<int>& ranks, bool dealt = false) {
  std::vector<int> host_of;
  const int most = *std::max_element(ranks.begin(), ranks.end());
  const auto hosts = static_cast<int>(ranks.size());
  for (int i = 0; dealt && i < most; ++i) {
    for (int h = 0; h < hosts; ++h) {
      if (i < ranks[h]) host_of.push_back(h);
    }
  }
  for (int h = 0; !dealt && h < hosts; ++h) host_of.insert(host_of.end(), ranks[h], 7 * h + 1);
  return host_of;
}

// Proves the plans over full wiring, and over only the edges that they use.
void prove_hierarchical(const std::vector<int>& host_of) {
  const int n = static_cast<int>(host_of.size());
  const auto reach = Reachability::full(n, 2);
  for (const Collective collective : kAll) {
    if (!planner(PlannerId::kHierarchical).defines(collective, n)) continue;
    for (const int root : {0, n / 2, n - 1}) {
      if (root != 0 && collective != Collective::kBroadcast) continue;
      const PlanRequest request{
          .collective = collective, .ranks = n, .root = root, .reach = &reach, .host_of = host_of};
      ASSERT_NO_FATAL_FAILURE(prove(PlannerId::kHierarchical, request));
      PlanRequest large = request;  // around the ring, also of 64 hosts
      large.count = 10'000'019;
      if (collective == Collective::kBarrier) continue;
      const Status status = check_planner(PlannerId::kHierarchical, large);
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
  }
}

TEST(Planners, HierarchicalPlansAreProvenForAnyHostsOfEqualSizeUpTo64Ranks) {
  for (int hosts = 1; hosts <= 64; ++hosts) {
    for (int each = 1; hosts * each <= 64; ++each) {
      if (left_out(hosts * each) || (each == 1 && hosts > 24 && hosts % 8 != 0)) continue;
      SCOPED_TRACE(std::to_string(hosts) + " x " + std::to_string(each));
      ASSERT_NO_FATAL_FAILURE(prove_hierarchical(hosts_with(std::vector<int>(hosts, each))));
    }
  }
}

TEST(Planners, HierarchicalPlansAreProvenForHostsOfUnequalSizeAndAnyOrderOfRanks) {
  const std::vector<std::vector<int>> shapes = {{1, 2},
                                                {2, 1},
                                                {1, 8},
                                                {3, 2, 1},
                                                {4, 1, 4},
                                                {8, 3},
                                                {5, 7, 2, 1},
                                                {1, 1, 1, 6},
                                                {2, 3, 5, 7},
                                                {16, 1},
                                                {9, 8, 7, 6, 5},
                                                {31, 33},
                                                {1, 62, 1},
                                                {3, 3, 3, 2},
                                                {4, 4, 4, 4},
                                                {10, 20, 30, 4},
                                                {1, 2, 3, 4, 5, 6, 7, 8, 9},
                                                {6, 1, 1, 1, 1, 1}};
  for (const std::vector<int>& shape : shapes) {
    for (const bool dealt : {false, true}) {
      const std::vector<int> host_of = hosts_with(shape, dealt);
      if (left_out(static_cast<int>(host_of.size()))) continue;
      SCOPED_TRACE(testing::PrintToString(shape) + (dealt ? " dealt" : ""));
      ASSERT_NO_FATAL_FAILURE(prove_hierarchical(host_of));
    }
  }
}

// The bytes that cross the border of each host, out and in, and those that its ranks send each other.
struct HostTraffic {
  std::vector<std::uint64_t> out, in, local;
};
HostTraffic traffic_of(const PlanRequest& request) {
  const auto hosts = *std::max_element(request.host_of.begin(), request.host_of.end()) + 1;
  HostTraffic t{std::vector<std::uint64_t>(hosts), std::vector<std::uint64_t>(hosts),
                std::vector<std::uint64_t>(hosts)};
  std::vector<std::uint64_t> leaves;
  planner(PlannerId::kHierarchical).leaves(request, &leaves);
  for (int r = 0; r < request.ranks; ++r) {
    const int host = request.host_of[r];
    for (const Step& s : plan_of(PlannerId::kHierarchical, request, r).steps) {
      if (s.kind != StepKind::kSend) continue;
      const std::uint64_t bytes = (leaves[s.leaf_end] - leaves[s.leaf_begin]) * request.element_bytes;
      const int peer = request.host_of[s.peer];
      (peer == host ? t.local[host] : t.out[host]) += bytes;
      if (peer != host) t.in[peer] += bytes;
    }
  }
  return t;
}

TEST(Planners, AHierarchicalAllReduceMovesTheSameBytesPerHostHoweverManyRanksItHas) {
  const std::vector<std::vector<int>> shapes = {{8, 8}, {4, 4, 4}, {2, 2, 2, 2}, {1, 5, 3}, {6, 1, 2, 4}};
  for (const auto& shape : shapes) {
    for (const bool dealt : {false, true}) {
      std::vector<int> host_of = hosts_with(shape, dealt);
      for (int& h : host_of) h = dealt ? h : h / 7;
      const auto hosts = shape.size();
      const auto reach = Reachability::full(static_cast<int>(host_of.size()), 1);
      for (const std::uint64_t count : {std::uint64_t{32} * 840, std::uint64_t{32} * 840 * 640}) {  // direct, ring
        const PlanRequest request{
            .ranks = static_cast<int>(host_of.size()), .count = count, .reach = &reach, .host_of = host_of};
        const HostTraffic t = traffic_of(request);
        const std::uint64_t all = count * 4;
        for (std::size_t h = 0; h < hosts; ++h) {
          EXPECT_EQ(t.out[h] * hosts, 2 * (hosts - 1) * all) << testing::PrintToString(shape) << " host " << h;
          EXPECT_EQ(t.in[h] * hosts, 2 * (hosts - 1) * all) << testing::PrintToString(shape) << " host " << h;
          EXPECT_EQ(t.local[h], 2 * static_cast<std::uint64_t>(shape[h] - 1) * all);
        }
      }
    }
  }
}

TEST(Planners, HierarchicalGathersAndBroadcastsSendEveryHostWhatItLacksOnce) {
  const std::vector<int> host_of = hosts_with({4, 2, 3}, true);
  const int n = static_cast<int>(host_of.size());
  const auto reach = Reachability::full(n, 1);
  for (const std::uint64_t count : {std::uint64_t{64}, std::uint64_t{1} << 20}) {
    PlanRequest request{
        .collective = Collective::kAllGather, .ranks = n, .count = count, .reach = &reach, .host_of = host_of};
    HostTraffic t = traffic_of(request);
    EXPECT_EQ(t.in, (std::vector<std::uint64_t>{5 * count * 4, 7 * count * 4, 6 * count * 4}));
    request.collective = Collective::kReduceScatter;
    t = traffic_of(request);
    const std::uint64_t total = t.in[0] + t.in[1] + t.in[2];
    EXPECT_EQ(total, 2 * 9 * count * 4) << "each block: one sum from each of the other hosts";
    request.collective = Collective::kBroadcast;
    request.root = 4;
    t = traffic_of(request);
    EXPECT_EQ(t.in, (std::vector<std::uint64_t>{count * 4, 0, count * 4}));
  }
}

TEST(Planners, HierarchicalWithoutNewsOfHostsTakesEveryRankForOne) {
  const auto reach = Reachability::full(5, 1);
  const PlanRequest request{.ranks = 5, .count = 5 * 32 * 40'000, .reach = &reach};
  for (int r = 0; r < 5; ++r) {
    for (const Step& s : plan_of(PlannerId::kHierarchical, request, r).steps)
      EXPECT_EQ(s.peer, s.kind == StepKind::kSend ? (r + 1) % 5 : (r + 4) % 5);
  }
  const std::vector<int> short_list = {0, 0, 1};
  PlanRequest wrong = request;
  wrong.host_of = short_list;
  EXPECT_EQ(planner(PlannerId::kHierarchical).check(wrong).text(), "hosts are told for 3 ranks of 5");
}

TEST(Planners, HierarchicalNeedsNeighboursAndCarriersToMeet) {
  const std::vector<int> host_of = hosts_with({2, 2, 2});
  auto reach = Reachability::full(6, 1);
  reach.set(0, 3, 0, 0);  // carriers of different parts never talk
  reach.set(1, 4, 0, 0);
  const PlanRequest request{.ranks = 6, .count = 1'000'000, .reach = &reach, .host_of = host_of};
  EXPECT_TRUE(check_planner(PlannerId::kHierarchical, request).ok());
  reach.set(2, 4, 0, 0);
  EXPECT_EQ(planner(PlannerId::kHierarchical).check(request).text(),
            "hierarchical needs ranks 2 and 4 to meet, but they share no rail");
  reach = Reachability::full(6, 1);
  reach.set(2, 3, 0, 0);
  EXPECT_EQ(planner(PlannerId::kHierarchical).check(request).text(),
            "hierarchical needs ranks 2 and 3 to meet, but they share no rail");
}

}  // namespace
}  // namespace canarynet
