// A group's measured table comes into force from the same operation on everywhere, in virtual time, and is never in
// anybody's way, whatever dies or stays silent meanwhile.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "sim/decision_test_util.h"
#include "sim/forger_test_util.h"

namespace canarynet {
namespace {

#if defined(__SANITIZE_ADDRESS__) || !defined(__GLIBC__)
std::size_t memory_in_use() { return 0; }
#else
std::size_t memory_in_use() { return mallinfo2().uordblks + mallinfo2().hblkhd; }
#endif

// Keeps a few sums in flight, checks all of them, and notes what ended in an error.
class Traffic {
 public:
  Traffic(Cluster& c, std::uint64_t count, std::size_t depth) : c_(c), count_(count), depth_(depth) {}
  void run_until(const std::function<bool()>& enough, Nanos span) {
    const Nanos end = c_.now() + span;
    while (!enough() && c_.now() < end && !failed_) {
      while (ops_.size() < depth_) {
        ops_.push_back(std::make_unique<AllRanks>(c_, sum(c_.ranks(), count_, ++salt_)));
        for (int r = 0; r < c_.ranks(); ++r) {
          if (c_.alive(c_.host_of(r))) ops_.back()->submit(r);
        }
      }
      if (!c_.step(end)) return;
      look();
    }
  }
  // All that is in flight ends well.
  void expect_exact() {
    for (auto& op : ops_) op->expect_exact(60_s);
    ops_.clear();
  }
  // Every rank that lives gets an error that names the rank.
  void expect_blame(int rank, Nanos limit) {
    AllRanks next(c_, sum(c_.ranks(), 1000));
    for (int r = 0; r < c_.ranks(); ++r) {
      if (c_.alive(c_.host_of(r))) next.submit(r);
    }
    const auto over = [&] {
      if (!ended(next)) return false;
      return std::all_of(ops_.begin(), ops_.end(), [&](const auto& op) { return ended(*op); });
    };
    ASSERT_TRUE(c_.run_until(over, limit)) << "an operation hangs";
    for (int r = 0; r < c_.ranks(); ++r) {
      if (!c_.alive(c_.host_of(r))) continue;
      OpTicket& last = next.ticket(r);
      ASSERT_NE(last.code, CANARY_OK);
      EXPECT_EQ(last.status.detail().rank, rank) << last.status.text();
    }
  }

 private:
  bool ended(const AllRanks& op) const {
    for (int r = 0; r < c_.ranks(); ++r) {
      if (c_.alive(c_.host_of(r)) && !op.done(r)) return false;
    }
    return true;
  }
  void look() {
    while (!ops_.empty() && ended(*ops_.front())) {
      for (int r = 0; r < c_.ranks(); ++r) failed_ |= ops_.front()->ticket(r).code != CANARY_OK;
      if (failed_) return;
      ops_.front()->expect_exact();
      ops_.pop_front();
    }
  }

