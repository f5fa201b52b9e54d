// Policies through the C ABI, over real sockets: what workers are told to do, with exchanges in between.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "canarynet/canarynet.hpp"
#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using test::Job;
using test::last_error;

struct Figures {
  int iterations = 0;
  int exchanges = 0;
  int failed = 0;  // exchanges
  std::string error;
};

// "Trains" by `policy` until `over`; the one parameter moves by exchanges alone. Errors other than theirs end it.
// `iterate`: false where it gave the iteration up.
template <typename Iterate, typename Over>
requires std::is_invocable_r_v<bool, Iterate> Figures run(canary_group* group, canary_policy* policy,
                                                          const Iterate& iterate, double* x, const Over& over) {
  Figures f;
  canary_task task = CANARY_TASK_INIT;
  for (;;) {
    if (canary_policy_next(policy, &task) != CANARY_OK) {
      f.error = last_error().message;
      return f;
    }
    if (task.kind == CANARY_TASK_DONE) return f;
    if (task.kind == CANARY_TASK_TRAIN && over(f)) {
      EXPECT_EQ(canary_policy_leave(policy), CANARY_OK) << last_error().message;
      continue;
    }
    if (task.kind == CANARY_TASK_TRAIN) {
      const auto began = std::chrono::steady_clock::now();
      if (!iterate()) continue;
      ++f.iterations;
      const auto took = std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count();
      EXPECT_EQ(canary_policy_trained(policy, took), CANARY_OK);
      continue;
    }
    const std::vector<int> ranks(task.ranks, task.ranks + task.count);
    EXPECT_NE(std::find(ranks.begin(), ranks.end(), canary_group_rank(group)), ranks.end());
    canary_partial among = CANARY_PARTIAL_INIT;
    among.ranks = task.ranks;
    among.count = task.count;
    among.number = task.number;
    double mean = 0;
    if (canary_partial_all_reduce(group, &among, x, &mean, 1, CANARY_F64, CANARY_AVG, nullptr) == CANARY_OK) {
      *x = mean;
    } else {
      ++f.failed;
    }
    ++f.exchanges;
    EXPECT_EQ(canary_policy_exchanged(policy), CANARY_OK) << last_error().message;
  }
}

template <typename Over>
Figures run(canary_group* group, canary_policy* policy, std::chrono::microseconds iteration, double* x,
            const Over& over) {
  const auto sleep = [&] {
    std::this_thread::sleep_for(iteration);
    return true;
  };
  return run(group, policy, sleep, x, over);
}

canary_policy* open(canary_group* group, std::uint64_t number, const char* name, const int* hosts = nullptr) {
  canary_policy_options o = CANARY_POLICY_OPTIONS_INIT;
  o.number = number;
  o.name = name;
  o.hosts = hosts;
  o.iteration = 1'000'000;
  canary_policy* policy = nullptr;
  EXPECT_EQ(canary_policy_open(group, &o, &policy), CANARY_OK) << last_error().message;
  return policy;
}

TEST(Policy, GroupsOfRipplesSpreadWhatAllKnow) {
  constexpr int kHosts[] = {0, 0, 1, 1};
  Job job(4);
  ASSERT_TRUE(job.joined());
  std::uint64_t number = 0;
  for (const char* const name :
       {"ripples:static", "ripples:static-rotating", "ripples:smart", "ripples:random,group=2"}) {
    double x[4];
    Figures figures[4];
    ++number;
    SCOPED_TRACE(name);
    std::fprintf(stderr, "%s\n", name);
    job.each([&](int rank) {
      x[rank] = rank;
      canary_policy* const policy = open(job.world(rank), number, name, kHosts);
      figures[rank] = run(job.world(rank), policy, std::chrono::microseconds(300), &x[rank],
                          [](const Figures& f) { return f.iterations >= 60; });
      EXPECT_EQ(canary_policy_close(policy), CANARY_OK) << last_error().message;
    });
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(figures[rank].error, "") << name;
      EXPECT_EQ(figures[rank].failed, 0) << name;
      EXPECT_GT(figures[rank].exchanges, 10) << name;
      EXPECT_NEAR(x[rank], 1.5, 0.2) << name;
    }
    EXPECT_NEAR(x[0] + x[1] + x[2] + x[3], 6, 1e-9) << name << ": means lose nothing";
  }
}

