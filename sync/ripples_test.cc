// Groups of Ripples: static schedules against the paper's figures and for all small clusters, the generator over random
// lives with deaths.
#include "sync/ripples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <queue>
#include <set>
#include <string>

#include "base/random.h"
#include "sync/group_workers.h"
#include "sync/meetings_test_util.h"
#include "sync/property_test_util.h"
#include "sync/static_groups.h"

namespace canarynet::sync {
namespace {

// Who is connected to whom by the groups seen so far.
class Union {
 public:
  explicit Union(int workers) : parent_(static_cast<std::size_t>(workers)) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }
  void join(const WorkerSet& group) {
    for (int w = group.next(); w >= 0; w = group.next(w + 1)) parent_[root(w)] = static_cast<int>(root(group.next()));
  }
  bool connected(const WorkerSet& of) const {
    for (int w = of.next(); w >= 0; w = of.next(w + 1)) {
      if (root(w) != root(of.next())) return false;
    }
    return true;
  }

 private:
  std::size_t root(int w) const {
    while (parent_[static_cast<std::size_t>(w)] != w) w = parent_[static_cast<std::size_t>(w)];
    return static_cast<std::size_t>(w);
  }
  std::vector<int> parent_;
};

// F^G of an iteration: rows and columns sum to 1, in units of 1/lcm(1..8).
void expect_doubly_stochastic(const std::vector<WorkerSet>& group_of) {
  constexpr int kWhole = 840;
  const std::size_t n = group_of.size();
  std::vector<int> column(n);
  for (std::size_t i = 0; i < n; ++i) {
    const int size = group_of[i].count();
    ASSERT_TRUE(group_of[i].has(static_cast<int>(i)));
    for (int j = group_of[i].next(); j >= 0; j = group_of[i].next(j + 1)) {
      column[static_cast<std::size_t>(j)] += kWhole / size;
      ASSERT_TRUE(group_of[static_cast<std::size_t>(j)] == group_of[i]) << "worker " << i << " and " << j;
    }
  }
  for (const int sum : column) ASSERT_EQ(sum, kWhole);
}

std::string row(const StaticGroups& groups, int workers, std::int64_t iteration) {
  std::string text;
  WorkerSet members(workers);
  for (int w = 0; w < workers; ++w) {
    groups.group_of(w, iteration, &members);
    text += members.count() == 1 ? "-" : std::to_string(members.next());
    text += w + 1 < workers ? " " : "";
  }
  return text;
}

// Figure 9: each worker's group by its lowest member.
TEST(StaticGroups, TheScheduleOfThePapersFigure) {
  const StaticGroups groups(4, 4, false);
  EXPECT_EQ(row(groups, 16, 0), "0 - 2 2 0 - 6 6 0 - 10 10 0 - 14 14");
  EXPECT_EQ(row(groups, 16, 1), "0 0 0 0 4 4 4 4 8 8 8 8 12 12 12 12");
  EXPECT_EQ(row(groups, 16, 2), "0 1 - 0 4 5 - 4 8 1 - 8 12 5 - 12");
  EXPECT_EQ(row(groups, 16, 3), row(groups, 16, 1));
  EXPECT_EQ(row(groups, 16, 6), row(groups, 16, 2));
}

TEST(StaticGroups, DisjointDoublyStochasticAndConnectedForAllSmallClusters) {
  for (const bool rotating : {false, true}) {
    for (int hosts = 1; hosts <= 8; ++hosts) {
      for (int locals = 1; locals <= 8; ++locals) {
        const int n = hosts * locals;
        const StaticGroups groups(hosts, locals, rotating);
        Union seen(n);
        for (std::int64_t i = 0; i < groups.period(); ++i) {
          std::vector<WorkerSet> group_of(static_cast<std::size_t>(n), WorkerSet(n));
          for (int w = 0; w < n; ++w) {
            groups.group_of(w, i, &group_of[static_cast<std::size_t>(w)]);
            seen.join(group_of[static_cast<std::size_t>(w)]);
          }
          if (locals <= 8 && hosts <= 8) expect_doubly_stochastic(group_of);
          ASSERT_FALSE(HasFailure()) << hosts << "x" << locals << " iteration " << i;
        }
        ASSERT_TRUE(seen.connected(WorkerSet::all(n))) << hosts << "x" << locals << (rotating ? " rotating" : "");
        EXPECT_EQ(row(groups, n, 0), row(groups, n, groups.period()));
      }
    }
  }
}

// A job whose workers train at their own speed, ask, average and may die, with delays between all of them.
class GroupJob {
 public:
  GroupJob(const GroupGenerator::Options& options, std::vector<Nanos> speed, std::uint64_t seed, Nanos delay = 1_ms)
      : n_(static_cast<int>(options.host_of.size())),
        random_(seed),
        draws_(seed + 1),
        delay_(delay),
        generator_(options, &draws_),
        speed_(std::move(speed)),
        meetings_(options.meetings),
        seen_(n_),
        alive_(WorkerSet::all(n_)),
        averaging_(n_) {
    for (int w = 0; w < n_; ++w) {
      const bool passive = options.mode == GroupGenerator::Mode::kPairs && GroupGenerator::passive(w);
      workers_.push_back({GroupWorker(w, 1, passive)});
      schedule({}, [this, w] { proceed(w); });
    }
    smart_ = options.mode == GroupGenerator::Mode::kSmart;
  }
  void kill(Nanos at, int w) {
    schedule(at, [this, w] {
      if (!alive_.has(w) || alive_.count() == 1) return;
      alive_.remove(w);
      for (auto& [number, run] : runs_) settle(number, run);
      schedule(now_ + delay_, [this, w] {
        Answers answers;
        generator_.died(now_, w, &answers);
        deliver(answers);
      });
    });
  }
  void run(Nanos until) {
    while (!events_.empty() && events_.top().at <= until && !testing::Test::HasFailure()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      event.what();
    }
  }
  // Of the living: nobody waits for longer than `limit` by now.
  void judge_waits(Nanos limit) {
    for (int w = alive_.next(); w >= 0; w = alive_.next(w + 1)) {
      const auto& me = workers_[static_cast<std::size_t>(w)];
      EXPECT_TRUE(me.training || now_ - me.since < limit) << "worker " << w << " waits since " << me.since.count;
    }
  }
  const WorkerSet& alive() const { return alive_; }
  const Union& seen() const { return seen_; }
  std::int64_t iterations(int w) const { return workers_[static_cast<std::size_t>(w)].iterations; }
  int groups_run() const { return groups_run_; }

