// Policies that change parameters which a program lends them: one loop for all of them, over real sockets.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "canarynet/canarynet.hpp"
#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using test::Job;
using test::last_error;

constexpr std::size_t kCount = 10;

// What one worker did. Its training adds rank + 1 to each of its parameters.
struct Worker {
  std::vector<float> x = std::vector<float>(kCount);
  std::vector<float> common = std::vector<float>(kCount);
  double produced = 0;  // in each parameter
  int iterations = 0;
  int exchanges = 0;  // begun
  int failed = 0;
  int beside = 0;  // iterations made beside an exchange
  int caught_up = 0;
  int apart = 0;           // exchanges after which its parameters were not the common ones
  std::uint64_t last = 0;  // the number of its last exchange, and what that was of
  std::size_t part = 0, parts = 1;
  std::vector<double> took;  // seconds of exchanges
  std::string error;
};

canary_policy* open(canary_group* group, const char* name, float* parameters, const canary_op_options* options) {
  canary_policy_options o = CANARY_POLICY_OPTIONS_INIT;
  o.number = 1;
  o.name = name;
  o.iteration = 1'000'000;
  canary_policy* policy = nullptr;
  EXPECT_EQ(canary_policy_open(group, &o, &policy), CANARY_OK) << last_error().message;
  EXPECT_EQ(canary_policy_lend(policy, parameters, kCount, options), CANARY_OK) << last_error().message;
  return policy;
}

// Trains until `over`, leaves and closes. `iterate` takes the time of an iteration.
template <typename Iterate, typename Over>
Worker run(canary_group* group, const char* name, const Iterate& iterate, const Over& over,
           const canary_op_options* options = nullptr) {
  Worker w;
  canary_policy* const policy = open(group, name, w.x.data(), options);
  const int rank = canary_group_rank(group);
  canary_task task = CANARY_TASK_INIT;
  bool runs = false;
  std::chrono::steady_clock::time_point told;
  for (;;) {
    if (canary_policy_next(policy, &task) != CANARY_OK) {
      w.error = last_error().message;
      break;
    }
    if (task.kind == CANARY_TASK_DONE) break;
    if (task.kind == CANARY_TASK_TRAIN && over(w)) {
      EXPECT_EQ(canary_policy_leave(policy), CANARY_OK) << last_error().message;
      continue;
    }
    if (task.kind == CANARY_TASK_TRAIN) {
      const auto began = std::chrono::steady_clock::now();
      iterate(w, policy);
      for (float& x : w.x) x += static_cast<float>(rank + 1);
      w.produced += rank + 1;
      ++w.iterations;
      w.beside += runs ? 1 : 0;
      const auto took = std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count();
      EXPECT_EQ(canary_policy_trained(policy, took), CANARY_OK) << last_error().message;
      continue;
    }
    if (task.kind == CANARY_TASK_MEAN) {
      ++w.exchanges;
      w.last = task.number;
      w.part = static_cast<std::size_t>(task.part);
      w.parts = static_cast<std::size_t>(task.parts);
      w.caught_up += std::count(task.behind, task.behind + task.behind_count, rank) != 0 ? 1 : 0;
      runs = task.beside != 0;
      told = std::chrono::steady_clock::now();
    }
    const bool well = canary_policy_exchange(policy, 0) == CANARY_OK;
    w.failed += well ? 0 : 1;
    EXPECT_EQ(canary_policy_common(policy, w.common.data(), kCount), CANARY_OK);
    w.apart += well && w.common != w.x ? 1 : 0;
    if (task.kind != CANARY_TASK_FINISH) continue;
    if (runs) w.took.push_back(test::seconds_since(told));
    runs = false;
  }
  EXPECT_EQ(canary_policy_common(policy, w.common.data(), kCount), CANARY_OK);
  if (w.error.empty() && canary_policy_close(policy) != CANARY_OK) w.error = last_error().message;
  return w;
}

