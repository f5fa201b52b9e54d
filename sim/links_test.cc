// Unlike links carry traffic together, in virtual time: slow NICs beside fast ones, shapers that let bursts pass, long
// paths, and NICs whose delays differ.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

struct LinkBed {
  std::int64_t mbit;
  Nanos delay = 50_us;  // one way
  std::int64_t bucket = 0;
  Nanos jitter = {};  // frames keep their order
};

ClusterOptions cluster_of(int hosts, const std::vector<LinkBed>& nics) {
  ClusterOptions o = unmeasured(flat_cluster(hosts, static_cast<int>(nics.size())));  // lanes differ, plans don't
  o.fabric.window_bytes = 16 << 20;                                                   // as a kernel's buffers grow
  return o;
}

void lay_links(Cluster& c, const std::vector<LinkBed>& nics) {
  for (int h = 0; h < c.hosts(); ++h) {
    for (std::size_t r = 0; r < nics.size(); ++r) {
      NicOptions& nic = c.fabric().nic(h, static_cast<int>(r));
      nic = NicOptions::link(nics[r].delay, BytesPerSec::from_mbit(nics[r].mbit));
      nic.out.bucket = nics[r].bucket;
      nic.out.jitter = nics[r].jitter;
    }
  }
}

// Mean time of `times` all-reduces of `bytes`, one after the other, after a warm-up of 100 ms.
Nanos mean_time(int hosts, const std::vector<LinkBed>& nics, std::uint64_t bytes, int times) {
  Cluster c(cluster_of(hosts, nics));
  lay_links(c, nics);
  EXPECT_TRUE(c.join());
  const auto once = [&] {
    AllRanks op(c, sum(hosts, bytes / 4));
    op.submit_all();
    op.expect_exact(60_s);
  };
  for (const Nanos began = c.now(); c.now() - began < 100_ms;) once();
  const Nanos began = c.now();
  for (int i = 0; i < times; ++i) once();
  return (c.now() - began) / times;
}

double ratio(Nanos a, Nanos b) { return a.seconds() / b.seconds(); }

std::string name_of(const std::vector<LinkBed>& nics) {
  std::string s;
  for (const LinkBed& n : nics) {
    s += (s.empty() ? "" : " + ") + std::to_string(n.mbit) + " Mbit/s";
    if (n.delay > 1_ms) s += " " + std::to_string(n.delay.count / 1'000'000) + " ms";
    if (n.jitter.count != 0) s += " and up to " + std::to_string(n.jitter.count / 1'000'000) + " ms";
    if (n.bucket != 0) s += " bucket " + std::to_string(n.bucket / 1024) + " KiB";
  }
  return s;
}

int times_for(std::uint64_t bytes) { return bytes <= (64 << 10) ? 200 : bytes <= (1 << 20) ? 40 : 4; }

void expect_no_worse_than_alone(int hosts, std::vector<LinkBed> nics, std::initializer_list<std::uint64_t> sizes) {
  for (const std::uint64_t bytes : sizes) {
    const Nanos alone = mean_time(hosts, {nics[0]}, bytes, times_for(bytes));
    const Nanos both = mean_time(hosts, nics, bytes, times_for(bytes));
    std::printf("%s, %d hosts, %llu KiB: %.3f ms, the first alone %.3f ms: %.2f\n", name_of(nics).c_str(), hosts,
                static_cast<unsigned long long>(bytes >> 10), both.seconds() * 1e3, alone.seconds() * 1e3,
                ratio(both, alone));
    EXPECT_LT(ratio(both, alone), 1.1) << name_of(nics) << ", " << bytes << " bytes";
  }
}

TEST(Links, ASlowSecondNicCostsNothing) {
  expect_no_worse_than_alone(2, {{1000, 50_us, 256 << 10}, {10, 50_us, 72 << 10}}, {1 << 20});
  if (quick()) return;
  expect_no_worse_than_alone(2, {{1000, 50_us, 256 << 10}, {10, 50_us, 72 << 10}}, {1 << 10});
  expect_no_worse_than_alone(2, {{1000, 50_us, 256 << 10}, {100, 50_us, 256 << 10}}, {64 << 10, 1 << 20});
}

TEST(Links, ASlowSecondNicCostsFourHostsNothing) {
  if (quick()) GTEST_SKIP() << "as on two hosts";
  expect_no_worse_than_alone(4, {{500, 50_us, 72 << 10}, {20, 50_us, 72 << 10}}, {1 << 10, 1 << 20});
}