 private:
  struct Event {
    Nanos at;
    int order;
    std::function<void()> what;
    bool operator<(const Event& e) const { return std::tie(e.at, e.order) < std::tie(at, order); }
  };
  struct Worker {
    GroupWorker policy;
    bool training = false;
    std::int64_t iterations = 0;
    Nanos since{};
  };
  struct Run {
    WorkerSet members;
    WorkerSet here;
    bool ends = false;
  };
  void schedule(Nanos at, std::function<void()> what) { events_.push({at, order_++, std::move(what)}); }
  void deliver(const Answers& answers) {
    for (const Answer& answer : answers) {
      if (answer.kind == Answer::Kind::kGroup) {
        Run& run = runs_[answer.number];
        if (run.members.workers() == 0) run = {*answer.members, WorkerSet(n_)};
        EXPECT_TRUE(run.members == *answer.members) << "members were told of different groups";
        EXPECT_TRUE(run.members.has(answer.worker));
        EXPECT_TRUE(meetings_.connected(run.members)) << "a group that can't exchange";
      }
      schedule(now_ + delay_, [this, answer] {
        if (!alive_.has(answer.worker)) return;
        auto& me = workers_[static_cast<std::size_t>(answer.worker)];
        const auto reaction = me.policy.answered(now_, answer);
        if (reaction == WorkerPolicy::Reaction::kBeside || !me.training) proceed(answer.worker);
      });
    }
  }
  void proceed(int w) {
    auto& me = workers_[static_cast<std::size_t>(w)];
    for (;;) {
      const Task task = me.policy.next(now_);
      switch (task.kind) {
        case Task::Kind::kWait:
          return;
        case Task::Kind::kTrain: {
          if (me.training) return;
          me.training = true;
          const Nanos took = speed_[static_cast<std::size_t>(w)];
          schedule(now_ + took + Nanos{static_cast<std::int64_t>(random_.below(took.count / 8 + 1))}, [this, w, took] {
            if (!alive_.has(w)) return;
            auto& it = workers_[static_cast<std::size_t>(w)];
            it.training = false;
            it.since = now_;
            ++it.iterations;
            it.policy.trained(now_, took);
            proceed(w);
          });
          return;
        }
        case Task::Kind::kAsk: {
          const Question question = task.question;
          schedule(now_ + delay_, [this, question] {
            Answers answers;
            generator_.asked(now_, question, &answers);
            deliver(answers);
          });
          break;
        }
        case Task::Kind::kExchange: {
          Run& run = runs_[task.exchange.number];
          ASSERT_TRUE(run.members == *task.exchange.members);
          if (run.here.has(w)) return;
          run.here.add(w);
          settle(task.exchange.number, run);
          return;
        }
      }
    }
  }
  // The averaging itself begins when all living members are here; nobody may be in two of them.
  void settle(std::int64_t number, Run& run) {
    if (run.ends || run.here.empty()) return;
    for (int w = run.members.next(); w >= 0; w = run.members.next(w + 1)) {
      if (alive_.has(w) && !run.here.has(w)) return;
    }
    run.ends = true;
    ++groups_run_;
    WorkerSet takes_part = run.here;
    takes_part.intersect(alive_);
    EXPECT_FALSE(takes_part.meets(averaging_)) << "a worker in two running groups";
    averaging_.unite(takes_part);
    seen_.join(takes_part);
    schedule(now_ + 2_ms, [this, number, takes_part] {
      for (int w = takes_part.next(); w >= 0; w = takes_part.next(w + 1)) {
        averaging_.remove(w);
        if (!alive_.has(w)) continue;
        workers_[static_cast<std::size_t>(w)].policy.exchanged(now_);
        proceed(w);
      }
      runs_.erase(number);
    });
  }

