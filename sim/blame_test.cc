// An error names the culprit: the host that was cut off or the rank that did not call, and nobody who merely was not
// looked at. Virtual time.
#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "base/duration_text.h"
#include "base/random.h"
#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

struct Bed {
  const char* name;
  int hosts;
  Wiring wiring;
};

std::vector<Bed> beds() {
  std::vector<Bed> out;
  for (int n = 3; n <= 8; ++n) {
    out.push_back({"flat", n, Wiring::flat(n, 2)});
    out.push_back({"mesh", n, Wiring::mesh(n)});
  }
  out.push_back({"bcube(2,2)", 4, Wiring::bcube(2, 2)});
  out.push_back({"bcube(2,3)", 8, Wiring::bcube(2, 3)});
  out.push_back({"bcube(3,2)", 9, Wiring::bcube(3, 2)});
  return out;
}

enum class Cut { kBothWays, kItIsNotHeard, kItHearsNobody };

// Cuts the NICs of `host`; control stays.
void cut(Cluster& c, int host, Cut how) {
  for (int other = 0; other < c.hosts(); ++other) {
    if (other == host) continue;
    if (how != Cut::kItHearsNobody) c.fabric().block(host, other, kBlockRails, false);
    if (how != Cut::kItIsNotHeard) c.fabric().block(other, host, kBlockRails, false);
  }
}

