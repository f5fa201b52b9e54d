// Names of policies, and the one loop that runs them all: the smallest trainer, in virtual time.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <queue>
#include <string>
#include <vector>

#include "base/random.h"
#include "sync/policy_name.h"
#include "sync/property_test_util.h"
#include "sync/quorum.h"
#include "sync/session_rounds.h"

namespace canarynet::sync {
namespace {

constexpr const char* kAll[] = {"bsp",
                                "ssp:3",
                                "asp",
                                "canary:s=18,p=6",
                                "ps",
                                "ps-async",
                                "bml",
                                "ako:parts=3",
                                "esync",
                                "esync-nb",
                                "ripples:smart",
                                "ripples:random",
                                "ripples:static",
                                "ripples:static-rotating",
                                "ad-psgd",
                                "d-psgd",
                                "diloco:h=50",
                                "diloco:h=10,fragments=2,quorum=75",
                                "diloco:h=8,fragments=2,overlap=3,mix=0.5"};

TEST(PolicyName, EveryNameReadsAsItIsWritten) {
  for (const char* text : {"bsp",
                           "bsp:quorum=75",
                           "ssp:3",
                           "ssp:3,quorum=60,absences=4",
                           "asp",
                           "canary:s=18,p=6",
                           "canary:s=2,p=0,linger=5000000ns",
                           "ps",
                           "ps-async",
                           "bml",
                           "ako",
                           "ako:parts=7",
                           "esync",
                           "esync-nb:rate=0.5",
                           "ripples:smart",
                           "ripples:random,group=4,section=2",
                           "ripples:smart,threshold=8,inter-intra=0",
                           "ripples:static",
                           "ripples:static-rotating,section=3",
                           "ad-psgd",
                           "d-psgd",
                           "diloco:h=50",
                           "diloco:h=500,rate=0.5,momentum=0.8,fragments=4,quorum=75,overlap=3,mix=0.5"}) {
    const auto spec = parse_policy(text);
    ASSERT_TRUE(spec.ok()) << spec.status().to_string();
    EXPECT_EQ(to_string(spec.value()), text);
  }
  EXPECT_EQ(to_string(parse_policy("ssp:s=3,linger=2ms").value()), "ssp:3,linger=2000000ns");
  EXPECT_EQ(to_string(parse_policy("ripples").value()), "ripples:smart");
  EXPECT_EQ(to_string(parse_policy("canary").value()), "canary:s=18,p=6");
}

TEST(PolicyName, OptionsReachThePolicy) {
  const auto canary = parse_policy("canary:s=4,p=2,linger=5ms").value();
  EXPECT_TRUE(canary.is_session());
  EXPECT_EQ(canary.thresholds(10), Thresholds::canary(4, 2));
  EXPECT_EQ(canary.linger, 5_ms);
  EXPECT_EQ(parse_policy("ssp:3").value().thresholds(10), Thresholds::ssp(3, 10));
  EXPECT_EQ(parse_policy("bsp").value().thresholds(10), Thresholds::bsp(10));
  EXPECT_EQ(parse_policy("asp").value().thresholds(10), Thresholds::asp(10));
  EXPECT_FALSE(parse_policy("bml").value().is_session());
  EXPECT_EQ(parse_policy("diloco:rate=0.25").value().local_steps.outer_rate, 0.25);
  EXPECT_EQ(parse_policy("esync:rate=0.25").value().outer_rate, 0.25);
  const auto updates = parse_policy("diloco:h=4,rate=0.25,momentum=0.5,fragments=2,mix=0.75").value().updates();
  EXPECT_EQ(updates.rate, 0.25);
  EXPECT_EQ(updates.momentum, 0.5);
  EXPECT_EQ(updates.mix, 0.75);
  EXPECT_EQ(updates.parts, 2);
  EXPECT_EQ(parse_policy("esync:rate=0.25").value().updates().rate, 0.25);
  EXPECT_EQ(parse_policy("esync").value().updates().momentum, 0);
}

TEST(PolicyName, ErrorsSayWhatAndWhatInstead) {
  const auto why = [](std::string_view text) { return parse_policy(text).status().text(); };
  EXPECT_EQ(why("sps"),
            "there is no policy \"sps\": bsp, ssp, asp, canary, ps, ps-async, bml, ako, esync, esync-nb, ripples, "
            "ad-psgd, d-psgd, diloco");
  EXPECT_EQ(why(""), why("sps").replace(19, 5, "\"\""));
  EXPECT_EQ(why("ssp"), "policy ssp needs its bound, as ssp:3");
  EXPECT_EQ(why("ssp:linger=1ms"), "policy ssp needs its bound, as ssp:3");
  EXPECT_EQ(why("ssp:three"), "policy ssp: s=three is no whole number from 0 to 65536");
  EXPECT_EQ(why("ssp:-1"), "policy ssp: s=-1 is no whole number from 0 to 65536");
  EXPECT_EQ(why("canary:18"), "policy canary: \"18\" is no key=value");
  EXPECT_EQ(why("canary:s=1,s=2"), "policy canary: s is given twice");
  EXPECT_EQ(why("canary:q=1"), "policy canary has no option \"q\": s, p, linger");
  EXPECT_EQ(why("canary:"), "policy canary: \"\" is no key=value");
  EXPECT_EQ(why("canary:linger=soon"), "policy canary: linger=soon is no time of at most an hour, as 5ms");
  EXPECT_EQ(why("bml:x=1"), "policy bml has no options, and \"x\" is none");
  EXPECT_EQ(why("ripples:clever"),
            "policy ripples: there are no groups \"clever\": smart, random, static, static-rotating");
  EXPECT_EQ(why("diloco:h=0"), "policy diloco: h=0 is no whole number from 1 to 1000000");
  EXPECT_EQ(why("diloco:momentum=2"), "policy diloco: momentum=2 is no number from 0 to 1");
  EXPECT_EQ(why("diloco:h=2,fragments=3"),
            "policy diloco: fragments=3 is more than h=2, and one is exchanged per step at most");
  EXPECT_EQ(why("ssp:\x01"), "policy ssp: s=? is no whole number from 0 to 65536");
}

TEST(PolicyName, AnyTextIsReadOrRefused) {
  for_each_seed("names", 5000, [](std::uint64_t seed) {
    Random random(seed);
    std::string text = kAll[random.below(std::size(kAll))];
    for (int edits = static_cast<int>(random.below(4)); edits > 0 && !text.empty(); --edits) {
      const std::size_t at = random.below(text.size());
      if (random.below(2) == 0)
        text.erase(at, 1);
      else
        text.insert(at, 1, "=,:-0159.spx"[random.below(12)]);
    }
    const auto spec = parse_policy(text);
    if (!spec.ok()) {
      ASSERT_FALSE(spec.status().text().empty());
      return;
    }
    const auto again = parse_policy(to_string(spec.value()));
    ASSERT_TRUE(again.ok()) << text;
    ASSERT_EQ(to_string(again.value()), to_string(spec.value()));
  });
}

TEST(PolicyName, APolicyThatDoesNotFitTheClusterIsRefused) {
  EXPECT_TRUE(check(parse_policy("ripples:static").value(), cluster_of(4, 4)).ok());
  EXPECT_EQ(check(parse_policy("ripples:static").value(), Cluster{{0, 0, 1}}).text(),
            "policy ripples: static groups need hosts with equally many workers, numbered host by host");
  EXPECT_FALSE(check(parse_policy("ad-psgd").value(), cluster_of(1, 1)).ok());
  EXPECT_FALSE(check(parse_policy("bsp").value(), Cluster{}).ok());
}

// The loop at the head of policy.h, with exchanges that take a fixed time once all are there who take part. Sessions
// are an exchange of each worker alone here: session_rounds_test.cc has theirs.
class SmallestTrainer {
 public:
  SmallestTrainer(const PolicySpec& spec, const Cluster& cluster, std::vector<Nanos> speed, std::uint64_t seed)
      : spec_(spec), n_(cluster.workers()), random_(seed), speed_(std::move(speed)), alive_(WorkerSet::all(n_)) {
    coordinator_ = make_coordinator(spec, cluster, &random_);
    for (int w = 0; w < n_; ++w) {
      workers_.emplace_back();
      workers_.back().policy = make_worker(spec, cluster, w, speed_[static_cast<std::size_t>(w)]);
    }
    for (int w = 0; w < n_; ++w) proceed(w);
  }
  void kill(Nanos at, int w) {
    schedule(at, [this, w] {
      alive_.remove(w);
      Answers answers;
      if (coordinator_) coordinator_->died(now_, w, &answers);
      deliver(answers);
      for (auto& [key, meeting] : meetings_) meet(key);
    });
  }
  void run(Nanos until) {
    while (!testing::Test::HasFailure()) {
      const Nanos deadline = coordinator_ ? coordinator_->next_deadline() : Nanos::max();
      const Nanos event = events_.empty() ? Nanos::max() : events_.top().at;
      if (std::min(deadline, event) > until) return;
      if (deadline < event) {
        now_ = std::max(now_, deadline);
        Answers answers;
        coordinator_->expire(now_, &answers);
        ASSERT_FALSE(answers.empty()) << "a deadline that changes nothing";
        deliver(answers);
        continue;
      }
      const auto what = events_.top().what;
      now_ = event;
      events_.pop();
      what();
    }
  }
  std::int64_t iterations(int w) const { return workers_[static_cast<std::size_t>(w)].iterations; }
  std::int64_t exchanges(int w) const { return workers_[static_cast<std::size_t>(w)].exchanges; }
  std::int64_t late(int w) const { return workers_[static_cast<std::size_t>(w)].late; }
  std::int64_t caught_up(int w) const { return workers_[static_cast<std::size_t>(w)].caught_up; }
  std::int64_t partitions_seen(int w) const { return workers_[static_cast<std::size_t>(w)].partitions; }