  int n_;
  Random random_;
  Random draws_;
  Nanos delay_;
  GroupGenerator generator_;
  std::vector<Nanos> speed_;
  std::vector<Worker> workers_;
  std::map<std::int64_t, Run> runs_;
  Meetings meetings_;
  Union seen_;
  WorkerSet alive_;
  WorkerSet averaging_;
  Nanos now_;
  int order_ = 0;
  int groups_run_ = 0;
  bool smart_ = false;
  std::priority_queue<Event> events_;
};

GroupGenerator::Options cluster(int hosts, int locals, GroupGenerator::Mode mode) {
  GroupGenerator::Options options;
  options.mode = mode;
  for (int w = 0; w < hosts * locals; ++w) options.host_of.push_back(w / locals);
  return options;
}

TEST(GroupGenerator, RandomLivesKeepEveryPromise) {
  for_each_seed("groups", 100, [](std::uint64_t seed) {
    Random random(seed);
    const auto mode = static_cast<GroupGenerator::Mode>(random.below(3));
    auto options = cluster(1 + static_cast<int>(random.below(8)), 1 + static_cast<int>(random.below(8)), mode);
    options.group_size = 2 + static_cast<int>(random.below(4));
    options.inter_intra = random.below(3) != 0;
    const int n = static_cast<int>(options.host_of.size());
    if (random.below(2) == 0 && mode != GroupGenerator::Mode::kPairs) {
      options.meetings = rows_and_columns(n, 1 + static_cast<int>(random.below(4)));
      for (int a = 0; a < n; ++a) {
        for (int b = 0; b < a; ++b) {
          if (options.host_of[static_cast<std::size_t>(a)] == options.host_of[static_cast<std::size_t>(b)])
            options.meetings.add(a, b);
        }
      }
    }
    std::vector<Nanos> speed;
    for (int w = 0; w < n; ++w) speed.push_back(Nanos{5'000'000 + static_cast<std::int64_t>(random.below(20'000'000))});
    GroupJob job(options, speed, seed, Nanos{static_cast<std::int64_t>(random.below(3'000'000))});
    if (random.below(2) == 0) {
      for (int i = 0; i < n / 2; ++i) {
        job.kill(Nanos{static_cast<std::int64_t>(random.below(500'000'000))}, static_cast<int>(random.below(n)));
      }
    }
    job.run(1500_ms);
    job.judge_waits(1000_ms);
    for (int w = job.alive().next(); w >= 0; w = job.alive().next(w + 1)) EXPECT_GE(job.iterations(w), 3) << w;
  });
}

// All pairs and hosts meet sooner or later: the union of the groups connects everybody.
TEST(GroupGenerator, TheUnionOfTheGroupsConnectsEverybody) {
  for (const auto mode : {GroupGenerator::Mode::kRandom, GroupGenerator::Mode::kSmart, GroupGenerator::Mode::kPairs}) {
    for (int hosts = 1; hosts <= 8; ++hosts) {
      for (int locals = 1; locals <= 8; ++locals) {
        if (hosts * locals < 2) continue;
        const auto options = cluster(hosts, locals, mode);
        GroupJob job(options, std::vector<Nanos>(options.host_of.size(), 10_ms), 1);
        job.run(1500_ms);
        EXPECT_TRUE(job.seen().connected(WorkerSet::all(hosts * locals))) << hosts << "x" << locals;
      }
    }
  }
}

// One of 16 workers is ten times slower. Random groups draw everybody into waiting for it, divisions only those whose
// host it shares, and the filter spares these, too.
TEST(GroupGenerator, TheFilterKeepsASlowWorkerFromHoldingUpItsHost) {
  std::vector<Nanos> speed(16, 10_ms);
  speed[5] = 100_ms;
  const auto mates_iterations = [&](GroupGenerator::Mode mode, int threshold) {
    auto options = cluster(4, 4, mode);
    options.slowdown_threshold = threshold;
    GroupJob job(options, speed, 1);
    job.run(6_s);
    return (job.iterations(4) + job.iterations(6) + job.iterations(7)) / 3;
  };
  const auto smart = mates_iterations(GroupGenerator::Mode::kSmart, 4);
  const auto unfiltered = mates_iterations(GroupGenerator::Mode::kSmart, 1'000'000);
  const auto drawn = mates_iterations(GroupGenerator::Mode::kRandom, 4);
  std::cout << "iterations of a slow worker's mates: " << smart << " smart, " << unfiltered << " without filter, "
            << drawn << " random" << std::endl;
  EXPECT_GT(smart, unfiltered * 5 / 4);
  EXPECT_GT(smart, 2 * drawn);
}

TEST(GroupGenerator, ADivisionServesEverybodyWhoseBufferIsEmpty) {
  Random random(3);
  auto options = cluster(1, 4, GroupGenerator::Mode::kSmart);
  options.inter_intra = false;
  options.group_size = 2;
  GroupGenerator generator(options, &random);
  Answers answers;
  const auto ask = [&](int w) {
    Question question;
    question.kind = Question::Kind::kGroup;
    question.worker = w;
    generator.asked({}, question, &answers);
  };
  ask(0);
  EXPECT_EQ(generator.groups(), 2) << "figure 11b: both groups are made on the first question";
  EXPECT_TRUE(answers.empty());
  for (int w = 1; w < 4; ++w) ask(w);
  EXPECT_EQ(generator.groups(), 2);
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_EQ(generator.locked().count(), 4);
}

// Four hosts in a square: two groups of two, as where all meet, so that a slow worker holds up one other.
TEST(GroupGenerator, GroupsOfWorkersThatMeetAreAsSmallAsOthers) {
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    Random random(seed);
    GroupGenerator::Options options = cluster(4, 1, GroupGenerator::Mode::kSmart);
    options.inter_intra = false;
    options.meetings = rows_and_columns(4, 2);
    GroupGenerator generator(options, &random);
    Answers answers;
    for (int w = 0; w < 4; ++w) {
      Question question;
      question.kind = Question::Kind::kGroup;
      question.worker = w;
      generator.asked({}, question, &answers);
    }
    ASSERT_EQ(answers.size(), 4u);
    for (const Answer& answer : answers) EXPECT_EQ(answer.members->count(), 2) << "seed " << seed;
  }
}

