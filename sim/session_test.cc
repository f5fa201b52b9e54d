// Sessions: rounds that every engine joins while its worker computes.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "sim/session_test_util.h"

namespace canarynet {
namespace {

TEST(Session, InBspEveryStepHandsOutAllWorkersGradients) {
  Cluster c(flat_cluster(4));
  ASSERT_TRUE(c.join());
  SessionWorkers w = start(c, SessionSetup::bsp(), {1_ms, 3_ms}, 20);
  ASSERT_TRUE(work(c, w));
  expect_nothing_lost(w, 3);
  for (const auto& one : w) {
    EXPECT_EQ(one->gradients, 20u * 4 * 3);
    EXPECT_EQ(one->last.dropped, 0u);
    EXPECT_EQ(one->last.iteration, 21);
    EXPECT_LE(one->most_stale, 1) << "newest is the iteration that is entered";
  }
}

TEST(Session, AFastWorkerIsNotHeldByASlowOne) {
  Cluster c(flat_cluster(4));
  ASSERT_TRUE(c.join());
  SessionWorkers w = start(c, SessionSetup::asp(), {1_ms, 1_ms, 1_ms, 20_ms}, 20);
  const Nanos begun = c.now();
  ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 20; }));
  EXPECT_LT(c.now() - begun, 50_ms) << "twenty iterations of 1 ms, while worker 3 computes for 20 ms each";
  ASSERT_TRUE(work(c, w));
  expect_nothing_lost(w, 3);
  for (const auto& one : w) EXPECT_EQ(one->last.dropped, 0u);
  EXPECT_GT(w[3]->most_stale, 10);
}

TEST(Session, SspLetsNobodyGetFurtherAheadThanItsBound) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  SessionWorkers w = start(c, SessionSetup::ssp(3), {1_ms, 1_ms, 10_ms}, 20);
  ASSERT_TRUE(work_until(c, w, 10_s, [&] {
    const auto fast = w[0]->view().iteration, slow = w[2]->view().iteration;
    EXPECT_LE(fast, slow + 3 + 1);
    return false;
  }));
  expect_nothing_lost(w, 3);
  for (const auto& one : w) EXPECT_EQ(one->last.dropped, 0u);
}

// It takes part in a round now and then, and what it pushes counts there.
TEST(Session, WithAQuorumASlowWorkerHoldsUpNobodyAndNothingIsLost) {
  for (const char* const algo : {"mesh", "ring", "tree"}) {
    for (const SessionSetup& rule : {SessionSetup::bsp(), SessionSetup::ssp(1)}) {
      Nanos took[2];
      for (const int quorum : {100, 60}) {
        ClusterOptions o = flat_cluster(5);
        o.settings.algo = algo;
        Cluster c(o);
        ASSERT_TRUE(c.join());
        SessionWorkers w = start(c, rule.with_quorum(quorum), {2_ms, 2_ms, 20_ms, 2_ms, 2_ms}, 60);
        const Nanos begun = c.now();
        ASSERT_TRUE(work(c, w)) << algo;
        took[quorum == 100 ? 0 : 1] = c.now() - begun;
        expect_nothing_lost(w, 3, algo);
        for (const auto& one : w) EXPECT_EQ(one->last.dropped, 0u);
        EXPECT_EQ(w[0]->pushed, 60u * 3);
        if (quorum == 100) continue;
        EXPECT_LT(w[2]->pushed, 20u * 3) << "it goes on with the newest iteration";
        EXPECT_GT(w[2]->pushed, 5u * 3);
        EXPECT_GT(w[0]->view().went_on, 30u);
        EXPECT_EQ(w[0]->view().was_late, 0u);
        EXPECT_GT(w[2]->view().was_late, 5u);
        EXPECT_GT(w[0]->most_stale, 2);
        // In BSP a round for each iteration, and one more for each late gradient at most.
        if (rule.thresholds.staleness == 0) {
          EXPECT_LT(w[0]->view().rounds, 3 * (60 + w[2]->pushed / 3 + 8)) << algo;
        }
      }
      EXPECT_LT(took[1] * 3, took[0]) << algo;
    }
  }
}