// Times of blocks of operations, from the first one on, when nothing is known of any NIC: the median and the mean for
// each size.
struct Block {
  std::uint64_t bytes;
  Nanos median, mean;
};

std::vector<Block> blocks_from_the_start(int hosts, const std::vector<LinkBed>& nics,
                                         const std::vector<std::uint64_t>& sizes) {
  constexpr int kTimes = 20;
  Cluster c(cluster_of(hosts, nics));
  lay_links(c, nics);
  EXPECT_TRUE(c.join());
  std::vector<Block> blocks;
  for (const std::uint64_t bytes : sizes) {
    std::vector<Nanos> took;
    const Nanos began = c.now();
    for (int i = 0; i < kTimes; ++i) {
      AllRanks op(c, sum(hosts, bytes / 4));
      const Nanos submitted = c.now();
      op.submit_all();
      op.expect_exact(60_s);
      took.push_back(c.now() - submitted);
    }
    const Nanos mean = (c.now() - began) / kTimes;
    std::nth_element(took.begin(), took.begin() + kTimes / 2, took.end());
    blocks.push_back({bytes, took[kTimes / 2], mean});
  }
  return blocks;
}

void expect_no_worse(const std::vector<Block>& both, const std::vector<Block>& alone, const std::string& name) {
  for (std::size_t i = 0; i < both.size(); ++i) {
    std::printf("%s, %llu KiB: median %.3f ms, mean %.3f, the first alone %.3f and %.3f: %.2f, %.2f\n", name.c_str(),
                static_cast<unsigned long long>(both[i].bytes >> 10), both[i].median.seconds() * 1e3,
                both[i].mean.seconds() * 1e3, alone[i].median.seconds() * 1e3, alone[i].mean.seconds() * 1e3,
                ratio(both[i].median, alone[i].median), ratio(both[i].mean, alone[i].mean));
    EXPECT_LT(ratio(both[i].median, alone[i].median), 1.1) << name << ", " << both[i].bytes << " bytes";
    EXPECT_LT(ratio(both[i].mean, alone[i].mean), 1.1) << name << ", " << both[i].bytes << " bytes";
  }
}

void expect_no_worse_from_the_start(int hosts, std::vector<LinkBed> nics, const std::vector<std::uint64_t>& sizes) {
  expect_no_worse(blocks_from_the_start(hosts, nics, sizes), blocks_from_the_start(hosts, {nics[0]}, sizes),
                  name_of(nics) + ", " + std::to_string(hosts) + " hosts");
}

// Runs them as canary-perf does, and each size as a job of its own.
void expect_no_worse_from_the_start(int hosts, const std::vector<LinkBed>& nics) {
  const std::vector<std::uint64_t> sizes = {1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20};
  expect_no_worse_from_the_start(hosts, nics, sizes);
  for (const std::uint64_t bytes : sizes) expect_no_worse_from_the_start(hosts, nics, std::vector{bytes});
}

TEST(Links, ASlowSecondNicCostsNothingFromTheStart) {
  for (const std::int64_t bucket : {72 << 10, 8 << 10, 256 << 10}) {
    for (const std::int64_t slow : {10, 100}) {
      expect_no_worse_from_the_start(2, {{1000, 50_us, bucket}, {slow, 50_us, bucket}});
      if (quick()) return;
    }
  }
}

TEST(Links, ASlowSecondNicCostsFourHostsNothingFromTheStart) {
  if (quick()) GTEST_SKIP() << "as on two hosts";
  for (const std::int64_t bucket : {8 << 10, 72 << 10, 256 << 10})
    expect_no_worse_from_the_start(4, {{500, 50_us, bucket}, {20, 50_us, bucket}});
}

// Sizes follow each other at random, as the layers of a model do: bytes that a long operation has put on a slow NIC
// must not be in the way of the short one behind it.
std::vector<Block> mixed_sizes(int hosts, const std::vector<LinkBed>& nics, std::uint64_t largest, unsigned seed) {
  constexpr int kTimes = 20;
  std::vector<Block> blocks;
  std::vector<std::size_t> order;
  for (std::uint64_t bytes = 1 << 10; bytes <= largest; bytes *= 4) {
    order.insert(order.end(), kTimes, blocks.size());
    blocks.push_back({bytes, {}, {}});
  }
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  Cluster c(cluster_of(hosts, nics));
  lay_links(c, nics);
  EXPECT_TRUE(c.join());
  std::vector<std::vector<Nanos>> took(blocks.size());
  for (const std::size_t size : order) {
    AllRanks op(c, sum(hosts, blocks[size].bytes / 4));
    const Nanos submitted = c.now();
    op.submit_all();
    op.expect_exact(60_s);
    took[size].push_back(c.now() - submitted);
    blocks[size].mean += (c.now() - submitted) / kTimes;
  }
  for (std::size_t size = 0; size < blocks.size(); ++size) {
    std::nth_element(took[size].begin(), took[size].begin() + kTimes / 2, took[size].end());
    blocks[size].median = took[size][kTimes / 2];
  }
  return blocks;
}

