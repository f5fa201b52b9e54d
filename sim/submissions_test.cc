// What happens between a call and its operation: queues per member, limits that reach what waits, verdicts, numbers.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

using Row = std::vector<std::unique_ptr<AllRanks>>;

Row row(Cluster& c, int ranks, int operations, std::uint64_t salt = 0) {
  Row ops;
  for (int i = 0; i < operations; ++i)
    ops.push_back(std::make_unique<AllRanks>(
        c, sum(ranks, 1 + static_cast<std::uint64_t>(i * 13 % 700), salt + static_cast<std::uint64_t>(i))));
  return ops;
}

void set_deadline(Cluster& c, int rank, OpTicket& ticket, Nanos limit) {
  Submission s;
  s.kind = Submission::Kind::kDeadline;
  s.member = c.world(rank);
  s.ticket = &ticket;
  s.generation = ticket.generation;
  s.time_limit = limit;
  c.submit(rank, std::move(s));
}

// More than are in flight at once (64), for one rank before its neighbour in the same engine has called the first.
TEST(Submissions, ARankThatRunsAheadHoldsBackNoneOfItsNeighbours) {
  for (const int hosts : {1, 2}) {
    Cluster c(flat_cluster(hosts, 1, 3));
    ASSERT_TRUE(c.join());
    const int ranks = 3 * hosts;
    const Row ops = row(c, ranks, 200);
    for (int r = 0; r < ranks; ++r) {
      for (auto& op : ops) op->submit(r);
      c.run_for(1_ms);
    }
    for (auto& op : ops) op->expect_exact(5_s);
  }
}

TEST(Submissions, TwoGroupsMayBeCalledInCrossedOrdersByNeighbours) {
  Cluster c(flat_cluster(2, 1, 2));
  ASSERT_TRUE(c.join());
  const std::vector<int> all = {0, 1, 2, 3};
  const auto members = form_group(c, all);
  const Row world = row(c, 4, 100), other = row(c, 4, 100, 1000);
  for (const int r : all) {
    GroupMember* m = members[static_cast<std::size_t>(r)];
    for (int half = 0; half < 2; ++half) {
      if ((r + half) % 2 == 0) {
        for (auto& op : world) op->submit(r);
      } else {
        for (auto& op : other) op->submit(r, m);
      }
    }
  }
  for (auto& op : world) op->expect_exact(5_s);
  for (auto& op : other) op->expect_exact(5_s);
}

TEST(Submissions, ACallersDeadlineReachesAnOperationThatWaitsForASlot) {
  ClusterOptions o = flat_cluster(2);
  o.settings.ops_in_flight = 2;
  for (const bool at_the_call : {false, true}) {
    Cluster c(o);
    ASSERT_TRUE(c.join());
    const Row ops = row(c, 2, 6);
    for (std::size_t i = 0; i < 6; ++i) {
      if (at_the_call && i == 4) ops[i]->set_time_limit(300_ms);
      ops[i]->submit(0);
    }
    if (!at_the_call) set_deadline(c, 0, ops[4]->ticket(0), 300_ms);
    c.run_for(250_ms);
    EXPECT_FALSE(ops[0]->done(0));
    ASSERT_TRUE(c.run_until([&] { return ops[5]->done(0); }, 200_ms));
    for (std::size_t i = 0; i < 6; ++i) {
      const OpTicket& t = ops[i]->ticket(0);
      EXPECT_EQ(t.code, CANARY_DEADLINE);
      EXPECT_EQ(t.number, i + 1) << "numbers are given in the order of the calls, also to those that never ran";
      EXPECT_NE(t.status.text().find("#" + std::to_string(i + 1) + ":"), std::string::npos) << t.status.text();
      EXPECT_NE(t.status.text().find("operation #5"), std::string::npos) << t.status.text();
    }
  }
}

TEST(Submissions, AVerdictEndsWhatWaits) {
  ClusterOptions o = flat_cluster(2);
  o.settings.ops_in_flight = 2;
  o.settings.entry_limit = 1_s;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  const Row ops = row(c, 2, 9);
  for (auto& op : ops) op->submit(0);
  ASSERT_TRUE(c.run_until([&] { return ops[8]->done(0); }, 2_s));
  for (auto& op : ops) {
    EXPECT_EQ(op->ticket(0).code, CANARY_ENTRY_TIMEOUT);
    EXPECT_EQ(op->ticket(0).status.detail().rank, 1);
  }
}

// The time in which the neighbour had not called is not counted twice, nor against anybody else.
TEST(Submissions, TheEntryLimitOfWhatWaitsBeginsWhenItsTurnHasCome) {
  ClusterOptions o = flat_cluster(1, 1, 2);
  o.settings.ops_in_flight = 2;
  o.settings.entry_limit = 1_s;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  const Row ops = row(c, 2, 10);
  for (auto& op : ops) op->submit(0);
  for (auto& op : ops) {
    c.run_for(400_ms);
    op->submit(1);
  }
  for (auto& op : ops) op->expect_exact(1_s);
}

