// What a path's LinkEstimate says of links whose rate and delay are known, in virtual time: right within two seconds of
// traffic, changes found within one, nothing forgotten with a lane, nothing announced that does not change.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "sim/estimates_test_util.h"

namespace canarynet {
namespace {

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
void expect_found(const Bed& from, const Bed& to, Nanos each) {
  Job job(from);
  job.exchange(from, 3_s, [&] { return job.announces(from); });
  ASSERT_TRUE(job.announces(from)) << from.name() << ": " << job.text();
  job.lay(to);
  const Nanos changed = job.cluster.now();
  const bool found = job.exchange(
      to, 3_s, [&] { return job.announces(to); }, each);
  const Nanos took = job.cluster.now() - changed;
  std::printf("%s to %s: %.3f s, %s\n", from.name().c_str(), to.name().c_str(), took.seconds(), job.text().c_str());
  EXPECT_TRUE(found && took <= 1_s) << from.name() << " to " << to.name() << ": " << took.seconds() << " s, "
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
TEST(Estimates, ALongerWayIsFoundWithinASecond) {
  expect_found({1000, 1_ms}, {1000, 10_ms}, 50_ms);
  if (quick()) return;
  expect_found({100, 20_ms}, {100, 40_ms}, 50_ms);
  expect_found({1000, 100_us}, {1000, 500_us}, 50_ms);
}

// The receiver's acknowledgements keep its heartbeats away; it answers those of the sender's pauses.
TEST(Estimates, ALongerWayIsFoundWhereBytesGoOneWayOnly) {
  const Bed from{1000, 1_ms}, to{1000, 10_ms};
  Job job(from);
  const auto send = [&](const Bed& bed, Nanos span) {
    for (const Nanos began = job.cluster.now(); job.cluster.now() - began < span;) {
      AllRanks op(job.cluster, broadcast(2, 1 << 20));
      op.submit_all();
      op.expect_exact();
      if (Job::near(job.link(0).announced_alpha().count, bed.delay.count, 50'000)) return;
      job.cluster.run_for(5_ms);
    }
  };
  send(from, 1_s);
  job.lay(to);
  const Nanos changed = job.cluster.now();
  send(to, 3_s);
  std::printf("one way only: %.3f s, %s\n", (job.cluster.now() - changed).seconds(), job.text().c_str());
  EXPECT_LE(job.cluster.now() - changed, 1_s) << job.text();
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
