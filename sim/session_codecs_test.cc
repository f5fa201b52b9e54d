// Sessions whose rounds travel by codecs: what is left out is late and not lost, and nobody sees another result.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"
#include "collectives/decision_table.h"
#include "sim/codec_exchange_test_util.h"
#include "sim/session_codecs_test_util.h"

namespace canarynet {
namespace {

TEST(SessionCodecs, WhatIsLeftOutIsLateAndNotLost) {
  const std::vector<std::vector<std::string>> all = {
      {"topk:0.05"}, {"randomk:0.2"}, {"mstopk:0.1"}, {"int8"},     {"sketch:8"},
      {"bf16"},      {"onebit"},      {"signsgd"},    {"terngrad"}, {"int8", "", "topk:0.02"}};
  for (const auto& codecs : all) {
    for (const SessionSetup& mode : {SessionSetup::bsp(), SessionSetup::ssp(3), SessionSetup::asp()}) {
      Cluster c(flat_cluster(4));
      ASSERT_TRUE(c.join());
      SessionSetup setup = with_codecs(mode, codecs);
      setup.gradient = [&codecs](int r, std::size_t z, int n, std::size_t i) {
        const float x = whole(static_cast<std::uint64_t>(r), z, static_cast<std::uint64_t>(n), i);
        return exact(codecs[z % codecs.size()]) ? x : 0.37f * x + 0.001f * static_cast<float>(i % 331);
      };
      SessionWorkers w = start(c, setup, {1_ms, 2_ms, 1_ms, 5_ms}, 12);
      ASSERT_TRUE(work(c, w));
      expect_only_late(w, codecs, codecs[0] + ", s " + std::to_string(mode.thresholds.staleness) + ": ");
      if (HasFatalFailure()) return;
      double left = 0;
      for (std::size_t i = 0; i < w[0]->given(0).size(); ++i) left += std::abs(sum_left_out(w, 0, i));
      EXPECT_GT(left, 0) << codecs[0] << " leaves out nothing, so nothing was looked at";
    }
  }
}

TEST(SessionCodecs, WhatAWorkerHasSentStaysSentWhenItIsOvertime) {
  Cluster c(flat_cluster(4));
  ASSERT_TRUE(c.join());
  const SessionSetup setup = with_equal_gradients(SessionSetup::canary(3, 3), {"topk:0.05"});
  SessionWorkers w = start(c, setup, {1_ms, 1_ms, 1_ms, 9_ms}, 30);
  ASSERT_TRUE(work(c, w));
  EXPECT_GT(w[3]->last.dropped, 0u);
  EXPECT_GT(w[3]->pulls, 0u);
  expect_only_late_or_dropped(w, setup, "");
}

TEST(SessionCodecs, InBspAllWorkersAreHandedTheSameBits) {
  for (const char* codec : {"int8", "sketch:8", "topk:0.05", "terngrad"}) {
    Cluster c(flat_cluster(5));
    ASSERT_TRUE(c.join());
    SessionSetup setup = with_codecs(SessionSetup::bsp(), {codec});
    setup.gradient = [](int r, std::size_t z, int n, std::size_t i) {
      return 0.37f * whole(static_cast<std::uint64_t>(r), z, static_cast<std::uint64_t>(n), i);
    };
    SessionWorkers w = start(c, setup, {1_ms, 3_ms}, 10);
    ASSERT_TRUE(work(c, w));
    for (const auto& one : w) {
      EXPECT_EQ(one->gradients, 5u * 10 * 3) << codec;
      EXPECT_EQ(one->crcs, w[0]->crcs) << codec;
    }
  }
}

TEST(SessionCodecs, TheRuleChangesWhileItRuns) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  SessionWorkers w = start(c, with_codecs(SessionSetup::bsp(), {"topk:0.05", "int8"}), {1_ms, 1_ms, 10_ms}, 40);
  ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 5; }));
  for (auto& one : w) one->set(SessionSetup::asp());
  ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 25; }));
  EXPECT_GT(w[0]->view().iteration - w[2]->view().iteration, 10) << "it waits for nobody any more";
  for (auto& one : w) one->set(SessionSetup::ssp(2));
  ASSERT_TRUE(work(c, w));
  expect_only_late(w, {"topk:0.05", "int8"}, "");
}