  Cluster& c_;
  std::uint64_t count_;
  std::size_t depth_;
  std::uint64_t salt_ = 0;
  bool failed_ = false;
  std::deque<std::unique_ptr<AllRanks>> ops_;
};

TEST(Decision, ManyOperationsAreInFlightWhileATableComesIntoForce) {
  for (const std::size_t depth : {std::size_t{24}}) {
    Cluster c(long_cluster(4));
    ASSERT_TRUE(c.join());
    Decisions watch(c);
    Traffic traffic(c, kCount, depth);
    traffic.run_until([&] { return all_decide_by_a_table(c); }, 10_s);
    EXPECT_TRUE(all_decide_by_a_table(c)) << depth;
    traffic.run_until([] { return false; }, 100_ms);
    traffic.expect_exact();
    EXPECT_GE(watch.tables(), 1);
  }
}

TEST(Decision, OperationsAreNumberedPastTheEndOf32Bits) {
  // The end lies shortly before the table, or shortly behind it.
  for (const std::uint32_t before : {4u, 12u, 18u}) {
    ClusterOptions o = long_cluster(4);
    o.amend = [before](int, EngineOptions* e) { e->first_operation = ~std::uint32_t{0} - before; };
    Cluster c(o);
    ASSERT_TRUE(c.join());
    Decisions watch(c);
    exchange(c, 6_s, kCount, [&] { return all_decide_by_a_table(c); });
    EXPECT_TRUE(all_decide_by_a_table(c)) << before;
    exchange(c, 300_ms, kCount);
    EXPECT_EQ(planner_now(c), "mesh");
  }
}

// The hosts of a BCube do not all meet: levels and words pass through others.
TEST(Decision, WordsReachEngineThatTheFirstOneDoesNotMeet) {
  ClusterOptions o = long_cluster(4);
  o.wiring = Wiring::bcube(2, 2);
  Cluster c(o);
  ASSERT_TRUE(c.join());
  Decisions watch(c);
  exchange(c, 4_s, kCount, [&] { return all_decide_by_a_table(c); });
  EXPECT_TRUE(all_decide_by_a_table(c));
  exchange(c, 500_ms, kCount);
}

TEST(Decision, RanksOfOneEngineChangeAtTheSameOperation) {
  Cluster c(long_cluster(4, 2));
  ASSERT_TRUE(c.join());
  Decisions watch(c);
  const Nanos began = c.now();
  std::uint64_t salt = 0;
  // A reduce: nothing hierarchical is defined for it.
  while (c.now() - began < 3_s && !all_decide_by_a_table(c)) {
    oracle::Shape s = sum(c.ranks(), kCount, ++salt);
    s.collective = Collective::kReduce;
    std::deque<AllRanks> ops;
    for (int i = 0; i < 6; ++i) {
      ops.emplace_back(c, s);
      // The ranks of an engine are a few operations apart.
      for (int r = 0; r < c.ranks(); r += 2) ops.back().submit(r);
    }
    for (AllRanks& op : ops) {
      for (int r = 1; r < c.ranks(); r += 2) op.submit(r);
      op.expect_exact();
    }
  }
  EXPECT_TRUE(all_decide_by_a_table(c));
  exchange(c, 100_ms, 1000);
}

TEST(Decision, WordsThatDieWithALaneAreSaidAgain) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    ClusterOptions o = long_cluster(3);
    o.wiring = Wiring::flat(3, 2);
    o.fabric.seed = seed;
    Cluster c(o);
    ASSERT_TRUE(c.join());
    Decisions watch(c);
    Traffic traffic(c, kCount, 2);
    const auto is_open = [&](int host) { return decisions(c, host).proposal_open(); };
    // At the root's proposal or at a member's, a few messages later or at once.
    const int whose = static_cast<int>(random.below(3));
    traffic.run_until([&] { return is_open(whose); }, 5_s);
    if (random.below(2) == 0) c.run_for(Nanos{static_cast<std::int64_t>(random.below(80'000'000))});
    const int host = static_cast<int>(random.below(3)), rail = static_cast<int>(random.below(2));
    c.fabric().nic_down(host, rail, random.below(2) == 0 ? NicDeath::kSilent : NicDeath::kBothEnds);
    traffic.run_until([&] { return all_decide_by_a_table(c); }, 10_s);
    EXPECT_TRUE(all_decide_by_a_table(c)) << "host " << host << " lost rail " << rail;
    traffic.expect_exact();
  }
}

TEST(Decision, AFirstRankThatDiesAtAnyMomentEndsTheGroupAsEver) {
  for (const CrashKind kind : {CrashKind::kHangup, CrashKind::kSilent}) {
    // Before there is a proposal; when it is open at the root alone, at a member, at all; when it is in force at the
    // root, at a member, at all.
    for (int state = 0; state < 7; ++state) {
      if (kind == CrashKind::kSilent && state != 2 && state != 4) continue;
      SCOPED_TRACE(state);
      Cluster c(impatient(long_cluster(3)));
      ASSERT_TRUE(c.join());
      Traffic traffic(c, kCount, 3);
      const auto open = [&](int host) { return decisions(c, host).proposal_open(); };
      const std::function<bool()> reached[] = {[&] { return c.now() > 300_ms; },
                                               [&] { return open(0); },
                                               [&] { return open(1); },
                                               [&] { return open(1) && open(2); },
                                               [&] { return table_at(c, 0) != 0; },
                                               [&] { return table_at(c, 1) != 0; },
                                               [&] { return all_decide_by_a_table(c); }};
      traffic.run_until(reached[state], 5_s);
      ASSERT_TRUE(reached[state]());
      c.kill(0, kind);
      traffic.expect_blame(0, 10_s);
    }
  }
}

// A member that says nothing for a while: the others go on by what they have, and nobody is blamed who was only held.
TEST(Decision, AProposalIsWithdrawnWhereAMemberDoesNotAnswer) {
  ClusterOptions o = long_cluster(3);
  o.settings.entry_limit = 2_s;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  Decisions watch(c);
  Traffic traffic(c, kCount, 6);
  traffic.run_until([&] { return decisions(c, 0).proposal_open(); }, 5_s);
  ASSERT_TRUE(decisions(c, 0).proposal_open());
  c.fabric().freeze(2);
  c.run_for(800_ms);
  EXPECT_FALSE(decisions(c, 0).proposal_open());
  c.fabric().thaw(2);
  traffic.run_until([&] { return all_decide_by_a_table(c); }, 10_s);
  EXPECT_TRUE(all_decide_by_a_table(c)) << "it is proposed again";
  traffic.expect_exact();
}