 private:
  struct Event {
    Nanos at;
    int order;
    std::function<void()> what;
    bool operator<(const Event& e) const { return std::tie(e.at, e.order) < std::tie(at, order); }
  };
  struct Worker {
    std::unique_ptr<WorkerPolicy> policy;
    bool training = false;
    bool exchanging = false;
    std::uint64_t life = 0;
    std::int64_t iterations = 0, exchanges = 0, late = 0, caught_up = 0, partitions = 0;
  };
  using Key = std::tuple<int, std::int64_t, int>;  // kind, number, lowest member
  struct Meeting {
    WorkerSet members;
    WorkerSet here;
  };
  void schedule(Nanos at, std::function<void()> what) { events_.push({at, order_++, std::move(what)}); }
  void deliver(const Answers& answers) {
    for (const Answer& answer : answers) {
      schedule(now_ + 1_ms, [this, answer] {
        if (!alive_.has(answer.worker)) return;
        Worker& me = workers_[static_cast<std::size_t>(answer.worker)];
        me.late += answer.kind == Answer::Kind::kLate ? 1 : 0;
        const auto reaction = me.policy->answered(now_, answer);
        if (reaction == WorkerPolicy::Reaction::kInterrupt) {
          EXPECT_TRUE(me.training);
          me.training = false;
          ++me.life;
        }
        if (!me.training || reaction == WorkerPolicy::Reaction::kBeside) proceed(answer.worker);
      });
    }
  }
  void proceed(int w) {
    Worker& me = workers_[static_cast<std::size_t>(w)];
    for (;;) {
      const Task task = me.policy->next(now_);
      if (task.kind == Task::Kind::kAsk) {
        EXPECT_EQ(task.question.worker, w);
        schedule(now_ + 1_ms, [this, question = task.question] {
          Answers answers;
          ASSERT_NE(coordinator_, nullptr);
          coordinator_->asked(now_, question, &answers);
          deliver(answers);
        });
        continue;
      }
      if (task.kind == Task::Kind::kTrain && !me.training) {
        me.training = true;
        const Nanos took = speed_[static_cast<std::size_t>(w)];
        schedule(now_ + took, [this, w, took, life = me.life] {
          Worker& it = workers_[static_cast<std::size_t>(w)];
          if (!alive_.has(w) || it.life != life) return;
          it.training = false;
          ++it.iterations;
          it.policy->trained(now_, took);
          proceed(w);
        });
      }
      if (task.kind == Task::Kind::kExchange && !me.exchanging) exchange(w, task.exchange);
      if (task.kind == Task::Kind::kExchange && task.exchange.beside) continue;
      return;
    }
  }
  void exchange(int w, const Exchange& e) {
    Worker& me = workers_[static_cast<std::size_t>(w)];
    me.exchanging = true;
    me.partitions |= std::int64_t{1} << e.partition;
    EXPECT_LT(e.partition, e.partitions);
    const bool alone = e.kind == Exchange::Kind::kSession || e.kind == Exchange::Kind::kPartition ||
                       e.kind == Exchange::Kind::kNeighbours || (e.kind == Exchange::Kind::kServer && !e.waits);
    WorkerSet self(n_);
    self.add(w);
    const WorkerSet members = alone ? self : e.members != nullptr ? *e.members : WorkerSet::all(n_);
    EXPECT_TRUE(members.has(w));
    const Key key{static_cast<int>(e.kind), e.number, alone ? w : members.next()};
    auto& meeting = meetings_[key];
    if (meeting.here.workers() == 0) meeting = {members, WorkerSet(n_)};
    EXPECT_TRUE(meeting.members == members) << "two who meet name different members";
    EXPECT_FALSE(meeting.here.has(w));
    meeting.here.add(w);
    me.caught_up += e.behind != nullptr && e.behind->has(w) ? 1 : 0;
    meet(key);
  }
  void meet(const Key& key) {
    Meeting& meeting = meetings_[key];
    if (meeting.here.empty()) return;
    for (int w = meeting.members.next(); w >= 0; w = meeting.members.next(w + 1)) {
      if (alive_.has(w) && !meeting.here.has(w)) return;
    }
    const WorkerSet here = meeting.here;
    meeting.here.clear();
    schedule(now_ + 2_ms, [this, here] {
      for (int w = here.next(); w >= 0; w = here.next(w + 1)) {
        if (!alive_.has(w)) continue;
        Worker& me = workers_[static_cast<std::size_t>(w)];
        me.exchanging = false;
        ++me.exchanges;
        me.policy->exchanged(now_);
        proceed(w);
      }
    });
  }