TEST(SessionCodecs, RanksOfOneProcessAndOneAloneTakePart) {
  for (const auto& [hosts, ranks] : std::vector<std::pair<int, int>>{{1, 1}, {1, 3}, {3, 2}}) {
    Cluster c(flat_cluster(hosts, 2, ranks));
    ASSERT_TRUE(c.join());
    SessionWorkers w = start(c, with_codecs(SessionSetup::asp(), {"topk:0.1"}), {1_ms, 2_ms, 5_ms}, 10);
    ASSERT_TRUE(work(c, w)) << hosts << " x " << ranks;
    expect_only_late(w, {"topk:0.1"}, std::to_string(hosts) + " x " + std::to_string(ranks) + ": ");
  }
}

TEST(SessionCodecs, RoundsGoOnWhereNumbersOfOperationsBeginAnew) {
  ClusterOptions o = flat_cluster(3);
  o.amend = [](int, EngineOptions* e) { e->first_operation = std::numeric_limits<std::uint32_t>::max() - 6; };
  Cluster c(o);
  ASSERT_TRUE(c.join());
  SessionWorkers w = start(c, with_codecs(SessionSetup::asp(), {"topk:0.1", ""}), {1_ms, 2_ms, 5_ms}, 20);
  ASSERT_TRUE(work(c, w));
  expect_only_late(w, {"topk:0.1", ""}, "");
}

// What a hop leaves out of a sum goes with that worker's next gradient. One that has finished has none.
TEST(SessionCodecs, AWorkerThatHasFinishedKeepsNothingBack) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  SessionSetup setup = with_equal_gradients(SessionSetup::asp(), {"topk:0.1"});
  SessionWorkers w;
  for (int r = 0; r < 3; ++r) w.push_back(std::make_unique<SessionWorker>(c, r, setup, 1_ms, r == 0 ? 2 : 120));
  ASSERT_TRUE(work(c, w));
  expect_only_late(w, {"topk:0.1"}, "");
  const auto norm = [&](int r) {
    double sum = 0;
    for (const float x : w[static_cast<std::size_t>(r)]->left_out(1)) sum += std::abs(static_cast<double>(x));
    return sum;
  };
  EXPECT_LT(norm(0), 2 * norm(1)) << "its third of all sums is late for ever";
}

TEST(SessionCodecs, AWorkerWithoutAGradientKeepsWhatItLeftOutForTheNext) {
  Cluster c(flat_cluster(4));
  ASSERT_TRUE(c.join());
  SessionWorkers w = start(c, with_codecs(SessionSetup::asp(), {"topk:0.05"}), {1_ms}, 30);
  ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[2]->steps == 3; }));
  w[2]->hold(true);
  ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 10 && w[1]->steps == 10; }));
  const auto before = std::vector<float>(w[2]->left_out(0).begin(), w[2]->left_out(0).end());
  const std::uint64_t rounds = w[2]->view().rounds;
  ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 20 && w[1]->steps == 20; }));
  EXPECT_GT(w[2]->view().rounds, rounds + 20) << "it takes part in all of them";
  // But for the quarter whose sums it completes.
  std::size_t same = 0, some = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    some += before[i] != 0;
    same += before[i] != 0 && before[i] == w[2]->left_out(0)[i];
  }
  EXPECT_GT(some, before.size() / 2);
  EXPECT_GT(same, some * 7 / 10);
  w[2]->hold(false);
  ASSERT_TRUE(work(c, w));
  expect_only_late(w, {"topk:0.05"}, "");
}

TEST(SessionCodecs, OthersCodecsAreToldAtTheOpening) {
  struct Case {
    std::vector<std::string> mine, others;
    std::string told;
  };
  for (const Case& each :
       {Case{{"int8"}, {"int8,or-dense"}, "codec int8,or-dense (layout"}, Case{{"int8"}, {""}, "2100 elements (layout"},
        Case{{"int8", "", ""}, {"", "int8", ""}, "2100 elements, several codecs (layout"}}) {
    Cluster c(flat_cluster(2));
    ASSERT_TRUE(c.join());
    SessionWorkers w;
    w.push_back(std::make_unique<SessionWorker>(c, 0, with_codecs(SessionSetup::asp(), each.mine), 1_ms, 1));
    w.push_back(std::make_unique<SessionWorker>(c, 1, with_codecs(SessionSetup::asp(), each.others), 1_ms, 1));
    ASSERT_TRUE(work(c, w, 1_s));
    for (const auto& one : w) {
      EXPECT_EQ(one->error.code(), CANARY_MISMATCH);
      EXPECT_EQ(one->pushed, 0u);
      EXPECT_NE(one->error.text().find(each.told), std::string::npos) << one->error.to_string();
    }
  }
}