TEST(GroupGenerator, AnInterGroupHasOneWorkerPerHostAndAnIntraGroupIsAHost) {
  Random random(3);
  GroupGenerator generator(cluster(4, 4, GroupGenerator::Mode::kSmart), &random);
  Answers answers;
  const auto ask_all = [&] {
    for (int w = 0; w < 16; ++w) {
      Question question;
      question.kind = Question::Kind::kGroup;
      question.worker = w;
      generator.asked({}, question, &answers);
    }
  };
  ask_all();
  ASSERT_EQ(answers.size(), 16u);
  std::vector<Question> done;
  for (const auto& answer : answers) {
    ASSERT_EQ(answer.kind, Answer::Kind::kGroup);
    const bool head = answer.worker % 4 == 0;
    for (int w = answer.members->next(); w >= 0; w = answer.members->next(w + 1)) {
      EXPECT_EQ(head, w % 4 == 0);
      if (!head) {
        EXPECT_EQ(w / 4, answer.worker / 4);
      }
    }
    Question question;
    question.kind = Question::Kind::kDone;
    question.worker = answer.worker;
    question.number = answer.number;
    done.push_back(question);
  }
  for (const auto& question : done) generator.asked({}, question, &answers);
  EXPECT_TRUE(generator.locked().empty());
  answers.clear();
  ask_all();
  ASSERT_EQ(answers.size(), 16u);
  for (const auto& answer : answers) {
    EXPECT_EQ(answer.members->count(), 4);
    EXPECT_EQ(answer.members->next(), answer.worker / 4 * 4);
  }
}

