// Null pieces: what workers without a gradient send in a session's rounds.
#include <gtest/gtest.h>

#include <array>
#include <iostream>
#include <string>
#include <vector>

#include "sim/session_codecs_test_util.h"

namespace canarynet {
namespace {

// Worker 0 pushes `often` times, every other one `seldom` times.
SessionWorkers one_fast(Cluster& c, const SessionSetup& setup, int often, int seldom, Nanos slow) {
  SessionWorkers out;
  for (int r = 0; r < c.ranks(); ++r)
    out.push_back(std::make_unique<SessionWorker>(c, r, setup, r == 0 ? 1_ms : slow, r == 0 ? often : seldom));
  return out;
}

struct Sent {
  double wire = 0;   // bytes of a round
  double zeros = 0;  // that null pieces stood for
};

// Once links are known: what is lost or late in the first rounds is sent again.
Sent of_a_round(bool lone, const std::string& codec) {
  Cluster c(flat_cluster(8));
  EXPECT_TRUE(c.join());
  SessionSetup setup = with_codecs(lone ? SessionSetup::asp() : SessionSetup::bsp(), {codec});
  setup.counts = {24'000, 24'000, 24'000};
  SessionWorkers w = one_fast(c, setup, 38, lone ? 1 : 38, lone ? 200_ms : 1_ms);
  const auto sent = [&](std::uint64_t steps) {
    EXPECT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == steps; }));
    std::uint64_t zeros = 0;
    for (int h = 0; h < c.hosts(); ++h) zeros += c.engine(h).counters().null_value_bytes;
    return std::array<std::uint64_t, 3>{sent_bytes(c), zeros, w[0]->view().rounds};
  };
  const auto before = sent(30), after = sent(38);
  EXPECT_TRUE(work(c, w));
  expect_only_late(w, {codec}, codec);
  const auto rounds = static_cast<double>(after[2] - before[2]);
  return {static_cast<double>(after[0] - before[0]) / rounds, static_cast<double>(after[1] - before[1]) / rounds};
}

// A sum has to get to all, so half of a round's bytes is the least. The piece that holds who contributed stays whole,
// which is an eighth of so small a colayer. Where everybody pushes, nothing is null.
TEST(SessionNulls, ARoundOfOneWorkerCostsHalfOfAFullOne) {
  for (const auto& [codec, most] : std::vector<std::pair<std::string, double>>{{"", 0.63}, {"int8", 0.61}}) {
    const Sent full = of_a_round(false, codec), lone = of_a_round(true, codec);
    std::cout << "bytes of a round " << (codec.empty() ? "without a codec" : "by " + codec) << ": " << lone.wire
              << " of one worker, " << full.wire << " of eight" << std::endl;
    EXPECT_LT(lone.wire, most * full.wire) << codec;
    EXPECT_LT(full.zeros, 1000) << codec << ": numbers of workers and iterations, nothing else";
    if (codec.empty()) {
      EXPECT_NEAR(lone.wire + lone.zeros, full.wire, 0.005 * full.wire) << "all that is missing is counted";
    }
  }
}

// As an embedding's gradient is.
TEST(SessionNulls, PartsOfAGradientThatAreZeroDoNotTravel) {
  ClusterOptions o = flat_cluster(8);
  o.settings.piece_bytes = Bytes{16 * 1024};
  Cluster c(o);
  ASSERT_TRUE(c.join());
  SessionSetup setup = SessionSetup::bsp();
  setup.counts = {200'000};
  setup.thresholds.proportion = 1;
  setup.gradient = [](int, std::size_t, int, std::size_t i) { return i < 20'000 ? 1.0F : 0.0F; };
  SessionWorkers w = start(c, setup, {1_ms}, 20);
  ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 10; }));
  const std::uint64_t before = sent_bytes(c);
  ASSERT_TRUE(work(c, w));
  for (const auto& one : w) {
    ASSERT_TRUE(one->error.ok()) << one->error.to_string();
    for (std::size_t i = 0; i < 200'000; ++i) ASSERT_EQ(one->handed(0)[i], i < 20'000 ? 160 : 0) << i;
  }
  EXPECT_LT(static_cast<double>(sent_bytes(c) - before), 0.2 * 10 * 2 * 7 * 200'000 * sizeof(float));
}