TEST(SessionCodecs, OnesThatNoRoundTakesAreRefused) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  const auto refused = [&](std::uint32_t number, const std::string& word) {
    SessionSetup setup = SessionSetup::asp();
    setup.codecs = {0, number, 0};
    SessionWorkers w = start(c, setup, {1_ms}, 1);
    ASSERT_TRUE(work(c, w, 1_s)) << word;
    for (const auto& one : w) {
      EXPECT_EQ(one->error.code(), CANARY_INVALID_ARGUMENT);
      EXPECT_NE(one->error.text().find(word), std::string::npos) << one->error.to_string();
      EXPECT_NE(one->error.text().find("colayer 1"), std::string::npos) << one->error.to_string();
    }
  };
  refused(number_of("auto"), "codec auto is a choice");
  refused(number_of("int8,auto"), "codec int8,auto is a choice");
  refused(number_of("artopk:star:0.01"), "codec artopk:star:0.01 is not for sessions");
  refused(number_of("agtopk:0.01"), "codec agtopk:0.01 is not for sessions");
  refused(number_of("power:4"), "codec power:4 is not for sessions: colayers have no shape");
  refused(0xffffffff, "codec");
  // And the number is still free.
  SessionWorkers w = start(c, with_codecs(SessionSetup::asp(), {"int8"}), {1_ms}, 1);
  ASSERT_TRUE(work(c, w));
  expect_only_late(w, {"int8"}, "");
}

TEST(SessionCodecs, APlanThatTakesNoCodecIsToldAtTheOpening) {
  ClusterOptions o = flat_cluster(4);
  o.settings.algo = "halving_doubling";
  Cluster c(o);
  ASSERT_TRUE(c.join());
  SessionWorkers w = start(c, with_codecs(SessionSetup::asp(), {"", "int8"}), {1_ms}, 1);
  ASSERT_TRUE(work(c, w, 1_s));
  for (const auto& one : w) {
    EXPECT_EQ(one->error.code(), CANARY_INVALID_ARGUMENT);
    EXPECT_NE(one->error.text().find("colayer 1"), std::string::npos) << one->error.to_string();
  }
  // The number is still free.
  SessionWorkers dense = start(c, SessionSetup::asp(), {1_ms}, 1);
  ASSERT_TRUE(work(c, dense));
  expect_nothing_lost(dense, 3);
}

TEST(SessionCodecs, AGradientThatIsNotFiniteIsRefusedAndChangesNothing) {
  Cluster c(flat_cluster(4));
  ASSERT_TRUE(c.join());
  SessionWorkers w = start(c, with_codecs(SessionSetup::asp(), {"topk:0.05"}), {1_ms, 2_ms}, 20);
  std::vector<float> bad(700, 1.0f);
  bad[613] = std::numeric_limits<float>::quiet_NaN();
  const std::string word = "element 613 of colayer 2 is nan, which codec topk:0.05 does not encode";
  int tried = 0;
  // At every moment: while others' rounds and the own one are under way, before the first push and after the last.
  ASSERT_TRUE(work_until(c, w, 10_s, [&] {
    if (w[1]->view().iteration == 0 || w[1]->steps == 0 || w[1]->wakes() == Nanos::max()) return false;
    ++tried;
    const Status told = w[1]->push_of(2, bad);
    EXPECT_EQ(told.code(), CANARY_INVALID_ARGUMENT);
    EXPECT_NE(told.text().find(word), std::string::npos) << told.to_string();
    return HasFailure();
  }));
  EXPECT_GT(tried, 100);
  ASSERT_TRUE(work(c, w));
  expect_only_late(w, {"topk:0.05"}, "");
}