ClusterOptions cluster_of(const Bed& bed, int ranks_per_host) {
  ClusterOptions o;
  o.hosts = bed.hosts;
  o.ranks_per_host = ranks_per_host;
  o.wiring = bed.wiring;
  o.fabric.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(10'000));
  return o;
}

TEST(Blame, TheHostWhoseNicsAreCutIsNamedOnEveryRank) {
  std::uint64_t seed = 0;
  for (const Bed& bed : beds()) {
    for (int host = 0; host < bed.hosts; ++host) {
      for (const Cut how : {Cut::kBothWays, Cut::kItIsNotHeard, Cut::kItHearsNobody}) {
        ++seed;
        if (quick() && seed % 3 != 0) continue;
        Random random(seed);
        const std::string what = std::string(bed.name) + ", " + std::to_string(bed.hosts) + " hosts, host " +
                                 std::to_string(host) + ", cut " + std::to_string(static_cast<int>(how)) + ", seed " +
                                 std::to_string(seed);
        // No schedule runs with two ranks a host on BCube(3, 2).
        ClusterOptions o = cluster_of(bed, random.below(2) == 0 || bed.hosts == 9 ? 1 : 2);
        o.fabric.seed = seed;
        Cluster c(impatient(o));
        ASSERT_TRUE(c.join());
        // The ranks call before the cut, during it or some time after it.
        c.run_for(Nanos{static_cast<std::int64_t>(random.below(1'500'000'000))});
        AllRanks op(c, sum(c.ranks(), 256 << 10));
        const bool before = random.below(2) == 0;
        if (before) {
          op.submit_all();
          c.run_for(Nanos{static_cast<std::int64_t>(random.below(40'000))});
        }
        cut(c, host, how);
        const Nanos at = c.now();
        if (!before) {
          c.run_for(Nanos{static_cast<std::int64_t>(random.below(300'000'000))});
          op.submit_all();
        }
        ASSERT_FALSE(op.all_done()) << what << ": " << op.ticket(0).status.to_string();
        ASSERT_TRUE(c.run_until([&] { return op.all_done(); }, 3_s)) << what;
        // Two seconds suffice, except for a job so young that its lanes' silence says nothing yet.
        EXPECT_LE(c.now() - std::max(at, 1200_ms), 2_s) << what;
        for (int r = 0; r < c.ranks(); ++r) {
          const Status& s = op.ticket(r).status;
          ASSERT_EQ(s.code(), CANARY_NO_PATH) << what << ", rank " << r << ": " << s.to_string();
          ASSERT_EQ(c.host_of(s.detail().rank), host) << what << ", rank " << r << ": " << s.to_string();
          ASSERT_EQ(s.detail().host, "host-" + std::to_string(host)) << what;
          ASSERT_NE(s.text().find(">nic"), std::string::npos) << s.text();
        }
      }
    }
  }
}

// Host 2 hears the others but is not heard, which it can't know. The others are done with the group, and know that host
// 2 is not.
TEST(Blame, AHostThatIsNotHeardLearnsOfItWhereTheOthersAreDone) {
  Cluster c(impatient(flat_cluster(3, 2)));
  ASSERT_TRUE(c.join());
  const auto members = form_group(c, {0, 1, 2});
  c.run_for(1500_ms);  // lanes' silence says nothing about a job that is younger than the limit
  cut(c, 2, Cut::kItIsNotHeard);
  const Nanos began = c.now();
  // Nobody acknowledges what host 2 sends. Copies of 200 small broadcasts in the world take most of the room that there
  // is for them (256, one for each: its signature travels with it), so the signature of its last operation in the group
  // can't leave.
  std::vector<std::unique_ptr<AllRanks>> ops;
  for (int i = 0; i < 300; ++i) {
    const bool in_world = i < 200;
    oracle::Shape shape = sum(3, in_world ? 1 : 0);
    if (in_world) shape.collective = Collective::kBroadcast;
    shape.root = 2;
    ops.push_back(std::make_unique<AllRanks>(c, shape));
    for (int r = in_world ? 2 : 0; r < 3; ++r)
      ops.back()->submit(r, in_world ? nullptr : members[static_cast<std::size_t>(r)]);
    c.run_for(100_us);
  }
  AllRanks& last = *ops.back();
  for (const int r : {0, 1}) {
    ASSERT_EQ(last.ticket(r).code, CANARY_OK) << last.ticket(r).status.to_string();
    ASSERT_TRUE(c.engine(r).forget(members[static_cast<std::size_t>(r)]->id));
  }
  ASSERT_FALSE(last.done(2));
  ASSERT_TRUE(c.run_until([&] { return last.done(2); }, 2_s));
  EXPECT_EQ(last.ticket(2).code, CANARY_NO_PATH) << last.ticket(2).status.to_string();
  EXPECT_EQ(last.ticket(2).status.detail().rank, 2) << last.ticket(2).status.to_string();
  EXPECT_LE(c.now() - began, 1400_ms) << "those who do not hear it say so before it can tell from their echoes";
}

// Host 2 has all that it needs, and its last acknowledgements don't matter to it; then it hears nobody. Here it has not
// called at all. The others hear it, and would wait for its acknowledgement until the exchange limit.
TEST(Blame, AHostThatHearsNobodyAndWaitsForNothingIsNamed) {
  for (const int hosts : {3, 5}) {
    ClusterOptions o = impatient(flat_cluster(hosts, 2));
    o.settings.entry_limit = 60_s;
    o.settings.algo = "mesh";  // the root sends to each of them
    Cluster c(o);
    ASSERT_TRUE(c.join());
    c.run_for(1500_ms);
    cut(c, 2, Cut::kItHearsNobody);
    oracle::Shape shape = sum(hosts, 100'000);
    shape.collective = Collective::kBroadcast;
    AllRanks op(c, shape);
    op.submit_all_but(2);
    ASSERT_TRUE(c.run_until([&] { return op.all_done_but(2); }, 3_s)) << hosts;
    EXPECT_EQ(op.ticket(0).code, CANARY_NO_PATH) << op.ticket(0).status.to_string();
    EXPECT_EQ(op.ticket(0).status.detail().rank, 2) << op.ticket(0).status.to_string();
  }
}

// Hosts 1 and 4 are in a group of their own, and open their channel when host 4 is cut off already: none of its lanes
// was ever up, and whom host 4 hears over control it hears from rank 0, which it does not hear.
TEST(Blame, AHostThatIsCutOffBeforeItsFirstLaneIsUpLearnsThatItIsAlone) {
  ClusterOptions o = impatient(flat_cluster(7, 2));
  o.settings.connect_at_join = 0;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  const auto members = form_group(c, {1, 4});
  for (int other = 0; other < 7; ++other) {
    if (other == 4) continue;
    c.fabric().block(4, other, kBlockAll, false);
    c.fabric().block(other, 4, kBlockAll, false);
  }
  AllRanks op(c, sum(2, 1000));
  op.submit(0, members[0]);
  op.submit(1, members[1]);
  ASSERT_TRUE(c.run_until([&] { return op.all_done(); }, 5_s));
  for (const int r : {0, 1}) {
    EXPECT_EQ(op.ticket(r).code, CANARY_PEER_SILENT) << op.ticket(r).status.to_string();
    EXPECT_EQ(op.ticket(r).status.detail().rank, 4) << op.ticket(r).status.to_string();
  }
}

// Hosts 0 and 2 have no channel yet, and its first hellos get lost on the only rail that they share. Another one goes
// after a quarter of the silence limit each time.
TEST(Blame, NobodyIsOutOfReachForHellosThatGotLost) {
  for (const auto& [lost_for, rest] : {std::pair{900_ms, 1_s}, {700_ms, 150_ms}}) {
    ClusterOptions o = unmeasured(impatient(flat_cluster(4, 1)));
    o.settings.connect_at_join = 0;
    o.fabric.stream = false;
    Cluster c(o);
    ASSERT_TRUE(c.join());
    const auto members = form_group(c, {0, 2});
    std::uint32_t& loss = c.fabric().nic(0, 0).out.loss_ppm;
    loss = 1'000'000;
    AllRanks op(c, sum(2, 1000));
    for (const int r : {0, 1}) op.submit(r, members[static_cast<std::size_t>(r)]);
    c.run_for(lost_for);
    ASSERT_FALSE(op.all_done());
    loss = 0;
    op.expect_exact(rest);
  }
}

// A host that is only sent to sends nothing but acknowledgements, which nobody answers, and one that can't take what
// comes acknowledges nothing. Both hear and are heard, for longer than the limit.
TEST(Blame, NobodyIsDeafWhileTheOtherDirectionIsBusyOrItsRankIsLate) {
  ClusterOptions o = impatient(flat_cluster(2, 1));
  o.fabric.nic = NicOptions::link(1_ms, BytesPerSec::from_mbit(20));
  o.settings.entry_limit = 60_s;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  const auto early = form_group(c, {0, 1});
  oracle::Shape down = sum(2, 3'000'000);  // five seconds
  down.collective = Collective::kBroadcast;
  AllRanks flow(c, down);
  flow.submit_all();
  oracle::Shape up = sum(2, 300'000);
  up.collective = Collective::kBroadcast;
  up.root = 1;
  AllRanks waits(c, up);
  waits.submit(1, early[1]);  // rank 0 calls later, and acknowledges no more than it has room for until then
  c.run_for(4_s);
  ASSERT_FALSE(flow.done(1));
  waits.submit(0, early[0]);
  flow.expect_exact(5_s);
  waits.expect_exact(5_s);
}

// What was sent before an outage is long ago, and the first echo after it takes a round trip, in which rank 0 would
// have given its verdict.
TEST(Blame, NobodyIsDeafInTheFirstRoundTripAfterAnIdleOutage) {
  ClusterOptions o = impatient(flat_cluster(3, 2));
  o.fabric.nic = NicOptions::link(100_ms, BytesPerSec::from_mbit(1000));
  Cluster c(o);
  ASSERT_TRUE(c.join());
  c.run_for(3_s);
  const auto heard = [&] {  // by rank 0, of host 2
    Nanos latest;
    c.engine(0).for_each_link([&](const LinkView& link) {
      if (link.number == 2) latest = std::max(latest, link.path.last_heard);
    });
    return latest;
  };
  cut(c, 2, Cut::kBothWays);
  c.run_for(5_s);
  const Nanos before = heard();
  ASSERT_LT(before, c.now() - 4_s);
  for (int other = 0; other < 2; ++other) c.fabric().unblock(2, other);
  ASSERT_TRUE(c.run_until([&] { return heard() > before; }, 3_s));
  AllRanks op(c, broadcast(3, 1000));
  op.submit_all();
  op.expect_exact(5_s);
}

// Only `absent` does not call. On every other rank the verdict names it and nobody else.
void expect_absent_named(Cluster& c, int absent, const std::string& what) {
  AllRanks op(c, sum(c.ranks(), 100));
  op.submit_all_but(absent);
  const Nanos began = c.now();
  ASSERT_TRUE(c.run_until([&] { return op.all_done_but(absent); }, 10_s)) << what;
  EXPECT_LE(c.now() - began, 3500_ms) << what << ": the limit, and a moment to ask";
  for (int r = 0; r < c.ranks(); ++r) {
    if (r == absent) continue;
    const Status& s = op.ticket(r).status;
    ASSERT_EQ(s.code(), CANARY_ENTRY_TIMEOUT) << what << ", rank " << r << ": " << s.to_string();
    ASSERT_EQ(s.detail().rank, absent) << what << ", rank " << r << ": " << s.to_string();
    ASSERT_NE(
        s.text().find("all_reduce #1: rank " + std::to_string(absent) + " did not call operation #1 within 3000 ms"),
        std::string::npos)
        << what << ", rank " << r << ": " << s.text();
  }
}

TEST(Blame, TheOneRankThatDoesNotCallIsNamedAloneAmongMany) {
  struct Case {
    int hosts;
    int ranks_per_host;
    Wiring wiring;
    int absent;
    const char* name;
  };
  const Case cases[] = {
      {32, 1, Wiring::flat(32, 1), 20, "flat"},
      {32, 4, Wiring::flat(32, 1), 77, "flat, 4 local ranks"},
      {32, 1, Wiring::bcube(2, 5), 20, "bcube(2,5)"},
      {128, 1, Wiring::bcube(2, 7), 20, "bcube(2,7)"},
      {16, 4, Wiring::bcube(4, 2), 0, "bcube(4,2), the coordinator's first rank"},
  };
  for (const Case& k : cases) {
    if (k.hosts * k.ranks_per_host > 32 && quick()) continue;
    ClusterOptions o;
    o.hosts = k.hosts;
    o.ranks_per_host = k.ranks_per_host;
    o.wiring = k.wiring;
    o.fabric.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(10'000));
    o.settings.entry_limit = 3_s;
    Cluster c(o);
    ASSERT_TRUE(c.join()) << k.name;
    ASSERT_NO_FATAL_FAILURE(expect_absent_named(c, k.absent, k.name));
  }
}

TEST(Blame, GroupsThatWereGivenBackTakeNoTurnsFromTheOneThatWaits) {
  ClusterOptions o = flat_cluster(16, 1);
  o.settings.entry_limit = 3_s;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  std::vector<int> everyone(16);
  std::iota(everyone.begin(), everyone.end(), 0);
  for (int round = 0; round < 20; ++round) {
    const auto members = form_group(c, everyone);
    ASSERT_FALSE(HasFailure());
    for (GroupMember* m : members) c.engine(m->world_rank).forget(m->id);
  }
  ASSERT_NO_FATAL_FAILURE(expect_absent_named(c, 11, "20 groups given back"));
}

// --- pauses ----------------------------------------------------------------------------------------------------------

TEST(Blame, NobodyIsSilentWhileAllStandStill) {
  for (const Nanos pause : {1600_ms, 5_s, 40_s}) {  // the last one longer than the exchange limit
    for (const bool calling : {false, true}) {
      ClusterOptions o = flat_cluster(4, 2, 2);
      Cluster c(impatient(o));
      ASSERT_TRUE(c.join());
      c.run_for(1_s);
      AllRanks op(c, sum(8, 1 << 20));
      if (calling) {
        op.submit_all();
        c.run_for(300_us);
        ASSERT_FALSE(op.all_done());
      }
      for (int h = 0; h < 4; ++h) c.fabric().freeze(h);
      c.run_for(pause);
      // They go on one after the other.
      for (int h = 0; h < 4; ++h) {
        c.fabric().thaw(h);
        c.run_for(5_ms);
      }
      if (!calling) op.submit_all();
      ASSERT_NO_FATAL_FAILURE(op.expect_exact(5_s)) << milliseconds(pause);
      c.run_for(2_s);
      AllRanks next(c, sum(8, 1000));
      next.submit_all();
      ASSERT_NO_FATAL_FAILURE(next.expect_exact(5_s)) << milliseconds(pause);
    }
  }
}

TEST(Blame, AnEngineThatStandsStillForLessThanTheLimitIsWaitedFor) {
  const Bed all[] = {{"flat", 4, Wiring::flat(4, 2)}, {"bcube(2,3)", 8, Wiring::bcube(2, 3)}};
  for (const Bed& bed : all) {
    for (int host = 0; host < bed.hosts; host += quick() ? 3 : 1) {
      for (int phase = 0; phase < 5; phase += quick() ? 2 : 1) {
        Cluster c(cluster_of(bed, 1));
        ASSERT_TRUE(c.join());
        c.run_for(1_s + 41_ms * phase);
        AllRanks op(c, sum(bed.hosts, 1 << 16));
        op.submit_all();
        c.run_for(200_us);
        ASSERT_FALSE(op.all_done());
        c.fabric().freeze(host);
        c.run_for(Settings::defaults().silence_limit * 9 / 10);
        c.fabric().thaw(host);
        ASSERT_NO_FATAL_FAILURE(op.expect_exact(5_s)) << bed.name << ", host " << host << ", phase " << phase;
      }
    }
  }
}

TEST(Blame, OneThatStandsStillLongerIsSilentAlsoForThoseWhoPausedMeanwhile) {
  // Hosts 0 and 2 stand still for a second in between: they name host 1 that much later, and no more.
  for (const Nanos pause : {Nanos{}, 1_s}) {
    Cluster c(impatient(flat_cluster(3, 2)));
    ASSERT_TRUE(c.join());
    c.run_for(1_s);
    AllRanks op(c, sum(3, 4 << 20));
    op.submit_all();
    c.run_for(200_us);
    c.fabric().freeze(1);
    const Nanos began = c.now();
    c.run_for(300_ms);
    for (const int h : {0, 2}) c.fabric().freeze(h);
    c.run_for(pause);
    for (const int h : {0, 2}) c.fabric().thaw(h);
    ASSERT_TRUE(c.run_until([&] { return op.done(0) && op.done(2); }, 3_s));
    EXPECT_LE(c.now() - began, 1500_ms + pause);
    for (const int r : {0, 2}) {
      EXPECT_EQ(op.ticket(r).code, CANARY_PEER_SILENT) << op.ticket(r).status.to_string();
      EXPECT_EQ(op.ticket(r).status.detail().rank, 1) << op.ticket(r).status.to_string();
    }
  }
}

TEST(Blame, EnginesThatGetACoreOnlyNowAndThenAreNotSilent) {
  // A poll takes longer than the silence limit, as if 96 processes shared two cores: it is slow, but nobody's fault.
  for (const Nanos poll_time : {400_ms, 1500_ms}) {
    ClusterOptions o = flat_cluster(4, 2);
    o.poll_time = poll_time;
    Cluster c(impatient(o));
    ASSERT_TRUE(c.join(120_s)) << milliseconds(poll_time);
    AllRanks op(c, sum(4, 1 << 16));
    op.submit_all();
    ASSERT_NO_FATAL_FAILURE(op.expect_exact(600_s)) << milliseconds(poll_time);
  }
}

TEST(Blame, AProcessOfTheSameHostIsSilentOnlyIfItStandsStill) {
  // The engines see one of three things of process 1 when they look: it waits for a core; or it sleeps, but ran since
  // the last look; or neither.
  enum class Sight { kWaits, kRuns, kStandsStill };
  for (const Sight sight : {Sight::kWaits, Sight::kRuns, Sight::kStandsStill}) {
    std::uint64_t ran = 7;
    ClusterOptions o = flat_cluster(3, 2);
    o.amend = [&](int, EngineOptions* e) {
      e->host_id = "one host";
      e->pulse_of = [&](std::int64_t pid) {
        const bool busy = pid == 1001 && sight == Sight::kRuns;
        return ProcessPulse{busy ? ++ran : ran, pid == 1001 && sight == Sight::kWaits};
      };
    };
    Cluster c(impatient(o));
    ASSERT_TRUE(c.join());
    c.run_for(1_s);
    AllRanks op(c, sum(3, 1 << 20));
    op.submit_all();
    c.run_for(200_us);
    c.fabric().freeze(1);
    if (sight == Sight::kStandsStill) {
      ASSERT_TRUE(c.run_until([&] { return op.done(0) && op.done(2); }, 1500_ms));
      EXPECT_EQ(op.ticket(0).code, CANARY_PEER_SILENT) << op.ticket(0).status.to_string();
      EXPECT_EQ(op.ticket(2).status.detail().rank, 1) << op.ticket(2).status.to_string();
      continue;
    }
    c.run_for(5_s);
    ASSERT_FALSE(op.done(0)) << op.ticket(0).status.to_string();
    c.fabric().thaw(1);
    ASSERT_NO_FATAL_FAILURE(op.expect_exact(5_s));
  }
}

}  // namespace
}  // namespace canarynet