void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// With rate 1 and no momentum the sum of all parameters is the sum of all that was trained, wherever it is.
TEST(LentParameters, LocalStepsAreLostNowhere) {
  for (const char* const name :
       {"diloco:h=4,rate=1,momentum=0", "diloco:h=4,rate=1,momentum=0,fragments=2",
        "diloco:h=6,rate=1,momentum=0,fragments=3,overlap=2", "diloco:h=2,rate=1,momentum=0,overlap=2"}) {
    SCOPED_TRACE(name);
    Job job(3);
    ASSERT_TRUE(job.joined());
    std::vector<Worker> workers(3);
    job.each([&](int rank) {
      workers[static_cast<std::size_t>(rank)] = run(
          job.world(rank), name, [&](const Worker&, canary_policy*) { sleep_ms(rank + 1); },
          [](const Worker& w) { return w.exchanges >= 20; });
    });
    double produced = 0;
    for (const Worker& w : workers) {
      EXPECT_EQ(w.error, "");
      EXPECT_EQ(w.failed, 0);
      EXPECT_EQ(w.caught_up, 0);
      EXPECT_GE(w.exchanges, 20);
      EXPECT_EQ(w.last, workers[0].last);
      EXPECT_EQ(w.common, workers[0].common) << "to the bit";
      produced += w.produced;
    }
    for (std::size_t i = 0; i < kCount; ++i)
      EXPECT_NEAR(workers[0].x[i] + workers[1].x[i] + workers[2].x[i], produced, 1e-3 * produced);
    EXPECT_GT(workers[0].iterations, workers[2].iterations) << "steps by speed";
    const bool overlaps = std::string(name).find("overlap") != std::string::npos;
    EXPECT_EQ(workers[0].beside + workers[1].beside + workers[2].beside > 0, overlaps);
  }
}

TEST(LentParameters, MeansOfParametersGoThroughTheSameCalls) {
  for (const char* const name : {"ripples:smart", "ripples:random"}) {
    SCOPED_TRACE(name);
    Job job(3);
    ASSERT_TRUE(job.joined());
    std::vector<Worker> workers(3);
    job.each([&](int rank) {
      workers[static_cast<std::size_t>(rank)] = run(
          job.world(rank), name, [&](const Worker&, canary_policy*) { sleep_ms(2); },
          [](const Worker& w) { return w.exchanges >= 10; });
    });
    double produced = 0, sum = 0;
    for (const Worker& w : workers) {
      EXPECT_EQ(w.error, "");
      EXPECT_EQ(w.failed, 0);
      EXPECT_EQ(w.common, w.x);
      produced += w.produced;
      sum += static_cast<double>(w.x[0]);
    }
    EXPECT_NEAR(sum, produced, 1e-3 * produced);
  }
}

// All begin a round with the same parameters, and all have the same after it, also by a codec: to the bit.
TEST(LentParameters, RoundsOfEsyncAreMeansOfDeltas) {
  for (const char* const name : {"esync", "esync-nb"}) {
    for (const char* const codec : {"", "int8"}) {
      SCOPED_TRACE(std::string(name) + " " + codec);
      Job job(3);
      ASSERT_TRUE(job.joined());
      canary_op_options options = CANARY_OP_OPTIONS_INIT;
      if (*codec != 0) {
        ASSERT_EQ(canary_codec(codec, &options.codec), CANARY_OK);
        options.tensor = 7;
      }
      std::vector<Worker> workers(3);
      job.each([&](int rank) {
        workers[static_cast<std::size_t>(rank)] = run(
            job.world(rank), name, [&](const Worker&, canary_policy*) { sleep_ms(rank == 2 ? 6 : 1); },
            [](const Worker& w) { return w.exchanges >= 15; }, &options);
      });
      double produced = 0, sum = 0;
      for (const Worker& w : workers) {
        EXPECT_EQ(w.error, "");
        EXPECT_EQ(w.failed, 0);
        EXPECT_EQ(w.caught_up, 0);
        EXPECT_EQ(w.beside, 0);
        EXPECT_EQ(w.apart, 0);
        EXPECT_EQ(w.last, workers[0].last);
        EXPECT_EQ(w.common, workers[0].common) << "to the bit";
        produced += w.produced;
        sum += static_cast<double>(w.x[0]);
      }
      EXPECT_GT(workers[0].iterations, 1.5 * workers[2].iterations);
      EXPECT_NEAR(sum, produced, (*codec == 0 ? 1e-3 : 0.02) * produced);
    }
  }
}

