// The exchange of a session: single decisions, made by hand.
#include "sync/session_rounds.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace canarynet::sync {
namespace {

using Push = SessionRounds::Push;
using Step = SessionRounds::Step;
using Piece = SessionRounds::Piece;
using Recovery = SessionRounds::Recovery;

SessionRounds session(Thresholds thresholds, int colayers = 1, std::optional<Nanos> linger = 10_ms) {
  SessionRounds::Options options;
  options.workers = 3;
  options.colayers = colayers;
  options.thresholds = thresholds;
  options.linger = linger;
  options.backlog_max = 2;
  return SessionRounds(options);
}

Contributors of(std::initializer_list<std::pair<int, IterationRange>> members) {
  Contributors set(3);
  for (const auto& [w, range] : members) set.add(w, range);
  return set;
}

TEST(SessionRounds, AnOwnGradientWaitsForAnothersRoundAndThenOpensOne) {
  SessionRounds rounds = session(Thresholds::canary(4, 1));
  EXPECT_EQ(rounds.push(1_ms, 0), Push::kAdded);
  EXPECT_EQ(rounds.due(10_ms), -1);
  EXPECT_EQ(rounds.next_deadline(), 11_ms);
  EXPECT_EQ(rounds.due(11_ms), 0);
  const auto input = rounds.join(11_ms, 0);
  EXPECT_EQ(input.tags, (IterationRange{1, 1}));
  EXPECT_TRUE(input.opens);
  EXPECT_EQ(rounds.due(20_ms), -1) << "one round in flight per colayer";
}

TEST(SessionRounds, TheFirstPieceOfARoundIsJoinedAtOnceWithOrWithoutData) {
  SessionRounds rounds = session(Thresholds::canary(4, 1));
  EXPECT_EQ(rounds.arrive({}, 0, 1, 1, 1, 2, 1), Piece::kHold);
  EXPECT_EQ(rounds.due({}), 0);
  EXPECT_TRUE(rounds.join({}, 0).tags.empty()) << "null pieces";
  rounds.commit({}, 0, of({{2, {1, 1}}}));
  rounds.push(1_ms, 0);
  rounds.opened({}, 0, 1, 2, 2, 1, 2);
  EXPECT_EQ(rounds.due(1_ms), 0) << "no linger where a round can be ridden on";
  EXPECT_EQ(rounds.join(1_ms, 0).tags, (IterationRange{1, 1}));
}

TEST(SessionRounds, PiecesOfTheNextRoundAreHeldAndOthersIgnored) {
  SessionRounds rounds = session(Thresholds::canary(4, 1));
  EXPECT_EQ(rounds.arrive({}, 0, 1, 2, 1, 1, 1), Piece::kIgnore) << "the next round, before this one is joined";
  EXPECT_EQ(rounds.arrive({}, 0, 2, 1, 1, 1, 1), Piece::kIgnore) << "another epoch";
  rounds.arrive({}, 0, 1, 1, 1, 1, 1);
  rounds.join({}, 0);
  EXPECT_EQ(rounds.arrive({}, 0, 1, 1, 1, 1, 1), Piece::kTake);
  EXPECT_EQ(rounds.arrive({}, 0, 1, 2, 1, 1, 1), Piece::kHold);
  EXPECT_EQ(rounds.arrive({}, 0, 1, 3, 1, 1, 1), Piece::kIgnore);
  EXPECT_EQ(rounds.ignored(), 3u);
  rounds.commit({}, 0, of({{1, {1, 1}}}));
  EXPECT_EQ(rounds.due({}), 0) << "what was held is the running round now";
}

TEST(SessionRounds, GradientsThatWaitAreSummedAndTheirTagsHaveNoHoles) {
  SessionRounds rounds = session(Thresholds::asp(1));
  rounds.push({}, 0);
  EXPECT_EQ(rounds.push({}, 0), Push::kRepeated);
  EXPECT_EQ(rounds.step({}), Step::kEntered);
  EXPECT_EQ(rounds.step({}), Step::kUnpushed);
  rounds.push({}, 0);
  EXPECT_EQ(rounds.join(10_ms, 0).tags, (IterationRange{1, 2}));
}

TEST(SessionRounds, AWorkerBehindTheBoundDropsAndPulls) {
  SessionRounds rounds = session(Thresholds::canary(2, 2), 2);
  EXPECT_EQ(rounds.push({}, 0), Push::kAdded);
  rounds.observe(4);
  EXPECT_EQ(rounds.push({}, 1), Push::kDropped) << "three behind, none merged";
  EXPECT_EQ(rounds.dropped(), 2u) << "this one, and the one that waited";
  EXPECT_EQ(rounds.step({}), Step::kOvertime);
  EXPECT_EQ(rounds.due(1_s), -1);
  const std::vector<std::uint32_t> newer = {1, 1};
  EXPECT_TRUE(rounds.adopt(1_ms, 4, newer));
  EXPECT_EQ(rounds.iteration(), 4);
  EXPECT_EQ(rounds.push(1_ms, 0), Push::kAdded);
}

TEST(SessionRounds, AWorkerWithEnoughOfItsIterationMergedMayFinishIt) {
  SessionRounds rounds = session(Thresholds::canary(2, 1), 2);
  rounds.push({}, 0);
  rounds.join(10_ms, 0);
  rounds.commit(10_ms, 0, of({{0, {1, 1}}, {1, {4, 4}}}));
  EXPECT_EQ(rounds.newest(), 4);
  EXPECT_EQ(rounds.push(10_ms, 1), Push::kAdded);
}

TEST(SessionRounds, WhatWaitedBeyondTheBoundIsNotJoined) {
  SessionRounds rounds = session(Thresholds::canary(2, 1));
  rounds.push({}, 0);
  rounds.arrive({}, 0, 1, 1, 9, 1, 9);
  EXPECT_EQ(rounds.due({}), 0);
  const auto input = rounds.join({}, 0);
  EXPECT_TRUE(input.tags.empty());
  EXPECT_TRUE(input.discard_acc);
  EXPECT_EQ(rounds.dropped(), 1u);
}

TEST(SessionRounds, TheFastestWorkerNeverLosesItsNewestGradient) {
  SessionRounds rounds = session(Thresholds::canary(1, 1));
  rounds.arrive({}, 0, 1, 1, 1, 1, 1);
  rounds.join({}, 0);  // a round that takes long
  EXPECT_EQ(rounds.push({}, 0), Push::kAdded);
  rounds.step({});
  EXPECT_EQ(rounds.push({}, 0), Push::kAdded);
  rounds.step({});
  EXPECT_EQ(rounds.push({}, 0), Push::kReplaced) << "iteration 1 is two behind iteration 3";
  EXPECT_EQ(rounds.waiting(0), (IterationRange{3, 3}));
  EXPECT_EQ(rounds.dropped(), 2u);
}

TEST(SessionRounds, InModeWaitNobodyEntersBeforeTheOthersGradientsAreMerged) {
  SessionRounds rounds = session(Thresholds::ssp(1, 1));
  rounds.push({}, 0);
  EXPECT_EQ(rounds.step({}), Step::kEntered);
  rounds.push({}, 0);
  rounds.arrive({}, 0, 1, 1, 7, 1, 7);  // hearsay, without the values
  rounds.arrive({}, 0, 1, 1, 7, 2, 7);
  EXPECT_EQ(rounds.step({}), Step::kBlocked);
  rounds.join({}, 0);
  rounds.commit({}, 0, of({{0, {1, 2}}, {1, {1, 3}}}));
  EXPECT_EQ(rounds.step({}), Step::kBlocked) << "worker 2";
  rounds.arrive({}, 0, 1, 2, 3, 2, 2);
  rounds.join({}, 0);
  rounds.commit({}, 0, of({{2, {1, 1}}}));
  EXPECT_EQ(rounds.step({}), Step::kEntered);
}

TEST(SessionRounds, BspJoinsWithDataOnly) {
  SessionRounds rounds = session(Thresholds::bsp(1));
  rounds.arrive({}, 0, 1, 1, 1, 1, 1);
  EXPECT_EQ(rounds.due(1_s), -1);
  rounds.push(1_s, 0);
  EXPECT_EQ(rounds.due(1_s), 0) << "and without linger";
}

// Without this a session that changes to BSP while a gradient waits would stand still for ever.
TEST(SessionRounds, ABlockedBspWorkerJoinsARoundThatItWaitsFor) {
  SessionRounds rounds = session(Thresholds::asp(1));
  rounds.push({}, 0);
  rounds.join(10_ms, 0);
  rounds.commit(10_ms, 0, of({{0, {1, 1}}}));  // the others' first gradients still wait
  ASSERT_TRUE(rounds.set_thresholds(Thresholds::bsp(1)).ok());
  EXPECT_EQ(rounds.step(10_ms), Step::kBlocked);
  rounds.arrive({}, 0, 1, 2, 2, 1, 1);
  EXPECT_EQ(rounds.due(10_ms), 0);
  EXPECT_TRUE(rounds.join(10_ms, 0).tags.empty());
}

TEST(SessionRounds, ARoundWithoutOurGradientIsRefused) {
  SessionRounds rounds = session(Thresholds::asp(1));
  rounds.push({}, 0);
  rounds.join(10_ms, 0);
  EXPECT_EQ(rounds.commit(10_ms, 0, of({{1, {1, 1}}})), SessionRounds::Commit::kRefused);
  EXPECT_EQ(rounds.commit(10_ms, 0, of({{0, {1, 2}}})), SessionRounds::Commit::kRefused);
  EXPECT_EQ(rounds.commit(10_ms, 0, of({{0, {1, 1}}})), SessionRounds::Commit::kAppended);
}

TEST(SessionRounds, AWorkerThatHasFinishedHoldsUpNoRound) {
  SessionRounds rounds = session(Thresholds::bsp(1));
  rounds.arrive({}, 0, 1, 1, 1, 1, 1);
  EXPECT_EQ(rounds.due({}), -1);
  rounds.finish();
  EXPECT_EQ(rounds.due({}), 0);
}

TEST(SessionRounds, TheBacklogIsBounded) {
  SessionRounds rounds = session(Thresholds::asp(1));
  for (std::uint32_t m = 1; m <= 4; ++m) {
    rounds.arrive({}, 0, 1, m, m, 1, m);
    rounds.join({}, 0);
    const auto outcome = rounds.commit({}, 0, of({{1, {m, m}}}));
    EXPECT_EQ(outcome, m <= 2 ? SessionRounds::Commit::kAppended : SessionRounds::Commit::kMerged);
  }
  ASSERT_EQ(rounds.backlog(0).size(), 2u);
  EXPECT_EQ(rounds.backlog(0)[0].first_round, 1u);
  EXPECT_EQ(rounds.backlog(0)[0].last_round, 3u);
  EXPECT_EQ(rounds.backlog(0)[0].gradients, 3);
  EXPECT_EQ(rounds.applied_before(0), 1u);
}

TEST(SessionRounds, APullCountsNothingTwice) {
  SessionRounds rounds = session(Thresholds::canary(1, 1));
  for (std::uint32_t m = 1; m <= 3; ++m) {
    rounds.arrive({}, 0, 1, m, 5, 1, 5);
    rounds.join({}, 0);
    rounds.commit({}, 0, of({{1, {m, m}}}));
  }
  // The backlog holds (1 + 2) and 3.
  EXPECT_FALSE(rounds.adopt({}, 5, std::vector<std::uint32_t>{2})) << "in the middle of a sum";
  EXPECT_FALSE(rounds.adopt({}, 3, std::vector<std::uint32_t>{3})) << "itself behind the bound";
  EXPECT_FALSE(rounds.adopt({}, 5, std::vector<std::uint32_t>{3, 3})) << "of other colayers";
  EXPECT_FALSE(rounds.adopt({}, 5, std::vector<std::uint32_t>{6})) << "round 4 is running: nobody has 5";
  EXPECT_TRUE(rounds.adopt({}, 5, std::vector<std::uint32_t>{3}));
  ASSERT_EQ(rounds.backlog(0).size(), 1u);
  EXPECT_EQ(rounds.backlog(0)[0].first_round, 3u);
}

TEST(SessionRounds, ARoundThatThePullBroughtIsNotAppliedAgain) {
  SessionRounds rounds = session(Thresholds::canary(1, 1));
  rounds.arrive({}, 0, 1, 1, 5, 1, 5);
  rounds.join({}, 0);
  ASSERT_TRUE(rounds.adopt({}, 5, std::vector<std::uint32_t>{2}));
  EXPECT_EQ(rounds.commit({}, 0, of({{1, {5, 5}}})), SessionRounds::Commit::kSkipped);
  EXPECT_TRUE(rounds.backlog(0).empty());
  EXPECT_EQ(rounds.applied_before(0), 2u);
}

TEST(SessionRounds, AfterADeathARoundIsRedoneOrFetched) {
  for (const bool committed_elsewhere : {false, true}) {
    SessionRounds rounds = session(Thresholds::asp(1));
    rounds.push({}, 0);
    rounds.join(10_ms, 0);
    rounds.freeze();
    EXPECT_EQ(rounds.arrive({}, 0, 1, 1, 1, 1, 1), Piece::kIgnore);
    WorkerSet members = WorkerSet::all(3);
    members.remove(2);
    rounds.regroup(members, 1);
    EXPECT_EQ(rounds.recover(11_ms, 0, 3), Recovery::kInconsistent);
    if (committed_elsewhere) {
      EXPECT_EQ(rounds.recover(11_ms, 0, 2), Recovery::kFetchLast);
      rounds.commit(11_ms, 0, of({{0, {1, 1}}, {2, {1, 1}}}));
    } else {
      EXPECT_EQ(rounds.recover(11_ms, 0, 1), Recovery::kReturnInput);
      EXPECT_EQ(rounds.waiting(0), (IterationRange{1, 1}));
    }
    EXPECT_FALSE(rounds.resume(2));
    EXPECT_EQ(rounds.next_round(0), committed_elsewhere ? 2u : 1u);
    EXPECT_EQ(rounds.due(1_s), committed_elsewhere ? -1 : 0);
  }
}

TEST(SessionRounds, WhatReturnsFromARedoneRoundIsNotSummedAcrossAHole) {
  SessionRounds::Options options;
  options.workers = 3;
  options.thresholds = Thresholds::canary(1, 1);
  options.staleness_max = 18;
  SessionRounds rounds(options);
  rounds.push({}, 0);
  rounds.join({}, 0);
  rounds.observe(9);
  EXPECT_EQ(rounds.step({}), Step::kOvertime);
  ASSERT_TRUE(rounds.adopt({}, 9, std::vector<std::uint32_t>{1}));
  ASSERT_TRUE(rounds.set_thresholds(Thresholds::canary(18, 1)).ok());
  rounds.freeze();
  rounds.regroup(WorkerSet::all(3), 9);
  EXPECT_EQ(rounds.recover({}, 0, 1), Recovery::kReturnInput);
  rounds.resume(2);
  EXPECT_EQ(rounds.push({}, 0), Push::kReplaced) << "1 to 9 would claim what was never summed";
  EXPECT_EQ(rounds.waiting(0), (IterationRange{9, 9}));
}

TEST(SessionRounds, NobodyIsBehindTheDead) {
  SessionRounds rounds = session(Thresholds::canary(2, 1));
  rounds.observe(9);
  EXPECT_EQ(rounds.push({}, 0), Push::kDropped);
  rounds.freeze();
  WorkerSet members = WorkerSet::all(3);
  members.remove(1);  // the only one that had come to iteration 9
  rounds.regroup(members, 2);
  rounds.recover({}, 0, 1);
  EXPECT_TRUE(rounds.resume(2));
  EXPECT_EQ(rounds.newest(), 2);
  EXPECT_EQ(rounds.step({}), Step::kEntered);
  EXPECT_EQ(rounds.push({}, 0), Push::kAdded);
}

// --- Quorums ---

// Worker 0 of four, which needs three of them.
class Quorate : public testing::Test {
 protected:
  static Thresholds rule(Iteration staleness, int absences = 18) {
    Thresholds t = Thresholds::ssp(staleness, 1);
    t.quorum = 75;
    t.absences = absences;
    return t;
  }
  static SessionRounds open(const Thresholds& thresholds) {
    SessionRounds::Options options;
    options.workers = 4;
    options.thresholds = thresholds;
    options.linger = 10_ms;
    return SessionRounds(options);
  }
  // A round that worker `opens` has opened. This one joins it at the latest when it is left out.
  static void round(SessionRounds& rounds, Nanos now, const Contributors& set, int opens, Iteration its) {
    rounds.opened(now, 0, 1, rounds.next_round(0), its, opens, its);
    ASSERT_EQ(rounds.due(now + 1_s), 0);
    rounds.join(now, 0);
    for (int w = set.set().next(); w >= 0; w = set.set().next(w + 1)) rounds.hear(w, set.of(w).last);
    ASSERT_NE(rounds.commit(now, 0, set), SessionRounds::Commit::kRefused);
  }
  static Contributors all_but(int late, Iteration t) {
    Contributors set(4);
    for (int w = 0; w < 4; ++w) {
      if (w != late) set.add(w, {t, t});
    }
    return set;
  }
  // Four iterations of 100 ms in which the others come 2 ms after this worker, and worker 3 20 ms. Returns their end.
  static Nanos history(SessionRounds& rounds) {
    Nanos now;
    for (Iteration t = 1; t <= 4; ++t) {
      now += 100_ms;
      EXPECT_EQ(rounds.push(now, 0), Push::kAdded);
      for (int w = 0; w < 4; ++w) rounds.hear_late(w, w == 0 ? Nanos{} : w == 3 ? 20_ms : 2_ms);
      round(rounds, now, all_but(-1, t), 1, t);
      EXPECT_EQ(rounds.step(now), Step::kEntered);
    }
    return now;
  }
};

TEST_F(Quorate, AStepGoesOnWithoutALateWorkerWhenTheDeadlineHasPassed) {
  SessionRounds rounds = open(rule(0));
  const Nanos began = history(rounds) + 100_ms;
  rounds.push(began, 0);
  Contributors three = all_but(3, 5);
  round(rounds, began, three, 1, 5);
  EXPECT_EQ(rounds.step(began), Step::kBlocked);
  EXPECT_EQ(rounds.step_deadline(), began + 3_ms) << "half as long again as the third usually takes";
  EXPECT_EQ(rounds.step(began + 2_ms), Step::kBlocked);
  EXPECT_EQ(rounds.step(began + 3_ms), Step::kEntered);
  EXPECT_EQ(rounds.iteration(), 6);
  EXPECT_EQ(rounds.went_on(), 1u);
}

TEST_F(Quorate, WithoutItsQuorumOrWithoutHistoryAStepWaits) {
  SessionRounds rounds = open(rule(0));
  const Nanos began = history(rounds) + 100_ms;
  rounds.push(began, 0);
  Contributors two(4);
  two.add(0, {5, 5});
  two.add(1, {5, 5});
  round(rounds, began, two, 1, 5);
  EXPECT_EQ(rounds.step(began + 10_s), Step::kBlocked);
  EXPECT_EQ(rounds.step_deadline(), Nanos::max());
  Contributors late(4);
  late.add(2, {5, 5});
  round(rounds, began + 10_s, late, 2, 5);
  EXPECT_EQ(rounds.step(began + 10_s), Step::kEntered);

  SessionRounds fresh = open(rule(0));
  fresh.push(1_ms, 0);
  round(fresh, 1_ms, all_but(3, 1), 1, 1);
  EXPECT_EQ(fresh.step(10_s), Step::kBlocked);
  EXPECT_EQ(fresh.step_deadline(), Nanos::max());
}

TEST_F(Quorate, ALateWorkersEngineJoinsARoundOfDataWithoutIt) {
  SessionRounds rounds = open(rule(0));
  const Nanos began = history(rounds);
  rounds.opened(began + 50_ms, 0, 1, 5, 5, 1, 5);
  EXPECT_EQ(rounds.due(began + 50_ms), -1);
  EXPECT_EQ(rounds.next_deadline(), began + 53_ms);
  EXPECT_EQ(rounds.due(began + 53_ms), 0);
  EXPECT_TRUE(rounds.join(began + 53_ms, 0).tags.empty());
  rounds.commit(began + 54_ms, 0, all_but(0, 5));
  // Its gradient goes with the next round, says how late it was, and counts there.
  rounds.push(began + 90_ms, 0);
  const auto input = rounds.join(began + 90_ms, 0);
  EXPECT_EQ(input.tags, (IterationRange{5, 5}));
  EXPECT_EQ(input.late, 40_ms);
}

// A round that a late worker opens is no sign that others have come.
TEST_F(Quorate, ALateWorkersRoundHurriesNobody) {
  SessionRounds rounds = open(rule(0));
  const Nanos began = history(rounds);
  rounds.push(began + 1_ms, 0);
  round(rounds, began + 1_ms, all_but(3, 5), 1, 5);
  ASSERT_EQ(rounds.step(began + 9_ms), Step::kEntered);
  rounds.opened(began + 40_ms, 0, 1, 6, 5, 3, 5);
  EXPECT_EQ(rounds.next_deadline(), Nanos::max());
  EXPECT_EQ(rounds.due(began + 10_s), -1) << "it rides on the others' next round";
  rounds.opened(began + 60_ms, 0, 1, 6, 6, 2, 6);
  EXPECT_EQ(rounds.due(began + 63_ms), 0);
}

TEST_F(Quorate, AWorkerThatWasLeftBehindGoesOnWithTheNewestIteration) {
  for (const Iteration s : {0, 2}) {
    SessionRounds rounds = open(rule(s));
    const Nanos began = history(rounds);
    EXPECT_EQ(rounds.iteration(), 5);
    for (Iteration t = 5; t <= 8 + s; ++t) round(rounds, began + 10_ms * t, all_but(0, t), 1, t);
    rounds.push(began + 1_s, 0);
    EXPECT_EQ(rounds.step(began + 1_s), Step::kBlocked) << "its gradient has not come back";
    EXPECT_EQ(rounds.step_deadline(), Nanos::max());
    EXPECT_EQ(rounds.due(began + 1_s), 0) << "it does not linger";
    rounds.join(began + 1_s, 0);
    Contributors own(4);
    own.add(0, {5, 5});
    rounds.commit(began + 1_s, 0, own);
    EXPECT_EQ(rounds.step(began + 1_s), Step::kEntered);
    EXPECT_EQ(rounds.iteration(), 9 + s);
    EXPECT_EQ(rounds.was_late(), 1u);
    EXPECT_EQ(rounds.dropped(), 0u);
    EXPECT_EQ(rounds.push(began + 2_s, 0), Push::kAdded);
    EXPECT_EQ(rounds.waiting(0), (IterationRange{9 + s, 9 + s})) << "no hole";
  }
}

TEST_F(Quorate, AWorkerThatIsAbsentForTooLongIsWaitedForAndNamed) {
  SessionRounds rounds = open(rule(0, 2));
  Nanos now = history(rounds);
  for (Iteration t = 5; t <= 6; ++t) {
    now += 100_ms;
    rounds.push(now, 0);
    round(rounds, now, all_but(3, t), 1, t);
    EXPECT_EQ(rounds.step(now + 3_ms), Step::kEntered);
  }
  now += 100_ms;
  rounds.push(now, 0);
  Contributors two(4);
  two.add(0, {7, 7});
  two.add(1, {7, 7});
  round(rounds, now, two, 1, 7);
  EXPECT_EQ(rounds.step(now), Step::kBlocked);
  EXPECT_EQ(rounds.awaited(), 3) << "not worker 2, without which it might go on";
  Contributors third(4);
  third.add(2, {7, 7});
  round(rounds, now, third, 2, 7);
  EXPECT_EQ(rounds.step(now + 10_s), Step::kBlocked);
  EXPECT_EQ(rounds.step_deadline(), Nanos::max());
  Contributors late(4);
  late.add(3, {5, 5});
  round(rounds, now + 10_s, late, 3, 5);
  EXPECT_EQ(rounds.step(now + 10_s), Step::kEntered) << "the deadline has passed, and it is there again";
}

TEST_F(Quorate, OfTheLivingThatManyAreEnough) {
  SessionRounds rounds = open(rule(0));
  const Nanos began = history(rounds) + 100_ms;
  rounds.push(began, 0);
  Contributors two(4);
  two.add(0, {5, 5});
  two.add(1, {5, 5});
  round(rounds, began, two, 1, 5);
  EXPECT_EQ(rounds.step(began), Step::kBlocked);
  rounds.freeze();
  WorkerSet members = WorkerSet::all(4);
  members.remove(3);
  rounds.regroup(members, 5);
  rounds.recover(began, 0, 6);
  rounds.resume(2);
  EXPECT_EQ(rounds.step(began + 1_s), Step::kBlocked) << "75 % of three are three";
  members.remove(2);
  rounds.freeze();
  rounds.regroup(members, 5);
  rounds.recover(began, 0, 6);
  rounds.resume(3);
  EXPECT_EQ(rounds.step(began + 1_s), Step::kEntered);
}

TEST(SessionRounds, OptionsAndThresholdsAreCheckedInWords) {
  SessionRounds::Options options;
  options.workers = 3;
  options.colayers = 10;
  options.thresholds = Thresholds::canary(18, 11);
  EXPECT_EQ(SessionRounds::check(options).text(), "session: proportion 11 of 10 colayers");
  options.thresholds = Thresholds::canary(18, 6);
  options.worker = 3;
  EXPECT_EQ(SessionRounds::check(options).text(), "session: worker 3 of 3");
  options.worker = 0;
  SessionRounds rounds(options);
  EXPECT_EQ(rounds.set_thresholds(Thresholds::canary(40, 6)).text(),
            "session: staleness bound 40 needs 43 rows of the index, and this session was opened with 21");
  EXPECT_TRUE(rounds.set_thresholds(Thresholds::ssp(3, 10)).ok());
  Thresholds wrong = Thresholds::ssp(3, 10);
  wrong.quorum = 0;
  EXPECT_EQ(rounds.set_thresholds(wrong).text(), "session: a quorum of 0 percent");
  wrong.quorum = 75;
  wrong.absences = 0;
  EXPECT_EQ(rounds.set_thresholds(wrong).text(),
            "session: a worker that may be absent from 0 steps in a row (1 to 2^20)");
  EXPECT_EQ(rounds.thresholds(), Thresholds::ssp(3, 10));
}

}  // namespace
}  // namespace canarynet::sync