  PolicySpec spec_;
  int n_;
  Random random_;
  std::vector<Nanos> speed_;
  WorkerSet alive_;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<Worker> workers_;
  std::map<Key, Meeting> meetings_;
  Nanos now_;
  int order_ = 0;
  std::priority_queue<Event> events_;
};

TEST(Policies, OneLoopRunsThemAllAndNobodyStandsStill) {
  for (const char* text : kAll) {
    for (const bool deaths : {false, true}) {
      Random random(11);
      std::vector<Nanos> speed;
      for (int w = 0; w < 16; ++w)
        speed.push_back(Nanos{10'000'000 + static_cast<std::int64_t>(random.below(30'000'000))});
      SmallestTrainer trainer(parse_policy(text).value(), cluster_of(4, 4), speed, 1);
      if (deaths) {
        for (const int w : {3, 4, 9}) trainer.kill(Nanos{(w + 1) * 101'000'000}, w);
      }
      trainer.run(10_s);
      for (int w = 0; w < 16; ++w) {
        if (deaths && (w == 3 || w == 4 || w == 9)) continue;
        EXPECT_GE(trainer.iterations(w), 60) << text << " worker " << w << (deaths ? " with deaths" : "");
        EXPECT_GE(trainer.exchanges(w), 8) << text << " worker " << w << (deaths ? " with deaths" : "");
      }
    }
  }
}

TEST(Policies, WhoWaitsIsAsSlowAsTheSlowestAndWhoDoesNotIsNot) {
  const auto fast_iterations = [](const char* text) {
    std::vector<Nanos> speed(16, 10_ms);
    speed[15] = 100_ms;
    SmallestTrainer trainer(parse_policy(text).value(), cluster_of(4, 4), speed, 1);
    trainer.run(10_s);
    return trainer.iterations(0);
  };
  for (const char* text : {"ps", "bml"}) EXPECT_LT(fast_iterations(text), 110) << text;
  for (const char* text : {"ps-async", "ako", "esync", "esync-nb", "ripples:smart", "diloco:h=50"}) {
    EXPECT_GT(fast_iterations(text), 500) << text;
  }
}

TEST(Policies, AkoSendsOnePartitionAfterTheOtherAndWorkersDifferentOnes) {
  const auto spec = parse_policy("ako:parts=3").value();
  for (int w = 0; w < 3; ++w) {
    const auto worker = make_worker(spec, cluster_of(1, 3), w);
    for (int i = 0; i < 6; ++i) {
      EXPECT_EQ(worker->next({}).kind, Task::Kind::kTrain);
      worker->trained({}, 1_ms);
      EXPECT_EQ(worker->next({}).exchange.partition, (w + i) % 3);
      worker->exchanged({});
    }
  }
}

TEST(LocalSteps, EveryWorkerDoesAsManyStepsAsItsSpeedAllows) {
  SmallestTrainer trainer(parse_policy("diloco:h=50").value(), cluster_of(1, 3), {10_ms, 20_ms, 100_ms}, 1);
  trainer.run(60_s);
  const auto rounds = static_cast<double>(trainer.exchanges(0));
  EXPECT_NEAR(static_cast<double>(trainer.iterations(0)) / rounds, 50, 2);
  EXPECT_NEAR(static_cast<double>(trainer.iterations(1)) / rounds, 25, 3) << "the first round has 50 steps for all";
  EXPECT_NEAR(static_cast<double>(trainer.iterations(2)) / rounds, 5, 3);
  EXPECT_GT(rounds, 90);
}

TEST(LocalSteps, FragmentsAreExchangedInTurn) {
  SmallestTrainer trainer(parse_policy("diloco:h=40,fragments=4").value(), cluster_of(1, 3), {10_ms, 10_ms, 10_ms}, 1);
  trainer.run(10_s);
  EXPECT_EQ(trainer.partitions_seen(0), 0b1111);
  EXPECT_NEAR(static_cast<double>(trainer.iterations(0)) / static_cast<double>(trainer.exchanges(0)), 10, 0.5);
}

// --- Quorum ---

TEST(Quorum, WithoutHistoryEverybodyIsWaitedFor) {
  Quorum quorum(4, 75);
  EXPECT_FALSE(quorum.complete({}));
  for (int w = 0; w < 3; ++w) quorum.arrive(Nanos{w * 1'000'000}, w, 0);
  EXPECT_EQ(quorum.next_deadline(), Nanos::max());
  EXPECT_FALSE(quorum.complete(100_s));
  quorum.arrive(100_s, 3, 0);
  EXPECT_TRUE(quorum.complete(100_s));
}

TEST(Quorum, AStragglerHoldsUpNobodyOnceItIsKnown) {
  Quorum quorum(4, 75);
  Nanos now;
  const auto round = [&] {
    now += 1_s;
    const std::int64_t number = quorum.round();
    for (int w = 0; w < 3; ++w) quorum.arrive(now + Nanos{w * 10'000'000}, w, number);
    return number;
  };
  for (int i = 0; i < 3; ++i) {
    round();
    quorum.arrive(now + 500_ms, 3, quorum.round());
    EXPECT_EQ(quorum.close().count(), 4);
  }
  const auto number = round();
  EXPECT_EQ(quorum.next_deadline(), now + 30_ms) << "half as long again as the third usually takes";
  EXPECT_FALSE(quorum.complete(now + 29_ms));
  EXPECT_TRUE(quorum.complete(now + 30_ms));
  EXPECT_EQ(quorum.close().count(), 3);
  EXPECT_FALSE(quorum.arrive(now + 500_ms, 3, number)) << "late";
  EXPECT_TRUE(quorum.arrive(now + 500_ms, 3, quorum.round()));
}

TEST(Quorum, AWorkerThatUsuallyComesMayJitter) {
  Quorum quorum(4, 75);
  Nanos now;
  for (int i = 0; i < 20; ++i) {
    now += 1_s;
    const std::int64_t number = quorum.round();
    for (int w = 0; w < 4; ++w) {
      if (w == 3 && i == 19) break;
      quorum.arrive(now + Nanos{((w + i) % 4) * 10'000'000}, w, number);
    }
    if (i == 19) break;
    quorum.close();
  }
  EXPECT_FALSE(quorum.complete(now + 20_ms));
  EXPECT_GE(quorum.next_deadline(), now + 30_ms) << "it came within 30 ms in all rounds";
}

TEST(Quorum, ALateWorkerThatJoinsARoundDoesNotOpenIt) {
  Quorum quorum(4, 75);
  Nanos now;
  for (int i = 0; i < 3; ++i) {
    now += 1_s;
    for (int w = 0; w < 4; ++w) quorum.arrive(now + Nanos{w * 10'000'000}, w, quorum.round());
    quorum.close();
  }
  quorum.join(3);
  now += 1_s;
  quorum.arrive(now, 0, quorum.round());
  EXPECT_EQ(quorum.next_deadline(), Nanos::max()) << "two are no quorum";
  quorum.arrive(now + 10_ms, 1, quorum.round());
  EXPECT_EQ(quorum.next_deadline(), now + 30_ms) << "from the first one that came in time";
  quorum.arrive(now + 20_ms, 2, quorum.round());
  EXPECT_TRUE(quorum.complete(now + 20_ms)) << "all are there";
}

TEST(Quorum, NeverLessThanTheQuorumUnlessFewerAreAlive) {
  for_each_seed("quorum", 200, [](std::uint64_t seed) {
    Random random(seed);
    const int n = 1 + static_cast<int>(random.below(64));
    const int percent = 1 + static_cast<int>(random.below(100));
    Quorum quorum(n, percent);
    Nanos now;
    for (int event = 0; event < 20 * n; ++event) {
      now += Nanos{static_cast<std::int64_t>(random.below(5'000'000))};
      const int w = static_cast<int>(random.below(n));
      if (random.below(100) == 0 && quorum.members().count() > 1)
        quorum.died(w);
      else
        quorum.arrive(now, w, quorum.round() - (random.below(10) == 0 ? 1 : 0));
      ASSERT_TRUE(quorum.next_deadline() >= now || quorum.complete(now));
      if (!quorum.complete(now)) continue;
      const int alive = quorum.members().count();
      ASSERT_GE(quorum.close().count() * 100, std::min(alive * percent, alive * 100));
    }
  });
}

TEST(Quorum, InATrainerALateWorkerKeepsItsWorkAndCatchesUp) {
  // Its first iterations are so slow that it misses rounds; then it is told to do fewer.
  SmallestTrainer trainer(parse_policy("diloco:h=20,quorum=75").value(), cluster_of(1, 4),
                          {10_ms, 10_ms, 10_ms, 300_ms}, 1);
  trainer.run(60_s);
  EXPECT_GT(trainer.exchanges(0), 200);
  EXPECT_GT(trainer.exchanges(3), 20);
  EXPECT_GT(trainer.caught_up(3), 0);
  EXPECT_EQ(trainer.caught_up(0), 0);
}

}  // namespace
}  // namespace canarynet::sync