// Rank 2 sometimes takes much longer. The others go on, and its work goes with a later round, where it is handed what
// they have meanwhile.
TEST(LentParameters, ALateWorkerIsNotWaitedForAndCatchesUp) {
  for (const char* const name : {"diloco:h=2,quorum=60", "diloco:h=4,fragments=2,quorum=60,overlap=1"}) {
    SCOPED_TRACE(name);
    Job job(3);
    ASSERT_TRUE(job.joined());
    std::vector<Worker> workers(3);
    double longest[3] = {};
    const auto start = std::chrono::steady_clock::now();
    job.each([&](int rank) {
      auto before = std::chrono::steady_clock::now();
      const auto iterate = [&](const Worker& w, canary_policy* policy) {
        // In the end ranks leave at different times, and of two both are needed.
        const bool counts = w.iterations > 30 && test::seconds_since(start) < 1.8;
        longest[rank] = std::max(longest[rank], counts ? test::seconds_since(before) : 0);
        const int slices = rank == 2 && w.iterations > 30 && w.iterations % 15 == 0 ? 200 : 2;
        for (int i = 0, interrupted = 0; i < slices; ++i) {
          EXPECT_EQ(canary_policy_poll(policy, &interrupted), CANARY_OK) << last_error().message;
          sleep_ms(2);
        }
        before = std::chrono::steady_clock::now();
      };
      workers[static_cast<std::size_t>(rank)] =
          run(job.world(rank), name, iterate, [&](const Worker&) { return test::seconds_since(start) > 2; });
    });
    for (const Worker& w : workers) {
      EXPECT_EQ(w.error, "");
      EXPECT_EQ(w.failed, 0);
      for (const Worker& other : workers) {
        if (other.last != w.last) continue;
        const std::size_t half = kCount / 2, from = w.part * half, to = w.parts == 1 ? kCount : from + half;
        for (std::size_t i = from; i < to; ++i) EXPECT_EQ(w.common[i], other.common[i]) << "to the bit";
      }
    }
    EXPECT_GT(workers[2].caught_up, 0);
    EXPECT_GT(workers[0].exchanges, 60);
    EXPECT_LT(longest[0], 0.3) << "nobody waits for the late one";
  }
}

// Rank 1 is told of each round in the first moments of an iteration of 200 ms. It polls, so rank 0 gets its mean long
// before that has ended.
TEST(LentParameters, WhatOthersWaitForBeginsInTheMiddleOfAnIteration) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  std::vector<Worker> workers(2);
  job.each([&](int rank) {
    const auto iterate = [&](const Worker&, canary_policy* policy) {
      for (int i = 0, interrupted = 0; i < (rank == 1 ? 100 : 1); ++i) {
        EXPECT_EQ(canary_policy_poll(policy, &interrupted), CANARY_OK) << last_error().message;
        sleep_ms(2);
      }
    };
    workers[static_cast<std::size_t>(rank)] =
        run(job.world(rank), "diloco:h=2,overlap=1", iterate, [](const Worker& w) { return w.iterations >= 15; });
  });
  for (const Worker& w : workers) EXPECT_EQ(w.error, "");
  std::vector<double>& took = workers[0].took;
  ASSERT_GE(took.size(), 3u);
  std::nth_element(took.begin(), took.begin() + static_cast<std::ptrdiff_t>(took.size() / 2), took.end());
  EXPECT_LT(took[took.size() / 2], 0.1);
}

TEST(LentParameters, DeltasMayTravelByACodec) {
  Job job(3);
  ASSERT_TRUE(job.joined());
  canary_op_options options = CANARY_OP_OPTIONS_INIT;
  ASSERT_EQ(canary_codec("int8", &options.codec), CANARY_OK);
  options.tensor = 40;
  std::vector<Worker> workers(3);
  job.each([&](int rank) {
    workers[static_cast<std::size_t>(rank)] = run(
        job.world(rank), "diloco:h=6,fragments=3,overlap=1,rate=1,momentum=0",
        [&](const Worker&, canary_policy*) { sleep_ms(1); }, [](const Worker& w) { return w.exchanges >= 20; },
        &options);
  });
  double produced = 0, sum = 0;
  for (const Worker& w : workers) {
    EXPECT_EQ(w.error, "");
    EXPECT_EQ(w.failed, 0);
    EXPECT_EQ(w.common, workers[0].common) << "a codec gives all the same bits";
    produced += w.produced;
    sum += static_cast<double>(w.x[0]);
  }
  EXPECT_NEAR(sum, produced, 0.02 * produced) << "what it leaves out comes with the next one";
}