TEST(Policy, FastWorkersOfEsyncTrainOnUntilTheSlowOneIsReady) {
  Job job(3);
  ASSERT_TRUE(job.joined());
  double x[3];
  Figures figures[3];
  job.each([&](int rank) {
    x[rank] = rank;
    canary_policy* const policy = open(job.world(rank), 1, "esync");
    figures[rank] = run(job.world(rank), policy, std::chrono::milliseconds(rank == 2 ? 40 : 4), &x[rank],
                        [](const Figures& f) { return f.exchanges >= 6; });
    EXPECT_EQ(canary_policy_close(policy), CANARY_OK);
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(figures[rank].error, "");
    EXPECT_EQ(figures[rank].failed, 0);
    EXPECT_DOUBLE_EQ(x[rank], 1);
  }
  EXPECT_GE(figures[2].iterations, 6);
  EXPECT_LE(figures[2].iterations, 14);
  EXPECT_GT(figures[0].iterations, 2 * figures[2].iterations);
  EXPECT_GT(figures[1].iterations, 2 * figures[2].iterations);
}

// Nobody waits for an answer. An iteration that runs when all others are ready is given up, or ended and counted.
TEST(Policy, WorkersOfEsyncNbTrainWhileTheyAskAndGiveUpWhatRuns) {
  for (const bool gives_up : {true, false}) {
    SCOPED_TRACE(gives_up);
    Job job(3);
    ASSERT_TRUE(job.joined());
    double x[3];
    Figures figures[3];
    int given_up[3] = {};
    double longest[3] = {};
    const auto start = std::chrono::steady_clock::now();
    job.each([&](int rank) {
      x[rank] = rank;
      canary_policy* const policy = open(job.world(rank), 1, "esync-nb");
      const auto iterate = [&] {
        const auto began = std::chrono::steady_clock::now();
        const double iteration = rank == 2 ? 0.04 : 0.015;
        int interrupted = 0;
        while (test::seconds_since(began) < iteration) {
          std::this_thread::sleep_for(std::chrono::microseconds(500));
          const auto polled = std::chrono::steady_clock::now();
          EXPECT_EQ(canary_policy_poll(policy, &interrupted), CANARY_OK) << last_error().message;
          longest[rank] = std::max(longest[rank], test::seconds_since(polled));
          if (interrupted == 0 || !gives_up) continue;
          ++given_up[rank];
          return false;
        }
        return true;
      };
      const auto over = [&](const Figures& f) { return f.exchanges >= 8 || test::seconds_since(start) > 20; };
      figures[rank] = run(job.world(rank), policy, iterate, &x[rank], over);
      EXPECT_EQ(canary_policy_close(policy), CANARY_OK);
    });
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(figures[rank].error, "");
      EXPECT_EQ(figures[rank].failed, 0);
      EXPECT_EQ(figures[rank].exchanges, 8) << "words come and go while all train";
      EXPECT_DOUBLE_EQ(x[rank], 1);
      EXPECT_LT(longest[rank], 0.5) << "a poll waits for nothing";
    }
    EXPECT_EQ(given_up[0] + given_up[1] + given_up[2] > 0, gives_up);
    EXPECT_GT(figures[0].iterations, figures[2].iterations);
  }
}

TEST(Policy, DifferentNamesUnderOneNumberAreTold) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  std::atomic<int> told{0};
  job.each([&](int rank) {
    canary_policy* const policy = open(job.world(rank), 3, rank == 0 ? "ripples:smart" : "esync");
    double x = 0;
    const auto over = [&](const Figures& f) { return f.iterations == 2000 || told > 0; };
    const Figures f = run(job.world(rank), policy, std::chrono::microseconds(100), &x, over);
    if (f.error.find("under one number") != std::string::npos) ++told;
    EXPECT_EQ(canary_policy_close(policy), CANARY_OK);
  });
  EXPECT_EQ(told, 1);
}