void expect_no_worse_mixed(int hosts, const std::vector<LinkBed>& nics, unsigned seed) {
  const std::uint64_t largest = 4 << 20;
  expect_no_worse(mixed_sizes(hosts, nics, largest, seed), mixed_sizes(hosts, {nics[0]}, largest, seed),
                  name_of(nics) + ", " + std::to_string(hosts) + " hosts, seed " + std::to_string(seed));
}

TEST(Links, ASlowSecondNicCostsMixedSizesNothing) {
  expect_no_worse_mixed(2, {{1000, 50_us, 72 << 10}, {10, 50_us, 72 << 10}}, 1);
}

// Among four hosts, frames to one peer stand behind frames to another, and so do their acknowledgements.
TEST(Links, ASlowSecondNicCostsMixedSizesOfFourHostsNothing) {
  if (quick()) GTEST_SKIP() << "as on two hosts";
  unsigned seed = 1;
  for (const std::int64_t bucket : {72 << 10, 8 << 10, 256 << 10})
    expect_no_worse_mixed(4, {{500, 50_us, bucket}, {20, 50_us, bucket}}, seed++);
}

// What a sketch of 1 MiB sends, with a pause for computing behind each. The first trials of all lanes take 15 MB, where
// all share the NICs; those in which each lane finds what it can carry alone take a minute and a half. After them, and
// over a long time, probes are next to nothing.
TEST(Links, ProbesAreASmallPartOfWhatShortOperationsSend) {
  constexpr std::uint64_t kBytes = 256 << 10;
  const std::vector<LinkBed> nics = {{100}, {100}};
  ClusterOptions o = cluster_of(4, nics);
  o.settings.algo = "mesh";
  Cluster c(o);
  lay_links(c, nics);
  ASSERT_TRUE(c.join());
  const auto sent = [&] {
    std::uint64_t bytes = 0;
    for (int host = 0; host < 4; ++host) {
      for (int rail = 0; rail < 2; ++rail) bytes += c.fabric().nic_counters(host, rail).tx_bytes;
    }
    return static_cast<double>(bytes);
  };
  const auto part_of_what_is_due = [&](int operations) {
    const double before = sent();
    for (int i = 0; i < operations; ++i) {
      AllRanks op(c, sum(4, kBytes / 4));
      op.submit_all();
      op.expect_exact(10_s);
      c.run_for(150_ms);
    }
    return (sent() - before) / (operations * 2.0 * 3 * kBytes);
  };
  const double first = part_of_what_is_due(20), then = part_of_what_is_due(600), last = part_of_what_is_due(400);
  std::printf("the first 20 operations sent %.3f times what is due, the next 600 %.3f times, and 400 more %.3f times\n",
              first, then, last);
  EXPECT_LT(then, 1.05);
  EXPECT_LT(last, 1.03);
}

// In their trials three fast hosts share the NICs of a slow one, and what a lane shows there is its share, so equal
// rails look unequal. By the bytes that the slow host sends, a ring over each rail takes 3.9 ms and 15.7, and its steps
// take 0.7 more.
TEST(Links, RingsKeepToTheirRailsThoughLanesLookUnequal) {
  for (const auto& [kib, seconds] : {std::pair{64, 5.0e-3}, {256, 17.6e-3}}) {
    ClusterOptions o = unmeasured(flat_cluster(4, 2));
    o.settings.algo = "ring_per_rail";
    Cluster c(std::move(o));
    for (int host = 0; host < 4; ++host) {
      for (int rail = 0; rail < 2; ++rail)
        c.fabric().nic(host, rail) = NicOptions::link(50_us, BytesPerSec::from_mbit(host == 3 ? 100 : 500));
    }
    ASSERT_TRUE(c.join());
    Nanos took;
    int operations = 0;
    while (c.now() < 3_s) {
      const Nanos began = c.now();
      AllRanks op(c, sum(4, static_cast<std::uint64_t>(kib) << 8));
      op.submit_all();
      op.expect_exact(10_s);
      if (c.now() > 1_s) took += c.now() - began, ++operations;
      c.run_for(5_ms);
    }
    std::printf("%d KiB: %.3f ms\n", kib, took.seconds() * 1e3 / operations);
    EXPECT_LT(took.seconds() / operations, seconds);
  }
}

