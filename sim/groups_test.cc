// Groups come and go: frames that are left behind or come late for one, and frames that come early for the next.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <span>
#include <vector>

#include "sim/child_test_util.h"
#include "sim/cluster_test_util.h"
#include "sim/forger_test_util.h"

namespace canarynet {
namespace {

void submit_all(AllRanks& op, const std::vector<GroupMember*>& members) {
  for (std::size_t i = 0; i < members.size(); ++i) op.submit(static_cast<int>(i), members[i]);
}

void destroy(Cluster& c, const std::vector<GroupMember*>& members) {
  for (GroupMember* m : members) ASSERT_TRUE(c.engine(c.host_of(m->world_rank)).forget(m->id));
}

#if defined(__SANITIZE_ADDRESS__) || !defined(__GLIBC__)
std::size_t memory_in_use() { return 0; }
#else
std::size_t memory_in_use() { return mallinfo2().uordblks + mallinfo2().hblkhd; }
#endif

TEST(Groups, TenThousandMadeAndDestroyedLeaveNothing) {
  Cluster c(flat_cluster(3, 1, 2));
  ASSERT_TRUE(c.join());
  const std::vector<std::vector<int>> lists = {{0, 1, 2, 3, 4, 5}, {5, 0, 2}, {1, 3}, {0, 1}};
  std::size_t before = 0;
  for (int i = 0; i < (quick() ? 2'000 : 10'000); ++i) {
    const auto& list = lists[static_cast<std::size_t>(i) % lists.size()];
    const auto members = form_group(c, list);
    if (i % 10 < 4) {
      AllRanks op(c, sum(static_cast<int>(list.size()), 100));
      submit_all(op, members);
      op.expect_exact();
    }
    destroy(c, members);
    if (HasFailure()) FAIL() << "group " << i;
    if (i == 1000) before = memory_in_use();
  }
  c.run_for(1_s);
  EXPECT_LT(memory_in_use(), before + 256 * 1024);
}

// Two engines that run all-reduces of one piece, of which `groups` x 64 are in flight at once.
class ManyInFlight {
 public:
  explicit ManyInFlight(std::size_t groups) : cluster_(options()) {
    EXPECT_TRUE(cluster_.join());
    for (std::size_t g = 0; g < groups; ++g) members_.push_back(form_group(cluster_, {0, 1}));
    seconds_of(1);  // compiles programs and lets pools reach their size
  }
  // CPU time of so many of them, or a few more.
  double seconds_of(std::size_t total) {
    const std::clock_t began = std::clock();
    for (std::size_t done = 0; done < total; done += members_.size() * kInFlight) round();
    return static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
  }

 private:
  static constexpr std::size_t kInFlight = 64;
  static ClusterOptions options() {
    ClusterOptions o = flat_cluster(2);
    o.settings.ops_in_flight = kInFlight;
    return o;
  }
  void round() {
    std::vector<OpTicket> tickets(2 * members_.size() * kInFlight);
    std::size_t next = 0;
    for (std::size_t i = 0; i < kInFlight; ++i) {
      for (const auto& pair : members_) {
        for (std::size_t r = 0; r < 2; ++r) {
          cluster_.submit(pair[r],
                          {.collective = Collective::kAllReduce,
                           .input = buffer_.data(),
                           .output = buffer_.data(),
                           .count = buffer_.size(),
                           .type = CANARY_U8,
                           .redop = CANARY_MAX},
                          &tickets[next++]);
        }
      }
    }
    std::size_t done = 0;  // the test looks at them in order, so that its own part stays small
    EXPECT_TRUE(cluster_.run_until(
        [&] {
          while (done != tickets.size() && tickets[done].done()) ++done;
          return done == tickets.size();
        },
        60_s));
  }

