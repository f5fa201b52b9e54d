// Urgent operations and messages beside others, in virtual time: how long they take, how much the others lose, and that
// nobody starves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#include "sim/cluster_test_util.h"
#include "sim/endpoint_test_util.h"

namespace canarynet {
namespace {

constexpr std::uint64_t kUrgentBytes = 1 << 20;
constexpr std::uint64_t kBulkBytes = 64 << 20;

ClusterOptions two_slow_nics(int hosts, std::int64_t mbit = 200) {
  ClusterOptions o = flat_cluster(hosts, 2);
  o.fabric.nic = NicOptions::link(50_us, BytesPerSec::from_mbit(mbit));
  o.fabric.window_bytes = 16 << 20;  // as a kernel's buffers grow
  return o;
}

Nanos run(Cluster& c, std::uint64_t bytes, canary_priority priority) {
  AllRanks op(c, sum(c.ranks(), bytes / 4));
  op.set_priority(priority);
  const Nanos began = c.now();
  op.submit_all();
  op.expect_exact(60_s);
  return c.now() - began;
}

Nanos median(std::vector<Nanos> times) {
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

struct Beside {
  Nanos idle;                // how long the small one takes alone
  std::vector<Nanos> times;  // and beside the large one
  Nanos bulk_alone, bulk;    // how long the large one takes alone, and with all of them beside it
};

// Small operations of a priority, one after the other with pauses, beside a large one.
Beside beside_bulk(int hosts, canary_priority priority) {
  constexpr int kTimes = 12;
  Cluster c(two_slow_nics(hosts));
  EXPECT_TRUE(c.join());
  Beside out;
  run(c, kBulkBytes / 4, CANARY_PRIORITY_NORMAL);  // measures what the lanes carry
  std::vector<Nanos> idle;
  for (int i = 0; i < 8; ++i) idle.push_back(run(c, kUrgentBytes, CANARY_PRIORITY_NORMAL));
  out.idle = median(idle);
  out.bulk_alone = run(c, kBulkBytes, CANARY_PRIORITY_NORMAL);
  AllRanks bulk(c, sum(hosts, kBulkBytes / 4), true);
  const Nanos began = c.now();
  bulk.submit_all();
  c.run_for(200_ms);
  for (int i = 0; i < kTimes && !bulk.done(0); ++i) {
    out.times.push_back(run(c, kUrgentBytes, priority));
    c.run_for(Nanos{i * 1'700'000});  // so that each meets another moment of the others' pieces
  }
  EXPECT_TRUE(priority == CANARY_PRIORITY_NORMAL || !bulk.done(0)) << "there was nothing to be beside any more";
  bulk.expect_exact(60_s);
  out.bulk = c.now() - began;
  return out;
}

double ratio(Nanos a, Nanos b) { return a.seconds() / b.seconds(); }

void print(const char* what, const Beside& b) {
  std::printf("%s: idle %.2f ms, beside bulk first %.2f, median %.2f, worst %.2f: %.2fx; bulk %.1f ms, alone %.1f\n",
              what, b.idle.seconds() * 1e3, b.times.front().seconds() * 1e3, median(b.times).seconds() * 1e3,
              std::max_element(b.times.begin(), b.times.end())->seconds() * 1e3, ratio(median(b.times), b.idle),
              b.bulk.seconds() * 1e3, b.bulk_alone.seconds() * 1e3);
}

TEST(Priority, AnUrgentOperationTakesLittleLongerThanOnAnIdleNetwork) {
  const Beside urgent = beside_bulk(2, CANARY_PRIORITY_URGENT), normal = beside_bulk(2, CANARY_PRIORITY_NORMAL);
  print("urgent", urgent);
  print("normal", normal);
  EXPECT_LT(ratio(median(urgent.times), urgent.idle), 1.5);
  EXPECT_GT(ratio(median(normal.times), normal.idle), 2.0) << "nothing was in its way";
  // The large one pays for the bytes that went before its own, and for rounding each to whole pieces: a quarter, as
  // bench/priority.py allows. On the idle network the small ones take no longer than their bytes.
  const Nanos theirs = urgent.idle * static_cast<std::int64_t>(urgent.times.size()) * 5 / 4;
  EXPECT_LT(urgent.bulk - urgent.bulk_alone, theirs) << "the large one lost more than the others' time";
}

TEST(Priority, AnUrgentOperationOfFourHostsIsNotHeldUpEither) {
  if (quick()) GTEST_SKIP() << "as on two hosts";
  const Beside urgent = beside_bulk(4, CANARY_PRIORITY_URGENT);
  print("urgent, 4 hosts", urgent);
  EXPECT_LT(ratio(median(urgent.times), urgent.idle), 1.5);
}

// While much waits, a slow lane delivers its part of that in time, but nothing urgent.
TEST(Priority, NoUrgentPieceGoesOverASlowLaneBecauseMuchElseWaits) {
  const auto bed = [](bool with_slow_nic) {
    Cluster c(two_slow_nics(2, 1000));
    for (int h = 0; h < 2; ++h)
      c.fabric().nic(h, 1) = NicOptions::link(50_us, BytesPerSec::from_mbit(with_slow_nic ? 20 : 1000));
    EXPECT_TRUE(c.join());
    run(c, kBulkBytes / 2, CANARY_PRIORITY_NORMAL);
    AllRanks bulk(c, sum(2, kBulkBytes / 4), true);
    bulk.submit_all();
    c.run_for(50_ms);
    std::vector<Nanos> times;
    for (int i = 0; i < 4; ++i) times.push_back(run(c, 8 << 20, CANARY_PRIORITY_URGENT));
    EXPECT_FALSE(bulk.done(0));
    bulk.expect_exact(60_s);
    return median(times);
  };
  const Nanos took = bed(true);
  std::printf("8 MiB urgent beside bulk over 1000 + 20 Mbit/s: %.2f ms\n", took.seconds() * 1e3);
  EXPECT_LT(took, 100_ms) << "a gigabit takes 67 ms, 20 Mbit/s 52 for one piece";
}

TEST(Priority, UrgentOperationsWithoutEndStarveNobody) {
  Cluster c(two_slow_nics(2));
  ASSERT_TRUE(c.join());
  run(c, kBulkBytes / 4, CANARY_PRIORITY_NORMAL);
  constexpr std::uint64_t kBytes = 2 << 20;
  AllRanks bulk(c, sum(2, kBytes / 4));
  bulk.submit_all();
  std::deque<std::unique_ptr<AllRanks>> load;
  const Nanos began = c.now();
  std::uint64_t ended = 0;
  while (!bulk.all_done()) {
    while (load.size() < 4) {
      load.push_back(std::make_unique<AllRanks>(c, sum(2, (1 << 20) / 4, ended + load.size())));
      load.back()->set_priority(CANARY_PRIORITY_URGENT);
      load.back()->submit_all();
    }
    ASSERT_TRUE(c.run_until([&] { return load.front()->all_done() || bulk.all_done(); }, 5_s));
    if (load.front()->all_done()) {
      load.front()->expect_exact();
      load.pop_front();
      ++ended;
    }
    ASSERT_LT(c.now() - began, 10_s) << "the bulk operation starves";
  }
  bulk.expect_exact();
  const Nanos took = c.now() - began;
  const double share = static_cast<double>(kBytes) / (50e6 * took.seconds());
  std::printf("2 MiB beside %llu urgent operations of 1 MiB: %.0f ms, a share of %.3f\n",
              static_cast<unsigned long long>(ended), took.seconds() * 1e3, share);
  EXPECT_GT(share, 1.0 / 20);
  EXPECT_LT(share, 1.0 / 4) << "the urgent ones had too little";
  for (auto& op : load) op->expect_exact();
}

// Operations get numbers in the order of the calls, so those that wait before an urgent one enter with it.
TEST(Priority, AnUrgentOperationDoesNotWaitForTheRoomOfThoseBeforeIt) {
  Cluster c(two_slow_nics(2));
  ASSERT_TRUE(c.join());
  run(c, kBulkBytes / 4, CANARY_PRIORITY_NORMAL);
  const auto last_of = [&](int operations, canary_priority priority) {
    std::vector<std::unique_ptr<AllRanks>> before;
    for (int i = 0; i < operations; ++i) {
      before.push_back(std::make_unique<AllRanks>(c, sum(2, (256 << 10) / 4, static_cast<std::uint64_t>(i))));
      before.back()->submit_all();
    }
    const Nanos took = run(c, 64 << 10, priority);
    EXPECT_TRUE(priority == CANARY_PRIORITY_NORMAL || !before[static_cast<std::size_t>(operations) / 2]->done(0));
    for (auto& op : before) op->expect_exact();
    return took;
  };
  const Nanos normal = last_of(120, CANARY_PRIORITY_NORMAL), urgent = last_of(120, CANARY_PRIORITY_URGENT);
  std::printf("behind 120 operations of 256 KiB: urgent %.1f ms, normal %.1f ms\n", urgent.seconds() * 1e3,
              normal.seconds() * 1e3);
  EXPECT_LT(urgent, 60_ms);
  EXPECT_GT(normal, 500_ms);
  // Beyond as many again an urgent one has to wait: memory for operations in flight is bounded.
  EXPECT_GT(last_of(200, CANARY_PRIORITY_URGENT), urgent * 2);
}

TEST(Priority, AnUrgentMessageOvertakesItsConnectionsOthersAndThoseBesideIt) {
  Net net(2, 2);
  Pair pair(net);
  pair.open(2);
  Connection &a = *pair.connecting[0], &b = *pair.connecting[1];
  for (auto& end : pair.accepted) pair.receive(*end, 16 << 20);
  Half &large = pair.send(a, 16 << 20, 1), &beside = pair.send(b, 16 << 20, 1);
  net.pass(5_ms);
  pair.priority = CANARY_PRIORITY_URGENT;
  for (auto& end : pair.accepted) pair.receive(*end, 200'000);
  Half &first = pair.send(a, 200'000, 2), &second = pair.send(b, 200'000, 2);
  ASSERT_TRUE(net.until([&] { return first.ticket.done() && second.ticket.done(); }, 15_ms));
  EXPECT_FALSE(large.ticket.done() || beside.ticket.done());
  pair.expect_all(5_s);
}

// A grouped receive takes messages of one tag in their order.
TEST(Priority, AnUrgentMessageStaysBehindThoseOfItsTag) {
  Net net(2, 2);
  Pair pair(net);
  pair.open();
  Connection& c = *pair.connecting[0];
  pair.receive_group(*pair.accepted[0], {{8 << 20, 7}, {8 << 20, 7}, {300'000, 7}, {300'000, 9}});
  pair.send(c, 8 << 20, 7);
  Half& before = pair.send(c, 8 << 20, 7);
  net.pass(1_ms);
  pair.priority = CANARY_PRIORITY_URGENT;
  Half &same = pair.send(c, 300'000, 7), &other = pair.send(c, 300'000, 9);
  ASSERT_TRUE(net.until([&] { return other.ticket.done(); }, 15_ms));
  EXPECT_FALSE(before.ticket.done() || same.ticket.done());
  ASSERT_TRUE(net.until([&] { return before.ticket.done() || same.ticket.done(); }, 5_s));
  EXPECT_TRUE(before.ticket.done()) << "the one sent last went first";
  pair.expect_all(5_s);
}

TEST(Priority, RanksMayDisagreeOnIt) {
  for (const int urgent_rank : {0, 1, 2}) {
    Cluster c(two_slow_nics(3));
    ASSERT_TRUE(c.join());
    AllRanks bulk(c, sum(3, (8 << 20) / 4)), mixed(c, sum(3, kUrgentBytes / 4, 7));
    bulk.submit_all();
    c.run_for(5_ms);
    for (int r = 0; r < 3; ++r) {
      mixed.set_priority(r == urgent_rank ? CANARY_PRIORITY_URGENT : CANARY_PRIORITY_NORMAL);
      mixed.submit(r);
    }
    mixed.expect_exact();
    bulk.expect_exact();
  }
}

TEST(Priority, LocalRanksShareAnEngineAndEachHasItsOwn) {
  ClusterOptions o = two_slow_nics(2);
  o.ranks_per_host = 2;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  AllRanks bulk(c, sum(4, (16 << 20) / 4));
  bulk.submit_all();
  c.run_for(20_ms);
  run(c, kUrgentBytes, CANARY_PRIORITY_URGENT);
  EXPECT_FALSE(bulk.done(0));
  bulk.expect_exact();
}

}  // namespace
}  // namespace canarynet