// Seven lanes share each NIC, and what the trials of a job's first seconds show of them differs. By the NICs' rates a
// mesh takes 5.9 ms.
TEST(Links, AMeshOfEightHostsGoesOnAsItBeganThoughItsNicsAreUnequal) {
  for (const bool one_slow_rail : {false, true}) {
    ClusterOptions o = unmeasured(flat_cluster(8, 2));
    o.settings.algo = "mesh";
    Cluster c(std::move(o));
    for (int host = 0; host < 8; ++host) {
      const std::int64_t second = !one_slow_rail ? 125 : host == 7 ? 50 : 500;
      c.fabric().nic(host, 0) = NicOptions::link(50_us, BytesPerSec::from_mbit(500));
      c.fabric().nic(host, 1) = NicOptions::link(50_us, BytesPerSec::from_mbit(second));
    }
    ASSERT_TRUE(c.join());
    Nanos took;
    int operations = 0;
    while (c.now() < 10_s) {
      const Nanos began = c.now();
      AllRanks op(c, sum(8, 1 << 16));
      op.submit_all();
      op.expect_exact(10_s);
      if (c.now() > 4_s) took += c.now() - began, ++operations;
      c.run_for(5_ms);
    }
    std::printf("%s: %.3f ms\n", one_slow_rail ? "500 + 500, one rail 50" : "500 + 125 Mbit/s",
                took.seconds() * 1e3 / operations);
    EXPECT_LT(took.seconds() / operations, 9.5e-3);
    if (quick()) return;
  }
}

TEST(Links, EqualNicsShare) {
  const LinkBed nic{500};
  for (const std::uint64_t bytes : {1 << 20, 4 << 20}) {
    const Nanos alone = mean_time(2, {nic}, bytes, times_for(bytes)),
                both = mean_time(2, {nic, nic}, bytes, times_for(bytes));
    std::printf("500 + 500 Mbit/s, %llu KiB: %.3f ms, one alone %.3f ms: %.2f\n",
                static_cast<unsigned long long>(bytes >> 10), both.seconds() * 1e3, alone.seconds() * 1e3,
                ratio(both, alone));
    EXPECT_LT(ratio(both, alone), 0.6) << bytes;
    if (quick()) return;
  }
}

// The share of what the links carry together: 2 (n - 1) / n of the bytes go in each direction.
double share_of_bound(const std::vector<LinkBed>& nics, std::uint64_t bytes = 32 << 20) {
  const Nanos took = mean_time(2, nics, bytes, 1);
  double bytes_per_second = 0;
  for (const LinkBed& n : nics) bytes_per_second += static_cast<double>(n.mbit) * 125'000;
  const double share = static_cast<double>(bytes) / bytes_per_second / took.seconds();
  std::printf("%s: %.1f %% of the bound\n", name_of(nics).c_str(), share * 100);
  return share;
}

TEST(Links, LongPathsAreFilled) {
  EXPECT_GT(share_of_bound({{200, 20_ms}}), 0.85);
  if (quick()) return;
  EXPECT_GT(share_of_bound({{200, 40_ms}}), 0.85);
}

// A late frame holds up those behind it, like one that TCP sends again or one whose receiver is not woken in time.
TEST(Links, ALongPathWhoseFramesAreLateIsFilled) {
  EXPECT_GT(share_of_bound({{200, 20_ms, 0, 20_ms}}), 0.9);
  if (quick()) return;
  EXPECT_GT(share_of_bound({{200, 40_ms, 0, 20_ms}}, 64 << 20), 0.9);
}

TEST(Links, UnequalDelaysAddUp) {
  EXPECT_GT(share_of_bound({{250, 1_ms}, {250, 10_ms}}), 0.85);
  if (quick()) return;
  EXPECT_GT(share_of_bound({{200, 40_ms}, {50, 1_ms}}, 64 << 20), 0.85);
}

}  // namespace
}  // namespace canarynet