  Cluster cluster_;
  std::vector<std::vector<GroupMember*>> members_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(16384);
};

// How many times as long an operation takes of 64 groups.
double price_of_many_groups() {
  constexpr std::size_t kTotal = 4096;
  ManyInFlight one_group(1), many_groups(64);
  double one = 1e9, many = 1e9;
  // Short turns find the moments in which nobody else uses the cache.
  for (int i = 0; i < 12; ++i) {
    one = std::min(one, one_group.seconds_of(kTotal));
    many = std::min(many, many_groups.seconds_of(kTotal));
  }
  std::printf("%.1f us per operation of one group with 64 in flight, %.1f us of 64 groups: %.2f\n", one / kTotal * 1e6,
              many / kTotal * 1e6, many / one);
  std::fflush(stdout);
  return many / one;
}

TEST(Groups, APieceAmongFourThousandOperationsCostsHardlyMore) {
  if (quick()) GTEST_SKIP() << "CANARY_TEST_QUICK: what it costs is of interest where the code is optimised";
  // The ratio should be 1.2, and is 1.3 on a quiet machine; a loaded one adds some. A look at everything in flight
  // would make it four times one group's.
  constexpr double kMost = 1.6;
  // Four thousand operations don't fit into a cache: beside others, or where their memory lies badly, they take half as
  // long again. Then the best of more processes tells; twice the bound is nothing of that kind.
  double price = in_a_child(price_of_many_groups);
  for (int i = 0; i < 11 && price >= kMost && price < 2 * kMost; ++i)
    price = std::min(price, in_a_child(price_of_many_groups));
  EXPECT_LT(price, kMost);
}

// Nothing proves the death of a machine that is gone: its silence must suffice, also for the coordinator's desk.
TEST(Groups, WhoseMemberFellSilentAreNotWaitedFor) {
  for (const int silent : {0, 2}) {
    OpTicket before[3], after[3];
    Cluster c(impatient(flat_cluster(3)));
    ASSERT_TRUE(c.join());
    for (int r = 0; r < 3; ++r) {
      if (r != silent) ask_for_group(c, r, {0, 1, 2}, &before[r]);
    }
    c.kill(silent, CrashKind::kSilent);
    c.run_for(3_s);
    for (int r = 0; r < 3; ++r) {
      if (r == silent) continue;
      ask_for_group(c, r, {0, 1, 2}, &after[r]);
      c.run_for(10_ms);
      for (const OpTicket* t : {&before[r], &after[r]}) {
        ASSERT_TRUE(t->done()) << "rank " << r << " waits for rank " << silent;
        EXPECT_EQ(t->code, CANARY_PEER_SILENT) << t->status.to_string();
        EXPECT_EQ(t->status.detail().rank, silent) << t->status.to_string();
      }
    }
  }
}

TEST(Groups, OneThatIsFormedAfterAllTellsWhatWasMetByTheRankThatWasLost) {
  // Rank 2 stands still until it is given up, and asks when it goes on.
  OpTicket created[3];
  Cluster c(impatient(flat_cluster(3)));
  ASSERT_TRUE(c.join());
  const auto request = [&](int rank) { ask_for_group(c, rank, {0, 1, 2}, &created[rank]); };
  request(0);
  request(1);
  c.fabric().freeze(2);
  c.run_for(3_s);
  for (const int r : {0, 1}) EXPECT_EQ(created[r].code, CANARY_PEER_SILENT) << created[r].status.to_string();
  c.fabric().thaw(2);
  request(2);
  c.run_for(100_ms);
  ASSERT_TRUE(created[2].done());
  EXPECT_EQ(created[2].code, CANARY_PEER_SILENT) << created[2].status.to_string();
  EXPECT_EQ(created[2].status.detail().rank, 2) << created[2].status.to_string();
}

TEST(Groups, ADestroyedGroupIsKnownByNobodyAndWhatComesLateIsForgotten) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  const auto members = form_group(c, {0, 1});
  AllRanks op(c, sum(2, 100));
  submit_all(op, members);
  op.expect_exact();
  wire::Header h;
  h.flow = members[0]->group->flow;
  h.epoch = members[0]->group->epoch;
  h.op = 1;
  h.signature = signature_hash(members[0]->history[1]);
  h.source = 1;
  h.payload_bytes = 4096;
  wire::SignaturePayload signature = members[0]->history[1];
  destroy(c, members);
  c.run_for(10_ms);
  Forger forger(c);
  const std::vector<std::byte> garbage(4096);
  for (std::uint32_t i = 0; i < 3000; ++i) {  // far more than would find room where early ones wait
    h.op = 1 + i % 3;
    h.piece = i;
    ASSERT_EQ(c.engine(0).mux(1)->landing_for(forger.channel, h).kind, Landing::Kind::kDiscard);
    ASSERT_TRUE(forger.send(h, garbage.data())) << "or it would come again and again";
    wire::Header s = h;
    s.kind = wire::Kind::kSignature;
    s.payload_bytes = sizeof signature;
    ASSERT_TRUE(forger.send(s, &signature));
    wire::Header m = h;
    m.flow |= wire::kMessageFlow;
    wire::set_message_length(&m, m.payload_bytes, CANARY_U8);
    m.piece = 0;
    m.op = i;
    ASSERT_TRUE(forger.send(m, garbage.data()));
  }
  // Frames that are really early find room.
  AllRanks next(c, sum(2, 1000));
  next.submit(1);
  c.run_for(5_ms);
  next.submit(0);
  next.expect_exact();
  EXPECT_EQ(c.engine(1).rail_stats(0).retransmits + c.engine(1).rail_stats(1).retransmits, 0u);
}

// Rank 2's engine is the last to hear of the group; frames that the others send meanwhile wait for it.
TEST(Groups, WhatComesBeforeTheGroupIsKnownWaitsForIt) {
  for (const int per_host : {1, 2}) {
    ClusterOptions o = flat_cluster(3, 2, per_host);
    Cluster c(o);
    ASSERT_TRUE(c.join());
    std::vector<int> list;
    for (int r = 0; r < c.ranks(); ++r) list.push_back(r);
    Tickets tickets;
    for (const int rank : list) {
      tickets.push_back(std::make_unique<OpTicket>());
      ask_for_group(c, rank, list, tickets.back().get());
      if (rank == c.ranks() - 2) {
        c.run_for(1_ms);
        c.fabric().block(0, 2, kBlockControl, false);  // the answer comes late
      }
    }
    const auto member = [&](int r) {
      return c.engine(c.host_of(r)).member(tickets[static_cast<std::size_t>(r)]->member);
    };
    const int late = 2 * per_host;
    ASSERT_TRUE(
        c.run_until([&] { return tickets[0]->done() && tickets[static_cast<std::size_t>(late - 1)]->done(); }, 1_s));
    ASSERT_FALSE(tickets[static_cast<std::size_t>(late)]->done());
    AllRanks op(c, sum(c.ranks(), 5000));
    for (int r = 0; r < late; ++r) op.submit(r, member(r));
    std::vector<std::byte> sent(1000, std::byte{7}), received(1000);
    OpTicket sends, receives;
    c.send(member(0), late, sent.data(), 1000, &sends);
    c.run_for(20_ms);
    c.fabric().unblock(0, 2, kBlockControl, false);
    ASSERT_TRUE(c.run_until([&] { return all_done(tickets); }, 3_s));
    for (int r = late; r < c.ranks(); ++r) op.submit(r, member(r));
    op.expect_exact();
    c.receive(member(late), 0, received.data(), 1000, &receives);
    ASSERT_TRUE(c.run_until([&] { return sends.done() && receives.done(); }, 1_s));
    EXPECT_EQ(receives.code, CANARY_OK);
    EXPECT_EQ(received, sent);
  }
}

TEST(Groups, ARankMayDestroyItsPartWhileOthersAreStillAtWork) {
  ClusterOptions o = flat_cluster(2, 2, 2);
  o.settings.entry_limit = 2_s;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  const auto members = form_group(c, {0, 1, 2, 3});
  // Small broadcasts are done at the root once they are sent.
  std::vector<std::unique_ptr<AllRanks>> ops;
  for (std::uint64_t i = 0; i < 5; ++i) {
    ops.push_back(std::make_unique<AllRanks>(c, broadcast(4, 300, 1, i)));
    for (const int r : {0, 1}) ops.back()->submit(r, members[static_cast<std::size_t>(r)]);
  }
  ASSERT_TRUE(c.run_until([&] { return ops.back()->done(0) && ops.back()->done(1); }, 1_s));
  ASSERT_TRUE(c.engine(0).forget(members[1]->id));
  ASSERT_TRUE(c.engine(0).forget(members[0]->id));
  c.run_for(1_s);
  for (auto& op : ops) op->submit(2, members[2]);
  c.run_for(1_s);
  for (auto& op : ops) op->submit(3, members[3]);
  for (auto& op : ops) op->expect_exact(1_s);
  ASSERT_TRUE(c.engine(1).forget(members[2]->id));
  // The world goes on, with all of its eager budget.
  for (std::uint64_t i = 0; i < 300; ++i) {
    AllRanks op(c, broadcast(4, 1000, 0, i));
    op.submit_all();
    op.expect_exact();
  }
}

TEST(Groups, AMemberWithSomethingPendingIsNotForgotten) {
  ClusterOptions o = flat_cluster(2);
  o.settings.ops_in_flight = 1;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  const auto members = form_group(c, {0, 1});
  AllRanks a(c, sum(2, 100)), b(c, sum(2, 100));
  a.submit(0, members[0]);
  b.submit(0, members[0]);
  EXPECT_FALSE(c.engine(0).forget(members[0]->id));
  // Commands still in the ring count as well, and an abort there is obeyed first.
  ASSERT_TRUE(c.engine(0).submit(port::abort(members[0]->id, "enough")).ok());
  EXPECT_TRUE(c.engine(0).forget(members[0]->id));
  EXPECT_EQ(a.ticket(0).code, CANARY_ABORTED);
  EXPECT_EQ(b.ticket(0).code, CANARY_ABORTED);
  c.run_for(1_ms);  // the member is freed, and must be in no list any more
}

TEST(Groups, EveryGroupOfEveryJobHasAnEpochOfItsOwn) {
  std::vector<std::uint32_t> epochs;
  for (const std::uint64_t seed : {1, 2}) {
    ClusterOptions o = flat_cluster(2);
    o.fabric.seed = seed;
    Cluster c(o);
    ASSERT_TRUE(c.join());
    for (int i = 0; i < 2; ++i) {
      const auto members = form_group(c, {0, 1});
      epochs.push_back(members[0]->group->epoch);
      EXPECT_EQ(members[1]->group->epoch, epochs.back()) << "members agree";
    }
    epochs.push_back(c.world(0)->group->epoch);
  }
  std::sort(epochs.begin(), epochs.end());
  EXPECT_NE(epochs.front(), 0u);
  EXPECT_EQ(std::unique(epochs.begin(), epochs.end()), epochs.end());
}

// One test for every place that looks at the epoch: the frame is acknowledged, so that it does not come again, and
// forgotten.
TEST(Groups, FramesOfAnotherEpochChangeNothing) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  AllRanks first(c, sum(2, 1000));
  first.submit_all();
  first.expect_exact();
  const Group& group = *c.world(0)->group;
  AllRanks op(c, sum(2, 1000, 2));
  op.submit(0);
  std::vector<std::byte> received(1000);
  OpTicket receives, sends;
  c.receive(c.world(0), 1, received.data(), 1000, &receives);
  Forger forger(c);
  const std::vector<std::byte> garbage(4096, std::byte{0x42});
  wire::Header h;
  h.flow = group.flow;
  h.epoch = group.epoch + 1;
  h.op = 2;
  h.source = 1;
  h.signature = signature_hash(c.world(0)->history[2]);
  for (const std::uint32_t bytes : {1000u, 2000u, 4000u}) {
    h.payload_bytes = bytes;
    for (h.step = 0; h.step < 8; ++h.step) EXPECT_TRUE(forger.send(h, garbage.data()));
  }
  h.step = 0;
  h.op = 3;  // nor is it kept for an operation to come
  EXPECT_EQ(c.engine(0).mux(1)->landing_for(forger.channel, h).kind, Landing::Kind::kDiscard);
  EXPECT_TRUE(forger.send(h, garbage.data()));
  wire::Header s = h;
  s.kind = wire::Kind::kSignature;
  s.op = 2;
  wire::SignaturePayload other = c.world(0)->history[2];
  other.world_rank = 1;
  other.count = 999;
  s.payload_bytes = sizeof other;
  EXPECT_TRUE(forger.send(s, &other));
  EXPECT_FALSE(group.dead) << "by its arguments";
  EXPECT_EQ(group.entered[1], 1u);
  wire::Header beat = h;
  beat.kind = wire::Kind::kHeartbeat;
  beat.op = 100;
  c.engine(0).mux(1)->on_heartbeat(forger.channel, beat);
  EXPECT_EQ(group.entered[1], 1u);
  wire::AbortPayload abort;
  abort.code = CANARY_ABORTED;
  wire::Header a = h;
  a.kind = wire::Kind::kAbort;
  a.payload_bytes = sizeof abort;
  c.engine(0).mux(1)->on_abort(forger.channel, a, {abort, ""});
  EXPECT_FALSE(group.dead) << "by an abort on a lane";
  Verdict v;
  v.flow = group.flow;
  v.epoch = group.epoch + 1;
  c.engine(0).on_verdict(v);
  EXPECT_FALSE(group.dead) << "by a verdict over control";
  wire::Header m = h;
  m.flow |= wire::kMessageFlow;
  m.op = 1;
  m.payload_bytes = 1000;
  wire::set_message_length(&m, 1000, CANARY_U8);
  EXPECT_TRUE(forger.send(m, garbage.data()));
  EXPECT_FALSE(receives.done());
  EXPECT_EQ(received.front(), std::byte{});
  op.submit(1);
  op.expect_exact();
  std::vector<std::byte> sent(1000, std::byte{7});
  c.send(c.world(1), 0, sent.data(), 1000, &sends);
  ASSERT_TRUE(c.run_until([&] { return sends.done() && receives.done(); }, 1_s));
  EXPECT_EQ(received, sent);
}

