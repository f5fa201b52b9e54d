// DiLoCo as a whole in virtual time: worker, coordinator and deltas, through late work, overlap, deaths and another
// coordinator.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "sync/local_steps.h"
#include "sync/local_updates.h"
#include "sync/meetings_test_util.h"
#include "sync/property_test_util.h"

namespace canarynet::sync {
namespace {

struct Trouble {
  bool deaths = false;
  bool succession = false;  // another coordinator takes over now and then
  bool diagonals = false;   // workers of a diagonal don't meet
};

// Workers that train numbers at random, with exchanges that take random times, and fail where a member dies. It keeps
// books of what each worker has produced and of what each round had of it.
class Job {
 public:
  Job(const LocalSteps& options, int workers, const Trouble& trouble, std::uint64_t seed)
      : options_(options), n_(workers), random_(seed), alive_(WorkerSet::all(workers)) {
    if (trouble.diagonals) meetings_ = rows_and_columns(workers, 3);
    coordinator_ = std::make_unique<LocalStepsCoordinator>(options_, n_, meetings_);
    workers_.resize(static_cast<std::size_t>(n_));
    const std::vector<float> start(elements(), 0.0f);
    for (int w = 0; w < n_; ++w) {
      Worker& me = at(w);
      me.policy = std::make_unique<LocalStepsWorker>(options_, w);
      me.updates = std::make_unique<LocalUpdates>(
          start, LocalUpdates::Options{options_.outer_rate, options_.outer_momentum, options_.mix, options_.fragments});
      me.x = start;
      me.produced.assign(elements(), 0.0);
      me.applied.assign(static_cast<std::size_t>(options_.fragments), -1);
      me.step = Nanos{1'000'000 + static_cast<std::int64_t>(random_.below(20'000'000))};
      me.polls = random_.below(2) == 0;
    }
    for (int i = 0; trouble.deaths && i < n_ / 2; ++i) {
      schedule(random_time(3_s), [this] {
        if (alive_.count() > 2) die(static_cast<int>(random_.below(static_cast<std::uint64_t>(n_))));
      });
    }
    for (int i = 0; trouble.succession && i < 3; ++i) schedule(random_time(3_s), [this] { succeed(); });
  }

  void run(Nanos until) {
    for (int w = 0; w < n_; ++w) proceed(w);
    while (!events_.empty()) {
      Event event = events_.top();
      events_.pop();
      now_ = event.at;
      stopped_ = now_ > until;
      event.run();
      expire();
    }
  }

  int workers() const { return n_; }
  bool alive(int w) const { return alive_.has(w); }
  std::int64_t iterations(int w) const { return workers_[static_cast<std::size_t>(w)].iterations; }
  std::int64_t exchanges(int w) const { return workers_[static_cast<std::size_t>(w)].exchanges; }
  std::int64_t late() const { return late_; }
  std::int64_t caught_up() const { return caught_up_; }
  std::int64_t failed() const { return failed_; }
  std::int64_t lost() const { return lost_; }
  std::int64_t beside() const { return beside_; }

  // What every living worker has produced is in the rounds that count, each of it once, or still with the worker.
  void check() {
    for (int f = 0; f < options_.fragments; ++f) check_fragment(f);
  }

 private:
  static constexpr std::size_t kPerFragment = 2;
  struct Worker {
    std::unique_ptr<LocalStepsWorker> policy;
    std::unique_ptr<LocalUpdates> updates;
    std::vector<float> x;
    std::vector<double> produced;
    std::vector<std::int64_t> applied;   // by fragment
    std::map<int, std::int64_t> taken;   // the unresolved round of a fragment
    std::vector<std::int64_t> believed;  // rounds that failed here, and were said to count
    Exchange exchange;
    Nanos step;
    bool polls = false;  // hears answers in the middle of an iteration
    bool training = false;
    bool exchanging = false;
    std::int64_t iterations = 0, exchanges = 0;
    // What a next coordinator hears of it.
    std::optional<Question> question;
    Nanos asked_at;
    bool open = false;
    std::optional<Recollection::Told> told;
  };
  struct Round {
    std::vector<std::uint32_t> members;
    WorkerSet here, behind;
    int source = -1;
    bool heard_of = false, begun = false, handing_over = false;
    std::map<int, std::vector<float>> deltas;
    WorkerSet got_mean, ended, applied;
    std::int64_t after = -1;  // the round whose result it is applied to
  };
  struct Event {
    Nanos at;
    int order;
    std::function<void()> run;
    bool operator<(const Event& o) const { return std::tie(o.at, o.order) < std::tie(at, order); }
  };

