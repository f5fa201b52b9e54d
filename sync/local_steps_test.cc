// DiLoCo's parts, each by hand: the outer step, a worker's deltas, what a worker asks and the coordinator answers.
#include "sync/local_steps.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "sync/local_updates.h"
#include "sync/meetings_test_util.h"

namespace canarynet::sync {
namespace {

std::vector<float> take(LocalUpdates& updates, const std::vector<float>& x, int part, bool counted = false) {
  std::vector<float> delta(updates.part(part).size);
  updates.take(x, part, counted, delta);
  return delta;
}

TEST(OuterStep, IsNesterovMomentumAndAveragingWithoutIt) {
  std::vector<float> parameters = {1, 2};
  OuterStep plain(2, 1.0, 0.0);
  plain.apply(parameters, std::vector<float>{0.5f, -1});
  EXPECT_EQ(parameters, (std::vector<float>{1.5f, 1}));

  // v1 = d1, x1 = 0.5 (d1 + 0.5 v1); v2 = 0.5 v1 + d2, x2 = x1 + 0.5 (d2 + 0.5 v2)
  OuterStep outer(1, 0.5, 0.5);
  std::vector<float> x = {0};
  outer.apply(x, std::vector<float>{4});
  EXPECT_EQ(x[0], 3);
  outer.apply(x, std::vector<float>{2});
  EXPECT_EQ(x[0], 5);

  OuterStep fragments(2, 0.5, 0.5);  // a fragment has its own part of the momentum
  std::vector<float> both = {0, 0};
  fragments.apply(std::span(both).subspan(1), std::vector<float>{4}, 1);
  fragments.apply(std::span(both).subspan(0, 1), std::vector<float>{4}, 0);
  EXPECT_EQ(both, (std::vector<float>{3, 3}));
}

TEST(LocalUpdates, AStandingWorkerTakesTheCommonParameters) {
  std::vector<float> x = {1, 2, 3};
  LocalUpdates updates(x, {.rate = 1, .momentum = 0, .mix = {}, .parts = 2});
  EXPECT_EQ(updates.part(0).size, 1u);
  EXPECT_EQ(updates.part(1).size, 2u);
  x = {5, 6, 7};
  EXPECT_EQ(take(updates, x, 1), (std::vector<float>{4, 4}));
  updates.apply(x, 1, std::vector<float>{2, 3});
  EXPECT_EQ(x, (std::vector<float>{5, 4, 6})) << "the other part is as it was";
  EXPECT_EQ(take(updates, x, 0), std::vector<float>{4});
}

TEST(LocalUpdates, WhatIsTrainedBesideAnExchangeGoesWithTheNextOne) {
  std::vector<float> x = {0};
  LocalUpdates updates(x, {});
  x[0] = 4;
  EXPECT_EQ(take(updates, x, 0), std::vector<float>{4});
  x[0] = 7;
  updates.apply(x, 0, std::vector<float>{2});
  EXPECT_EQ(x[0], 5) << "2, and 3 trained since";
  x[0] = 6;
  EXPECT_EQ(take(updates, x, 0), std::vector<float>{4}) << "those 3, and 1 more";
}

TEST(LocalUpdates, MixingIsThatOfStreamingDiLoCo) {
  for (const auto& [mix, after, next] : {std::tuple{0.5, 6.5f, 2.5f}, {0.0, 4.0f, 0.0f}, {1.0, 9.0f, 5.0f}}) {
    std::vector<float> x = {0};
    LocalUpdates updates(x, {.rate = 1, .momentum = 0, .mix = mix, .parts = 1});
    x[0] = 8;
    take(updates, x, 0);
    x[0] = 9;
    updates.apply(x, 0, std::vector<float>{4});
    EXPECT_EQ(updates.anchor()[0], 4);
    EXPECT_EQ(x[0], after) << "mix " << mix;
    EXPECT_EQ(take(updates, x, 0), std::vector<float>{next}) << "mix " << mix;
  }
}

TEST(LocalUpdates, ADeltaThatFailedCountsOnce) {
  std::vector<float> x = {0};
  LocalUpdates updates(x, {});
  x[0] = 4;
  take(updates, x, 0);  // fails
  x[0] = 5;
  EXPECT_EQ(take(updates, x, 0, /*counted=*/false), std::vector<float>{5}) << "nobody has had it";
  x[0] = 6;  // fails again
  EXPECT_EQ(take(updates, x, 0, /*counted=*/true), std::vector<float>{1}) << "others have had those 5";
  x[0] = 7;
  EXPECT_EQ(take(updates, x, 0, /*counted=*/false), std::vector<float>{2}) << "still, and not the 1";
}

TEST(LocalUpdates, WhoIsBehindTakesTheStateOfOneThatIsNot) {
  std::vector<float> x = {0, 0}, y = x;
  const LocalUpdates::Options options{.rate = 0.5, .momentum = 0.5, .mix = {}, .parts = 1};
  LocalUpdates ahead(x, options), late(y, options);
  take(ahead, x, 0);
  ahead.apply(x, 0, std::vector<float>{4, 8});
  y = {1, 1};
  EXPECT_EQ(take(late, y, 0), (std::vector<float>{1, 1}));
  std::vector<float> state(ahead.state_size(0));
  ASSERT_EQ(state.size(), 4u) << "with momentum";
  ahead.save(0, state);
  y = {3, 1};
  late.adopt(y, 0, state);
  EXPECT_EQ(y, (std::vector<float>{x[0] + 2, x[1]}));
  EXPECT_EQ(late.anchor()[1], ahead.anchor()[1]);
  take(ahead, x, 0);
  take(late, y, 0);
  ahead.apply(x, 0, std::vector<float>{1, 1});
  late.apply(y, 0, std::vector<float>{1, 1});
  EXPECT_EQ(x, y) << "the momentum has come along";
}

TEST(LocalSteps, AWorkerTrainsBesideItsExchangeForAsLongAsItMay) {
  LocalSteps options;
  options.steps = 4;
  options.overlap = 2;
  LocalStepsWorker worker(options, 0);
  const WorkerSet all = WorkerSet::all(2);
  const auto trains = [&](int times) {
    for (int i = 0; i < times; ++i) {
      ASSERT_EQ(worker.next({}).kind, Task::Kind::kTrain) << i;
      worker.trained({}, 1_ms);
    }
  };
  trains(4);
  EXPECT_EQ(worker.next({}).kind, Task::Kind::kAsk);
  trains(2);
  EXPECT_EQ(worker.next({}).kind, Task::Kind::kWait) << "for the answer";
  EXPECT_EQ(worker.answered({}, {Answer::Kind::kAggregate, 0, 0, &all, true, 3}), WorkerPolicy::Reaction::kBeside);
  const Task task = worker.next({});
  ASSERT_EQ(task.kind, Task::Kind::kExchange);
  EXPECT_TRUE(task.exchange.beside);
  trains(2);
  EXPECT_EQ(worker.next({}).kind, Task::Kind::kWait) << "for the exchange";
  worker.exchanged({});
  trains(1);
  EXPECT_EQ(worker.next({}).kind, Task::Kind::kAsk) << "those beside the exchange are steps of the next round";
}

Question arrives(int worker, std::int64_t round, std::int64_t applied) {
  Question q;
  q.kind = Question::Kind::kArrived;
  q.worker = worker;
  q.number = round;
  q.capability = 10_ms;
  q.applied = applied;
  return q;
}

// Four workers in a square, of whom a quorum of two is enough; 1 and 2 are a diagonal.
class Square {
 public:
  Square() : coordinator(options(), 4, rows_and_columns(4, 2)) {}
  // Rounds of everybody, until it is known when they come: 0 and 1 before 2 and 3.
  void learn(int rounds) {
    for (; round < rounds; ++round) {
      for (int w = 0; w < 4; ++w) arrive(w, Nanos{w < 2 ? 0 : 100'000'000});
      ASSERT_EQ(answers.size(), 4u);
      answers.clear();
    }
  }
  void arrive(int w, Nanos after, std::int64_t applied = -2) {
    coordinator.asked(now += after, arrives(w, round, applied == -2 ? round - 1 : applied), &answers);
  }
  void expire() { coordinator.expire(now += 1_s, &answers); }
  std::vector<int> told(Answer::Kind kind) const {
    std::vector<int> out;
    for (const Answer& a : answers) {
      if (a.kind == kind) out.push_back(a.worker);
    }
    return out;
  }