TEST(SessionCodecs, GradientsWhoseOwnSumIsNotFiniteAreRefused) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  SessionSetup setup = with_codecs(SessionSetup::asp(), {"int8"});
  setup.linger = 3_s;  // gradients wait for one another
  float most = 0;
  setup.gradient = [&most](int, std::size_t, int, std::size_t i) { return i == 77 ? most : 0.0f; };
  most = 3e38f;
  SessionWorkers w = start(c, setup, {1_ms}, 2);
  w[1]->hold(true);
  ASSERT_TRUE(work_until(c, w, 1_s, [&] { return w[0]->steps == 1; }));
  std::vector<float> more(700, 0.0f);
  more[77] = 3e38f;
  const Status told = w[0]->push_of(0, more);
  EXPECT_NE(told.text().find("element 77 of colayer 0 is inf with what waits for a round"), std::string::npos)
      << told.to_string();
  most = -1e38f;
  w[1]->hold(false);
  ASSERT_TRUE(work(c, w));
  for (const auto& one : w) EXPECT_TRUE(one->error.ok()) << one->error.to_string();
}

TEST(SessionCodecs, ASumThatIsNotFiniteEndsTheSessionForAllWithOneSentence) {
  Cluster c(flat_cluster(4));
  ASSERT_TRUE(c.join());
  SessionSetup setup = with_codecs(SessionSetup::ssp(2), {"", "int8"});
  setup.gradient = [](int r, std::size_t z, int n, std::size_t i) {
    return n == 4 && z == 1 && i == 69 && r >= 2 ? 3e38f : 1.0f;
  };
  SessionWorkers w = start(c, setup, {1_ms}, 20);
  ASSERT_TRUE(work(c, w, 5_s)) << "somebody waits for ever";
  for (const auto& one : w) {
    EXPECT_EQ(one->error.code(), CANARY_INVALID_ARGUMENT) << one->error.to_string();
    EXPECT_NE(one->error.text().find("colayer 1"), std::string::npos) << one->error.to_string();
    EXPECT_NE(one->error.text().find("element 69 of rank"), std::string::npos) << one->error.to_string();
    EXPECT_EQ(one->error.text(), w[0]->error.text());
    EXPECT_EQ(one->error.detail().rank, w[0]->error.detail().rank);
  }
  // The group lives, and has other sessions.
  for (auto& one : w) one->close();
  setup = with_codecs(SessionSetup::bsp(), {"int8"});
  setup.number = 2;
  SessionWorkers next = start(c, setup, {1_ms}, 2);
  ASSERT_TRUE(work(c, next));
  expect_only_late(next, {"int8"}, "");
}

TEST(SessionCodecs, AWorkerThatDiesWhereverItsRoundWasIsNamedByAllOthers) {
  for (int when = 0; when < 24; ++when) {
    Cluster c(flat_cluster(4));
    ASSERT_TRUE(c.join());
    SessionSetup setup = with_codecs(when % 2 == 0 ? SessionSetup::asp() : SessionSetup::ssp(2), {"int8", "topk:0.1"});
    setup.counts = {700, 30'000, 5'000};
    SessionWorkers w = start(c, setup, {1_ms, 1_ms, 1_ms, 2_ms}, 10'000);
    ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 5; }));
    const Nanos then = c.now() + Nanos{when * 61'000};
    work_until(c, w, 1_s, [&] { return c.now() >= then; });
    w[2].reset();
    c.kill(2, CrashKind::kHangup);
    ASSERT_TRUE(work(c, w, 5_s)) << "somebody waits for ever, moment " << when;
    for (const int r : {0, 1, 3}) {
      const Status& error = w[static_cast<std::size_t>(r)]->error;
      EXPECT_EQ(error.code(), CANARY_PEER_DIED) << error.to_string();
      EXPECT_EQ(error.detail().rank, 2) << error.to_string();
    }
  }
}