TEST(GroupGenerator, WhoIsLeftAloneGoesOn) {
  Random random(3);
  for (const auto mode : {GroupGenerator::Mode::kRandom, GroupGenerator::Mode::kSmart, GroupGenerator::Mode::kPairs}) {
    GroupGenerator generator(cluster(1, 2, mode), &random);
    Answers answers;
    Question question;
    question.kind = Question::Kind::kGroup;
    generator.asked({}, question, &answers);
    generator.died({}, 1, &answers);
    Question again = question;
    if (mode == GroupGenerator::Mode::kSmart) {
      ASSERT_EQ(answers.size(), 1u);
    } else {
      ASSERT_FALSE(answers.empty());
      again.kind = Question::Kind::kDone;
      again.number = answers[0].number;
      generator.asked({}, again, &answers);
      EXPECT_EQ(generator.groups(), 0);
      answers.clear();
      generator.asked({}, question, &answers);
    }
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers[0].kind, Answer::Kind::kAlone);
  }
}

TEST(NeighbourWorker, OnARingTheMatrixIsDoublyStochastic) {
  for (const int n : {2, 3, 4, 64}) {
    std::vector<int> column(static_cast<std::size_t>(n));
    for (int w = 0; w < n; ++w) {
      NeighbourWorker worker(w, n);
      worker.trained({}, {});
      const Task task = worker.next({});
      ASSERT_EQ(task.kind, Task::Kind::kExchange);
      const WorkerSet& members = *task.exchange.members;
      EXPECT_TRUE(members.has(w));
      for (int j = members.next(); j >= 0; j = members.next(j + 1)) {
        column[static_cast<std::size_t>(j)] += 6 / members.count();
      }
    }
    for (const int sum : column) EXPECT_EQ(sum, 6);
  }
}