TEST(Submissions, AFullQueueIsItsOwnMembersMatter) {
  ClusterOptions o = flat_cluster(1, 1, 2);
  o.settings.ops_in_flight = 2;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  const auto pair = form_group(c, {0, 1});
  const auto barrier = [](GroupMember* m, OpTicket* t) {
    Submission s;
    s.member = m;
    s.request.collective = Collective::kBarrier;
    s.ticket = t;
    return s;
  };
  std::vector<std::unique_ptr<OpTicket>> mine;
  while (!c.world(0)->full()) {
    mine.push_back(std::make_unique<OpTicket>());
    ASSERT_TRUE(c.engine(0).submit(barrier(c.world(0), mine.back().get())));
    c.engine(0).poll(c.now());
  }
  EXPECT_EQ(mine.size(), GroupMember::kSubmittedMax + 2);
  OpTicket refused;
  EXPECT_FALSE(c.engine(0).submit(barrier(c.world(0), &refused)));
  EXPECT_TRUE(c.world(0)->pending());
  OpTicket beside[2];
  for (std::size_t i = 0; i < 2; ++i) ASSERT_TRUE(c.engine(0).submit(barrier(pair[i], &beside[i])));
  c.engine(0).poll(c.now());
  EXPECT_TRUE(beside[0].done() && beside[1].done()) << "another group's";
  // Nor is a deadline or an abort ever refused for it.
  ASSERT_TRUE(c.engine(0).submit(abort_of(c.world(0), "enough")));
  c.engine(0).poll(c.now());
  for (const auto& t : mine) EXPECT_EQ(t->code, CANARY_ABORTED);
  EXPECT_FALSE(c.world(0)->pending());
  EXPECT_FALSE(c.world(0)->full());
}

TEST(Submissions, ACycleEntersABoundedNumber) {
  Cluster c(flat_cluster(1, 1, 1));
  ASSERT_TRUE(c.join());
  std::vector<std::unique_ptr<OpTicket>> tickets;
  for (int i = 0; i < 1000; ++i) {
    tickets.push_back(std::make_unique<OpTicket>());
    Submission s;
    s.member = c.world(0);
    s.request.collective = Collective::kBarrier;
    s.ticket = tickets.back().get();
    ASSERT_TRUE(c.engine(0).submit(std::move(s)));
  }
  const auto done = [&] { return std::count_if(tickets.begin(), tickets.end(), [](auto& t) { return t->done(); }); };
  std::ptrdiff_t before = 0;
  for (int cycles = 0; done() < 1000; ++cycles) {
    ASSERT_LT(cycles, 100);
    c.engine(0).poll(c.now());
    EXPECT_LE(done() - before, 128);
    before = done();
    if (before == 1000) break;
    ASSERT_EQ(c.engine(0).next_deadline().count, 0) << "what is left over is due at once";
  }
}

// Tickets are used again: a deadline that comes late is meant for the operation that is gone.
TEST(Submissions, ALateDeadlineDoesNotHitTheNextUseOfItsTicket) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  float value = 1;
  OpTicket mine, theirs;
  c.all_reduce(0, &value, &value, 1, CANARY_F32, CANARY_SUM, &mine);
  Submission late;
  late.kind = Submission::Kind::kDeadline;
  late.member = c.world(0);
  late.ticket = &mine;
  late.generation = mine.generation;
  late.time_limit = 100_ms;
  float other = 1;
  c.all_reduce(1, &other, &other, 1, CANARY_F32, CANARY_SUM, &theirs);
  ASSERT_TRUE(c.run_until([&] { return mine.done() && theirs.done(); }, 1_s));
  mine.reset();
  theirs.reset();
  c.all_reduce(0, &value, &value, 1, CANARY_F32, CANARY_SUM, &mine);
  c.submit(0, std::move(late));
  c.run_for(500_ms);
  EXPECT_FALSE(mine.done()) << mine.status.to_string();
  c.all_reduce(1, &other, &other, 1, CANARY_F32, CANARY_SUM, &theirs);
  ASSERT_TRUE(c.run_until([&] { return mine.done() && theirs.done(); }, 1_s));
  EXPECT_EQ(mine.code, CANARY_OK);
  // A message's ticket likewise.
  std::byte byte{};
  MessageRequest r;
  r.data = &byte;
  r.bytes = 1;
  r.member = c.world(0);
  r.partner = 1;
  r.ticket = &mine;
  Submission late_again;
  late_again.kind = Submission::Kind::kDeadline;
  late_again.member = c.world(0);
  late_again.ticket = &mine;
  late_again.generation = mine.generation;
  late_again.time_limit = 100_ms;
  mine.reset();
  c.submit(0, &r);
  c.submit(0, std::move(late_again));
  c.run_for(500_ms);
  EXPECT_FALSE(mine.done()) << mine.status.to_string();
}

}  // namespace
}  // namespace canarynet