TEST(Decision, AFirstRankThatIsFrozenIsNamedAndNotThoseThatItHolds) {
  ClusterOptions o = long_cluster(3);
  o.settings.entry_limit = 1_s;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  Traffic traffic(c, kCount, 12);
  const auto both = [&] { return decisions(c, 1).proposal_open() && decisions(c, 2).proposal_open(); };
  traffic.run_until(both, 5_s);
  ASSERT_TRUE(both());
  c.fabric().freeze(0);
  const Nanos frozen = c.now();
  ASSERT_TRUE(
      c.run_until([&] { return c.world(1)->group->dead && c.world(2)->group->dead; }, o.settings.silence_limit + 2_s));
  std::printf("the first rank is named %.1f s after it froze\n", (c.now() - frozen).seconds());
  for (const int r : {1, 2}) {
    EXPECT_EQ(c.world(r)->group->verdict.detail().rank, 0) << c.world(r)->group->verdict.text();
  }
}

TEST(Decision, GroupsThatEndWhileAProposalIsOpenLeaveNothing) {
  Cluster c(long_cluster(3, 1, 5_ms));
  ASSERT_TRUE(c.join());
  int opened = 0;
  std::size_t before = 0;
  for (int i = 0; i < 15; ++i) {
    const auto members = form_group(c, {0, 1, 2});
    const auto open = [&](std::size_t r) { return members[r]->group->decisions->proposal_open(); };
    // One host more than the last time, then all.
    const std::size_t who = static_cast<std::size_t>(i) % 3;
    const Nanos began = c.now();
    std::uint64_t salt = 0;
    while (c.now() - began < 3_s && !open(who)) {
      AllRanks op(c, sum(3, kCount, ++salt));
      for (int r = 0; r < 3; ++r) op.submit(r, members[static_cast<std::size_t>(r)]);
      ASSERT_TRUE(c.run_until([&] { return op.all_done() || open(who); }, 10_s));
      const bool caught = open(who);
      opened += caught;
      ASSERT_TRUE(c.run_until([&] { return op.all_done(); }, 10_s));
      if (caught) break;
    }
    // In another order each time; those that are left behind wait for nobody.
    for (std::size_t k = 0; k < 3; ++k) {
      GroupMember* const m = members[(k + static_cast<std::size_t>(i)) % 3];
      ASSERT_TRUE(c.engine(m->world_rank).forget(m->id));
      if (i % 2 == 0) c.run_for(3_ms);
    }
    c.run_for(10_ms);
    if (i == 6) before = memory_in_use();
  }
  EXPECT_GE(opened, 6);
  EXPECT_LT(memory_in_use(), before + 64 * 1024);
}

// A first rank that leaves the group while its word is waited for: nobody waits for that word for ever.
TEST(Decision, AGroupThatItsFirstRankHasLeftHoldsNobody) {
  Cluster c(long_cluster(3));
  ASSERT_TRUE(c.join());
  const auto members = form_group(c, {0, 1, 2});
  std::uint64_t salt = 0;
  const auto held = [&] { return members[1]->group->decisions->proposal_open(); };
  while (!held() && salt < 100) {
    AllRanks op(c, sum(3, kCount, ++salt));
    for (int r = 0; r < 3; ++r) op.submit(r, members[static_cast<std::size_t>(r)]);
    ASSERT_TRUE(c.run_until([&] { return op.all_done() || held(); }, 10_s));
    ASSERT_TRUE(c.run_until([&] { return op.done(0); }, 10_s));
    const bool caught = held();
    if (caught) {
      ASSERT_TRUE(c.engine(0).forget(members[0]->id));
    }
    ASSERT_TRUE(c.run_until([&] { return op.all_done(); }, 10_s));
    if (caught) break;
  }
  EXPECT_TRUE(c.run_until([&] { return !held(); }, 100_ms));
}

// One child says that its ranks may be far ahead; the others answer after it.
TEST(Decision, ATableBeginsBehindTheLatestLimit) {
  Cluster c(long_cluster(3));
  ASSERT_TRUE(c.join());
  Traffic traffic(c, kCount, 2);
  traffic.run_until([&] { return decisions(c, 0).proposal_open(); }, 5_s);
  ASSERT_TRUE(decisions(c, 0).proposal_open());
  const GroupMember& m = *c.world(0);
  wire::Header h;
  h.kind = wire::Kind::kSignature;
  h.flow = m.group->decisions_number();
  h.epoch = m.group->epoch;
  h.step = static_cast<std::uint16_t>(wire::DecisionFrame::kLimit);
  h.signature = 1;
  h.op = m.entered + 1000;
  Forger forger(c);
  EXPECT_TRUE(forger.send(h, ""));
  ASSERT_TRUE(c.run_until([&] { return !decisions(c, 0).proposal_open(); }, 1_s));
  EXPECT_EQ(decisions(c, 0).table_for(h.op).identity(), 0u);
  EXPECT_NE(decisions(c, 0).table_for(h.op + 1).identity(), 0u);
  traffic.expect_exact();
}

}  // namespace
}  // namespace canarynet
