// sim/estimates_test_util.h -- for tests: two hosts whose links have a known rate and delay, and what their paths say.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "sim/cluster_test_util.h"

namespace canarynet {

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
  explicit Job(const Bed& bed, const std::function<void(ClusterOptions*)>& amend = {}) : cluster(options(bed, amend)) {
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
  static ClusterOptions options(const Bed& bed, const std::function<void(ClusterOptions*)>& amend) {
    ClusterOptions o = unmeasured(flat_cluster(2, bed.rails));  // whatever is found, one plan runs
    o.fabric.window_bytes = 64 << 20;                           // as a kernel's buffers grow
    if (amend) amend(&o);
    return o;
  }
};

}  // namespace canarynet