// Gradients tell how late they were, and those of the quorum are waited for as long as they usually take.
TEST(Session, WithAQuorumWhoIsAsLateAsUsualIsNotLeftOut) {
  for (const SessionSetup& rule : {SessionSetup::bsp(), SessionSetup::ssp(1)}) {
    Cluster c(flat_cluster(5));
    ASSERT_TRUE(c.join());
    SessionWorkers w = start(c, rule.with_quorum(60), {2_ms, 2_ms, 7_ms, 7_ms, 7_ms}, 40);
    ASSERT_TRUE(work(c, w));
    for (const auto& one : w) {
      EXPECT_EQ(one->view().went_on, 0u);
      EXPECT_EQ(one->view().was_late, 0u);
      EXPECT_EQ(one->pushed, 40u * 3);
      if (rule.thresholds.staleness == 0) {
        EXPECT_LE(one->view().rounds, 3u * (40 + 1)) << "and one that says that all have finished";
      }
    }
  }
}

// In most iterations it is as fast as the others; then they wait for it.
TEST(Session, WithAQuorumNobodyWaitsWhenAWorkerStopsForAWhile) {
  Cluster c(flat_cluster(5));
  ASSERT_TRUE(c.join());
  SessionWorkers w = start(c, SessionSetup::bsp().with_quorum(60), {2_ms}, 100);
  ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[1]->steps == 30; }));
  for (const auto& one : w) EXPECT_EQ(one->view().went_on, 0u);
  w[2]->compute_for(30_ms);
  ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[1]->steps == 34; }));
  w[2]->compute_for(2_ms);
  ASSERT_TRUE(work(c, w));
  expect_nothing_lost(w, 3);
  EXPECT_LT(w[0]->longest_step, 5_ms);
  EXPECT_GE(w[0]->view().went_on, 5u);
  EXPECT_LT(w[0]->view().went_on, 25u) << "it is there again";
  EXPECT_EQ(w[2]->last.iteration, 101);
}

TEST(Session, AWorkerThatIsAbsentForTooLongIsWaitedForAndThenNamed) {
  ClusterOptions o = flat_cluster(4);
  o.settings.entry_limit = 500_ms;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  SessionWorkers w = start(c, SessionSetup::bsp().with_quorum(60, 6), {2_ms}, 1000);
  ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[1]->steps == 20; }));
  w[3]->hold(true);
  const auto before = w[0]->view().iteration;
  work_until(c, w, 300_ms, [] { return false; });
  EXPECT_LE(w[0]->view().iteration, before + 8);
  EXPECT_EQ(w[0]->view().went_on, 6u);
  EXPECT_FALSE(work_until(c, w, 1_s, [&] { return !w[0]->error.ok(); }) && w[0]->error.ok());
  EXPECT_EQ(w[0]->error.code(), CANARY_ENTRY_TIMEOUT) << w[0]->error.to_string();
  EXPECT_EQ(w[0]->error.detail().rank, 3);
}

// Each worker may have another rule; what one is late for another one waits for.
TEST(Session, WorkersWithAndWithoutAQuorumGoTogether) {
  Cluster c(flat_cluster(4));
  ASSERT_TRUE(c.join());
  SessionWorkers w = start(c, SessionSetup::bsp().with_quorum(60), {1_ms, 2_ms, 2_ms, 9_ms}, 60);
  ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[1]->steps == 20; }));
  w[1]->set(SessionSetup::bsp());
  ASSERT_TRUE(work(c, w));
  expect_nothing_lost(w, 3);
  EXPECT_EQ(w[1]->last.iteration, 61);
}

TEST(Session, AWorkerBeyondTheBoundIsDroppedAndPullsWhatTheOthersHave) {
  Cluster c(flat_cluster(4));
  ASSERT_TRUE(c.join());
  SessionWorkers w = start(c, SessionSetup::canary(3, 3), {1_ms, 1_ms, 1_ms, 9_ms}, 30);
  ASSERT_TRUE(work(c, w));
  expect_nothing_lost(w, 3);
  EXPECT_GT(w[3]->pulls, 0u);
  EXPECT_GT(w[3]->last.dropped, 0u);
  EXPECT_GT(w[3]->last.iteration, 30) << "a pull takes it to where the others are";
  for (int r = 0; r < 3; ++r) EXPECT_EQ(w[static_cast<std::size_t>(r)]->last.dropped, 0u);
}