void expect_good_after_a_death(const char* name) {
  SCOPED_TRACE(name);
  test::expect_good_without_rank_2([&](canary_context* context, int rank, const std::function<void()>& ready) {
    canary_group* const world = canary_world(context);
    const Worker w = run(
        world, name, [](const Worker&, canary_policy*) { sleep_ms(1); },
        [&](const Worker& it) {
          if (rank == 2 && it.iterations == 20) ready();
          return rank != 2 && it.exchanges - it.failed >= 100;
        });
    if (!w.error.empty()) return w.error;
    if (w.failed > 5) return std::to_string(w.failed) + " exchanges failed";
    // Rank 0 answers the others' questions until they have none, and all have made the same steps.
    constexpr int kLiving[] = {0, 1, 3};
    canary_partial meeting = CANARY_PARTIAL_INIT;
    meeting.ranks = kLiving;
    meeting.count = 3;
    const auto common = static_cast<double>(w.common[0]), last = static_cast<double>(w.last);
    const double mine[] = {last, -last, common, -common};
    double most[4] = {};
    const canary_status met =
        canary_partial_all_reduce(world, &meeting, mine, most, 4, CANARY_F64, CANARY_MAX, nullptr);
    if (met != CANARY_OK) return last_error().message;
    // An exchange may have failed for some, who then made one more in the end.
    if (most[0] != -most[1]) return std::string("good");
    return std::string(most[2] == -most[3] ? "good" : "common parameters differ");
  });
}

// Its exchange fails for some or for all. Those without the result get it, whoever has it, and all are equal again.
TEST(LentParameters, TheOthersGoOnAfterADeath) {
  for (const char* const name : {"diloco:h=2,overlap=1", "esync", "esync-nb"}) expect_good_after_a_death(name);
}

// Its engine runs the coordinator; the next one's does so from then on.
class WithoutRankZero : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(LentParameters, WithoutRankZero, testing::Values("diloco:h=4,fragments=2,quorum=75", "esync"));

TEST_P(WithoutRankZero, TheOthersGoOn) {
  const char* const name = GetParam();
  const std::string join = test::join_url(test::free_port());
  std::vector<std::unique_ptr<test::Process>> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(std::make_unique<test::Process>([&, rank]() -> std::string {
      canary_context* context = nullptr;
      if (test::init(join, rank, 4, {}, &context) != CANARY_OK) return last_error().message;
      const auto began = std::chrono::steady_clock::now();
      int at_half = -1;
      const Worker w = run(
          canary_world(context), name, [](const Worker&, canary_policy*) { sleep_ms(2); },
          [&](const Worker& it) {
            if (rank == 0) return false;
            const double seconds = test::seconds_since(began);
            if (seconds > 1.2 && at_half < 0) at_half = it.exchanges - it.failed;
            return seconds > 2.5;
          });
      if (!w.error.empty()) return w.error;
      if (w.failed > 5) return std::to_string(w.failed) + " exchanges failed";
      return w.exchanges - w.failed >= at_half + 10 ? "trained on" : "no exchanges after the death";
    }));
  }
  usleep(700'000);
  ranks[0]->kill();
  for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(ranks[static_cast<std::size_t>(rank)]->report(), "trained on") << rank;
}