  Worker& at(int w) { return workers_[static_cast<std::size_t>(w)]; }
  std::size_t elements() const { return kPerFragment * static_cast<std::size_t>(options_.fragments); }
  void schedule(Nanos when, std::function<void()> run) { events_.push({when, order_++, std::move(run)}); }
  Nanos random_time(Nanos most) {
    return Nanos{static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(most.count)))};
  }

  void proceed(int w) {
    Worker& me = at(w);
    while (alive_.has(w) && !stopped_) {
      const Task task = me.policy->next(now_);
      switch (task.kind) {
        case Task::Kind::kAsk:
          ask(w, task.question);
          continue;
        case Task::Kind::kTrain:
          if (!me.training) train(w);
          return;
        case Task::Kind::kExchange:
          if (!me.exchanging) begin(w, task.exchange);
          if (task.exchange.beside) continue;
          return;
        case Task::Kind::kWait:
          return;
      }
    }
  }

  void train(int w) {
    Worker& me = at(w);
    me.training = true;
    // Now and then it takes much longer, so that the worker is late.
    const Nanos took = me.step + random_time(me.step) + (random_.below(20) == 0 ? random_time(200_ms) : Nanos{});
    schedule(now_ + took, [this, w, took] {
      if (!alive_.has(w)) return;
      Worker& it = at(w);
      it.training = false;
      for (std::size_t i = 0; i < it.x.size(); ++i) {
        const auto change = static_cast<float>(random_.below(17)) - 8;
        it.x[i] += change;
        it.produced[i] += change;
      }
      ++it.iterations;
      beside_ += it.exchanging ? 1 : 0;
      it.policy->trained(now_, took);
      proceed(w);
    });
  }

  void ask(int w, const Question& question) {
    Worker& me = at(w);
    ASSERT_GE(question.iterations, 1);
    me.question = question;
    me.asked_at = now_;
    me.open = true;
    schedule(now_ + 100_us + random_time(1_ms), [this, w, question, era = era_] {
      if (!alive_.has(w) || era != era_) return;  // else it is said again to the next one
      Answers answers;
      coordinator_->asked(now_, question, &answers);
      deliver(answers);
    });
  }

  void deliver(const Answers& answers) {
    for (Answer answer : answers) {
      if (answer.kind == Answer::Kind::kAggregate) note_round(answer);
      late_ += answer.kind == Answer::Kind::kLate ? 1 : 0;
      // The sets are the coordinator's, which goes on, or is gone.
      const auto members = std::make_shared<std::pair<WorkerSet, WorkerSet>>();
      if (answer.members != nullptr) members->first = *answer.members;
      if (answer.behind != nullptr) members->second = *answer.behind;
      schedule(now_ + 100_us + random_time(1_ms), [this, answer, members, era = era_]() mutable {
        const int w = answer.worker;
        if (!alive_.has(w) || era != era_) return;
        Worker& me = at(w);
        kept_.push_back(members);
        if (answer.members != nullptr) answer.members = &members->first;
        if (answer.behind != nullptr) answer.behind = &members->second;
        ASSERT_TRUE(me.open) << "an answer to no question";
        me.open = false;
        if (answer.kind == Answer::Kind::kAggregate) {
          Round& round = rounds_.at(answer.number);
          round.heard_of = true;
          me.told = Recollection::Told{answer.kind, answer.number, round.members, false, answer.source, {}};
          for (int b = round.behind.next(); b >= 0; b = round.behind.next(b + 1))
            me.told->behind.push_back(static_cast<std::uint32_t>(b));
        }
        const auto reaction = me.policy->answered(now_, answer);
        if (!me.training || (reaction == WorkerPolicy::Reaction::kBeside && me.polls)) proceed(w);
      });
    }
  }

  void expire() {
    if (coordinator_->next_deadline() > now_) {
      if (coordinator_->next_deadline() == Nanos::max()) return;
      schedule(coordinator_->next_deadline(), [] {});
      return;
    }
    Answers answers;
    coordinator_->expire(now_, &answers);
    deliver(answers);
  }

