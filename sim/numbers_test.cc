// Operations and messages go on past the end of 32 bits. The tests begin to count just before it, and run everything
// that compares the numbers.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <vector>

#include "base/serial.h"
#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

constexpr std::uint32_t kEdge = 0xffffffff;

ClusterOptions near_the_edge(ClusterOptions o, std::uint32_t operations_before) {
  o.amend = [operations_before](int, EngineOptions* e) {
    e->first_operation = kEdge - operations_before + 1;
    e->first_message = std::uint64_t{kEdge} - operations_before + 1;
  };
  return o;
}

void disturb(Cluster& c) {
  for (int host = 0; host < c.hosts(); ++host) {
    for (int rail = 0; rail < 2; ++rail) {
      DirectionOptions& out = c.fabric().nic(host, rail).out;
      out.loss_ppm = 10'000;
      out.duplicate_ppm = 20'000;
      out.reorder_ppm = 20'000;
    }
  }
}

TEST(SerialNumbers, TheLaterOneIsTheOneAheadOnTheCircle) {
  EXPECT_TRUE(later(2, 1));
  EXPECT_FALSE(later(1, 1));
  EXPECT_TRUE(later(0, kEdge));
  EXPECT_FALSE(later(kEdge, 3));
  EXPECT_EQ(later_of(kEdge, 3), 3u);
  EXPECT_EQ(later_of(7, 3), 7u);
}

