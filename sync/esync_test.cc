// ESync: how long a worker waits, with exact speeds and with others, in both modes, and when workers die.
#include "sync/esync.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <queue>
#include <tuple>

#include "base/random.h"
#include "sync/meetings_test_util.h"
#include "sync/property_test_util.h"

namespace canarynet::sync {
namespace {

TEST(StateServer, AFastWorkerTrainsUntilTheSlowestIsAboutToFinish) {
  StateServer server(2);
  server.reset(0, 0, {});
  server.reset(1, 0, {});
  EXPECT_FALSE(server.query(1_s, 0, 0, 0, 1_s, 1_s)) << "not one iteration";
  server.query(3500_ms, 1, 0, 0, 3500_ms, 0_s);  // the test batch says how slow it is
  EXPECT_FALSE(server.query(1_s, 0, 0, 1, 1_s, 1_s));
  EXPECT_FALSE(server.query(2_s, 0, 0, 2, 1_s, 2_s));
  EXPECT_TRUE(server.query(3_s, 0, 0, 3, 1_s, 3_s)) << "the next one would end at 4 s, the slow worker at 3.5 s";
  EXPECT_TRUE(server.query(3500_ms, 1, 0, 1, 3500_ms, 3500_ms)) << "nobody is left to wait for";
}

TEST(StateServer, NobodyIsReadyBeforeAllHavePulled) {
  StateServer server(2);
  server.reset(0, 0, {});
  EXPECT_FALSE(server.query(1_s, 0, 0, 1, 1_s, 1_s));
  server.reset(1, 0, 1_s);
  EXPECT_TRUE(server.query(2_s, 0, 0, 2, 1_s, 2_s));
  EXPECT_TRUE(server.query(2_s, 1, 0, 1, 1_s, 2_s));
  server.reset(0, 1, 3_s);
  EXPECT_FALSE(server.query(4_s, 0, 1, 1, 1_s, 4_s)) << "worker 1 is ready, but for the round before";
}

TEST(StateServer, ReadinessIsNotTakenBack) {
  StateServer server(2);
  server.reset(0, 0, {});
  server.reset(1, 0, {});
  server.query({}, 1, 0, 0, 1_s, {});
  EXPECT_TRUE(server.query(500_ms, 0, 0, 1, 600_ms, 500_ms));
  server.query(1_s, 1, 0, 0, 9_s, 1_s);
  EXPECT_TRUE(server.query(1_s, 0, 0, 2, 10_ms, 1_s));
}

TEST(StateServer, TheDeadAreNotWaitedFor) {
  StateServer server(3);
  server.reset(0, 0, {});
  server.reset(1, 0, {});
  EXPECT_FALSE(server.query(1_s, 0, 0, 1, 1_s, 1_s));
  server.died(2);
  server.query(1_s, 1, 0, 0, 9_s, 1_s);
  EXPECT_FALSE(server.query(2_s, 0, 0, 2, 1_s, 2_s));
  server.died(1);
  EXPECT_TRUE(server.query(3_s, 0, 0, 3, 1_s, 3_s));
}

// A job of ESync in virtual time.
struct Job {
  struct Wait {
    Nanos waited;
    Nanos capability;  // the worker's own, as it said
    Nanos overrun;     // actual minus predicted finish of the one that was ready last
  };
  std::vector<Wait> waits;
  std::vector<Iteration> iterations;
  int rounds = 0;
};

struct JobOptions {
  bool blocking = true;
  int noise_percent = 0;
  Nanos one_way;
  Nanos pull_spread;  // the new parameters come to some earlier than to others
  int rounds = 10;
  std::vector<std::pair<Nanos, int>> deaths;
};

Job run(const std::vector<Nanos>& capability, const JobOptions& o, Random& random) {
  enum class What { kTrained, kQuestion, kAnswer, kReduced, kDeath };
  struct Event {
    Nanos at;
    int order;
    What what;
    int worker;
    std::uint64_t life;
    Question question;
    Answer answer;
    bool operator<(const Event& e) const { return std::tie(e.at, e.order) < std::tie(at, order); }
  };
  const int n = static_cast<int>(capability.size());
  Job job;
  job.iterations.assign(capability.size(), 0);
  StateServer server(n, !o.blocking);
  struct State {
    EsyncWorker policy;
    std::uint64_t life = 0;
    Nanos began, said, predicted, decided, took;
    bool training = false, alive = true, aggregates = false;
  };
  std::vector<State> workers;
  for (int w = 0; w < n; ++w) {
    workers.push_back({EsyncWorker(w, o.blocking, capability[static_cast<std::size_t>(w)]), 0, {}, {}, {}, {}, {}});
    workers.back().said = capability[static_cast<std::size_t>(w)];
  }
  std::priority_queue<Event> events;
  int order = 0;
  Nanos now;
  Answers answers;
  const auto at = [&](int w) -> State& { return workers[static_cast<std::size_t>(w)]; };
  const auto post = [&](Nanos when, What what, int w, Question q = {}, Answer a = {}) {
    events.push({when, order++, what, w, at(w).life, q, a});
  };
  const auto reduce_if_all_are_here = [&] {
    int last = -1;
    for (int w = 0; w < n; ++w) {
      if (!at(w).alive) continue;
      if (!at(w).aggregates) return;
      if (last < 0 || at(w).decided > at(last).decided) last = w;
    }
    if (last < 0) return;
    ++job.rounds;
    for (int w = 0; w < n; ++w) {
      if (!at(w).alive) continue;
      job.waits.push_back({now - at(w).decided, at(w).said, at(last).decided - at(last).predicted});
      at(w).aggregates = false;
      post(now + 5_ms + Nanos{static_cast<std::int64_t>(random.below(o.pull_spread.count))}, What::kReduced, w);
    }
  };
  const auto proceed = [&](int w) {
    for (State& me = at(w);;) {
      const Task task = me.policy.next(now);
      if (task.kind == Task::Kind::kAsk) {
        if (task.question.kind == Question::Kind::kIterated) me.said = task.question.capability;
        post(now + o.one_way, What::kQuestion, w, task.question);
      } else if (task.kind == Task::Kind::kTrain) {
        if (me.training) return;
        me.training = true;
        me.began = now;
        me.predicted = now + me.said;
        const auto exact = capability[static_cast<std::size_t>(w)].count;
        me.took = {exact + exact * static_cast<std::int64_t>(random.below(2 * o.noise_percent + 1)) / 100 -
                   exact * o.noise_percent / 100};
        post(now + me.took, What::kTrained, w);
        return;
      } else if (task.kind == Task::Kind::kExchange) {
        if (me.aggregates) return;
        me.aggregates = true;
        me.decided = now;
        return reduce_if_all_are_here();
      } else {
        return;
      }
    }
  };
  for (int w = 0; w < n; ++w) proceed(w);
  for (const auto& [when, w] : o.deaths) post(when, What::kDeath, w);
  while (!events.empty() && job.rounds < o.rounds) {
    const Event e = events.top();
    events.pop();
    now = e.at;
    State& me = at(e.worker);
    if (e.what == What::kDeath) {
      me.alive = false;
      server.died(e.worker);
      reduce_if_all_are_here();
      continue;
    }
    if (!me.alive) continue;
    switch (e.what) {
      case What::kTrained:
        if (e.life != me.life) break;  // it was given up
        me.training = false;
        ++job.iterations[static_cast<std::size_t>(e.worker)];
        me.policy.trained(now, me.took);
        proceed(e.worker);
        break;
      case What::kQuestion:
        answers.clear();
        server.asked(now, e.question, &answers);
        for (const auto& answer : answers) post(now + o.one_way, What::kAnswer, answer.worker, {}, answer);
        break;
      case What::kAnswer:
        if (me.policy.answered(now, e.answer) == WorkerPolicy::Reaction::kInterrupt) {
          ++me.life;
          me.training = false;
        }
        proceed(e.worker);
        break;
      case What::kReduced:
        me.policy.exchanged(now);
        proceed(e.worker);
        break;
      case What::kDeath:
        break;
    }
  }
  return job;
}

std::vector<Nanos> random_speeds(Random& random) {
  std::vector<Nanos> capability(1 + random.below(random.below(4) == 0 ? 64 : 8));
  for (auto& c : capability) {
    c = Nanos{10'000'000 + static_cast<std::int64_t>(random.below(random.below(2) == 0 ? 100'000'000 : 3'000'000'000))};
  }
  return capability;
}

TEST(Esync, WithExactSpeedsNobodyWaitsForLongerThanOneIterationOfItsOwn) {
  for_each_seed("exact speeds", 100, [](std::uint64_t seed) {
    Random random(seed);
    JobOptions options;
    options.pull_spread = Nanos{static_cast<std::int64_t>(random.below(2'000'000'000))};
    const Job job = run(random_speeds(random), options, random);
    EXPECT_EQ(job.rounds, 10);
    for (const auto& wait : job.waits) ASSERT_LE(wait.waited, wait.capability);
  });
}

TEST(Esync, WithOtherSpeedsTheLastOnesDelayComesOnTop) {
  for_each_seed("noise", 100, [](std::uint64_t seed) {
    Random random(seed);
    JobOptions options;
    options.noise_percent = 30;
    options.pull_spread = Nanos{static_cast<std::int64_t>(random.below(2'000'000'000))};
    const Job job = run(random_speeds(random), options, random);
    EXPECT_EQ(job.rounds, 10);
    for (const auto& wait : job.waits) ASSERT_LE(wait.waited, wait.capability + std::max(wait.overrun, Nanos{}));
  });
}

// The blocking worker stands still for a round trip per iteration; the other one loses at most a part of one per round.
TEST(Esync, WithoutBlockingNobodyWaitsForAnswers) {
  const std::vector<Nanos> capability = {1000_ms, 30_ms, 30_ms};
  JobOptions options;
  options.one_way = 20_ms;
  Random random(1);
  const Job blocking = run(capability, options, random);
  options.blocking = false;
  const Job not_blocking = run(capability, options, random);
  ASSERT_EQ(blocking.rounds, 10);
  ASSERT_EQ(not_blocking.rounds, 10);
  EXPECT_LT(blocking.iterations[1], 10 * 16) << "70 ms an iteration";
  EXPECT_GT(not_blocking.iterations[1], 10 * 30) << "30 ms an iteration";
}

TEST(Esync, WithoutBlockingEveryRoundEndsToo) {
  for_each_seed("not blocking", 80, [](std::uint64_t seed) {
    Random random(seed);
    JobOptions options;
    options.blocking = false;
    options.noise_percent = static_cast<int>(random.below(30));
    options.one_way = Nanos{static_cast<std::int64_t>(random.below(50'000'000))};
    EXPECT_EQ(run(random_speeds(random), options, random).rounds, 10);
  });
}

TEST(Esync, RoundsGoOnWhenWorkersDie) {
  for_each_seed("deaths", 150, [](std::uint64_t seed) {
    Random random(seed);
    const auto capability = random_speeds(random);
    JobOptions options;
    options.blocking = random.below(2) == 0;
    options.one_way = 1_ms;
    const int n = static_cast<int>(capability.size());
    for (int w = 1; w < n; w += 2) {
      options.deaths.push_back({Nanos{static_cast<std::int64_t>(random.below(3'000'000'000))}, w});
    }
    EXPECT_EQ(run(capability, options, random).rounds, 10);
  });
}

// The paper's cluster: two CPUs at 3.5 s and four GPUs at 0.03 s per iteration.
TEST(Esync, ThePapersClusterTrainsManyTimesMoreSamplesThanInStep) {
  Random random(1);
  const Job job = run({3500_ms, 3500_ms, 30_ms, 30_ms, 30_ms, 30_ms}, {}, random);
  Iteration sum = 0;
  for (const auto k : job.iterations) sum += k;
  std::cout << "iterations per round against one each: " << static_cast<double>(sum) / (6.0 * job.rounds) << std::endl;
  EXPECT_GT(static_cast<double>(sum) / (6.0 * job.rounds), 33);
}

Question pulled(int worker, std::int64_t round, std::int64_t applied, std::int64_t doubted) {
  Question q{Question::Kind::kPulled, worker, round, 0, 1_ms};
  q.applied = applied;
  q.doubted = doubted;
  return q;
}

Question iterated(const Question& before) {
  Question q = before;
  q.kind = Question::Kind::kIterated;
  q.iterations = 1;
  return q;
}

// Round 0 succeeded for worker 1 alone.
TEST(StateServer, WhoLacksAResultThatAnotherHasIsBehindIt) {
  StateServer server(3);
  Answers answers;
  const Question questions[] = {pulled(0, 1, -1, 0), pulled(1, 1, 0, -1), pulled(2, 1, -1, 0)};
  for (const Question& q : questions) server.asked({}, q, &answers);
  for (const Question& q : questions) server.asked(1_s, iterated(q), &answers);
  ASSERT_EQ(answers.size(), 3u);
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.kind, Answer::Kind::kAggregate);
    EXPECT_EQ(answer.source, 1);
    ASSERT_NE(answer.behind, nullptr);
    EXPECT_TRUE(answer.behind->has(0) && answer.behind->has(2) && !answer.behind->has(1));
    EXPECT_EQ(answer.counted, answer.worker != 1) << "the mean that worker 1 has had their deltas";
  }
  // Round 1 fails for all, and worker 1 dies: nobody has anything that another one lacks.
  server.died(1);
  answers.clear();
  const Question later[] = {pulled(0, 2, -1, 1), pulled(2, 2, -1, 1)};
  for (const Question& q : later) server.asked(2_s, q, &answers);
  for (const Question& q : later) server.asked(3_s, iterated(q), &answers);
  ASSERT_EQ(answers.size(), 2u);
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.source, -1);
    EXPECT_EQ(answer.behind, nullptr);
    EXPECT_FALSE(answer.counted) << "what nobody has has to go again";
  }
}

TEST(StateServer, AResultOfARoundToComeIsBelievedNobody) {
  StateServer server(2);
  Answers answers;
  server.asked({}, pulled(0, 1, 5, -1), &answers);
  server.asked({}, pulled(1, 1, 0, -1), &answers);
  server.asked({}, pulled(0, 1, 0, -1), &answers);
  server.asked(1_s, iterated(pulled(1, 1, 0, -1)), &answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].source, -1);
}

// All of a round are told the same of who is behind, also by the next coordinator, which asks nobody anew.
TEST(StateServer, TheNextOneKeepsWhoWasBehind) {
  const std::vector<std::uint32_t> all = {0, 1, 2};
  Question open = iterated(pulled(0, 4, 2, 3)), done = iterated(pulled(1, 4, 3, -1));
  const Recollection::Told told{Answer::Kind::kAggregate, 4, all, false, 1, {0}};
  for (const bool source_lives : {true, false}) {
    StateServer server(3);
    Answers answers;
    if (!source_lives) server.died(1);
    if (source_lives) server.recall(1_s, {1, &done, 1_ms, false, false, &told});
    const Question other = iterated(pulled(2, 4, 3, -1));
    server.recall(1_s, {2, &other, 1_ms, false, false, &told});
    server.recall(1_s, {0, &open, 1_ms, true, false, nullptr});
    server.recalled(1_s, &answers);
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers[0].kind, Answer::Kind::kAggregate);
    EXPECT_EQ(answers[0].source, 1);
    ASSERT_NE(answers[0].behind, nullptr);
    EXPECT_TRUE(answers[0].behind->has(0));
    EXPECT_TRUE(answers[0].counted);
  }
}

TEST(EsyncWorker, ItSaysWhichResultsItHasAndWhichItDoubts) {
  EsyncWorker worker(0, /*blocking=*/true, 1_ms);
  const WorkerSet behind = WorkerSet::all(1);
  const auto round = [&](bool well) {
    EXPECT_EQ(worker.next({}).kind, Task::Kind::kAsk);
    EXPECT_EQ(worker.next({}).kind, Task::Kind::kTrain);
    worker.trained({}, 1_ms);
    const Question q = worker.next({}).question;
    Answer answer{Answer::Kind::kAggregate, 0, worker.round()};
    answer.source = 3;
    answer.behind = &behind;
    answer.counted = true;
    worker.answered({}, answer);
    const Exchange e = worker.next({}).exchange;
    EXPECT_EQ(e.source, 3);
    EXPECT_EQ(e.behind, &behind);
    EXPECT_TRUE(e.counted);
    if (well) {
      worker.exchanged({});
    } else {
      worker.exchange_failed({});
    }
    return q;
  };
  EXPECT_EQ(round(true).applied, -1);
  EXPECT_EQ(round(false).applied, 0);
  const Question q = round(true);
  EXPECT_EQ(q.applied, 0);
  EXPECT_EQ(q.doubted, 1);
  EXPECT_EQ(round(true).doubted, -1);
}

// Four workers in a square: 0 and 3 do not meet, so 1 serves 3.
TEST(Esync, TheSourceIsOneThatMeetsThoseWhoAreBehind) {
  StateServer server(4, false, 1_ns, rows_and_columns(4, 2));
  Answers answers;
  const auto ask = [&](int w, Question::Kind kind, Iteration iterations, Nanos now) {
    Question q{kind, w, 1, iterations, 10_ms};
    q.applied = w == 3 ? -1 : 0;
    q.doubted = w == 3 ? 0 : -1;
    server.asked(now, q, &answers);
  };
  for (int w = 0; w < 4; ++w) ask(w, Question::Kind::kPulled, 0, {});
  ask(0, Question::Kind::kIterated, 1, 95_ms);
  ASSERT_EQ(answers.size(), 1u);
  ASSERT_EQ(answers[0].kind, Answer::Kind::kAggregate);
  ASSERT_NE(answers[0].behind, nullptr);
  EXPECT_EQ(answers[0].behind->bits(), 0b1000u);
  EXPECT_EQ(answers[0].source, 1);
}

// A program may not be able to give up what runs.
TEST(Esync, AnIterationThatIsEndedThoughAllOthersAreReadyCounts) {
  EsyncWorker worker(0, /*blocking=*/false, 1_ms);
  EXPECT_EQ(worker.next({}).kind, Task::Kind::kAsk);
  EXPECT_EQ(worker.next({}).kind, Task::Kind::kTrain);
  worker.trained(1_ms, 1_ms);
  EXPECT_EQ(worker.next(1_ms).kind, Task::Kind::kAsk);
  EXPECT_EQ(worker.next(1_ms).kind, Task::Kind::kTrain);
  EXPECT_EQ(worker.answered(1500_us, {Answer::Kind::kAggregate, 0, 0}), WorkerPolicy::Reaction::kInterrupt);
  worker.trained(2_ms, 1_ms);
  EXPECT_EQ(worker.local_iterations(), 2);
  EXPECT_EQ(worker.next(2_ms).kind, Task::Kind::kExchange);
  worker.exchanged(3_ms);
  EXPECT_EQ(worker.round(), 1);
}

}  // namespace
}  // namespace canarynet::sync