TEST(Policy, WrongCallsAreToldByName) {
  Job job(1);
  ASSERT_TRUE(job.joined());
  canary_policy* policy = nullptr;
  canary_policy_options o = CANARY_POLICY_OPTIONS_INIT;
  const auto fails = [&](canary_status code, const std::string& says) {
    EXPECT_EQ(code, CANARY_INVALID_ARGUMENT);
    EXPECT_NE(last_error().message.find(says), std::string::npos) << last_error().message;
  };
  const auto refused = [&](const char* name, const std::string& says) {
    o.name = name;
    fails(canary_policy_open(job.world(0), &o, &policy), says);
  };
  refused(nullptr, "name is NULL");
  refused("rippled", "there is no policy");
  refused("bsp", "canary_session_open");
  refused("d-psgd", "canary-sim");
  refused("esync:rate=0.5", "rate is 1");
  refused("esync-nb:rate=0.5", "rate is 1");
  o.iteration = -1;
  refused("esync", "-1 ns");
  o.iteration = 0;
  o.number = (1ULL << 32) + 1;
  refused("ripples:static", "number 4294967297 (0 to 4294967295)");
  o.number = 0;
  const int host = 1;
  o.hosts = &host;
  refused("ripples:static", "host 1 of rank 0");
  o.hosts = nullptr;
  o.name = "ripples:static";
  fails(canary_policy_open(nullptr, &o, &policy), "group is NULL");
  fails(canary_policy_open(job.world(0), nullptr, &policy), "options are NULL");
  fails(canary_policy_open(job.world(0), &o, nullptr), "policy is NULL");
  o.struct_size = 4;
  fails(canary_policy_open(job.world(0), &o, &policy), "struct_size");
  o.struct_size = sizeof o;
  ASSERT_EQ(canary_policy_open(job.world(0), &o, &policy), CANARY_OK) << last_error().message;
  canary_task task = CANARY_TASK_INIT;
  fails(canary_policy_next(policy, nullptr), "task is NULL");
  fails(canary_policy_trained(policy, 5), "not to train");
  int interrupted = 0;
  fails(canary_policy_poll(policy, &interrupted), "not to train");
  ASSERT_EQ(canary_policy_next(policy, &task), CANARY_OK);
  EXPECT_EQ(task.kind, CANARY_TASK_TRAIN);
  fails(canary_policy_exchanged(policy), "no exchange");
  fails(canary_policy_poll(policy, nullptr), "interrupted is NULL");
  EXPECT_EQ(canary_policy_poll(policy, &interrupted), CANARY_OK);
  EXPECT_EQ(interrupted, 0);
  fails(canary_policy_trained(policy, -5), "-5 ns");
  EXPECT_EQ(canary_policy_trained(policy, 5), CANARY_OK);
  EXPECT_EQ(canary_policy_next(policy, &task), CANARY_OK) << "alone it trains on";
  EXPECT_EQ(task.kind, CANARY_TASK_TRAIN);
  EXPECT_EQ(canary_policy_close(policy), CANARY_OK);
  fails(canary_policy_next(policy, &task), "has ended");
  fails(canary_policy_close(policy), "has ended");
  o.name = "ripples:smart";
  ASSERT_EQ(canary_policy_open(job.world(0), &o, &policy), CANARY_OK);
  fails(canary_policy_open(job.world(0), &o, &policy), "has opened it");
}

TEST(Policy, TheOthersGoOnAfterADeath) {
  for (const char* const name : {"ripples:static", "ripples:smart", "esync", "esync-nb"}) {
    SCOPED_TRACE(name);
    constexpr int kHosts[] = {0, 0, 1, 1};
    test::expect_good_without_rank_2([&](canary_context* context, int rank, const std::function<void()>& ready) {
      canary_group* const world = canary_world(context);
      canary_policy* const policy = open(world, 1, name, kHosts);
      double x = rank;
      const auto over = [&](const Figures& f) {
        if (rank == 2 && f.iterations == 20) ready();
        return rank != 2 && f.iterations >= 300 && f.exchanges >= 20;
      };
      const Figures f = run(world, policy, std::chrono::milliseconds(1), &x, over);
      if (!f.error.empty()) return f.error;
      if (f.failed > 5) return std::to_string(f.failed) + " exchanges failed";
      if (canary_policy_close(policy) != CANARY_OK) return last_error().message;
      // Rank 0 answers the others' questions until they have none.
      constexpr int kLiving[] = {0, 1, 3};
      canary_partial meeting = CANARY_PARTIAL_INIT;
      meeting.ranks = kLiving;
      meeting.count = 3;
      const canary_status met = canary_partial_all_reduce(world, &meeting, &x, &x, 1, CANARY_F64, CANARY_AVG, nullptr);
      return met == CANARY_OK ? std::string("good") : last_error().message;
    });
  }
}