// Rank 1 is told of the exchange as well, and never makes it.
TEST(LentParameters, AnExchangeUnderWayEndsWithItsPolicyOrItsJob) {
  for (const bool closes : {true, false}) {
    std::vector<std::vector<float>> x(2, std::vector<float>(kCount));  // outlive the job, as lent memory has to
    Job job(2);
    ASSERT_TRUE(job.joined());
    job.each([&](int rank) {
      canary_policy* const policy =
          open(job.world(rank), "diloco:h=2,overlap=2", x[static_cast<std::size_t>(rank)].data(), nullptr);
      canary_task task = CANARY_TASK_INIT;
      while (task.kind != CANARY_TASK_MEAN) {
        ASSERT_EQ(canary_policy_next(policy, &task), CANARY_OK) << last_error().message;
        if (task.kind != CANARY_TASK_TRAIN) continue;
        sleep_ms(1);
        ASSERT_EQ(canary_policy_trained(policy, 1'000'000), CANARY_OK);
      }
      EXPECT_EQ(task.beside, 1);
      if (rank == 0) {
        EXPECT_EQ(canary_policy_exchange(policy, 0), CANARY_OK) << last_error().message;
      }
      if (closes) {
        EXPECT_EQ(canary_policy_close(policy), CANARY_OK) << last_error().message;
      }
    });
    for (const auto& mine : x) EXPECT_EQ(mine, std::vector<float>(kCount)) << "nothing was trained, nothing changed";
  }
}

TEST(LentParameters, WrongCallsAreToldByName) {
  Job job(1);
  ASSERT_TRUE(job.joined());
  const auto fails = [&](canary_status code, const std::string& says) {
    EXPECT_EQ(code, CANARY_INVALID_ARGUMENT);
    EXPECT_NE(last_error().message.find(says), std::string::npos) << last_error().message;
  };
  canary_policy_options o = CANARY_POLICY_OPTIONS_INIT;
  o.name = "diloco:h=2,fragments=2,overlap=1";
  canary_policy* policy = nullptr;
  ASSERT_EQ(canary_policy_open(job.world(0), &o, &policy), CANARY_OK) << last_error().message;
  std::vector<float> x(4);
  fails(canary_policy_exchange(policy, 0), "it has no parameters");
  fails(canary_policy_common(policy, x.data(), 4), "it has no parameters");
  canary_op_options options = CANARY_OP_OPTIONS_INIT;
  options.struct_size = 4;
  fails(canary_policy_lend(policy, x.data(), 4, &options), "struct_size");
  options.struct_size = sizeof options;
  options.codec = 1;
  options.rows = 2;
  fails(canary_policy_lend(policy, x.data(), 4, &options), "a matrix of 2 rows");
  fails(canary_policy_lend(policy, nullptr, 4, nullptr), "parameters are NULL");
  fails(canary_policy_lend(policy, x.data(), 0, nullptr), "there are no parameters");
  fails(canary_policy_lend(policy, x.data(), 1, nullptr), "1 parameters are fewer than the 2 fragments");
  ASSERT_EQ(canary_policy_lend(policy, x.data(), 4, nullptr), CANARY_OK);
  fails(canary_policy_lend(policy, x.data(), 4, nullptr), "it has parameters already");
  fails(canary_policy_common(policy, x.data(), 3), "3 parameters, and it has 4");
  fails(canary_policy_common(policy, nullptr, 4), "parameters are NULL");
  fails(canary_policy_exchange(policy, 0), "its task is no exchange");
  canary_task task = CANARY_TASK_INIT;
  for (int i = 0; task.kind != CANARY_TASK_MEAN; ++i) {
    ASSERT_LT(i, 100);
    ASSERT_EQ(canary_policy_next(policy, &task), CANARY_OK);
    if (task.kind == CANARY_TASK_TRAIN) {
      for (float& value : x) value += 1;
      ASSERT_EQ(canary_policy_trained(policy, 1000), CANARY_OK);
    }
  }
  EXPECT_EQ(task.of, CANARY_MEAN_OF_DELTAS);
  EXPECT_EQ(task.part, 0);
  EXPECT_EQ(task.parts, 2);
  EXPECT_EQ(task.count, 1);
  EXPECT_EQ(task.source, -1);
  ASSERT_EQ(canary_policy_exchange(policy, 0), CANARY_OK) << "begun";
  fails(canary_policy_exchanged(policy), "canary_policy_exchange has begun it");
  fails(canary_policy_exchange(policy, 0), "its task is no exchange");
  for (int i = 0; task.kind != CANARY_TASK_FINISH; ++i) {
    ASSERT_LT(i, 100);
    ASSERT_EQ(canary_policy_next(policy, &task), CANARY_OK);
    if (task.kind != CANARY_TASK_TRAIN) continue;
    ASSERT_EQ(canary_policy_trained(policy, 1000), CANARY_OK);
  }
  fails(canary_policy_leave(policy), "its exchange is not over");
  ASSERT_EQ(canary_policy_exchange(policy, 0), CANARY_OK) << last_error().message;
  std::vector<float> common(4);
  ASSERT_EQ(canary_policy_common(policy, common.data(), 4), CANARY_OK);
  EXPECT_GT(common[0], 0) << "an outer step is made alone, too";
  EXPECT_EQ(common[2], 0) << "the other fragment's turn comes later";
  EXPECT_EQ(canary_policy_close(policy), CANARY_OK);
}

