// The way from a call to its operation: queues per member, limits that reach waiting commands, verdicts, numbers.
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

// One rank calls more than may be in flight at once (64) before its neighbour in the same engine has called the first.
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

TEST(Submissions, ACallersDeadlineReachesAnOperationThatWaitsForRoom) {
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
    if (!at_the_call) c.set_deadline(c.world(0), &ops[4]->ticket(0), 300_ms);
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

// The time before the neighbour's call is not counted twice, nor against anybody else.
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
  const auto barrier = [&](GroupMember* m, OpTicket* t) { return c.engine(0).submit(c.operation(m, {}, t)).code(); };
  std::vector<std::unique_ptr<OpTicket>> mine;
  while (!c.engine(0).full(c.world(0)->id)) {
    mine.push_back(std::make_unique<OpTicket>());
    ASSERT_EQ(barrier(c.world(0), mine.back().get()), CANARY_OK);
    c.engine(0).poll(c.now());
  }
  EXPECT_EQ(mine.size(), GroupMember::kWaitingMax + 2);
  OpTicket refused;
  EXPECT_EQ(barrier(c.world(0), &refused), CANARY_WOULD_BLOCK);
  EXPECT_TRUE(c.world(0)->pending());
  OpTicket beside[2];
  for (std::size_t i = 0; i < 2; ++i) ASSERT_EQ(barrier(pair[i], &beside[i]), CANARY_OK);
  c.engine(0).poll(c.now());
  EXPECT_TRUE(beside[0].done() && beside[1].done()) << "another group's";
  // A deadline or an abort is never refused for lack of room either.
  ASSERT_TRUE(c.engine(0).submit(port::abort(c.world(0)->id, "enough")).ok());
  c.engine(0).poll(c.now());
  for (const auto& t : mine) EXPECT_EQ(t->code, CANARY_ABORTED);
  EXPECT_FALSE(c.world(0)->pending());
  EXPECT_FALSE(c.engine(0).full(c.world(0)->id));
}

TEST(Submissions, ACycleEntersABoundedNumber) {
  Cluster c(flat_cluster(1, 1, 1));
  ASSERT_TRUE(c.join());
  std::vector<std::unique_ptr<OpTicket>> tickets;
  for (int i = 0; i < 1000; ++i) {
    tickets.push_back(std::make_unique<OpTicket>());
    ASSERT_TRUE(c.engine(0).submit(c.operation(c.world(0), {}, tickets.back().get())).ok());
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

// The deadline is read first, and the engine may not have seen the operation by then.
TEST(Submissions, ADeadlineReachesTheOperationThatItOvertakes) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  float value = 1;
  OpTicket ticket;
  const OpRequest sum{Collective::kAllReduce, &value, &value, 1, CANARY_F32};
  ASSERT_TRUE(c.engine(0).submit(c.operation(c.world(0), sum, &ticket)).ok());
  c.set_deadline(c.world(0), &ticket, 100_ms);
  c.run_for(90_ms);
  EXPECT_FALSE(ticket.done());
  ASSERT_TRUE(c.run_until([&] { return ticket.done(); }, 100_ms));
  EXPECT_EQ(ticket.code, CANARY_DEADLINE);
}

TEST(Submissions, TheEngineTakesNoCommandThatMakesNoSense) {
  Cluster c(flat_cluster(1));
  ASSERT_TRUE(c.join());
  OpTicket ticket;
  port::Command barrier = c.operation(c.world(0), {}, &ticket);
  barrier.type = 99;
  const Status status = c.engine(0).submit(barrier);
  EXPECT_EQ(status.code(), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(status.text(), "barrier: type 99 is not a canary_type");
  barrier.type = CANARY_U8;
  ++barrier.ticket.use;
  EXPECT_NE(c.engine(0).submit(barrier).text().find("nobody waits for ticket"), std::string::npos);
  c.engine(0).poll(c.now());
  EXPECT_FALSE(ticket.done());
  EXPECT_FALSE(c.world(0)->pending());
}

// The next group's members take the places of those that have gone, but not their numbers.
TEST(Submissions, ANumberEndsWithItsGroup) {
  Cluster c(flat_cluster(1));
  ASSERT_TRUE(c.join());
  const port::MemberId old = form_group(c, {0}).front()->id;
  OpTicket ticket;
  const port::Command late = c.operation(c.engine(0).member(old), {}, &ticket);
  ASSERT_TRUE(c.engine(0).forget(old));
  c.engine(0).poll(c.now());
  GroupMember* const next = form_group(c, {0}).front();
  ASSERT_EQ(next->id.place, old.place);
  EXPECT_EQ(c.engine(0).member(old), nullptr);
  EXPECT_EQ(c.engine(0).submit(late).text(), "barrier: its group has been destroyed");
  ASSERT_TRUE(c.engine(0).submit(port::deadline(old, c.id(next, &ticket), 0_ns)).ok()) << "of nothing";
  c.run_for(10_ms);
  EXPECT_FALSE(next->group->dead);
}

// Tickets are used again: a deadline that comes late is meant for the operation that is gone.
TEST(Submissions, ALateDeadlineDoesNotHitTheNextUseOfItsTicket) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  float value = 1;
  OpTicket mine, theirs;
  c.all_reduce(0, &value, &value, 1, CANARY_F32, CANARY_SUM, &mine);
  const auto deadline = [&] { return port::deadline(c.world(0)->id, c.id(c.world(0), &mine), 100_ms); };
  const port::Command late = deadline();
  float other = 1;
  c.all_reduce(1, &other, &other, 1, CANARY_F32, CANARY_SUM, &theirs);
  ASSERT_TRUE(c.run_until([&] { return mine.done() && theirs.done(); }, 1_s));
  mine.reset();
  theirs.reset();
  c.all_reduce(0, &value, &value, 1, CANARY_F32, CANARY_SUM, &mine);
  c.submit(0, late);
  c.run_for(500_ms);
  EXPECT_FALSE(mine.done()) << mine.status.to_string();
  c.all_reduce(1, &other, &other, 1, CANARY_F32, CANARY_SUM, &theirs);
  ASSERT_TRUE(c.run_until([&] { return mine.done() && theirs.done(); }, 1_s));
  EXPECT_EQ(mine.code, CANARY_OK);
  // The same holds for a message's ticket.
  std::byte byte{};
  const port::Command late_again = deadline();
  mine.reset();
  c.receive(c.world(0), 1, &byte, 1, &mine);
  c.submit(0, late_again);
  c.run_for(500_ms);
  EXPECT_FALSE(mine.done()) << mine.status.to_string();
}

}  // namespace
}  // namespace canarynet