TEST(SessionCodecs, OrDenseCarriesWhatIsNotFinite) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  SessionSetup setup = with_codecs(SessionSetup::bsp(), {"int8,or-dense"});
  setup.gradient = [](int r, std::size_t z, int n, std::size_t i) {
    return n == 3 && z == 1 && i == 69 && r == 2 ? std::numeric_limits<float>::infinity() : 1.0f;
  };
  SessionWorkers w = start(c, setup, {1_ms}, 8);
  ASSERT_TRUE(work(c, w));
  for (const auto& one : w) {
    ASSERT_TRUE(one->error.ok()) << one->error.to_string();
    EXPECT_TRUE(std::isinf(one->handed(1)[69]));
    EXPECT_NEAR(one->handed(1)[68], 3 * 8, 0.01);
    EXPECT_NEAR(one->handed(0)[69], 3 * 8, 0.01);
    EXPECT_TRUE(std::isfinite(one->left_out(1)[69]));
  }
}

// The same session of nine workers over BCube(3,2) with each codec. With so few values a sketch's codebooks count.
TEST(SessionCodecs, RoundsTakeAQuarterOfTheBytes) {
  const auto bytes = [](const std::string& codec) {
    ClusterOptions o = flat_cluster(9);
    o.wiring = Wiring::bcube(3, 2);
    Cluster c(o);
    EXPECT_TRUE(c.join());
    SessionSetup setup = with_codecs(SessionSetup::bsp(), {codec});
    setup.counts = {30'000, 150'000, 60'000};
    SessionWorkers w = start(c, setup, {20_ms}, 1);
    EXPECT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->wakes() != Nanos::max(); }));
    const std::uint64_t before = sent_bytes(c);
    EXPECT_TRUE(work(c, w));
    return static_cast<double>(sent_bytes(c) - before) / (2.0 * 8 * 240'000 * sizeof(float));
  };
  const double dense = bytes("");
  for (const auto& [codec, most] : std::vector<std::pair<std::string, double>>{
           {"bf16", 0.54}, {"int8", 0.29}, {"sketch:8", 0.33}, {"topk:0.01", 0.06}}) {
    const double share = bytes(codec);
    std::cout << "bytes of a round by " << codec << ": " << share << ", dense " << dense
              << " of the least that dense can take" << std::endl;
    EXPECT_LT(share, most * dense) << codec;
  }
}

TEST(SessionCodecs, NothingIsLostUnderFaults) {
  const std::vector<std::string> codecs = {"topk:0.03", "randomk:0.1", "int8", "sketch:8", "bf16", ""};
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Random random(seed);
    const int ranks = 2 + static_cast<int>(random.below(7));
    Cluster c(rough_cluster(ranks, seed, &random));
    ASSERT_TRUE(c.join());
    const bool drops = random.below(2) == 0;
    SessionSetup setup = SessionSetup::random(drops ? sync::AtBound::kDrop : sync::AtBound::kWait, &random);
    std::vector<std::string> chosen(3);
    for (auto& codec : chosen) codec = codecs[drops ? random.below(2) : random.below(codecs.size())];
    setup = drops ? with_equal_gradients(setup, chosen) : with_codecs(setup, chosen);
    setup.counts = drops ? std::vector<std::uint64_t>{2500, 2500, 2500} : std::vector<std::uint64_t>{100, 3000, 12'000};
    if (seed % 2 == 0) setup = setup.with_quorum(30 + static_cast<int>(random.below(70)));
    setup.backlog = 2 + static_cast<int>(random.below(3));
    if (random.below(2) == 0) setup.linger = Nanos{static_cast<std::int64_t>(random.below(3'000'000))};
    std::vector<Nanos> compute;
    for (int r = 0; r < ranks; ++r) compute.push_back(Nanos{static_cast<std::int64_t>(random.below(5'000'000))});
    SessionWorkers w = start(c, setup, compute, 12);
    const std::string what = "seed " + std::to_string(seed) + ", " + std::to_string(ranks) + " ranks, s " +
                             std::to_string(setup.thresholds.staleness) + (setup.waits() ? ", waits" : ", drops") +
                             ", " + chosen[0] + " " + chosen[1] + " " + chosen[2] + ": ";
    ASSERT_TRUE(work(c, w)) << what;
    if (drops) {
      expect_only_late_or_dropped(w, setup, what);
    } else {
      expect_only_late(w, chosen, what);
    }
    for (const auto& one : w) EXPECT_EQ(one->gradients, w[0]->gradients) << what;
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace canarynet