TEST(Session, RowsTellWhoseGradientIsExchanged) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  SessionWorkers w = start(c, SessionSetup::asp(), {1_ms}, 4);
  w[2]->hold(true);
  ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 4 && w[1]->steps == 4; }));
  c.run_for(5_ms);
  for (const auto& one : w) {
    const sync::WorkerSet* const row = one->row(2, 1);
    ASSERT_NE(row, nullptr);
    EXPECT_EQ(row->bits(), 0b011u);
    EXPECT_EQ(one->row(9, 1), nullptr);
    EXPECT_EQ(one->row(2, 3), nullptr);
  }
  w[2]->hold(false);
  ASSERT_TRUE(work(c, w));
  expect_nothing_lost(w, 3);
  EXPECT_EQ(w[0]->row(2, 1)->bits(), 0b111u);
}

TEST(Session, ThresholdsChangeWhileItRuns) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  SessionWorkers w = start(c, SessionSetup::bsp(), {1_ms, 1_ms, 10_ms}, 40);
  ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 5; }));
  EXPECT_GE(c.now(), 45_ms);
  EXPECT_LE(w[0]->view().iteration - w[2]->view().iteration, 1);
  for (auto& one : w) one->set(SessionSetup::asp());
  ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 25; }));
  EXPECT_GT(w[0]->view().iteration - w[2]->view().iteration, 10) << "it waits for nobody any more";
  for (auto& one : w) one->set(SessionSetup::bsp());
  ASSERT_TRUE(work(c, w));
  expect_nothing_lost(w, 3);
}

TEST(Session, RanksOfOneProcessAndOneAloneTakePart) {
  for (const auto& [hosts, ranks] : std::vector<std::pair<int, int>>{{1, 1}, {1, 3}, {3, 2}}) {
    Cluster c(flat_cluster(hosts, 2, ranks));
    ASSERT_TRUE(c.join());
    SessionWorkers w = start(c, SessionSetup::asp(), {1_ms, 2_ms, 5_ms}, 10);
    ASSERT_TRUE(work(c, w)) << hosts << " x " << ranks;
    expect_nothing_lost(w, 3);
  }
}

TEST(Session, LayoutsThatDifferAreToldByName) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  SessionSetup one = SessionSetup::asp(), other = one;
  other.counts = {40, 90, 25};
  SessionWorkers w;
  w.push_back(std::make_unique<SessionWorker>(c, 0, one, 1_ms, 1));
  w.push_back(std::make_unique<SessionWorker>(c, 1, other, 1_ms, 1));
  ASSERT_TRUE(work(c, w, 1_s));
  for (const auto& each : w) {
    EXPECT_EQ(each->error.code(), CANARY_MISMATCH);
    EXPECT_EQ(each->pushed, 0u) << "it is told at the opening";
    EXPECT_NE(each->error.text().find("session #1 of 3 colayers with 155 elements"), std::string::npos)
        << each->error.to_string();
  }
  // Nothing of it is left, and the group lives.
  AllRanks op(c, sum(2, 1000));
  op.submit_all();
  op.expect_exact();
}

TEST(Session, ADeadWorkerEndsItAndIsNamed) {
  for (const sync::Thresholds& rule : {sync::Thresholds::canary(5, 3), sync::Thresholds::ssp(5, 3)}) {
    Cluster c(flat_cluster(4));
    ASSERT_TRUE(c.join());
    SessionWorkers w = start(c, SessionSetup::of(rule), {1_ms, 2_ms}, 1000);
    ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 5; }));
    w[2]->hold(true);  // in mode wait the others are in a step by then
    work_until(c, w, 100_ms, [] { return false; });
    w[2].reset();
    c.kill(2, CrashKind::kHangup);
    ASSERT_TRUE(work(c, w, 5_s)) << "somebody waits for ever";
    for (const int r : {0, 1, 3}) {
      const Status& error = w[static_cast<std::size_t>(r)]->error;
      EXPECT_EQ(error.code(), CANARY_PEER_DIED) << error.to_string();
      EXPECT_EQ(error.detail().rank, 2) << error.to_string();
      EXPECT_NE(error.text().find("session #1"), std::string::npos) << error.to_string();
    }
  }
}

