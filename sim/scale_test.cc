// Jobs of many processes, and channels that are made on first use. Virtual time.
#include "sim/scale.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sim/child_test_util.h"
#include "sim/cluster_test_util.h"
#include "sim/warnings_test_util.h"

namespace canarynet {
namespace {

// `hosts` engines of which only neighbours by rank connect at the join.
ClusterOptions sparse_cluster(int hosts, int rails = 2, int ranks_per_host = 1) {
  ClusterOptions c = flat_cluster(hosts, rails, ranks_per_host);
  c.settings.connect_at_join = 0;
  return c;
}

std::uint64_t open_channels(Cluster& c, int host) { return c.engine(host).counters().peers; }

// The lanes that are up, without control.
std::ptrdiff_t lanes_between(Cluster& c, int host, int peer) {
  std::vector<Lane*> lanes;
  c.fabric().lanes_between(host, peer, &lanes);
  return std::count_if(lanes.begin(), lanes.end(), [](Lane* l) { return l->rail() != kControlRail; });
}

TEST(Scale, ALargeJobOpensWhatItsPlansUse) {
  struct Case {
    const char* algo;
    int engines_per_machine;
    std::uint64_t joined, most;
  };
  // A ring's channels are there after the join. Halving and doubling needs a peer for each bit of 64, a hierarchical
  // plan the others of its own machine and a few beyond.
  for (const Case& t : {Case{"ring", 1, 2, 2}, Case{"halving_doubling", 1, 2, 7}, Case{"hierarchical", 8, 2, 16}}) {
    ScaleOptions o;
    o.engines = 64;
    o.algo = t.algo;
    o.engines_per_machine = t.engines_per_machine;
    const ScaleFigures f = measure_scale(o);
    ASSERT_EQ(f.wrong, "") << t.algo;
    EXPECT_EQ(f.joined.most, t.joined) << t.algo;
    EXPECT_LE(f.reduced.most, t.most) << t.algo;
    EXPECT_LT(f.join.count, (250_ms).count) << t.algo;
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryIsOurs = false;
#else
constexpr bool kMemoryIsOurs = true;
#endif

// Bytes that an engine of such a job takes after its join. This process's heap has holes.
double bytes_per_engine(const ScaleOptions& options) {
  const double bytes = in_a_child([&] {
    const ScaleFigures f = measure_scale(options);
    return f.wrong.empty() ? f.bytes_per_engine : 0;
  });
  EXPECT_GT(bytes, 0);
  return bytes;
}

TEST(Scale, APeerThatIsNotUsedTakesAKilobyteAndAnIdleOneThirtyTwo) {
  if (!kMemoryIsOurs) GTEST_SKIP() << "a sanitizer keeps books of its own";
  ScaleOptions o;
  o.count = 8;
  o.engines = 64;
  const double sparse = bytes_per_engine(o);
  o.connect_at_join = o.engines;
  EXPECT_LT((bytes_per_engine(o) - sparse) / (o.engines - 3), 32'000);
  o.connect_at_join = 0;
  o.engines = 256;
  EXPECT_LT((bytes_per_engine(o) - sparse) / (256 - 64), 1024);
}

TEST(Scale, ASmallJobConnectsEverybodyAtTheJoin) {
  ScaleOptions o;
  o.engines = 8;
  const ScaleFigures f = measure_scale(o);
  ASSERT_EQ(f.wrong, "");
  EXPECT_EQ(f.joined.mean, 7.0);
}

TEST(Scale, EveryCollectiveRunsOverChannelsOnFirstUse) {
  for (const char* algo : {"ring", "mesh", "halving_doubling", "tree", "dbtree", "parameter_server", "ring_per_rail"}) {
    ClusterOptions o = sparse_cluster(8);
    o.settings.algo = algo;
    Cluster c(o);
    ASSERT_TRUE(c.join());
    for (std::uint64_t round = 0; round < 2; ++round) {
      AllRanks small(c, sum(8, 1000, round)), large(c, sum(8, 200'000, round + 7));
      small.submit_all();
      large.submit_all();
      ASSERT_NO_FATAL_FAILURE(small.expect_exact(1_s)) << algo;
      ASSERT_NO_FATAL_FAILURE(large.expect_exact(1_s)) << algo;
    }
  }
}

// The lower number dials. The side that needs the other one first gets a channel, whichever of the two it is.
TEST(Channels, OpenForWhicheverSideNeedsThemFirst) {
  for (const int sender : {2, 5}) {
    Cluster c(sparse_cluster(8));
    ASSERT_TRUE(c.join());
    ASSERT_EQ(open_channels(c, sender), 2u);
    AllRanks late(c, broadcast(8, 1000, sender));
    // A broadcast's root sends to some of the others, which have not called yet.
    late.submit(sender);
    c.run_for(100_ms);
    EXPECT_GT(open_channels(c, sender), 2u) << sender;
    for (int r = 0; r < 8; ++r) {
      if (r != sender) late.submit(r);
    }
    ASSERT_NO_FATAL_FAILURE(late.expect_exact(1_s)) << sender;
  }
}

// Both sides ask for the same channel at once, in one direction and in the other, with all delays that matter.
TEST(Channels, OpenOnceWhereBothSidesWantThemAtOnce) {
  int opened = 0;  // beside the ring's
  for (int shift = -12; shift <= 12; ++shift) {
    Cluster c(sparse_cluster(6));
    ASSERT_TRUE(c.join());
    AllRanks op(c, sum(6, 5000));
    for (int r = 0; r < 6; ++r) {
      if ((r < 3) == (shift < 0)) op.submit(r);
    }
    c.run_for(Nanos{std::abs(shift) * 1'000'000});
    for (int r = 0; r < 6; ++r) {
      if ((r < 3) != (shift < 0)) op.submit(r);
    }
    ASSERT_NO_FATAL_FAILURE(op.expect_exact(500_ms)) << shift;
    for (int a = 0; a < 6; ++a) {
      for (int b = a + 1; b < 6; ++b) {
        // Both ends know of the channel, which has one lane on each of the two rails; or neither does.
        const std::ptrdiff_t lanes = lanes_between(c, a, b);
        EXPECT_EQ(lanes_between(c, b, a), lanes) << a << ", " << b << ", " << shift;
        EXPECT_TRUE(lanes == 2 || lanes == 0) << lanes << " between " << a << " and " << b << ", " << shift;
        opened += lanes == 2 && b - a != 1 && b - a != 5;
      }
    }
  }
  EXPECT_GT(opened, 0);
}

TEST(Channels, OfAnEngineThatDoesNotCallAreOpenedOverControl) {
  Cluster c(sparse_cluster(8));
  ASSERT_TRUE(c.join());
  // Rank 6 speaks first and does not dial; 3, which does, has nothing to say.
  ASSERT_NE(c.engine(6).mux(3), nullptr);
  c.run_for(20_ms);
  EXPECT_EQ(open_channels(c, 3), 3u);
  EXPECT_EQ(lanes_between(c, 3, 6), 2);
}

// Rank 0, who would pass the request on, stands still: the upper number knocks.
TEST(Channels, OfAnEngineThatDoesNotCallAreOpenedWhileTheCoordinatorIsSilent) {
  Cluster c(sparse_cluster(8));
  ASSERT_TRUE(c.join());
  const auto members = form_group(c, {2, 5});
  const Warnings warnings;
  c.fabric().freeze(0);
  c.run_for(1_s);
  AllRanks op(c, sum(2, 1000));
  op.submit(1, members[1]);
  c.run_for(300_ms);
  EXPECT_EQ(lanes_between(c, 5, 2), 2);
  EXPECT_EQ(lanes_between(c, 2, 5), 2) << "what knocked is gone";
  EXPECT_EQ(warnings.with("stranger"), 0) << warnings.lines.front();
  op.submit(0, members[0]);
  op.expect_exact(1_s);
}

// The request may be lost; a side that still waits asks again.
TEST(Channels, AreAskedForAgainAfterAnOutageOfControl) {
  ClusterOptions o = sparse_cluster(8);
  o.fabric.stream = false;  // a stream would bring the request later
  Cluster c(o);
  ASSERT_TRUE(c.join());
  c.fabric().block(6, 0, kBlockControl);
  ASSERT_NE(c.engine(6).mux(3), nullptr);
  c.run_for(300_ms);
  EXPECT_EQ(open_channels(c, 3), 2u);
  c.fabric().heal();
  c.run_for(2_s);
  EXPECT_EQ(open_channels(c, 3), 3u);
}

// The number of frames that `host` sends to the coordinator over control.
std::uint64_t control_frames(Cluster& c, int host) {
  std::vector<Lane*> lanes;
  c.fabric().lanes_between(host, 0, &lanes);
  std::uint64_t frames = 0;
  for (const Lane* l : lanes) frames += l->rail() == kControlRail ? l->counters().frames_sent : 0;
  return frames;
}

// An engine that is stopped dials nobody, however often it is asked.
TEST(Channels, AreAskedForLessOftenTheLongerTheyDoNotCome) {
  std::uint64_t frames[2] = {};
  for (const bool asks : {false, true}) {
    Cluster c(sparse_cluster(8));
    ASSERT_TRUE(c.join());
    c.fabric().freeze(3);
    if (asks) {
      ASSERT_NE(c.engine(6).mux(3), nullptr);
    }
    const std::uint64_t before = control_frames(c, 6);
    c.run_for(20_s);
    frames[asks] = control_frames(c, 6) - before;
    c.fabric().thaw(3);
    c.run_for(2500_ms);
    EXPECT_EQ(lanes_between(c, 6, 3), asks ? 2 : 0);
  }
  EXPECT_GT(frames[1], frames[0] + 5);
  EXPECT_LT(frames[1], frames[0] + 25) << "beside " << frames[0] << " heartbeats";
}

// An engine that leaves but waits for a last acknowledgement is still there for others.
TEST(Channels, OfAnEngineThatIsLeavingAreMadeUntilItsFarewell) {
  struct Case {
    int leaver, asker;  // the lower one dials
  };
  for (const Case& t : {Case{6, 3}, Case{3, 6}}) {
    Cluster c(sparse_cluster(8));
    ASSERT_TRUE(c.join());
    // The root is done as soon as what it sends is copied, and the other one can't acknowledge it.
    const int other = t.leaver - 1;
    const auto members = form_group(c, {t.leaver, other});
    c.fabric().freeze(other);
    AllRanks op(c, broadcast(2, 10));
    op.submit(0, members[0]);
    ASSERT_TRUE(c.run_until([&] { return op.done(0); }, 10_ms));
    c.engine(t.leaver).leave(c.now());
    ASSERT_NE(c.engine(t.asker).mux(static_cast<std::uint32_t>(t.leaver)), nullptr);
    c.run_for(50_ms);
    EXPECT_FALSE(c.engine(t.leaver).left());
    EXPECT_EQ(lanes_between(c, t.leaver, t.asker), 2) << t.leaver;
    c.fabric().thaw(other);
    ASSERT_TRUE(c.run_until([&] { return c.engine(t.leaver).left(); }, 1_s));
    op.submit(1, members[1]);
    ASSERT_NO_FATAL_FAILURE(op.expect_exact(1_s));
  }
}

// A process ends while others open channels to it, at any moment of that.
TEST(Channels, ADeathDuringTheirOpeningNamesTheDeadAndNobodyElse) {
  for (int moment = 0; moment <= 40; ++moment) {
    const int dead = 2 + moment % 5;
    ClusterOptions o = sparse_cluster(8);
    o.settings.algo = "mesh";
    Cluster c(o);
    ASSERT_TRUE(c.join());
    AllRanks op(c, sum(8, 80'000));
    op.submit_all();
    c.run_for(Nanos{moment * 10'000});
    ASSERT_FALSE(op.all_done()) << moment;
    c.kill(dead, CrashKind::kHangup);
    ASSERT_TRUE(c.run_until([&] { return op.all_done_but(dead); }, 1_s)) << moment;
    for (int r = 0; r < 8; ++r) {
      if (r == dead || op.ticket(r).code == CANARY_OK) continue;  // it had all that it needs
      EXPECT_EQ(op.ticket(r).code, CANARY_PEER_DIED) << moment << ": " << op.ticket(r).status.text();
      EXPECT_EQ(op.ticket(r).status.detail().rank, dead) << moment << ": " << op.ticket(r).status.text();
    }
  }
}

// Rank 0 passes requests on. If it ends with requests under way, it is named, and no rank that waits for a channel.
TEST(Channels, TheCoordinatorsDeathWithRequestsUnderWayNamesItAndNobodyElse) {
  for (int moment = 0; moment <= 30; ++moment) {
    Cluster c(sparse_cluster(8));
    ASSERT_TRUE(c.join());
    const auto members = form_group(c, {6, 2});
    AllRanks inside(c, broadcast(2, 1000)), world(c, sum(8, 1000));
    inside.submit(0, members[0]);  // asks to be dialled, since 2 has not called yet
    world.submit_all_but(0);
    c.run_for(5_ms + Nanos{moment * 10'000});
    c.kill(0, CrashKind::kHangup);
    ASSERT_TRUE(c.run_until([&] { return world.all_done_but(0); }, 1_s)) << moment;
    for (int r = 1; r < 8; ++r) {
      EXPECT_EQ(world.ticket(r).code, CANARY_PEER_DIED) << moment << ": " << world.ticket(r).status.text();
      EXPECT_EQ(world.ticket(r).status.detail().rank, 0) << moment << ": " << world.ticket(r).status.text();
    }
    // The lower one's own use opens the channel.
    inside.submit(1, members[1]);
    ASSERT_NO_FATAL_FAILURE(inside.expect_exact(1_s)) << moment;
    EXPECT_EQ(lanes_between(c, 2, 6), 2) << moment;
  }
}

TEST(Channels, ADeathIsNamedByWhoHasNoneToTheDead) {
  Cluster c(sparse_cluster(16));
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(16, 1000));
  op.submit_all_but(9);
  c.run_for(50_ms);
  c.kill(9, CrashKind::kHangup);
  const auto all = [&] { return op.all_done_but(9); };
  ASSERT_TRUE(c.run_until(all, 500_ms));
  for (int r = 0; r < 16; ++r) {
    if (r == 9) continue;
    EXPECT_EQ(op.ticket(r).code, CANARY_PEER_DIED) << op.ticket(r).status.text();
    EXPECT_EQ(op.ticket(r).status.detail().rank, 9) << op.ticket(r).status.text();
  }
}

TEST(Channels, ASilenceIsNamedByWhoHasNoneToTheSilent) {
  ClusterOptions o = impatient(sparse_cluster(16));
  Cluster c(o);
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(16, 1000));
  op.submit_all_but(9);
  c.run_for(50_ms);
  c.kill(9, CrashKind::kSilent);
  ASSERT_TRUE(c.run_until([&] { return op.all_done_but(9); }, 3_s));
  for (int r = 0; r < 16; ++r) {
    if (r == 9) continue;
    EXPECT_EQ(op.ticket(r).code, CANARY_PEER_SILENT) << op.ticket(r).status.text();
    EXPECT_EQ(op.ticket(r).status.detail().rank, 9) << op.ticket(r).status.text();
  }
}

// An engine that opens a channel to a peer that has been silent for a while has not heard the peer by that. Even and
// odd ranks have networks of their own, so that no two connect at the join.
TEST(Channels, OpeningOneIsNoWordOfTheSilent) {
  ClusterOptions o = sparse_cluster(4, 1);
  o.wiring.networks = {{0}, {1}, {0}, {1}};
  o.settings.silence_limit = 4_s;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  for (int h = 0; h < 4; ++h) ASSERT_EQ(open_channels(c, h), 0u);
  const auto members = form_group(c, {1, 3});
  const Nanos silent = c.now();
  c.kill(3, CrashKind::kSilent);
  const Warnings warnings;
  c.run_for(3_s);
  EXPECT_EQ(warnings.with("rank 3 (host host-3): silent for 2"), 3) << "by each of the others";
  AllRanks op(c, sum(2, 1000));
  op.submit(0, members[0]);
  EXPECT_EQ(open_channels(c, 1), 1u);
  ASSERT_TRUE(c.run_until([&] { return op.done(0); }, 3_s));
  EXPECT_LT((c.now() - silent).count, (5_s).count);
  EXPECT_EQ(op.ticket(0).code, CANARY_PEER_SILENT) << op.ticket(0).status.text();
  EXPECT_NE(op.ticket(0).status.text().find("last heard 4"), std::string::npos) << op.ticket(0).status.text();
  EXPECT_EQ(warnings.with("heard again"), 0);
}

// A host whose own NICs go dark, and which opens channels after that, still knows that it is itself cut off.
TEST(Channels, OneThatIsOpenedInTheDarkBlamesNobodyElse) {
  ClusterOptions o = sparse_cluster(8);
  o.settings.silence_limit = 4_s;
  o.settings.algo = "ring";
  Cluster c(o);
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(8, 1000));
  op.submit(5);
  ASSERT_EQ(open_channels(c, 5), 2u);
  const Warnings warnings;
  for (int other = 0; other < 8; ++other) {
    if (other != 5) c.fabric().block(5, other);
  }
  c.run_for(1500_ms);
  for (const std::uint32_t late : {2u, 3u, 7u}) ASSERT_NE(c.engine(5).mux(late), nullptr);
  c.run_for(1500_ms);
  EXPECT_EQ(warnings.with("like every other host: this host's own NICs may be dark"), 7) << "of each of the others";
  ASSERT_TRUE(c.run_until([&] { return op.done(5); }, 2_s));
  EXPECT_EQ(op.ticket(5).code, CANARY_PEER_SILENT) << op.ticket(5).status.text();
  EXPECT_EQ(op.ticket(5).status.detail().rank, 5) << op.ticket(5).status.text();
}

// A fault that the join would have found in a small job is found at use: no lane between two live peers.
TEST(Channels, ALinkThatDoesNotWorkIsNamedAtItsFirstUse) {
  ClusterOptions o = impatient(sparse_cluster(8));
  o.settings.algo = "mesh";
  Cluster c(o);
  c.fabric().block(2, 5, kBlockRails);
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(8, 1000));
  op.submit_all();
  ASSERT_TRUE(c.run_until([&] { return op.all_done(); }, 4_s));
  for (const int r : {2, 5}) {
    EXPECT_EQ(op.ticket(r).code, CANARY_NO_PATH) << op.ticket(r).status.text();
    const int named = op.ticket(r).status.detail().rank;
    EXPECT_TRUE(named == 2 || named == 5) << op.ticket(r).status.text();
  }
}

TEST(Channels, ALinkOfTheRingThatDoesNotWorkFailsTheJoin) {
  ClusterOptions o = sparse_cluster(8);
  o.settings.join_timeout = 2_s;
  Cluster c(o);
  c.fabric().block(4, 5, kBlockRails);
  ASSERT_FALSE(c.join(10_s));
  EXPECT_EQ(c.engine(4).join_status().code(), CANARY_NO_PATH) << c.engine(4).join_status().text();
  EXPECT_NE(c.engine(4).join_status().text().find("rank 5"), std::string::npos) << c.engine(4).join_status().text();
}

// A rank that leaves without a channel to the others is known to have left, and what it did before stays known.
TEST(Channels, WhoLeavesIsNotTakenForDeadByWhoHasNone) {
  Cluster c(sparse_cluster(8));
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(8, 1000));
  op.submit_all();
  ASSERT_NO_FATAL_FAILURE(op.expect_exact(1_s));
  ASSERT_NO_FATAL_FAILURE(leave_and_end(c, 4));
  c.run_for(3_s);
  // The others go on without it.
  const std::vector<GroupMember*> members = form_group(c, {0, 1, 2, 3, 5, 6, 7});
  AllRanks rest(c, sum(7, 1000));
  for (int r = 0; r < 7; ++r) rest.submit(r, members[static_cast<std::size_t>(r)]);
  ASSERT_NO_FATAL_FAILURE(rest.expect_exact(1_s));
}

}  // namespace
}  // namespace canarynet