  void note_round(const Answer& answer) {
    auto [place, fresh] = rounds_.try_emplace(answer.number);
    Round& round = place->second;
    ASSERT_NE(answer.members, nullptr);
    WorkerSet behind = answer.behind != nullptr ? *answer.behind : WorkerSet(n_);
    if (fresh) {
      for (int w = answer.members->next(); w >= 0; w = answer.members->next(w + 1))
        round.members.push_back(static_cast<std::uint32_t>(w));
      round.source = answer.source;
      round.behind = behind;
      round.here = round.got_mean = round.ended = round.applied = WorkerSet(n_);
      const std::size_t f = static_cast<std::size_t>(answer.number % options_.fragments);
      for (const std::uint32_t m : round.members) {
        if (!behind.has(static_cast<int>(m))) round.after = at(static_cast<int>(m)).applied[f];
      }
    }
    EXPECT_EQ(round.source, answer.source) << "two are told of different sources";
    EXPECT_TRUE(round.behind == behind);
    EXPECT_TRUE(meetings_.connected(*answer.members));
    if (answer.source >= 0) {
      behind.add(answer.source);
      EXPECT_TRUE(meetings_.connected(behind)) << "no way from the source to those that it is to serve";
      behind.remove(answer.source);
      EXPECT_TRUE(answer.members->has(answer.source) && !behind.has(answer.source));
    } else {
      EXPECT_TRUE(behind.empty());
    }
  }

  void begin(int w, const Exchange& e) {
    Worker& me = at(w);
    me.exchanging = true;
    me.exchange = e;
    Round& round = rounds_.at(e.number);
    ASSERT_EQ(e.partition, e.number % options_.fragments);
    // The books: what an older exchange left open is resolved by what the coordinator says.
    if (const auto open = me.taken.find(e.partition); open != me.taken.end() && e.counted)
      me.believed.push_back(open->second);
    if (!round.behind.has(w)) {
      EXPECT_EQ(me.applied[static_cast<std::size_t>(e.partition)], round.after) << "up to date, and not behind";
    }
    std::vector<float> delta(me.updates->part(e.partition).size);
    me.updates->take(me.x, e.partition, e.counted, delta);
    me.taken[e.partition] = e.number;
    round.deltas[w] = delta;
    round.here.add(w);
    meet(e.number);
  }

  // All are here, or somebody who never will be.
  void meet(std::int64_t number) {
    Round& round = rounds_.at(number);
    bool all = true;
    for (const std::uint32_t m : round.members) {
      const int w = static_cast<int>(m);
      if (round.here.has(w)) continue;
      if (!alive_.has(w)) return fail_all(number);
      all = false;
    }
    if (!all || std::exchange(round.begun, true)) return;
    for (const std::uint32_t m : round.members)
      schedule(now_ + 1_ms + random_time(40_ms), [this, number, m] { mean(number, static_cast<int>(m)); });
  }

  void fail_all(std::int64_t number) {
    Round& round = rounds_.at(number);
    for (int w = round.here.next(); w >= 0; w = round.here.next(w + 1)) {
      if (alive_.has(w) && !round.ended.has(w)) end(number, w, false);
    }
  }

  // The mean comes to w, unless one that has died meanwhile was still needed.
  void mean(std::int64_t number, int w) {
    Round& round = rounds_.at(number);
    if (!alive_.has(w) || round.ended.has(w)) return;
    for (const std::uint32_t m : round.members) {
      if (!alive_.has(static_cast<int>(m)) && random_.below(2) == 0) return end(number, w, false);
    }
    round.got_mean.add(w);
    Worker& me = at(w);
    const int part = me.exchange.partition;
    std::vector<float> mean(me.updates->part(part).size);
    for (const auto& [from, delta] : round.deltas) {
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += delta[i] / static_cast<float>(round.members.size());
    }
    if (!round.behind.has(w)) {
      me.updates->apply(me.x, part, mean);
      note_applied(number, w);
    }
    if (round.source == w || round.behind.has(w)) return hand_over(number);
    end(number, w, true);
  }

  void hand_over(std::int64_t number) {
    Round& round = rounds_.at(number);
    WorkerSet takes = round.behind;
    takes.add(round.source);
    for (int w = takes.next(); w >= 0; w = takes.next(w + 1)) {
      if (!alive_.has(w) || (round.ended.has(w) && !round.got_mean.has(w))) return fail_hand_over(number);
    }
    for (int w = takes.next(); w >= 0; w = takes.next(w + 1)) {
      if (!round.got_mean.has(w)) return;
    }
    if (std::exchange(round.handing_over, true)) return;
    std::vector<float> state(at(round.source).updates->state_size(at(round.source).exchange.partition));
    at(round.source).updates->save(at(round.source).exchange.partition, state);
    for (int w = takes.next(); w >= 0; w = takes.next(w + 1)) {
      schedule(now_ + 1_ms + random_time(20_ms), [this, number, w, state] {
        Round& r = rounds_.at(number);
        if (!alive_.has(w) || r.ended.has(w)) return;
        if (w != r.source) {
          for (const std::uint32_t m : r.members) {
            if (!alive_.has(static_cast<int>(m)) && random_.below(2) == 0) return end(number, w, false);
          }
          at(w).updates->adopt(at(w).x, at(w).exchange.partition, state);
          note_applied(number, w);
          ++caught_up_;
        }
        end(number, w, true);
      });
    }
  }

