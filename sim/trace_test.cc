// NICs whose rates follow a trace, in virtual time: all-reduces of two and four hosts use nearly all that their links
// offer over the whole time, whatever the rates do, and every result is exact.
//
// CANARY_TRACE_SECONDS=60 plays more of each trace than its first seconds, CANARY_TRACE_SEED another random walk, and
// CANARY_TRACE_MIB=2 shorter operations.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

// What a NIC carries when nothing holds it back. All hosts follow the same trace. Rates and pieces are half of what
// bench/traces.py has, which takes the simulator half the time.
constexpr std::array<double, 3> kMbit = {100, 30, 10};
constexpr Bytes kPieceBytes{64 * 1024};
constexpr Nanos kTick = 100_ms;

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// Rates in Mbit/s from one tick to the next.
using Rates = std::array<double, 3>;
struct Trace {
  const char* name;
  std::vector<Rates> ticks;

  const Rates& at(Nanos t) const {
    return ticks[std::min(static_cast<std::size_t>(t.count / kTick.count), ticks.size() - 1)];
  }
};

template <typename RatesAt>
Trace make(const char* name, Nanos span, RatesAt rates_at) {
  Trace t{name, {}};
  for (Nanos at; at < span; at += kTick) t.ticks.push_back(rates_at(at.seconds()));
  return t;
}

// The NICs change places every three seconds.
Trace steps(Nanos span) {
  return make("steps", span, [](double s) {
    const auto turn = static_cast<std::size_t>(s / 3);
    return Rates{kMbit[turn % 3], kMbit[(turn + 1) % 3], kMbit[(turn + 2) % 3]};
  });
}
// Each falls to a tenth within six seconds and is whole again at once, one two seconds after the other.
Trace sawtooth(Nanos span) {
  return make("sawtooth", span, [](double s) {
    Rates r;
    for (std::size_t n = 0; n < 3; ++n)
      r[n] = kMbit[n] * (1 - 0.9 * std::fmod(s + 2.0 * static_cast<double>(n), 6) / 6);
    return r;
  });
}
// Each walks between a tenth of its rate and all of it, by up to a quarter at a time.
Trace walk(Nanos span, std::uint64_t seed) {
  Random random(seed);
  std::array<double, 3> decades = {-0.3, -0.5, -0.7};
  return make("walk", span, [&](double) {
    Rates r;
    for (std::size_t n = 0; n < 3; ++n) {
      decades[n] += (static_cast<double>(random.below(2001)) - 1000) / 1000 * 0.1;
      decades[n] = decades[n] > 0 ? -decades[n] : decades[n] < -1 ? -2 - decades[n] : decades[n];
      r[n] = kMbit[n] * std::pow(10, decades[n]);
    }
    return r;
  });
}
// The fastest carries a hundredth of its rate for three seconds, then for ten, then for twenty.
Trace collapse(Nanos span) {
  return make("collapse", span, [](double s) {
    Rates r = kMbit;
    if ((s >= 3 && s < 6) || (s >= 12 && s < 22) || (s >= 30 && s < 50)) r[0] /= 100;
    return r;
  });
}

// Bytes of one host.
struct Outcome {
  Nanos took;
  double offered = 0;    // what its NICs could have sent meanwhile
  double delivered = 0;  // what the operations that are done had it send
  double sent = 0;       // all that it sent, headers, probes and second copies among them; of the host that sent most
  double share() const { return delivered / offered; }
};

