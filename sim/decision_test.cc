// What a group's measured table chooses, in virtual time: the best there is, soon, and nothing flaps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sim/decision_test_util.h"

namespace canarynet {
namespace {

constexpr std::uint64_t kFew = 1 << 16;  // 256 KiB

TEST(Decision, ABetterPlannerThanTheStaticOneIsChosenWithinTwoSeconds) {
  ClusterOptions o = long_cluster();
  o.fabric.nic = NicOptions::link(10_ms, BytesPerSec::from_mbit(1000));
  Cluster c(o);
  ASSERT_TRUE(c.join());
  Decisions watch(c);
  exchange(c, 50_ms, kCount);
  EXPECT_EQ(planner_now(c), "ring");
  const Nanos took = exchange(c, 4_s, kCount, [&] { return planner_now(c) != "ring"; });
  std::printf("ring to %s after %.3f s\n", planner_now(c).c_str(), took.seconds());
  EXPECT_LE(took.count, (2_s).count);
  exchange(c, 8_s, kCount);
  const int tables = watch.tables();
  const std::string chosen = planner_now(c);
  EXPECT_NE(chosen, "ring");
  exchange(c, 3_s, kCount);
  EXPECT_EQ(planner_now(c), chosen);
  EXPECT_EQ(watch.tables(), tables) << "all were tried, those that are close twice, and nothing has changed since";
}

// Whether all-reduces of so many values run by what is to be tried, or will as soon as the table in force says so.
bool on_trial(Cluster& c, std::uint64_t count) {
  return c.engine(0).explain(c.world(0)->id, Collective::kAllReduce, count * 4).find("tri") != std::string::npos;
}

// The mean time of the sums of so long a while.
double seconds_each(Cluster& c, Nanos span, std::uint64_t count) {
  const std::uint32_t before = c.world(0)->entered;
  const double took = exchange(c, span, count).seconds();
  return took / (c.world(0)->entered - before) - 1e-3;
}

// Rails of 500 and 125 Mbit/s: by the model a mesh, a ring and halving cost the same, and the mesh takes far longer.
TEST(Decision, WhatTheModelPutsCloseIsTriedAndTheBestStays) {
  const auto make = [](std::string algo) {
    ClusterOptions o = flat_cluster(4, 2);
    o.settings.measured_choice = algo.empty();
    o.settings.algo = std::move(algo);
    o.fabric.window_bytes = 16 << 20;
    auto c = std::make_unique<Cluster>(o);
    for (int host = 0; host < 4; ++host) {
      c->fabric().nic(host, 0) = NicOptions::link(50_us, BytesPerSec::from_mbit(500));
      c->fabric().nic(host, 1) = NicOptions::link(50_us, BytesPerSec::from_mbit(125));
    }
    return c;
  };
  double best = 1;
  for (const char* planner : {"mesh", "ring", "halving_doubling"}) {
    auto c = make(planner);
    ASSERT_TRUE(c->join());
    exchange(*c, 200_ms, kFew);
    best = std::min(best, seconds_each(*c, 200_ms, kFew));
  }
  // Which small frames meet others' pieces depends on when the first operation comes.
  for (const Nanos phase : {0_us, 1700_us, 6800_us, 11900_us, 18700_us}) {
    if (phase > 1700_us && quick()) break;
    SCOPED_TRACE(phase.count);
    auto c = make("");
    ASSERT_TRUE(c->join());
    c->run_for(phase);
    Decisions watch(*c);
    // Rank 1, which decides nothing, can tell, too.
    const auto why = [&] { return c->engine(1).explain(c->world(1)->id, Collective::kAllReduce, kFew * 4); };
    std::string on_trial;
    const auto is_settled = [&] {
      const std::string now = why();
      if (now.find("tried by table ") != std::string::npos && now.find("; before, ") != std::string::npos)
        on_trial = now;
      return c->now() > 4500_ms && now.find("tri") == std::string::npos;
    };
    exchange(*c, 8_s, kFew, is_settled);
    EXPECT_NE(on_trial.find("; it is on trial"), std::string::npos) << on_trial;
    EXPECT_NE(on_trial.find("operations, table "), std::string::npos) << on_trial;
    const std::string settled = why();
    EXPECT_EQ(settled.find("tri"), std::string::npos) << settled;
    EXPECT_NE(settled.find("timed"), std::string::npos) << settled;
    EXPECT_GE(std::count(settled.begin() + static_cast<std::ptrdiff_t>(settled.find("; before, ")), settled.end(), '('),
              2)
        << settled;
    std::puts(settled.c_str());
    const double chosen = seconds_each(*c, 300_ms, kFew);
    std::printf("%s: %.3f ms, the best of three by force: %.3f ms; %d tables\n", planner_now(*c).c_str(), chosen * 1e3,
                best * 1e3, watch.tables());
    EXPECT_LE(chosen, 1.1 * best);
    EXPECT_LE(watch.tables(), 24) << "each is tried once";
  }
}

// After two operations of a size no more of them come. Nothing can be judged by so few, and nobody waits for more.
TEST(Decision, ASizeThatDoesNotComeBackHoldsUpNoTrials) {
  ClusterOptions o = measuring(flat_cluster(4, 2));
  Cluster c(std::move(o));
  for (int host = 0; host < 4; ++host) {
    c.fabric().nic(host, 0) = NicOptions::link(50_us, BytesPerSec::from_mbit(500));
    c.fabric().nic(host, 1) = NicOptions::link(50_us, BytesPerSec::from_mbit(125));
  }
  ASSERT_TRUE(c.join());
  int larger = 0;
  exchange(c, 8_s, kFew * 16, [&] { return ++larger == 2; });
  Decisions watch(c);
  exchange(c, 4_s, kFew);
  std::printf("%d tables in 4 s\n", watch.tables());
  EXPECT_GE(watch.tables(), 9) << "a round of trials waits for the size that does not come";
}

// A way between two hosts that is far slower than their NICs. Nothing else is ever busy for long, so it is the only
// link that shows its rate.
TEST(Decision, RingsGoRoundABadWay) {
  ClusterOptions o = measuring(flat_cluster(4, 1));
  o.fabric.nic = NicOptions::link(50_us, BytesPerSec::from_mbit(500));
  Cluster c(o);
  for (const auto& [a, b] : {std::pair{0, 1}, {1, 0}}) c.fabric().path(a, b).stream_rate = BytesPerSec::from_mbit(25);
  ASSERT_TRUE(c.join());
  exchange(c, 12_s, kFew);
  const double took = seconds_each(c, 300_ms, kFew);
  std::printf("%s: %.3f ms\n", planner_now(c).c_str(), took * 1e3);
  EXPECT_LE(took, 10e-3) << "over that way alone 128 KiB take 42 ms";
}

// Of four hosts the last one has a fifth of the others' rate.
ClusterOptions with_a_slow_host(std::string algo) {
  ClusterOptions o = measuring(flat_cluster(4, 2));
  o.settings.algo = std::move(algo);
  return o;
}
void slow_the_last_host(Cluster& c, int mbit = 100) {
  for (int host = 0; host < 4; ++host) {
    for (int rail = 0; rail < 2; ++rail)
      c.fabric().nic(host, rail) = NicOptions::link(50_us, BytesPerSec::from_mbit(host == 3 ? mbit : mbit * 5));
  }
}
// Applications compute between operations.
void exchange_with_pauses(Cluster& c, std::uint64_t count, Nanos span) {
  exchange(
      c, span, count, [] { return false; }, 5_ms);
}

// Three fast hosts send to a slow one at once, so each of them gets a third of its NICs.
TEST(Decision, OfASlowHostTheWholeRateIsKnownThoughAllSendToItAtOnce) {
  Cluster c(with_a_slow_host("mesh"));
  slow_the_last_host(c);
  ASSERT_TRUE(c.join());
  exchange_with_pauses(c, kFew * 4, 4_s);
  int known = 0;
  for (int host = 0; host < 3; ++host) {
    c.engine(host).for_each_link([&](const LinkView& view) {
      if (view.number != 3 || view.path.link.beta().count == 0) return;
      ++known;
      EXPECT_NEAR(static_cast<double>(view.path.link.beta().count), 12.5e6, 2.5e6)
          << "from host " << host << " over rail " << view.path.spec.local_rail;
    });
  }
  EXPECT_GE(known, 4) << "of six";
}

// Ways between fast hosts show no rate at all.
TEST(Decision, BesideASlowHostTheBestStays) {
  if (quick()) GTEST_SKIP() << "CANARY_TEST_QUICK: the same code runs where the model puts planners close";
  Cluster c(with_a_slow_host(""));
  slow_the_last_host(c);
  ASSERT_TRUE(c.join());
  Decisions watch(c);
  exchange_with_pauses(c, kFew, 16_s);
  exchange(
      c, 8_s, kFew, [&] { return !on_trial(c, kFew); }, 5_ms);
  exchange_with_pauses(c, kFew, 200_ms);
  // A ring over each rail takes 16 ms at least, by the bytes that the slow host sends, and the best no longer.
  const double took = seconds_each(c, 300_ms, kFew);
  std::printf("%s: %.3f ms\n", planner_now(c).c_str(), took * 1e3);
  EXPECT_LE(took, 18e-3);
  const int tables = watch.tables();
  exchange_with_pauses(c, kFew, 8_s);
  std::printf("%d tables in 8 s\n", watch.tables() - tables);
  EXPECT_LE(watch.tables() - tables, 8) << "what is close is tried anew, and that is all";
}

// A rank that calls late holds up all operations by the static choice, a mesh, until another planner is tried.
TEST(Decision, ATimeThatARankMadeLongIsDoubtedSoon) {
  constexpr std::uint64_t kFewer = 1 << 14;  // 64 KiB
  ClusterOptions o = measuring(flat_cluster(5, 1));
  o.fabric.nic = NicOptions::link(2_ms, BytesPerSec::from_mbit(1000));
  Cluster c(o);
  ASSERT_TRUE(c.join());
  std::uint64_t salt = 0;
  while (table_at(c, 0) == 0 && c.now() < 5_s) {
    AllRanks op(c, sum(5, kFewer, ++salt));
    for (int r = 0; r < 5; ++r) {
      if (r == 4) c.run_for(30_ms);
      op.submit(r);
    }
    ASSERT_NO_FATAL_FAILURE(op.expect_exact(60_s));
    EXPECT_EQ(planner_now(c), "mesh");
  }
  const Nanos began = c.now();
  exchange(c, 3_s, kFewer, [&] { return planner_now(c) != "mesh" && !on_trial(c, kFewer); });
  EXPECT_NE(planner_now(c), "mesh") << "what takes as long, but for that rank";
  exchange(
      c, 20_s, kFewer, [&] { return planner_now(c) == "mesh" && !on_trial(c, kFewer); }, 5_ms);
  std::printf("mesh after %.3f s\n", (c.now() - began).seconds());
  EXPECT_LE((c.now() - began).count, (6_s).count);
  exchange(c, 6_s, kFewer);
  EXPECT_EQ(planner_now(c), "mesh");
  const MeasuredRow* const row =
      decisions(c, 0).table_for(c.world(0)->entered).find(Collective::kAllReduce, kFewer * 4);
  ASSERT_NE(row, nullptr);
  EXPECT_TRUE(row->keeps_static);
  EXPECT_FALSE(row->on_trial());
}

// By size and topology, ranks that share hosts add up within each host first. That loads a slow host's NICs more than a
// tree does.
TEST(Decision, RanksThatShareHostsGoByATreeBesideASlowHost) {
  constexpr std::uint64_t kMany = 1 << 18;  // 1 MiB
  const auto make = [&](ClusterOptions o) {
    auto c = std::make_unique<Cluster>(std::move(o));
    for (int nic = 0; nic < 2; ++nic) {
      for (int host = 0; host < 3; ++host)
        c->fabric().nic(host, nic) = NicOptions::link(50_us, BytesPerSec::from_mbit(host == 2 ? 100 : 500));
    }
    return c;
  };
  auto by_static = make(unmeasured(flat_cluster(3, 2, 4)));
  ASSERT_TRUE(by_static->join());
  exchange(*by_static, 500_ms, kMany);
  EXPECT_EQ(planner_now(*by_static), "hierarchical");
  const double before = seconds_each(*by_static, 500_ms, kMany);
  auto c = make(measuring(flat_cluster(3, 2, 4)));
  ASSERT_TRUE(c->join());
  exchange(*c, 8_s, kMany);
  exchange(*c, 20_s, kMany, [&] { return !on_trial(*c, kMany); });
  ASSERT_FALSE(on_trial(*c, kMany));
  const double took = seconds_each(*c, 500_ms, kMany);
  std::printf("%s: %.1f ms, hierarchical: %.1f ms\n", planner_now(*c).c_str(), took * 1e3, before * 1e3);
  EXPECT_EQ(planner_now(*c), "tree");
  EXPECT_LE(took, 0.9 * before);
}

// Its lanes were known for most of it.
TEST(Decision, AFirstRoundOfLongOperationsIsNotDoubtedSoon) {
  Cluster c(with_a_slow_host(""));
  slow_the_last_host(c, 20);
  ASSERT_TRUE(c.join());
  exchange(c, 20_s, kFew, [&] { return on_trial(c, kFew); });
  const Nanos began = c.now();
  exchange(c, 60_s, kFew, [&] { return !on_trial(c, kFew); });
  const Nanos took = c.now() - began;
  std::printf("%.3f s of trials\n", took.seconds());
  ASSERT_GT(took.count, (8_s).count) << "otherwise it shows nothing";
  exchange(c, 8_s, kFew, [&] { return on_trial(c, kFew); });
  EXPECT_FALSE(on_trial(c, kFew));
}

class ChangeOfTheLinks : public ::testing::TestWithParam<Nanos> {};
TEST_P(ChangeOfTheLinks, IsFoundAndNothingFlaps) {
  const Nanos phase = GetParam();
  if (phase > Nanos{} && quick()) GTEST_SKIP() << "CANARY_TEST_QUICK: one phase does";
  Cluster c(long_cluster(4, 1, 100_us));
  ASSERT_TRUE(c.join());
  Decisions watch(c);
  exchange(c, 12_s, kCount);
  exchange(c, 12_s, kCount, [&] { return !on_trial(c, kCount); });  // what is close has been tried
  ASSERT_FALSE(on_trial(c, kCount));
  exchange(c, phase + 200_ms, kCount);  // what ran last was on trial still
  ASSERT_EQ(planner_now(c), "ring");
  set_delay(c, 20_ms);
  // A ring takes 151 ms then, a mesh 71.
  const auto is_quick = [&] {
    const std::string now = planner_now(c);
    return now == "mesh" || now.starts_with("bcube") || now == "halving_doubling";
  };
  const Nanos took = exchange(c, 8_s, kCount, is_quick);
  std::printf("%s %.3f s after the change\n", planner_now(c).c_str(), took.seconds());
  EXPECT_LE(took.count, (6500_ms).count);
  exchange(c, 12_s, kCount);
  EXPECT_NE(planner_now(c), "ring");
  const int tables = watch.tables();
  const std::string chosen = planner_now(c);
  exchange(c, 5_s, kCount);
  EXPECT_EQ(planner_now(c), chosen);
  EXPECT_LE(watch.tables() - tables, 1);
}
INSTANTIATE_TEST_SUITE_P(Phases, ChangeOfTheLinks, ::testing::Values(0_ms, 600_ms, 1800_ms, 3_s));

TEST(Decision, NothingIsMeasuredWhereTheSettingForbidsIt) {
  ClusterOptions o = long_cluster(4);
  o.settings.measured_choice = false;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  exchange(c, 2_s, kCount);
  for (int host = 0; host < 4; ++host) EXPECT_EQ(table_at(c, host), 0u);
  EXPECT_EQ(planner_now(c), "ring");
}

// What canaryctl shows is what explain() says.
TEST(Decision, EachUsedKindOfOperationIsExplainedOnce) {
  ClusterOptions o = long_cluster();
  o.settings.algo = "broadcast=tree";
  Cluster c(o);
  ASSERT_TRUE(c.join());
  exchange(c, 6_s, kCount, [&] { return planner_now(c) == "mesh"; });
  exchange(c, 200_ms, kCount);
  oracle::Shape s = sum(c.ranks(), 1000);
  s.collective = Collective::kBroadcast;
  AllRanks op(c, s);
  op.submit_all();
  op.expect_exact();
  std::vector<std::string> seen;
  c.engine(1).for_each_choice([&](const Group&, Collective collective, int size_class, const ChoiceView& view) {
    seen.emplace_back(name_of(collective));
    if (collective == Collective::kBroadcast) {
      EXPECT_EQ(view.by, ChosenBy::kForced);
      EXPECT_EQ(view.planner, PlannerId::kTree);
      return;
    }
    EXPECT_EQ(size_class, canarynet::size_class(kCount * 4));
    EXPECT_EQ(view.by, ChosenBy::kMeasured);
    ASSERT_NE(view.row, nullptr);
    EXPECT_EQ(view.planner, PlannerId::kMesh);
    EXPECT_EQ(view.table, table_at(c, 1));
    const auto took = view.cell->took_by(PlannerId::kMesh);
    EXPECT_GE(took.operations, 2u);
    EXPECT_NEAR(static_cast<double>(took.ns / took.operations) * 1e-3, view.row->predicted_us,
                0.5 * view.row->predicted_us);
  });
  EXPECT_EQ(seen, (std::vector<std::string>{"all_reduce", "broadcast"}));
  const std::string why = c.engine(1).explain(c.world(1)->id, Collective::kAllReduce, kCount * 4);
  EXPECT_NE(why.find("mesh"), std::string::npos) << why;
  EXPECT_NE(why.find(" by table "), std::string::npos) << why;
}

TEST(Decision, AUsersRowGoesFirst) {
  ClusterOptions o = long_cluster(4);
  o.settings.algo = "all_reduce=ring";
  Cluster c(o);
  ASSERT_TRUE(c.join());
  exchange(c, 3_s, kCount);
  EXPECT_EQ(planner_now(c), "ring");
}

// Two hosts of four reach each other over a bad way only, at a twentieth of the rate. A ring in the order of ranks goes
// there, and so does every other plan; a ring in another order need not.
TEST(Decision, ARingGoesRoundABadLink) {
  ClusterOptions o = long_cluster(4, 1, 100_us);
  o.settings.piece_bytes = Bytes{32 << 10};  // there are no smaller ones: rings differ by their order alone
  Cluster c(std::move(o));
  for (const auto& [a, b] : {std::pair{0, 1}, {1, 0}}) c.fabric().path(a, b).stream_rate = BytesPerSec::from_mbit(5);
  ASSERT_TRUE(c.join());
  Decisions watched(c);
  const auto explained = [&] { return c.engine(0).explain(c.world(0)->id, Collective::kAllReduce, kCount * 4); };
  const auto goes_round = [&] {
    const std::string why = explained();
    const auto at = why.find(" with the ranks in the order 0 ");
    if (why.find(": ring") == std::string::npos || at == std::string::npos) return false;
    if (why.find(", chosen by table") == std::string::npos) return false;
    // Ranks 0 and 1 stand opposite each other.
    return why.compare(at, 37, " with the ranks in the order 0 2 1 3,") == 0 ||
           why.compare(at, 37, " with the ranks in the order 0 3 1 2,") == 0;
  };
  exchange(c, 60_s, kCount, goes_round);
  EXPECT_TRUE(goes_round()) << explained();
  for (int h = 1; h < 4; ++h) EXPECT_EQ(table_at(c, h), table_at(c, 0));
  AllRanks op(c, sum(4, kCount));
  const Nanos began = c.now();
  op.submit_all();
  op.expect_exact(10_s);
  EXPECT_LT((c.now() - began).seconds(), 1.2 * 1.5 * kCount * 4 / 12.5e6) << "what the good links need";
  // The way becomes as good as the others. Nobody goes there, so nobody learns of it, and nothing goes wrong.
  for (const auto& [a, b] : {std::pair{0, 1}, {1, 0}}) c.fabric().path(a, b).stream_rate = {};
  exchange(c, 10_s, kCount);
}

// Where ranks 0 and 1 don't meet a ring stands in an order of its own from the first operation on.
TEST(Decision, AWiringThatLacksAnEdgeHasARingAllTheSame) {
  ClusterOptions o = flat_cluster(4, 2);
  o.wiring.networks = {{0, 3}, {1, 2}, {0, 1}, {2, 3}};  // a cable each from 0 to 2 to 1 to 3 and back
  o.settings.algo = "ring";
  Cluster c(std::move(o));
  ASSERT_TRUE(c.join());
  for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{1000}, kCount, 16 * kCount}) {
    AllRanks op(c, sum(4, count));
    op.submit_all();
    op.expect_exact(60_s);
  }
  EXPECT_EQ(planner_now(c), "ring");
  const std::string why = c.engine(1).explain(c.world(1)->id, Collective::kAllReduce, 64 * kCount);
  EXPECT_NE(why.find(": ring with the ranks in the order 0 3 1 2, forced by CANARY_ALGO"), std::string::npos) << why;
}

}  // namespace
}  // namespace canarynet