  void fail_hand_over(std::int64_t number) {
    Round& round = rounds_.at(number);
    WorkerSet takes = round.behind;
    takes.add(round.source);
    for (int w = takes.next(); w >= 0; w = takes.next(w + 1)) {
      if (alive_.has(w) && round.got_mean.has(w) && !round.ended.has(w)) end(number, w, w == round.source);
    }
  }

  void note_applied(std::int64_t number, int w) {
    Round& round = rounds_.at(number);
    round.applied.add(w);
    Worker& me = at(w);
    me.applied[static_cast<std::size_t>(me.exchange.partition)] = number;
    me.taken.erase(me.exchange.partition);
  }

  void end(std::int64_t number, int w, bool well) {
    Round& round = rounds_.at(number);
    ASSERT_FALSE(round.ended.has(w));
    round.ended.add(w);
    Worker& me = at(w);
    me.exchanging = false;
    ++me.exchanges;
    failed_ += well ? 0 : 1;
    if (well) {
      me.policy->exchanged(now_);
    } else {
      me.policy->exchange_failed(now_);
    }
    if (!me.training) proceed(w);
    if (!well && (round.source == w || round.behind.has(w))) hand_over(number);
  }

  void die(int w) {
    if (!alive_.has(w)) return;
    alive_.remove(w);
    Answers answers;
    coordinator_->died(now_, w, &answers);
    deliver(answers);
    for (auto& [number, round] : rounds_) {
      if (std::find(round.members.begin(), round.members.end(), static_cast<std::uint32_t>(w)) == round.members.end())
        continue;
      if (!round.begun) meet(number);
      if (round.source == w || round.behind.has(w)) hand_over(number);
    }
  }

  // Answers and questions that were on their way are lost with the old one.
  void succeed() {
    ++era_;
    std::erase_if(rounds_, [](const auto& round) { return !round.second.heard_of; });
    coordinator_ = std::make_unique<LocalStepsCoordinator>(options_, n_, meetings_);
    Answers answers;
    for (int w = 0; w < n_; ++w) {
      if (!alive_.has(w)) coordinator_->died(now_, w, &answers);
    }
    for (int w = 0; w < n_; ++w) {
      if (!alive_.has(w)) continue;
      Worker& me = at(w);
      Recollection memory;
      memory.worker = w;
      if (me.question) memory.question = &*me.question;
      memory.ago = me.question ? now_ - me.asked_at : Nanos{};
      memory.open = me.open;
      if (me.told) memory.told = &*me.told;
      coordinator_->recall(now_, memory);
    }
    coordinator_->recalled(now_, &answers);
    deliver(answers);
  }

  void check_fragment(int f) {
    const auto fragment = static_cast<std::size_t>(f);
    std::int64_t newest = -1;
    for (int w = alive_.next(); w >= 0; w = alive_.next(w + 1)) newest = std::max(newest, at(w).applied[fragment]);
    std::vector<std::int64_t> lineage;
    for (std::int64_t r = newest; r >= 0; r = rounds_.at(r).after) lineage.push_back(r);
    const auto counts = [&](std::int64_t r) { return std::find(lineage.begin(), lineage.end(), r) != lineage.end(); };
    const LocalUpdates::Part part = at(0).updates->part(f);
    const LocalUpdates* first = nullptr;
    for (int w = alive_.next(); w >= 0; w = alive_.next(w + 1)) {
      Worker& me = at(w);
      if (me.applied[fragment] == newest) {
        if (first == nullptr) first = me.updates.get();
        for (std::size_t i = part.first; i < part.first + part.size; ++i)
          ASSERT_EQ(me.updates->anchor()[i], first->anchor()[i]) << "worker " << w << ", newest round " << newest;
      }
      if (options_.mix) continue;  // which counts some of it twice, and some not
      // What the worker has in its delta that others have had is no longer pending.
      std::vector<float> pending(part.size), ignored(part.size);
      const auto open = me.taken.find(f);
      me.updates->take(me.x, f, open != me.taken.end() && counts(open->second), pending);
      for (std::size_t i = 0; i < part.size; ++i) {
        double sum = pending[i];
        for (const auto& [number, round] : rounds_) {
          if (number % options_.fragments != f || round.deltas.count(w) == 0) continue;
          if (counts(number)) {
            sum += round.deltas.at(w)[i];
          } else if (std::find(me.believed.begin(), me.believed.end(), number) != me.believed.end()) {
            // Those who had it have died since.
            for (int a = round.applied.next(); a >= 0; a = round.applied.next(a + 1)) ASSERT_FALSE(alive_.has(a));
            sum += round.deltas.at(w)[i];
            lost_ += i == 0 ? 1 : 0;
          }
        }
        ASSERT_NEAR(sum, me.produced[part.first + i], 0.05)
            << "worker " << w << ", fragment " << f << ": " << lineage.size() << " rounds";
      }
    }
  }