// At every moment of its end, where the others may have finished and closed it, and have nothing left that could end.
TEST(Session, AWorkerThatWasGivenUpWaitsForNothing) {
  int late = 0;
  for (int at = 0; at < 60; ++at) {
    Cluster* cluster = nullptr;
    ClusterOptions o = neighbours(3, 1, &cluster);
    o.settings.algo = "ring";
    Cluster c(o);
    cluster = &c;
    ASSERT_TRUE(c.join());
    SessionSetup setup = SessionSetup::asp();
    setup.counts = {60'000, 60'000, 60'000};
    SessionWorkers w = start(c, setup, {1_ms}, 3);
    const Nanos then = c.now() + 3980_us + 1_us * at;
    work_until(c, w, 10_s, [&] { return c.now() >= then; });
    c.fabric().freeze(2);
    SessionWorkers others;
    for (const std::size_t r : {0u, 1u}) others.push_back(std::move(w[r]));
    work_until(c, others, 5_s, [] { return false; });
    const bool finished = others[0]->error.ok() && others[1]->error.ok();
    for (auto& one : others) one->close();
    give_up(c, 2);
    ASSERT_TRUE(work(c, w, 2_s)) << at;
    late += finished && !w[2]->error.ok();
    EXPECT_TRUE(w[2]->error.ok() || w[2]->error.code() == CANARY_PEER_SILENT) << at << ": " << w[2]->error.to_string();
  }
  EXPECT_GT(late, 0);
}

TEST(Session, OneThatClosesItEarlyOrLeavesIsNamed) {
  for (const bool leaves : {false, true}) {
    Cluster c(flat_cluster(3));
    ASSERT_TRUE(c.join());
    SessionWorkers w = start(c, SessionSetup::ssp(2), {1_ms}, 1000);
    ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 5; }));
    if (leaves) {
      w[1].reset();
      leave_and_end(c, 1);
    } else {
      w[1]->hold(true);
      w[1]->close();
    }
    ASSERT_TRUE(work_until(c, w, 5_s, [&] { return !w[0]->error.ok() && !w[2]->error.ok(); }));
    for (const std::size_t r : {0u, 2u}) {
      EXPECT_EQ(w[r]->error.code(), leaves ? CANARY_PEER_DIED : CANARY_ABORTED) << w[r]->error.to_string();
      EXPECT_NE(w[r]->error.text().find("rank 1"), std::string::npos) << w[r]->error.to_string();
    }
  }
}

TEST(Session, AStepThatWaitsForWhoPushesNothingEndsWithItsName) {
  ClusterOptions o = flat_cluster(3);
  o.settings.entry_limit = 500_ms;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  SessionWorkers w = start(c, SessionSetup::ssp(2), {1_ms}, 100);
  w[1]->hold(true);
  ASSERT_TRUE(work_until(c, w, 5_s, [&] { return !w[0]->error.ok() && !w[2]->error.ok(); }));
  EXPECT_EQ(w[0]->error.code(), CANARY_ENTRY_TIMEOUT) << w[0]->error.to_string();
  EXPECT_EQ(w[0]->error.detail().rank, 1) << w[0]->error.to_string();
}

TEST(Session, AStepWaitsForWhoCatchesUpAsLongAsItGoesOn) {
  ClusterOptions o = flat_cluster(3);
  o.settings.entry_limit = 500_ms;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  SessionWorkers w = start(c, SessionSetup::asp(), {1_ms, 1_ms, 100_ms}, 30);
  ASSERT_TRUE(work_until(c, w, 10_s, [&] { return w[0]->steps == 20 && w[1]->steps == 20; }));
  for (auto& one : w) one->set(SessionSetup::bsp());
  const Nanos began = c.now();
  ASSERT_TRUE(work(c, w));
  EXPECT_GT(c.now() - began, 1_s);
  expect_nothing_lost(w, 3);
}

TEST(Session, AStepOfBspNamesWhoIsMissingAndNotTheFirst) {
  ClusterOptions o = flat_cluster(3);
  o.settings.entry_limit = 500_ms;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  SessionWorkers w = start(c, SessionSetup::bsp(), {1_ms}, 100);
  w[2]->hold(true);
  ASSERT_TRUE(work_until(c, w, 5_s, [&] { return !w[0]->error.ok() && !w[1]->error.ok(); }));
  for (const std::size_t r : {0u, 1u}) {
    EXPECT_EQ(w[r]->error.code(), CANARY_ENTRY_TIMEOUT) << w[r]->error.to_string();
    EXPECT_EQ(w[r]->error.detail().rank, 2) << w[r]->error.to_string();
  }
}