TEST(SessionNulls, RanksOfOneProcessAndOfOneMachineTakeThem) {
  for (const auto& [hosts, ranks] : std::vector<std::pair<int, int>>{{1, 4}, {2, 4}, {3, 2}, {4, 1}}) {
    for (const char* codec : {"", "topk:0.1"}) {
      ClusterOptions o = flat_cluster(hosts, 2, ranks);
      if (ranks == 1) {  // by shared memory
        o.wiring.machine.assign(static_cast<std::size_t>(hosts), 0);
        o.amend = [](int, EngineOptions* e) { e->host_id = "one"; };
      }
      Cluster c(o);
      ASSERT_TRUE(c.join());
      SessionSetup setup = with_codecs(SessionSetup::asp(), {codec});
      setup.counts = {700, 30'000, 5'000};
      SessionWorkers w = one_fast(c, setup, 30, 2, 20_ms);
      ASSERT_TRUE(work(c, w));
      expect_only_late(w, {codec}, std::to_string(hosts) + " x " + std::to_string(ranks) + ": ");
    }
  }
}

// Frames get lost, come twice, late and changed, and lanes end in the middle of rounds. By every plan.
TEST(SessionNulls, NothingIsLostUnderFaults) {
  const std::vector<std::vector<std::string>> codecs = {{""}, {"int8"}, {"topk:0.05"}, {"", "int8", "topk:0.02"}};
  const std::vector<std::string> dense_plans = {"", "ring", "halving_doubling", "mesh", "tree"};
  int broken = 0;
  std::uint64_t nulls = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Random random(seed);
    ClusterOptions o = rough_cluster(seed % 3 == 0 ? 4 : 8, seed, &random, seed % 3 == 0 ? 2 : 1);
    const auto& chosen = codecs[seed % codecs.size()];
    if (chosen.size() == 1 && chosen[0].empty()) o.settings.algo = dense_plans[random.below(dense_plans.size())];
    o.settings.piece_bytes = Bytes{4096};
    Cluster c(o);
    ASSERT_TRUE(c.join());
    SessionSetup setup = with_codecs(SessionSetup::asp(), chosen);
    setup.counts = {100, 9'000, 17'001};
    if (random.below(2) == 0) setup.linger = Nanos{static_cast<std::int64_t>(random.below(3'000'000))};
    SessionWorkers w = one_fast(c, setup, 25, 2, 15_ms);
    for (int cuts = 0; cuts < 6; ++cuts) {
      const Nanos then = c.now() + Nanos{static_cast<std::int64_t>(random.below(8'000'000))};
      ASSERT_TRUE(work_until(c, w, 60_s, [&] { return c.now() >= then; }));
      std::vector<Lane*> lanes;
      const int host = static_cast<int>(random.below(static_cast<std::uint64_t>(c.hosts() - 1)));
      c.fabric().lanes_between(host, host + 1, &lanes);
      std::erase_if(lanes, [](const Lane* lane) { return lane->rail() == kControlRail; });
      if (lanes.empty()) continue;
      c.fabric().kill_lane(*lanes[random.below(lanes.size())], true);
      ++broken;
    }
    const std::string what = "seed " + std::to_string(seed) + ", " + chosen[0] + " " + o.settings.algo + ": ";
    ASSERT_TRUE(work(c, w)) << what;
    expect_only_late(w, chosen, what);
    for (int h = 0; h < c.hosts(); ++h) nulls += c.engine(h).counters().null_pieces;
    if (HasFailure()) return;
  }
  EXPECT_GT(broken, 40);
  EXPECT_GT(nulls, 2'000u);
}

}  // namespace
}  // namespace canarynet
