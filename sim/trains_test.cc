// Trains of probes over idle links, in virtual time: what they find and how soon, their share of a link, when they keep
// away, and what they cost where there are many peers.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "sim/estimates_test_util.h"

namespace canarynet {
namespace {

void with_trains(ClusterOptions* o) { o->settings.probes = true; }

// What the cluster has sent over its NICs.
std::uint64_t sent(Cluster& c, int hosts) {
  std::uint64_t bytes = 0;
  for (int h = 0; h < hosts; ++h) {
    c.engine(h).for_each_link([&](const LinkView& link) { bytes += link.path.counters().bytes_sent; });
  }
  return bytes;
}
std::uint64_t frames(Cluster& c, int hosts) {
  std::uint64_t n = 0;
  for (int h = 0; h < hosts; ++h) {
    c.engine(h).for_each_link([&](const LinkView& link) { n += link.path.counters().frames_sent; });
  }
  return n;
}

TEST(Trains, TellTheRateOfALinkThatHasNeverCarriedAnything) {
  for (const Bed& bed : {Bed{100, 1_ms}, Bed{1000, 100_us}, Bed{10, 1_ms}, Bed{100, 20_ms}, Bed{100, 100_us, 72 << 10},
                         // These hold more than the bucket that a train takes into account.
                         Bed{1000, 1_ms, 256 << 10}, Bed{500, 10_ms}, Bed{500, 50_ms}, Bed{2000, 10_ms, 256 << 10}}) {
    Job job(bed, with_trains);
    EXPECT_TRUE(job.cluster.run_until([&] { return job.announces(bed); }, 10_s)) << bed.name() << ": " << job.text();
    std::printf("%s, bucket %lld: %s after %.1f s\n", bed.name().c_str(), static_cast<long long>(bed.bucket),
                job.text().c_str(), job.cluster.now().seconds());
  }
}

// The bucket of 72 KiB is what canary-run's shapers have; it hides the change from the first part of every train.
TEST(Trains, FindAChangeOfRateWithinTenIdleSeconds) {
  for (const auto& [from, to] : {std::pair{Bed{1000, 1_ms}, Bed{100, 1_ms}},
                                 {Bed{100, 1_ms}, Bed{1000, 1_ms}},
                                 {Bed{100, 10_ms}, Bed{1000, 10_ms}},
                                 {Bed{100, 1_ms, 256 << 10}, Bed{1000, 1_ms, 256 << 10}},
                                 {Bed{10, 1_ms}, Bed{1000, 1_ms}},
                                 {Bed{500, 10_ms}, Bed{250, 10_ms}},
                                 {Bed{10, 1_ms}, Bed{40, 1_ms}},
                                 {Bed{40, 1_ms}, Bed{10, 1_ms}},
                                 {Bed{100, 100_us, 72 << 10}, Bed{50, 100_us, 72 << 10}},
                                 {Bed{50, 100_us, 72 << 10}, Bed{100, 100_us, 72 << 10}}}) {
    Job job(from, with_trains);
    job.cluster.run_for(60_s);  // where the link is slow, the first train has taken the share of half a minute
    ASSERT_TRUE(job.announces(from)) << from.name() << ": " << job.text();
    job.lay(to);
    const Nanos changed = job.cluster.now();
    EXPECT_TRUE(job.cluster.run_until([&] { return job.announces(to); }, 30_s)) << to.name() << ": " << job.text();
    const Nanos took = job.cluster.now() - changed;
    std::printf("%s to %s: %.3f s\n", from.name().c_str(), to.name().c_str(), took.seconds());
    EXPECT_LE(took, 10_s) << from.name() << " to " << to.name();
    if (quick()) return;
  }
}

// The way back is so slow that acknowledgements stand behind one another.
TEST(Trains, AreTimedWhereTheyArrive) {
  const Bed bed{500, 1_ms};
  Job job(bed, with_trains);
  job.cluster.fabric().nic(1, 0).out.rate = BytesPerSec{62'500};
  job.cluster.run_for(20_s);
  const double mbit = static_cast<double>(job.link(0).beta().count) * 8e-6;
  EXPECT_NEAR(mbit, 500, 50) << job.text();
}

TEST(Trains, AreAHundredthOfTheLink) {
  for (const Bed& bed : {Bed{10, 1_ms}, Bed{100, 1_ms}, Bed{100, 1_ms, 256 << 10}, Bed{1000, 1_ms}}) {
    Job job(bed, with_trains);
    job.cluster.run_for(20_s);
    const std::uint64_t before = sent(job.cluster, 2);
    job.cluster.run_for(100_s);
    const std::uint64_t bytes = (sent(job.cluster, 2) - before) / 2;
    const std::int64_t carries = BytesPerSec::from_mbit(bed.mbit).bytes_in(100_s).count;
    std::printf("%s: %.3f %% of the link, %s\n", bed.name().c_str(),
                100 * static_cast<double>(bytes) / static_cast<double>(carries), job.text().c_str());
    EXPECT_GT(bytes, 128u << 10) << bed.name();
    // With ten seconds' share saved up before, and the heartbeats, of 100 bytes or so, five per second.
    EXPECT_LE(bytes, static_cast<std::uint64_t>(carries) / 100 * 11 / 10 + 100'000) << bed.name();
  }
}

TEST(Trains, NoneGoesWhileARailCarriesAnything) {
  const Bed bed{100, 1_ms};
  Job job(bed, with_trains);
  // Small operations, too small to be probed for, until long after a train would have gone.
  for (int i = 0; i < 100; ++i) {
    AllRanks op(job.cluster, sum(2, 64));
    op.submit_all();
    op.expect_exact();
    job.cluster.run_for(100_ms);
  }
  EXPECT_LT(sent(job.cluster, 2), 256u << 10);
  EXPECT_EQ(job.link(0).beta().count, 0);
  job.cluster.run_for(10_s);
  EXPECT_NE(job.link(0).beta().count, 0);
}

// A piece that comes in the middle of a train waits for what is under way at most.
TEST(Trains, StopForPieces) {
  const Bed bed{10, 1_ms};
  Job job(bed, with_trains);
  ASSERT_TRUE(job.cluster.run_until([&] { return job.path(0).measuring_bytes != 0; }, 10_s));
  job.cluster.run_for(20_ms);
  const std::uint64_t before = sent(job.cluster, 2);
  AllRanks op(job.cluster, sum(2, 64));
  const Nanos began = job.cluster.now();
  op.submit_all();
  op.expect_exact();
  std::printf("256 bytes beside a train at 10 Mbit/s: %.3f ms\n", (job.cluster.now() - began).seconds() * 1e3);
  EXPECT_LE(job.cluster.now() - began, 60_ms);
  job.cluster.run_for(300_ms);
  EXPECT_LT(sent(job.cluster, 2) - before, 64u << 10) << "the train ended";
}

TEST(Trains, SurviveTheDeathOfTheirLane) {
  const Bed bed{10, 1_ms, 0, {}, 2};
  Job job(bed, with_trains);
  int rail = 0;
  ASSERT_TRUE(job.cluster.run_until(
      [&] {
        for (rail = 0; rail < 2; ++rail) {
          if (job.path(0, rail).measuring_bytes != 0) return true;
        }
        return false;
      },
      10_s));
  job.cluster.fabric().nic_down(0, rail, NicDeath::kBothEnds);
  job.cluster.run_for(1_s);
  EXPECT_NE(job.path(0, rail).state, Path::State::kUp);
  EXPECT_EQ(job.path(0, rail).measuring_bytes, 0u);
  EXPECT_TRUE(job.cluster.run_until([&] { return job.link(0, 1 - rail).beta().count != 0; }, 60_s))
      << "the other one's turn comes";
  job.cluster.fabric().nic_up(0, rail);
  EXPECT_TRUE(job.cluster.run_until([&] { return job.link(0, rail).beta().count != 0; }, 120_s)) << job.text();
}

TEST(Trains, OfALinkThatAlternatesAreAnnouncedAFewTimesAndNoMore) {
  const Bed fast{100, 1_ms}, slow{50, 1_ms};
  Job job(fast, with_trains);
  job.cluster.run_for(10_s);
  const std::uint64_t before = job.link(0).changes(), sent_before = sent(job.cluster, 2);
  for (int i = 0; i < 60; ++i) {
    job.lay(i % 2 == 0 ? slow : fast);
    job.cluster.run_for(3_s);
  }
  const std::uint64_t changes = job.link(0).changes() - before;
  const double share = static_cast<double>(sent(job.cluster, 2) - sent_before) / 2 /
                       static_cast<double>(BytesPerSec::from_mbit(75).bytes_in(180_s).count);
  std::printf("3 s each: %llu changes announced in 180 s, %.2f %% of the link\n",
              static_cast<unsigned long long>(changes), share * 100);
  EXPECT_LE(changes, 10u);
  EXPECT_LE(share, 0.012);
}

TEST(Trains, AreNotThereWhereProbesAreOff) {
  const Bed bed{100, 1_ms};
  Job job(bed, [](ClusterOptions* o) { o->settings.probes = false; });
  job.cluster.run_for(20_s);
  EXPECT_EQ(job.link(0).beta().count, 0);
  EXPECT_LT(sent(job.cluster, 2), 64u << 10);
}

// The frames of an idle engine beyond its heartbeats: no more with many peers than with few.
TEST(Trains, CostAnEngineNoMoreWithSixtyThreePeers) {
  const auto frames_of_probes = [](int hosts) {
    std::uint64_t n[2];
    for (const bool probes : {false, true}) {
      ClusterOptions o = flat_cluster(hosts, 1);
      o.fabric.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(1000));
      o.settings.connect_at_join = 64;
      o.settings.probes = probes;
      Cluster c(o);
      EXPECT_TRUE(c.join());
      c.run_for(3_s);
      const std::uint64_t before = frames(c, hosts);
      c.run_for(10_s);
      n[probes] = (frames(c, hosts) - before) / static_cast<std::uint64_t>(hosts) / 10;
    }
    std::printf("%d engines, idle: %llu frames per second and engine, %llu without probes\n", hosts,
                static_cast<unsigned long long>(n[1]), static_cast<unsigned long long>(n[0]));
    return n[1] - n[0];
  };
  EXPECT_LE(frames_of_probes(4), 500u);
  EXPECT_LE(frames_of_probes(quick() ? 8 : 64), 500u);
}

}  // namespace
}  // namespace canarynet