// What a program does by itself that lends nothing, with the numbers of the task.
TEST(LentParameters, AProgramMayMakeExchangesByItself) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  double x[2] = {}, anchor[2] = {};
  job.each([&](int rank) {
    canary_policy_options o = CANARY_POLICY_OPTIONS_INIT;
    o.name = "diloco:h=2,rate=1,momentum=0";
    canary_policy* policy = nullptr;
    ASSERT_EQ(canary_policy_open(job.world(rank), &o, &policy), CANARY_OK) << last_error().message;
    canary_task task = CANARY_TASK_INIT;
    std::uint64_t last = 0;
    for (int exchanges = 0; exchanges < 10;) {
      ASSERT_EQ(canary_policy_next(policy, &task), CANARY_OK) << last_error().message;
      if (task.kind == CANARY_TASK_TRAIN) {
        x[rank] += rank + 1;
        ASSERT_EQ(canary_policy_trained(policy, 1'000'000), CANARY_OK);
        continue;
      }
      ASSERT_EQ(task.kind, CANARY_TASK_MEAN);
      ASSERT_TRUE(exchanges == 0 || task.number >= last + 2) << "handing over takes a number, too";
      last = task.number;
      canary_partial among = CANARY_PARTIAL_INIT;
      among.ranks = task.ranks;
      among.count = task.count;
      among.number = task.number;
      double delta = x[rank] - anchor[rank];
      const bool well = canary_partial_all_reduce(job.world(rank), &among, &delta, &delta, 1, CANARY_F64, CANARY_AVG,
                                                  nullptr) == CANARY_OK;
      ASSERT_TRUE(well) << last_error().message;
      x[rank] = anchor[rank] += delta;
      ++exchanges;
      ASSERT_EQ(canary_policy_exchanged(policy), CANARY_OK);
    }
    EXPECT_EQ(canary_policy_close(policy), CANARY_OK);
  });
  EXPECT_EQ(x[0], 10 * 2 * 1.5);
  EXPECT_EQ(x[1], x[0]);
}

TEST(LentParameters, InCpp) {
  const std::string url = test::join_url(test::free_port());
  test::on_threads(2, [&](int rank) {
    Context context({.join = url, .rank = rank, .world_size = 2});
    std::vector<float> x(8), common(8);
    Policy policy(context.world(), 1, "diloco:h=3,rate=1,momentum=0");
    policy.lend(x, {.codec = codec("fp16")});
    int iterations = 0, exchanges = 0;
    for (;;) {
      const auto task = policy.next();
      if (task.done()) break;
      if (!task.train()) {
        EXPECT_EQ(task.raw.of, CANARY_MEAN_OF_DELTAS);
        policy.exchange(std::chrono::seconds(10));
        exchanges += task.mean() ? 1 : 0;
        continue;
      }
      if (exchanges == 10) {
        policy.leave();
        continue;
      }
      for (float& value : x) value += static_cast<float>(2 * rank);
      ++iterations;
      policy.trained(std::chrono::milliseconds(1));
    }
    policy.common(common);
    EXPECT_GE(iterations, 30);
    EXPECT_NEAR(common[0], 30, 1) << "the mean of what both trained";
    policy.close();
  });
}

}  // namespace
}  // namespace canarynet