TEST(Numbers, EveryCollectiveGoesOnPastTheEnd) {
  for (const int per_host : {1, 2}) {
    ClusterOptions o = near_the_edge(flat_cluster(3, 2, per_host), 9);
    o.fabric.stream = false;
    o.fabric.bad_header_resets = false;
    Cluster c(o);
    ASSERT_TRUE(c.join());
    disturb(c);
    const int n = c.ranks();
    for (int round = 0; round < 2; ++round) {
      std::vector<std::unique_ptr<AllRanks>> ops;
      for (int k = 0; k < kCollectiveCount; ++k) {
        for (const std::uint64_t count : {std::uint64_t{7}, std::uint64_t{70'000}}) {
          oracle::Shape s = sum(n, count, static_cast<std::uint64_t>(k));
          s.collective = static_cast<Collective>(k);
          s.root = k % n;
          if (s.collective == Collective::kBarrier) s.count = 0;
          oracle::draw_counts(&s, is_pairwise(s.collective) ? s.count / static_cast<std::uint64_t>(n) : s.count);
          ops.push_back(std::make_unique<AllRanks>(c, s));
        }
      }
      // Several in flight; one rank comes late, so that what the others send is early.
      for (int r = 0; r < n; ++r) {
        if (r == n / 2) continue;
        for (auto& op : ops) op->submit(r);
      }
      c.run_for(20_ms);
      for (auto& op : ops) op->submit(n / 2);
      for (auto& op : ops) op->expect_exact(20_s);
      if (HasFatalFailure()) return;
    }
    EXPECT_LT(c.world(0)->entered, 100u) << "it is past the end";
  }
}

// A root whose small broadcasts are done once they are sent runs far ahead across the end, and is charged for parked
// pieces.
TEST(Numbers, ARootRunsAheadPastTheEnd) {
  Cluster c(near_the_edge(flat_cluster(2), 150));
  ASSERT_TRUE(c.join());
  std::vector<std::unique_ptr<AllRanks>> ops;
  for (std::uint64_t i = 0; i < 300; ++i) {
    ops.push_back(std::make_unique<AllRanks>(c, broadcast(2, 1000, 0, i)));
    ops.back()->submit(0);
  }
  c.run_for(500_ms);
  for (auto& op : ops) op->submit(1);
  for (auto& op : ops) op->expect_exact(2_s);
}

TEST(Numbers, GroupsCountForThemselvesPastTheEnd) {
  Cluster c(near_the_edge(flat_cluster(2, 2, 2), 3));
  ASSERT_TRUE(c.join());
  const std::vector<int> list = {3, 0, 2};
  const auto members = form_group(c, list);
  for (std::uint64_t i = 0; i < 8; ++i) {
    AllRanks op(c, sum(3, 5000 * i, i));
    for (int r = 0; r < 3; ++r) op.submit(r, members[static_cast<std::size_t>(r)]);
    op.expect_exact();
  }
}

// An operation that a rank entered before the end is not taken for one yet to come, nor the other way round.
TEST(Numbers, WhoDidNotCallIsNamedAcrossTheEnd) {
  ClusterOptions o = near_the_edge(flat_cluster(3), 2);
  o.settings.entry_limit = 1_s;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  std::vector<std::unique_ptr<AllRanks>> ops;
  for (std::uint64_t i = 0; i < 4; ++i) {
    ops.push_back(std::make_unique<AllRanks>(c, sum(3, 1000, i)));
    ops.back()->submit(0);
    ops.back()->submit(1);
    if (i < 2) ops.back()->submit(2);
  }
  ASSERT_TRUE(c.run_until([&] { return ops[3]->done(0) && ops[3]->done(1); }, 3_s));
  for (std::size_t i = 0; i < 2; ++i) ops[i]->expect_exact();
  for (const int r : {0, 1}) {
    EXPECT_EQ(ops[2]->ticket(r).code, CANARY_ENTRY_TIMEOUT);
    EXPECT_EQ(ops[2]->ticket(r).status.detail().rank, 2);
    EXPECT_NE(ops[2]->ticket(r).status.text().find(": rank 2 did not call operation #0 "), std::string::npos)
        << ops[2]->ticket(r).status.text();
  }
}

// The last operation before the end is done when the other rank's differing call comes: the call is compared with the
// record kept of it.
TEST(Numbers, ACallThatDiffersIsFoundAfterItsOperationEndedAcrossTheEnd) {
  Cluster c(near_the_edge(flat_cluster(2), 2));
  ASSERT_TRUE(c.join());
  std::vector<std::unique_ptr<AllRanks>> ops;
  for (std::uint64_t i = 0; i < 4; ++i) {
    ops.push_back(std::make_unique<AllRanks>(c, broadcast(2, 100, 0, i)));
    ops.back()->submit(0);
  }
  ASSERT_TRUE(c.run_until([&] { return ops[3]->done(0); }, 1_s));
  ops[0]->submit(1);
  AllRanks other(c, broadcast(2, 101)), next(c, sum(2, 100, 9));
  other.submit(1);
  ASSERT_TRUE(c.run_until([&] { return other.done(1); }, 1_s));
  EXPECT_EQ(other.ticket(1).code, CANARY_MISMATCH);
  c.run_for(10_ms);
  next.submit(0);
  EXPECT_EQ(next.ticket(0).code, CANARY_MISMATCH);
}

TEST(Numbers, MessagesGoOnPastTheEnd) {
  for (const int per_host : {1, 2}) {
    ClusterOptions o = near_the_edge(flat_cluster(2, 2, per_host), 10);
    o.fabric.stream = false;
    o.fabric.bad_header_resets = false;
    Cluster c(o);
    ASSERT_TRUE(c.join());
    disturb(c);
    struct Half {
      std::vector<std::byte> data;
      bool sends;
      OpTicket ticket;
    };
    std::deque<Half> halves;
    const auto post = [&](int rank, int partner, bool sends, int k) {
      Half& h = halves.emplace_back();
      h.data.assign(static_cast<std::size_t>(k * 5003 % 200'000),
                    sends ? static_cast<std::byte>(k + rank) : std::byte{});
      h.sends = sends;
      if (sends) {
        c.send(c.world(rank), partner, h.data.data(), h.data.size(), &h.ticket);
      } else {
        c.receive(c.world(rank), partner, h.data.data(), h.data.size(), &h.ticket);
      }
    };
    const int last = c.ranks() - 1;
    for (int k = 0; k < 40; ++k) {
      for (const auto& [from, to] : {std::pair{0, last}, {last, 0}, {0, 1}}) {
        if (to == 1 && last == 1) continue;
        if (k % 2 == 0) post(to, from, false, k);
        post(from, to, true, k);
        if (k % 2 != 0) c.run_for(100_us);
        if (k % 2 != 0) post(to, from, false, k);
      }
    }
    ASSERT_TRUE(c.run_until(
        [&] { return std::all_of(halves.begin(), halves.end(), [](const Half& h) { return h.ticket.done(); }); },
        20_s));
    for (const Half& h : halves) {
      ASSERT_EQ(h.ticket.code, CANARY_OK) << h.ticket.status.to_string();
      if (h.sends || h.data.empty()) continue;
      ASSERT_TRUE(std::all_of(h.data.begin(), h.data.end(), [&](std::byte b) { return b == h.data.front(); }));
      ASSERT_NE(h.data.front(), std::byte{});
    }
  }
}

}  // namespace
}  // namespace canarynet