  static LocalSteps options() {
    LocalSteps o;
    o.steps = 1;
    o.quorum_percent = 50;
    return o;
  }
  LocalStepsCoordinator coordinator;
  Answers answers;
  Nanos now;
  std::int64_t round = 0;
};

TEST(LocalSteps, ADiagonalIsNoRoundHoweverLongItWaits) {
  Square square;
  ASSERT_NO_FATAL_FAILURE(square.learn(4));
  square.arrive(1, 1_ms);
  square.arrive(2, 1_ms);
  square.expire();
  EXPECT_TRUE(square.answers.empty());
  EXPECT_EQ(square.coordinator.next_deadline(), Nanos::max());
  square.arrive(3, 1_ms);
  square.expire();
  EXPECT_EQ(square.told(Answer::Kind::kAggregate), (std::vector<int>{1, 2, 3})) << "3 passes on what they have";
}

TEST(LocalSteps, TheSourceIsOneThatMeetsThoseWhoAreBehind) {
  Square square;
  ASSERT_NO_FATAL_FAILURE(square.learn(4));
  square.arrive(0, {});
  square.arrive(1, {});
  square.expire();  // without 2 and 3
  ASSERT_EQ(square.told(Answer::Kind::kAggregate), (std::vector<int>{0, 1}));
  square.answers.clear();
  ++square.round;
  square.arrive(0, {});
  square.arrive(1, {});
  square.arrive(3, {}, square.round - 2);
  square.expire();
  ASSERT_EQ(square.told(Answer::Kind::kAggregate), (std::vector<int>{0, 1, 3}));
  EXPECT_EQ(square.answers.back().source, 1) << "0 and 3 don't meet";
}

TEST(LocalSteps, WhomNoSourceReachesComesToTheNextRound) {
  Meetings chain(4);  // 3 - 0 - 1 - 2
  chain.add(3, 0);
  chain.add(0, 1);
  chain.add(1, 2);
  LocalSteps o = Square::options();
  LocalStepsCoordinator coordinator(o, 4, chain);
  Answers answers;
  Nanos now;
  for (std::int64_t round = 0; round < 3; ++round) {
    for (const int w : {1, 0, 3, 2}) coordinator.asked(now += 1_ms, arrives(w, round, round - 1), &answers);
  }
  answers.clear();
  // 2 and 3 are behind, and no one serves both: 0 does not meet 2, nor 1 the other end.
  coordinator.asked(now, arrives(0, 3, 2), &answers);
  coordinator.asked(now, arrives(1, 3, 2), &answers);
  coordinator.asked(now, arrives(2, 3, 1), &answers);
  coordinator.asked(now, arrives(3, 3, 1), &answers);
  std::vector<int> late, together;
  for (const Answer& a : answers) (a.kind == Answer::Kind::kLate ? late : together).push_back(a.worker);
  EXPECT_EQ(late.size(), 1u) << "0 serves 3, or 1 serves 2";
  EXPECT_EQ(together.size(), 3u);
  ASSERT_FALSE(answers.empty());
  EXPECT_EQ(answers.back().behind->count(), 1);
  EXPECT_FALSE(answers.back().behind->has(late.front()));
  EXPECT_EQ(answers.front().number, 4) << "the next round";
  // There it is served by one that has been served.
  answers.clear();
  const int served = late.front() == 2 ? 3 : 2;
  for (const int w : {0, 1, served}) coordinator.asked(now += 1_ms, arrives(w, 4, 3), &answers);
  EXPECT_TRUE(answers.empty()) << "it is waited for";
  coordinator.asked(now, arrives(late.front(), 4, 1), &answers);
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_TRUE(answers.back().behind->has(late.front()));
}

// Rounds of five fragments. What the others have of the fourth one a successor has not heard when three rounds have
// been closed, which is enough to know when workers usually come.
TEST(LocalSteps, ASuccessorWaitsForThoseOfWhomItHasNotHeard) {
  LocalSteps options;
  options.steps = options.fragments = 5;
  options.quorum_percent = 60;
  LocalStepsCoordinator coordinator(options, 3);
  Nanos now;
  for (int w = 0; w < 3; ++w) {
    const Question question = arrives(w, 9, 4);
    const Recollection::Told told{Answer::Kind::kAggregate, 9, {0, 1, 2}, true};
    coordinator.recall(now, {w, &question, {}, false, false, &told});
  }
  Answers answers;
  coordinator.recalled(now, &answers);
  for (std::int64_t round = 10; round < 13; ++round) {
    for (int w = 0; w < 3; ++w) coordinator.asked(now += 1_ms, arrives(w, round, round - 5), &answers);
    ASSERT_EQ(answers.size(), 3u) << round;
    answers.clear();
  }
  for (int w = 0; w < 2; ++w) coordinator.asked(now += 1_ms, arrives(w, 13, 3), &answers);
  coordinator.expire(now + 1_s, &answers);
  EXPECT_TRUE(answers.empty()) << "worker 2 may have the newest state of this fragment";
  EXPECT_EQ(coordinator.next_deadline(), Nanos::max());
  coordinator.asked(now + 2_s, arrives(2, 13, 8), &answers);
  ASSERT_EQ(answers.size(), 3u);
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.source, 2);
    ASSERT_NE(answer.behind, nullptr);
    EXPECT_EQ(answer.behind->bits(), 0b011u);
  }
}

}  // namespace
}  // namespace canarynet::sync