// A cluster whose NICs have rates of their own, the same on all hosts, and which always has two all-reduces in flight.
class Job {
 public:
  Job(int hosts, int nics, std::uint64_t bytes, Bytes piece_bytes)
      : cluster_(options(hosts, nics, piece_bytes)), nics_(nics), bytes_(bytes) {
    for (int h = 0; h < hosts; ++h) {
      for (int r = 0; r < nics; ++r) {
        cluster_.fabric().nic(h, r) = NicOptions::link(50_us);
        cluster_.fabric().nic(h, r).out.bucket = 72 << 10;
      }
    }
  }
  Cluster& cluster() { return cluster_; }
  int finished() const { return finished_; }
  bool idle() const { return flying_.empty(); }
  void set_rates(std::span<const double> mbit) {
    for (int h = 0; h < cluster_.hosts(); ++h) {
      int rail = 0;
      for (const double m : mbit)
        cluster_.fabric().nic(h, rail++).out.rate = BytesPerSec{static_cast<std::int64_t>(m * 125'000)};
    }
  }
  // `more`: an operation that ends is followed by another.
  void run_until(Nanos at, bool more) {
    while (cluster_.now() < at && (more || !flying_.empty())) {
      while (more && flying_.size() < 2) {
        flying_.push_back(std::make_unique<AllRanks>(cluster_, sum(cluster_.hosts(), bytes_ / 4)));
        flying_.back()->submit_all();
      }
      cluster_.run_until([&] { return flying_.front()->all_done(); }, at - cluster_.now());
      if (!flying_.front()->all_done()) return;
      flying_.front()->expect_exact();
      flying_.pop_front();
      ++finished_;
    }
  }
  std::uint64_t sent(int host, int nic) { return cluster_.fabric().nic_counters(host, nic).tx_bytes; }
  // All that a host sent; of the host that sent most.
  std::uint64_t sent_most() {
    std::uint64_t most = 0;
    for (int h = 0; h < cluster_.hosts(); ++h) {
      std::uint64_t all = 0;
      for (int r = 0; r < nics_; ++r) all += sent(h, r);
      most = std::max(most, all);
    }
    return most;
  }

 private:
  static ClusterOptions options(int hosts, int nics, Bytes piece_bytes) {
    ClusterOptions o = flat_cluster(hosts, nics);
    o.settings.piece_bytes = piece_bytes;
    o.fabric.window_bytes = 16 << 20;  // as a kernel's buffers grow
    return o;
  }
  Cluster cluster_;
  int nics_;
  std::uint64_t bytes_;
  std::deque<std::unique_ptr<AllRanks>> flying_;
  int finished_ = 0;
};

// For as long as the trace lasts, and until the last operations are done.
Outcome play(const Trace& trace, int hosts, std::uint64_t bytes) {
  Job job(hosts, 3, bytes, kPieceBytes);
  job.set_rates(trace.ticks.front());
  EXPECT_TRUE(job.cluster().join());
  const std::uint64_t before = job.sent_most();
  const Nanos began = job.cluster().now(), span = kTick * static_cast<std::int64_t>(trace.ticks.size());
  Outcome outcome;
  for (Nanos at; at < span || !job.idle(); at += kTick) {
    const Rates& rates = trace.at(at);
    job.set_rates(rates);
    job.run_until(began + at + kTick, at < span);
    outcome.took = job.cluster().now() - began;
    outcome.offered += (rates[0] + rates[1] + rates[2]) * 125'000 * (outcome.took - at).seconds();
  }
  outcome.delivered = 2.0 * (hosts - 1) / hosts * static_cast<double>(bytes) * job.finished();
  outcome.sent = static_cast<double>(job.sent_most() - before);
  return outcome;
}

void expect_used(const Trace& trace, int hosts, const std::string& more = "") {
  const Outcome o = play(trace, hosts, number_from("CANARY_TRACE_MIB", 8) << 20);
  std::printf("%s%s, %d hosts: %.1f s, %.1f of %.1f MB that were offered: %.1f %%; all bytes sent: %.1f %%\n",
              trace.name, more.c_str(), hosts, o.took.seconds(), o.delivered / 1e6, o.offered / 1e6, 100 * o.share(),
              100 * o.sent / o.offered);
  // A short trace has little time to make up for its last change.
  const double least = quick() ? 0.5 : std::getenv("CANARY_TRACE_SECONDS") == nullptr ? 0.9 : 0.92;
  EXPECT_GE(o.share(), least) << trace.name << more << ", " << hosts << " hosts";
}

Nanos span(std::uint64_t seconds) {
  return 1_s * static_cast<std::int64_t>(number_from("CANARY_TRACE_SECONDS", quick() ? 1 : seconds));
}
// The short form has four hosts alone, whose frames meet more at each NIC.
std::vector<int> hosts() { return std::getenv("CANARY_TRACE_SECONDS") != nullptr ? std::vector{2, 4} : std::vector{4}; }

TEST(Trace, NicsThatChangePlacesAreUsed) {
  for (const int n : hosts()) expect_used(steps(span(4)), n);
}

TEST(Trace, ASawtoothIsFollowed) {
  for (const int n : hosts()) expect_used(sawtooth(span(5)), n);
}

TEST(Trace, ARandomWalkIsFollowed) {
  const std::uint64_t seed = number_from("CANARY_TRACE_SEED", 1);
  for (const int n : hosts()) expect_used(walk(span(3), seed), n, ", seed " + std::to_string(seed));
}

TEST(Trace, ANicThatCollapsesAndComesBackIsUsed) {
  for (const int n : hosts()) expect_used(collapse(span(12)), n);
}

// Nothing that the lane holds is acknowledged for seconds, but it gets on. Given up, it would be on probation when the
// NIC is back.
TEST(Trace, ANicThatCollapsesKeepsItsLane) {
  Job job(2, 3, 8 << 20, kPieceBytes);
  job.set_rates(kMbit);
  ASSERT_TRUE(job.cluster().join());
  job.run_until(job.cluster().now() + 1500_ms, true);
  job.set_rates(std::array{kMbit[0] / 100, kMbit[1], kMbit[2]});
  job.run_until(job.cluster().now() + 3_s, true);
  job.set_rates(kMbit);
  job.run_until(job.cluster().now() + 1_s, true);
  job.run_until(job.cluster().now() + 20_s, false);
  EXPECT_TRUE(job.idle());
  for (int h = 0; h < 2; ++h) {
    job.cluster().engine(h).for_each_link([&](const LinkView& link) {
      EXPECT_EQ(link.path.failovers, 0u) << "host " << h << ", NIC " << link.path.spec.local_rail;
    });
  }
}

// Returns how long it takes until all hosts use a NIC again that had a hundredth of its rate for `collapsed`; gives up
// after nine seconds.
Nanos found_after(std::uint64_t bytes, Nanos collapsed) {
  constexpr int kHosts = 4;
  Job job(kHosts, 3, bytes, kPieceBytes);
  job.set_rates(kMbit);
  if (!job.cluster().join()) {
    ADD_FAILURE() << "the join failed";
    return 9_s;
  }
  job.run_until(job.cluster().now() + 1500_ms, true);
  job.set_rates(std::array{kMbit[0] / 100, kMbit[1], kMbit[2]});
  job.run_until(job.cluster().now() + collapsed, true);
  job.set_rates(kMbit);
  const Nanos back = job.cluster().now();
  std::array<bool, kHosts> used{};
  Nanos found;
  while (found < 9_s && std::find(used.begin(), used.end(), false) != used.end()) {
    std::array<std::uint64_t, kHosts> before{};
    for (int h = 0; h < kHosts; ++h) before[static_cast<std::size_t>(h)] = job.sent(h, 0);
    job.run_until(job.cluster().now() + kTick, true);
    found = job.cluster().now() - back;
    for (std::size_t h = 0; h < kHosts; ++h)
      used[h] |= job.sent(static_cast<int>(h), 0) - before[h] >= 625'000;  // half of what it carries in 100 ms
  }
  std::printf("%llu KiB, slow for %.0f s: found again on all hosts after %.1f s\n",
              static_cast<unsigned long long>(bytes >> 10), collapsed.seconds(), found.seconds());
  job.run_until(job.cluster().now() + 20_s, false);
  EXPECT_TRUE(job.idle());
  return found;
}

// After 45 s at a hundredth of its rate a NIC is in full use again, by operations long enough to use it meanwhile.
TEST(Trace, ANicThatWasSlowForLongIsFoundAgainSoon) { EXPECT_LT(found_after(8 << 20, quick() ? 2_s : 45_s), 2500_ms); }

// Operations too short to use the NIC meanwhile find it by trials alone. Each trial that shows nothing new doubles the
// pause until the next one, up to eight seconds for a NIC that never carried more: what it carried before it collapsed
// must be remembered, also when the collapse ends its lane.
TEST(Trace, ANicThatWasTooSlowForShortOperationsIsFoundAgainSoon) {
  const std::array<std::uint64_t, 4> sizes = {256 << 10, 512 << 10, 1 << 20, 2 << 20};
  Nanos all;
  for (const std::uint64_t bytes : sizes) all = all + found_after(bytes, 15_s);
  EXPECT_LT(all, 4_s) << "of four sizes together";
}

}  // namespace
}  // namespace canarynet