  LocalSteps options_;
  int n_;
  Random random_;
  WorkerSet alive_;
  std::unique_ptr<LocalStepsCoordinator> coordinator_;
  std::vector<Worker> workers_;
  std::map<std::int64_t, Round> rounds_;
  std::vector<std::shared_ptr<std::pair<WorkerSet, WorkerSet>>> kept_;
  Nanos now_;
  bool stopped_ = false;
  int order_ = 0;
  int era_ = 0;
  std::int64_t late_ = 0, caught_up_ = 0, failed_ = 0, lost_ = 0, beside_ = 0;
  Meetings meetings_;
  std::priority_queue<Event> events_;
};

struct Seen {
  std::int64_t lives = 0, late = 0, caught_up = 0, failed = 0, lost = 0, beside = 0;
};

Seen live(const char* what, std::uint64_t seeds, const Trouble& trouble) {
  Seen seen;
  const std::uint64_t lives = for_each_seed(what, seeds, [&](std::uint64_t seed) {
    Random random(seed);
    LocalSteps options;
    options.fragments = 1 + static_cast<int>(random.below(3));
    options.steps = options.fragments * (1 + static_cast<int>(random.below(4)));
    options.quorum_percent = random.below(4) == 0 ? 100 : 30 + static_cast<int>(random.below(60));
    options.overlap = random.below(2) == 0 ? 0 : 1 + static_cast<int>(random.below(4));
    if (random.below(4) == 0) options.mix = 0.5;
    options.outer_rate = 0.7;
    options.outer_momentum = random.below(2) == 0 ? 0 : 0.5;
    Job job(options, 2 + static_cast<int>(random.below(7)), trouble, seed);
    job.run(4_s);
    if (testing::Test::HasFatalFailure()) return;
    for (int w = 0; w < job.workers(); ++w) {
      if (!job.alive(w)) continue;
      EXPECT_GE(job.exchanges(w), 5) << "worker " << w << " of " << job.workers() << " stands still";
    }
    job.check();
    seen.late += job.late();
    seen.caught_up += job.caught_up();
    seen.failed += job.failed();
    seen.lost += job.lost();
    seen.beside += job.beside();
  });
  seen.lives = static_cast<std::int64_t>(lives);
  return seen;
}

TEST(LocalStepsLives, WhatComesLateIsKept) {
  const Seen seen = live("late work", 150, {});
  EXPECT_GT(seen.late, 4 * seen.lives);
  EXPECT_GT(seen.caught_up, 4 * seen.lives);
  EXPECT_GT(seen.beside, 4 * seen.lives) << "iterations beside exchanges";
  EXPECT_EQ(seen.failed, 0);
}

TEST(LocalStepsLives, DeathsLoseNothingOfTheSurvivorsAndCountNothingTwice) {
  const Seen seen = live("deaths", 300, {.deaths = true});
  EXPECT_GT(seen.failed, seen.lives);
  EXPECT_GT(seen.caught_up, 2 * seen.lives);
  EXPECT_LT(seen.lost, seen.failed / 20) << "what only those had who died";
}

// On a wiring where not all meet, each round is of workers that can exchange, and so are a source and those it serves.
TEST(LocalStepsLives, RoundsAreOfWorkersThatMeet) {
  for (const bool succession : {false, true}) {
    const Seen seen = live("diagonals", 150, {.succession = succession, .diagonals = true});
    EXPECT_GT(seen.late, 2 * seen.lives);
    EXPECT_GT(seen.caught_up, 2 * seen.lives);
    EXPECT_EQ(seen.failed, 0);
  }
}

TEST(LocalStepsLives, AnotherCoordinatorGoesOn) {
  const Seen seen = live("succession", 150, {.succession = true});
  EXPECT_GT(seen.late, 2 * seen.lives);
  EXPECT_EQ(seen.failed, 0);
}

}  // namespace
}  // namespace canarynet::sync