TEST(Session, ALocalRankThatOpensOneWhichHasFailedIsTold) {
  ClusterOptions o = flat_cluster(2);
  o.ranks_per_host = 2;
  o.settings.entry_limit = 300_ms;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  SessionWorkers w;
  w.push_back(std::make_unique<SessionWorker>(c, 0, SessionSetup::bsp(), 1_ms, 1));
  ASSERT_TRUE(work_until(c, w, 5_s, [&] { return !w[0]->error.ok(); }));
  w.push_back(std::make_unique<SessionWorker>(c, 1, SessionSetup::bsp(), 1_ms, 1));
  ASSERT_TRUE(work_until(c, w, 5_s, [&] { return !w[1]->error.ok(); }));
}

TEST(Session, AnIndexThatFitsNoMemoryIsRefused) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  SessionSetup setup = SessionSetup::ssp(2);
  setup.counts.assign(256, 10);
  setup.staleness_max = 1 << 19;
  SessionWorkers w = start(c, setup, {1_ms}, 1);
  ASSERT_TRUE(work_until(c, w, 1_s, [&] { return !w[0]->error.ok(); }));
  EXPECT_NE(w[0]->error.text().find("an index of"), std::string::npos) << w[0]->error.to_string();
}

// Once the first iteration counted from the clock's zero, and with it what a gradient lingers.
TEST(Session, OpenedLateItLingersNoLonger) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  c.run_for(40_s);
  SessionWorkers w = start(c, SessionSetup::ssp(1), {1_ms}, 2);
  ASSERT_TRUE(work(c, w));
  expect_nothing_lost(w, 3);
  for (const auto& one : w) EXPECT_LT(one->view().linger, 1_ms) << "a quarter of an iteration";
}

TEST(Session, ADeadlineEndsTheStepAndNotTheSession) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  SessionWorkers w = start(c, SessionSetup::bsp(), {1_ms}, 3);
  w[1]->hold(true);
  ASSERT_TRUE(work_until(c, w, 1_s, [&] { return c.now() >= 10_ms; }));
  c.set_deadline(c.world(0), &w[0]->last_ticket(), 5_ms);
  ASSERT_TRUE(work_until(c, w, 1_s, [&] { return !w[0]->error.ok(); }));
  EXPECT_EQ(w[0]->error.code(), CANARY_DEADLINE) << w[0]->error.to_string();
  w[0]->step_again();
  w[1]->hold(false);
  ASSERT_TRUE(work(c, w));
  expect_nothing_lost(w, 3);
}

TEST(Session, NothingIsLostOrSummedTwiceUnderFaults) {
  for (std::uint64_t seed = 1; seed <= 14; ++seed) {
    Random random(seed);
    const int ranks = 2 + static_cast<int>(random.below(7));
    Cluster c(rough_cluster(ranks, seed, &random));
    ASSERT_TRUE(c.join());
    SessionSetup setup =
        SessionSetup::random(random.below(2) == 0 ? sync::AtBound::kDrop : sync::AtBound::kWait, &random);
    setup.counts = {100, 3000, 12'000};
    if (setup.waits()) setup = setup.with_quorum(seed % 2 == 0 ? 30 + static_cast<int>(random.below(70)) : 100);
    setup.backlog = 2 + static_cast<int>(random.below(3));
    if (random.below(2) == 0) setup.linger = Nanos{static_cast<std::int64_t>(random.below(3'000'000))};
    std::vector<Nanos> compute;
    for (int r = 0; r < ranks; ++r) compute.push_back(Nanos{static_cast<std::int64_t>(random.below(5'000'000))});
    SessionWorkers w = start(c, setup, compute, 15);
    const std::string what = "seed " + std::to_string(seed) + ", " + std::to_string(ranks) + " ranks, s " +
                             std::to_string(setup.thresholds.staleness) + (setup.waits() ? ", waits" : ", drops") +
                             ": ";
    ASSERT_TRUE(work(c, w)) << what;
    expect_nothing_lost(w, 3, what);
    // The bound of rule 10: with p = k nothing older is joined.
    for (const auto& one : w) {
      const bool strict = !setup.waits() && setup.thresholds.proportion == 3;
      if (!strict) continue;
      EXPECT_LE(one->view().stalest, setup.thresholds.staleness) << what;
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace canarynet
