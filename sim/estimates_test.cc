// What a path's LinkEstimate says of links whose rate and delay are known, in virtual time: right within two seconds of
// traffic, changes found within one, nothing forgotten with a lane, nothing announced that does not change.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

// The sanitizers see the same code in the first bed of each kind.
bool quick() { return std::getenv("CANARY_TEST_QUICK") != nullptr; }

struct Bed {
  std::int64_t mbit;
  Nanos delay;  // one way
  std::int64_t bucket = 0;
  Nanos jitter = {};
  int rails = 1;

  std::string name() const {
    return std::to_string(mbit) + " Mbit/s, " + std::to_string(delay.count / 1000) + " us one way";
  }
};

class Job {
 public:
  explicit Job(const Bed& bed) : cluster(options(bed)) {
    lay(bed);
    EXPECT_TRUE(cluster.join());
  }
  void lay(const Bed& bed) {
    for (int h = 0; h < 2; ++h) {
      for (int r = 0; r < bed.rails; ++r) {
        NicOptions& nic = cluster.fabric().nic(h, r);
        nic = NicOptions::link(bed.delay, BytesPerSec::from_mbit(bed.mbit));
        nic.in.rate = {};
        nic.out.bucket = bed.bucket;
        nic.out.jitter = bed.jitter;
      }
    }
  }
  // One all-reduce after the other for so long, each of what the link carries in `each`, with what an application
  // computes in between. Looks at the estimates of both ends after each; true as soon as `enough` holds.
  bool exchange(const Bed& bed, Nanos span, const std::function<bool()>& enough, Nanos each = 250_ms) {
    const std::int64_t bytes = std::max<std::int64_t>(BytesPerSec::from_mbit(bed.mbit).bytes_in(each).count, 1 << 20);
    for (const Nanos began = cluster.now(); cluster.now() - began < span;) {
      AllRanks op(cluster, sum(2, static_cast<std::uint64_t>(bytes) / 4));
      op.submit_all();
      op.expect_exact(60_s);
      if (enough()) return true;
      cluster.run_for(5_ms);
    }
    return false;
  }
  void exchange(const Bed& bed, Nanos span) {
    exchange(bed, span, [] { return false; });
  }
  const Path& path(int host, int rail = 0) {
    const Path* found = nullptr;
    cluster.engine(host).for_each_link([&](const LinkView& link) {
      if (link.path.spec.local_rail == rail) found = &link.path;
    });
    return *found;
  }
  const LinkEstimate& link(int host, int rail = 0) { return path(host, rail).link; }
  // Whether what is announced is within a tenth, and 50 us, of the bed.
  bool announces(const Bed& bed) {
    for (int h = 0; h < 2; ++h) {
      const LinkEstimate& l = link(h);
      if (!near(l.announced_alpha().count, bed.delay.count, 50'000) ||
          !near(l.announced_beta().count, BytesPerSec::from_mbit(bed.mbit).count, 0))
        return false;
    }
    return true;
  }
  static bool near(std::int64_t found, std::int64_t truth, std::int64_t floor) {
    return std::abs(found - truth) <= truth / 10 + floor;
  }
  void expect_right(const Bed& bed) {
    for (int h = 0; h < 2; ++h) {
      const LinkEstimate& l = link(h);
      EXPECT_TRUE(near(l.alpha().count, bed.delay.count, 50'000)) << bed.name() << ": " << l.alpha().count << " ns";
      EXPECT_TRUE(near(l.beta().count, BytesPerSec::from_mbit(bed.mbit).count, 0))
          << bed.name() << ": " << l.beta().count << " bytes per second";
    }
  }
  std::string text() {
    const LinkEstimate& l = link(0);
    const auto mbit = [](BytesPerSec r) { return static_cast<double>(r.count) * 8e-6; };
    char t[160];
    std::snprintf(t, sizeof t, "alpha %.3f ms (announced %.3f), beta %.1f Mbit/s (announced %.1f), %llu changes",
                  l.alpha().seconds() * 1e3, l.announced_alpha().seconds() * 1e3, mbit(l.beta()),
                  mbit(l.announced_beta()), static_cast<unsigned long long>(l.changes()));
    return t;
  }

  Cluster cluster;

 private:
  static ClusterOptions options(const Bed& bed) {
    ClusterOptions o = flat_cluster(2, bed.rails);
    o.fabric.window_bytes = 64 << 20;  // as a kernel's buffers grow
    return o;
  }
};

TEST(Estimates, AreRightWithinTwoSecondsOfTraffic) {
  for (const Bed& bed :
       {Bed{1000, 100_us}, Bed{1000, 1_ms}, Bed{1000, 50_ms}, Bed{10, 100_us}, Bed{10, 10_ms}, Bed{10, 50_ms},
        Bed{100, 100_us}, Bed{100, 10_ms}, Bed{100, 50_ms}, Bed{2000, 100_us}, Bed{2000, 50_ms},
        Bed{10, 100_us, 256 << 10}, Bed{100, 100_us, 256 << 10}, Bed{1000, 10_ms, 256 << 10}}) {
    Job job(bed);
    job.exchange(bed, 2_s);
    std::printf("%s, bucket %lld: %s\n", bed.name().c_str(), static_cast<long long>(bed.bucket), job.text().c_str());
    job.expect_right(bed);
    if (quick()) return;
  }
}

// A change of `from` to `to` under traffic, which pauses after `each`.
void expect_found(const Bed& from, const Bed& to, Nanos each, Nanos limit = 1_s) {
  Job job(from);
  job.exchange(from, 3_s, [&] { return job.announces(from); });
  ASSERT_TRUE(job.announces(from)) << from.name() << ": " << job.text();
  job.lay(to);
  const Nanos changed = job.cluster.now();
  const bool found = job.exchange(
      to, 3_s, [&] { return job.announces(to); }, each);
  const Nanos took = job.cluster.now() - changed;
  std::printf("%s to %s: %.3f s, %s\n", from.name().c_str(), to.name().c_str(), took.seconds(), job.text().c_str());
  EXPECT_TRUE(found && took <= limit) << from.name() << " to " << to.name() << ": " << took.seconds() << " s, "
                                      << job.text();
}

TEST(Estimates, AChangeOfRateIsFoundWithinASecond) {
  expect_found({1000, 1_ms}, {100, 1_ms}, 250_ms);
  if (quick()) return;
  expect_found({100, 1_ms}, {1000, 1_ms}, 250_ms);
  expect_found({200, 20_ms}, {100, 20_ms}, 250_ms);
  expect_found({100, 100_us, 256 << 10}, {200, 100_us, 256 << 10}, 250_ms);
  expect_found({500, 100_us}, {350, 100_us}, 250_ms);
}

TEST(Estimates, AShorterWayIsFoundWithinASecond) {
  expect_found({1000, 10_ms}, {1000, 1_ms}, 50_ms);
  if (quick()) return;
  expect_found({100, 40_ms}, {100, 20_ms}, 50_ms);
  expect_found({100, 50_ms}, {100, 1_ms}, 50_ms);
}

// Only pauses of the traffic show it, and more than one of them has to.
TEST(Estimates, ALongerWayIsFoundAfterAFewPauses) {
  expect_found({1000, 1_ms}, {1000, 10_ms}, 50_ms, 1500_ms);
  if (quick()) return;
  expect_found({100, 20_ms}, {100, 40_ms}, 50_ms, 1500_ms);
  expect_found({1000, 100_us}, {1000, 500_us}, 50_ms, 1500_ms);
}

TEST(Estimates, AChangeOfDelayIsFoundWithinTenIdleSeconds) {
  const Bed from{1000, 1_ms}, to{1000, 10_ms};
  Job job(from);
  job.exchange(from, 1_s);
  ASSERT_TRUE(job.announces(from)) << job.text();
  for (const Bed& bed : {to, from}) {
    job.lay(bed);
    EXPECT_TRUE(job.cluster.run_until([&] { return job.announces(bed); }, 10_s)) << bed.name() << ": " << job.text();
  }
}

TEST(Estimates, AreKeptWhenALaneDiesAndComesBack) {
  const Bed bed{200, 5_ms, 0, {}, 2};
  Job job(bed);
  job.exchange(bed, 2_s);
  job.expect_right(bed);
  const std::uint64_t changes = job.link(0).changes();
  job.cluster.fabric().nic_down(0, 0, NicDeath::kBothEnds);
  job.cluster.run_for(300_ms);
  EXPECT_NE(job.path(0).state, Path::State::kUp);
  job.expect_right(bed);
  EXPECT_EQ(job.path(0).estimator.rate().count, 0) << "what the lane has proved has gone with it";
  job.cluster.fabric().nic_up(0, 0);
  EXPECT_TRUE(job.cluster.run_until([&] { return job.path(0).state == Path::State::kUp; }, 5_s));
  job.expect_right(bed);
  job.exchange(bed, 1_s);
  job.expect_right(bed);
  EXPECT_EQ(job.link(0).changes(), changes) << job.text();
}

TEST(Estimates, OfASteadyLinkAreNotAnnouncedAgainAndAgain) {
  for (const Bed& bed : {Bed{200, 5_ms, 0, 3_ms}, Bed{1000, 100_us, 256 << 10, 1_ms}}) {
    Job job(bed);
    job.exchange(bed, 3_s);
    const std::uint64_t changes = job.link(0).changes();
    if (!quick()) job.exchange(bed, 5_s);
    job.cluster.run_for(20_s);
    const LinkEstimate& l = job.link(0);
    std::printf("%s: %s, jitter %.3f ms\n", bed.name().c_str(), job.text().c_str(), l.jitter().seconds() * 1e3);
    EXPECT_LE(changes, 5u);
    // The least of more round trips is less, so alpha may fall by steps; flapping would show dozens.
    EXPECT_LE(l.changes(), changes + 3) << job.text();
    EXPECT_GT(l.jitter(), bed.jitter / 8);
    EXPECT_GE(l.alpha(), bed.delay);
    EXPECT_LE(l.alpha(), bed.delay + bed.jitter / 2) << job.text();
  }
}

}  // namespace
}  // namespace canarynet