// Its engine runs the servers; the next one's does so from then on, and the one after that.
TEST(Policy, TheOthersGoOnWithoutRankZero) {
  // Each has a server of its own kind; under sanitizers, one of each of the two does.
  std::vector<std::string> names{"ripples:random,group=2", "esync", "esync-nb", "ripples:smart", "ripples:static"};
  if (std::getenv("CANARY_TEST_QUICK") != nullptr) names.resize(2);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const std::string join = test::join_url(test::free_port());
    std::vector<std::unique_ptr<test::Process>> ranks;
    for (int rank = 0; rank < 5; ++rank) {
      ranks.push_back(std::make_unique<test::Process>([&, rank]() -> std::string {
        canary_context* context = nullptr;
        if (test::init(join, rank, 5, {}, &context) != CANARY_OK) return last_error().message;
        canary_policy* const policy = open(canary_world(context), 1, name.c_str());
        double x = rank;
        // Both deaths have been by the half; then exchanges have to go on.
        const auto began = std::chrono::steady_clock::now();
        int at_half = -1;
        const auto over = [&](const Figures& f) {
          if (rank < 2) return false;
          const double seconds = test::seconds_since(began);
          if (seconds > 1.7 && at_half < 0) at_half = f.exchanges - f.failed;
          return seconds > 3.2;
        };
        const Figures f = run(canary_world(context), policy, std::chrono::milliseconds(2), &x, over);
        if (!f.error.empty()) return f.error;
        if (f.failed > 8) return std::to_string(f.failed) + " exchanges failed";
        if (f.exchanges - f.failed < at_half + 10) return "no exchanges after the deaths";
        return canary_policy_close(policy) == CANARY_OK ? "trained on" : last_error().message;
      }));
    }
    usleep(700'000);
    ranks[0]->kill();
    usleep(400'000);
    ranks[1]->kill();
    for (int rank = 2; rank < 5; ++rank) {
      const std::string said = ranks[static_cast<std::size_t>(rank)]->report();
      EXPECT_EQ(said, "trained on") << "rank " << rank;
    }
  }
}

// Some have left the policy when rank 0 dies, and some leave after it; nobody waits for them at the next server.
TEST(Policy, WhoHasLeftIsNotWaitedForAfterRankZero) {
  for (const std::string name : {"ripples:smart", "esync", "esync-nb"}) {
    SCOPED_TRACE(name);
    const std::string join = test::join_url(test::free_port());
    std::vector<std::unique_ptr<test::Process>> ranks;
    for (int rank = 0; rank < 5; ++rank) {
      ranks.push_back(std::make_unique<test::Process>([&, rank]() -> std::string {
        canary_context* context = nullptr;
        if (test::init(join, rank, 5, {}, &context) != CANARY_OK) return last_error().message;
        canary_policy* const policy = open(canary_world(context), 1, name.c_str());
        double x = rank;
        const auto began = std::chrono::steady_clock::now();
        int at_half = -1;
        const auto over = [&](const Figures& f) {
          const double seconds = test::seconds_since(began);
          if (rank == 0) return false;
          if (rank == 1) return seconds > 0.3;
          if (rank == 2) return seconds > 0.8;
          if (seconds > 1.5 && at_half < 0) at_half = f.exchanges - f.failed;
          return seconds > 2.5;
        };
        const Figures f = run(canary_world(context), policy, std::chrono::milliseconds(2), &x, over);
        if (!f.error.empty()) return f.error;
        if (rank > 2 && f.exchanges - f.failed < at_half + 10) return "no exchanges in the end";
        // One has closed it, the other one keeps it.
        if (rank == 1 && canary_policy_close(policy) != CANARY_OK) return last_error().message;
        while (rank < 3 && test::seconds_since(began) < 3) usleep(100'000);
        return "good";
      }));
    }
    usleep(700'000);
    ranks[0]->kill();
    for (int rank = 1; rank < 5; ++rank) {
      EXPECT_EQ(ranks[static_cast<std::size_t>(rank)]->report(), "good") << "rank " << rank;
    }
  }
}

TEST(Policy, InCpp) {
  const std::string url = test::join_url(test::free_port());
  test::on_threads(2, [&](int rank) {
    Context context({.join = url, .rank = rank, .world_size = 2});
    Policy policy(context.world(), 1, "ripples:smart");
    float x = static_cast<float>(rank);
    for (int exchanges = 0; exchanges < 5;) {
      const auto task = policy.next();
      if (!task.mean()) {
        EXPECT_FALSE(policy.interrupted()) << "ripples never gives an iteration up";
        policy.trained(std::chrono::milliseconds(1));
        continue;
      }
      context.world().partial_all_reduce({.ranks = task.ranks, .number = task.number}, std::span(&x, 1));
      policy.exchanged();
      ++exchanges;
    }
    EXPECT_EQ(x, 0.5F);
    policy.close();
  });
}

}  // namespace
}  // namespace canarynet