// A fast worker asks again before the others of its group have said that they are done.
TEST(Ripples, AQuestionThatComesBeforeOthersAreDoneIsAnswered) {
  Random random(1);
  GroupGenerator::Options options;
  options.host_of = {0, 1};
  GroupGenerator generator(options, &random);
  Answers answers;
  const auto ask = [&](Question::Kind kind, int worker, std::int64_t number = 0) {
    Question question;
    question.kind = kind;
    question.worker = worker;
    question.number = number;
    generator.asked({}, question, &answers);
  };
  ask(Question::Kind::kGroup, 0);
  ask(Question::Kind::kGroup, 1);
  ASSERT_EQ(answers.size(), 2u);
  const std::int64_t number = answers[0].number;
  answers.clear();
  ask(Question::Kind::kDone, 0, number);
  ask(Question::Kind::kGroup, 0);
  EXPECT_TRUE(answers.empty());
  ask(Question::Kind::kDone, 1, number);
  generator.died({}, 1, &answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].kind, Answer::Kind::kAlone);
  EXPECT_EQ(answers[0].worker, 0);
}

// Its last group waits for the other member, and nobody else may be free.
TEST(Ripples, AQuestionForWhichThereIsNoGroupIsAnsweredBesideOneOfTheSameCaller) {
  GroupGenerator::Options options;
  options.mode = GroupGenerator::Mode::kPairs;
  options.host_of = {0, 1, 2, 3};
  Random random(1);
  GroupGenerator generator(options, &random);
  Answers answers;
  Question question;
  question.kind = Question::Kind::kGroup;
  generator.asked({}, question, &answers);
  ASSERT_EQ(answers.size(), 2u);
  question.kind = Question::Kind::kDone;
  question.number = answers[0].number;
  generator.asked({}, question, &answers);
  Recollection late;
  late.worker = 2;
  generator.recall({}, late);
  generator.recalled({}, &answers);
  ASSERT_EQ(answers.size(), 2u);
  question.kind = Question::Kind::kGroup;
  generator.asked({}, question, &answers);
  ASSERT_EQ(answers.size(), 3u) << "it waits for nothing";
  EXPECT_EQ(answers[2].kind, Answer::Kind::kAlone);
  EXPECT_EQ(answers[2].worker, 0);
}

// The coordinator before waited for a worker that leaves no more, and has given its partner another group since. That
// one has done the first, whoever of the two is heard of first.
TEST(Ripples, AWorkerThatWasToldOfALaterGroupIsNotToldAgainOfOneBefore) {
  for (const bool partner_first : {false, true}) {
    GroupGenerator::Options options;
    options.mode = GroupGenerator::Mode::kPairs;
    options.host_of = {0, 1, 2, 3};
    Random random(1);
    GroupGenerator generator(options, &random);
    const Recollection::Told first{Answer::Kind::kGroup, 9, {0, 1}, false},
        later{Answer::Kind::kGroup, 11, {0, 3}, true};
    Recollection leaving, partner;
    leaving.worker = 1;
    leaving.leaves = true;
    leaving.told = &first;
    partner.worker = 0;
    partner.told = &later;
    for (const Recollection* r : {partner_first ? &partner : &leaving, partner_first ? &leaving : &partner})
      generator.recall({}, *r);
    Answers answers;
    generator.recalled({}, &answers);
    EXPECT_TRUE(answers.empty()) << "worker " << answers[0].worker << " is told of group " << answers[0].number;
    EXPECT_EQ(generator.groups(), 1) << "worker 1 is in the first one still";
    generator.died({}, 1, &answers);
    EXPECT_EQ(generator.groups(), 0);
  }
}

}  // namespace
}  // namespace canarynet::sync