TEST(Groups, WhatCameEarlyWithAnotherEpochIsNotTheGroupsAndTakesNoRoom) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  const std::uint32_t flow = form_group(c, {0, 1})[0]->group->flow + 1;  // the next one's
  OpTicket tickets[2];
  ask_for_group(c, 0, {0, 1}, &tickets[0]);
  Forger forger(c);
  const std::vector<std::byte> garbage(4096, std::byte{0x42});
  wire::Header h;
  h.flow = flow;
  h.epoch = 1;
  h.op = 1;
  h.source = 1;
  h.payload_bytes = 4096;
  int parked = 0;
  for (h.piece = 0; h.piece < 100; ++h.piece) parked += forger.send(h, garbage.data());
  EXPECT_GT(parked, 50) << "for a group that may be about to be";
  wire::Header s = h;
  s.kind = wire::Kind::kSignature;
  wire::SignaturePayload wrong;
  wrong.world_rank = 1;
  s.payload_bytes = sizeof wrong;
  EXPECT_TRUE(forger.send(s, &wrong));
  ask_for_group(c, 1, {0, 1}, &tickets[1]);
  ASSERT_TRUE(c.run_until([&] { return tickets[0].done() && tickets[1].done(); }, 1_s));
  auto* const zero = c.engine(0).member(tickets[0].member);
  auto* const one = c.engine(1).member(tickets[1].member);
  ASSERT_EQ(zero->group->flow, flow);
  AllRanks op(c, sum(2, 50'000));
  op.submit(1, one);
  c.run_for(5_ms);
  op.submit(0, zero);
  op.expect_exact();
  EXPECT_EQ(c.engine(1).rail_stats(0).retransmits + c.engine(1).rail_stats(1).retransmits, 0u);
}

}  // namespace
}  // namespace canarynet
