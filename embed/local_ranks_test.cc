// Threads of one process that each join as a rank of one engine: meeting, working, leaving one by one, and what goes
// wrong. Also run under ThreadSanitizer.
#include <chrono>
#include <cstdio>
#include <numeric>
#include <optional>

#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using test::last_error;
using test::seconds_since;
using test::Strings;

// Engines of one process, `each` ranks by threads on every one. Threads gather by the meeting point, so each engine has
// it in another spelling.
class Hosts {
 public:
  explicit Hosts(int hosts, int each, const Strings& settings = {})
      : each_(each), contexts_(static_cast<std::size_t>(hosts * each)) {
    const std::string port = std::to_string(test::free_port());
    test::on_threads(ranks(), [&](int r) {
      const std::string join = "tcp://127.0.0.1:" + std::string(static_cast<std::size_t>(r / each), '0') + port;
      EXPECT_EQ(test::init(join, r, ranks(), settings, &contexts_[static_cast<std::size_t>(r)], each), CANARY_OK)
          << last_error().message;
    });
  }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;
  ~Hosts() {
    test::on_threads(ranks(), [&](int r) { leave(r); });
  }

  int ranks() const { return static_cast<int>(contexts_.size()); }
  int each() const { return each_; }
  bool joined() const {
    return std::all_of(contexts_.begin(), contexts_.end(), [](const canary_context* c) { return c != nullptr; });
  }
  canary_context* context(int rank) const { return contexts_[static_cast<std::size_t>(rank)]; }
  canary_group* world(int rank) const { return canary_world(context(rank)); }
  void leave(int rank) {
    canary_context*& c = contexts_[static_cast<std::size_t>(rank)];
    if (c == nullptr) return;
    EXPECT_EQ(canary_finalize(c), CANARY_OK);
    c = nullptr;
  }
  void on_all(const std::function<void(int)>& body) const { test::on_threads(ranks(), body); }

 private:
  int each_;
  std::vector<canary_context*> contexts_;
};

class LocalRanks : public testing::TestWithParam<const char*> {};

TEST_P(LocalRanks, ReduceThroughOneEngineWithOthersAndAmongThemselves) {
  for (const auto& [hosts, each] : {std::pair{2, 4}, {1, 4}, {3, 2}}) {
    const Hosts job(hosts, each, {GetParam()});
    ASSERT_TRUE(job.joined());
    const int n = job.ranks();
    job.on_all([&](int r) {
      ASSERT_EQ(canary_rank(job.context(r)), r);
      ASSERT_EQ(canary_group_rank(job.world(r)), r);
      ASSERT_EQ(canary_group_size(job.world(r)), n);
      for (const std::size_t count : {std::size_t{1}, std::size_t{3'001}, std::size_t{200'000}}) {
        for (int round = 0; round < 5; ++round) {
          std::vector<float> v(count, static_cast<float>(r + round));
          ASSERT_EQ(canary_all_reduce(job.world(r), v.data(), v.data(), count, CANARY_F32, CANARY_SUM, nullptr),
                    CANARY_OK)
              << last_error().message;
          const auto sum = static_cast<float>(n * (n - 1) / 2 + n * round);
          ASSERT_EQ(v.front(), sum);
          ASSERT_EQ(v.back(), sum);
        }
      }
      std::vector<int> blocks(static_cast<std::size_t>(n) * 1000), own(1000, r);
      ASSERT_EQ(canary_all_gather(job.world(r), own.data(), blocks.data(), 1000, CANARY_I32, nullptr), CANARY_OK);
      for (int i = 0; i < n; ++i) ASSERT_EQ(blocks[static_cast<std::size_t>(i) * 1000 + 999], i);
      ASSERT_EQ(canary_barrier(job.world(r), nullptr), CANARY_OK);
      if (hosts > 1) {
        ASSERT_STREQ(canary_group_algorithm(job.world(r)), "hierarchical");
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Driven, LocalRanks,
                         testing::Values("progress_thread=1", "progress_thread=0", "spin_budget=50us"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           name[name.find('=')] = '_';
                           return name;
                         });

// One rank calls far more than are in flight at once, in two groups and in another order than its neighbours, before
// any of them begins.
TEST(LocalRanks, ARankThatRunsAheadWaitsForItselfOnly) {
  const Hosts job(2, 2, {"entry_limit=8s"});
  ASSERT_TRUE(job.joined());
  std::vector<canary_group*> pairs(4);
  job.on_all([&](int r) {
    const int members[2] = {r / 2 * 2, r / 2 * 2 + 1};
    ASSERT_EQ(canary_group_create(job.context(r), members, 2, &pairs[static_cast<std::size_t>(r)]), CANARY_OK)
        << last_error().message;
  });
  constexpr int kOperations = 1500;  // more than its queue holds as well: the call waits then
  std::atomic<int> called{0};
  const auto began = std::chrono::steady_clock::now();
  job.on_all([&](int r) {
    canary_group* const pair = pairs[static_cast<std::size_t>(r)];
    // Odd ranks call their pair's operations first, and begin when the even ones have called some hundred of the
    // world's.
    while (r % 2 == 1 && called < 400) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::vector<std::vector<float>> values(2, std::vector<float>(kOperations, static_cast<float>(r)));
    std::vector<canary_op*> ops;
    for (int half = 0; half < 2; ++half) {
      const bool world = (r + half) % 2 == 0;
      for (int i = 0; i < (world ? kOperations : 100); ++i) {
        canary_op* op = nullptr;
        float* const value = &values[world ? 1 : 0][static_cast<std::size_t>(i)];
        ASSERT_EQ(canary_all_reduce(world ? job.world(r) : pair, value, value, 1, CANARY_F32, CANARY_SUM, &op),
                  CANARY_OK);
        ops.push_back(op);
        ++called;
      }
    }
    if (r == 0) {
      EXPECT_EQ(canary_op_set_deadline(ops.back(), 20'000'000'000), CANARY_OK);
    }
    for (canary_op* op : ops) ASSERT_EQ(canary_op_wait(op), CANARY_OK) << last_error().message;
    for (const float v : values[1]) ASSERT_EQ(v, 6);
    for (int i = 0; i < 100; ++i) ASSERT_EQ(values[0][static_cast<std::size_t>(i)], static_cast<float>(r / 2 * 4 + 1));
  });
  EXPECT_LT(seconds_since(began), 30);
}

TEST(LocalRanks, GroupsMadeAndDestroyedAgainAndAgainLeaveNothing) {
  const Hosts job(2, 2);
  ASSERT_TRUE(job.joined());
  const int members[4] = {2, 0, 3, 1};
  const auto rounds = [&](int count) {
    job.on_all([&](int r) {
      for (int i = 0; i < count; ++i) {
        canary_group* group = nullptr;
        ASSERT_EQ(canary_group_create(job.context(r), members, 4, &group), CANARY_OK) << last_error().message;
        float v = 1;
        ASSERT_EQ(canary_all_reduce(group, &v, &v, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK);
        ASSERT_EQ(v, 4);
        ASSERT_EQ(canary_group_destroy(group), CANARY_OK) << last_error().message;
      }
    });
  };
  const auto resident_kb = [] {
    long pages = 0, resident = 0;
    if (FILE* f = std::fopen("/proc/self/statm", "r")) {
      EXPECT_EQ(std::fscanf(f, "%ld %ld", &pages, &resident), 2);
      std::fclose(f);
    }
    return resident * 4;
  };
  rounds(400);
  const long before = resident_kb();
  rounds(800);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep freed memory: " << resident_kb() - before << " kB say nothing";
#else
  EXPECT_LT(resident_kb() - before, 800 * 6) << "kilobytes; a group took five times as much on these two engines";
#endif
}

TEST(LocalRanks, AGroupWithOperationsThatWaitIsNotDestroyed) {
  const Hosts job(1, 2, {"ops_in_flight=1"});
  ASSERT_TRUE(job.joined());
  std::vector<canary_group*> pairs(2);
  job.on_all([&](int r) {
    const int members[2] = {0, 1};
    ASSERT_EQ(canary_group_create(job.context(r), members, 2, &pairs[static_cast<std::size_t>(r)]), CANARY_OK);
  });
  canary_op* ops[3] = {};
  for (canary_op*& op : ops) ASSERT_EQ(canary_barrier(pairs[0], &op), CANARY_OK);
  EXPECT_EQ(canary_group_destroy(pairs[0]), CANARY_INVALID_ARGUMENT);
  EXPECT_NE(std::string(last_error().message).find("operations are pending"), std::string::npos);
  canary_op* const waiting = ops[2];
  ASSERT_EQ(canary_op_set_deadline(waiting, 50'000'000), CANARY_OK);
  const auto began = std::chrono::steady_clock::now();
  for (canary_op* op : ops) {
    EXPECT_EQ(canary_op_wait(op), CANARY_DEADLINE);
    EXPECT_NE(std::string(last_error().message).find("operation #3"), std::string::npos) << last_error().message;
  }
  EXPECT_LT(seconds_since(began), 10);
  EXPECT_EQ(canary_group_destroy(pairs[0]), CANARY_OK);
}

TEST(LocalRanks, FormGroupsAndEndThemBesideEachOther) {
  const Hosts job(2, 4);
  ASSERT_TRUE(job.joined());
  job.on_all([&](int r) {
    // Two neighbours, one rank of each engine, and (0 to 3 only) all of one engine.
    const std::vector<std::vector<int>> lists = {{r - r % 2, r - r % 2 + 1}, {r % 4, r % 4 + 4}, {0, 1, 2, 3}};
    for (int round = 0; round < 4; ++round) {
      for (const auto& list : lists) {
        if (std::find(list.begin(), list.end(), r) == list.end()) continue;
        canary_group* g = nullptr;
        ASSERT_EQ(canary_group_create(job.context(r), list.data(), static_cast<int>(list.size()), &g), CANARY_OK)
            << last_error().message;
        std::vector<double> v(20'000, r);
        ASSERT_EQ(canary_all_reduce(g, v.data(), v.data(), v.size(), CANARY_F64, CANARY_SUM, nullptr), CANARY_OK)
            << last_error().message;
        ASSERT_EQ(v.back(), std::accumulate(list.begin(), list.end(), 0));
        canary_nic_stats nics[4];
        std::size_t count = 0;
        ASSERT_EQ(canary_stats(job.context(r), nics, 4, &count), CANARY_OK);
        ASSERT_EQ(canary_group_destroy(g), CANARY_OK) << last_error().message;
      }
    }
    const int other = r < 4 ? 4 : 0;
    canary_group* g = nullptr;
    EXPECT_EQ(canary_group_create(job.context(r), &other, 1, &g), CANARY_INVALID_ARGUMENT);
    EXPECT_NE(last_error().message.find("rank " + std::to_string(r)), std::string::npos) << "the thread's own error";
  });
}

TEST(LocalRanks, AnAbortByOneThreadReachesAll) {
  const Hosts job(2, 3);
  ASSERT_TRUE(job.joined());
  std::atomic<int> waiting = 0;
  job.on_all([&](int r) {
    if (r == 4) {
      while (waiting < 5) std::this_thread::yield();
      EXPECT_EQ(canary_group_abort(job.world(r), "thread 4 has had enough"), CANARY_OK);
      return;
    }
    canary_op* op = nullptr;
    ASSERT_EQ(canary_barrier(job.world(r), &op), CANARY_OK);
    ++waiting;
    EXPECT_EQ(canary_op_wait(op), CANARY_ABORTED);
    EXPECT_NE(last_error().message.find("had enough"), std::string::npos) << last_error().message;
  });
}

TEST(LocalRanks, LeaveOneByOneWhileTheOthersWorkOn) {
  Hosts job(2, 3);
  ASSERT_TRUE(job.joined());
  job.on_all([&](int r) {
    const int rest[] = {1, 2, 4, 5};
    canary_group* g = nullptr;
    if (r % 3 != 0) {
      ASSERT_EQ(canary_group_create(job.context(r), rest, 4, &g), CANARY_OK) << last_error().message;
    }
    std::vector<float> v(50'000, 1);
    ASSERT_EQ(canary_all_reduce(job.world(r), v.data(), v.data(), v.size(), CANARY_F32, CANARY_SUM, nullptr),
              CANARY_OK);
    ASSERT_EQ(v.back(), 6);
    if (r % 3 == 0) return job.leave(r);
    for (int round = 0; round < 20; ++round) {
      std::fill(v.begin(), v.end(), 1.f);
      ASSERT_EQ(canary_all_reduce(g, v.data(), v.data(), v.size(), CANARY_F32, CANARY_SUM, nullptr), CANARY_OK)
          << last_error().message;
      ASSERT_EQ(v.back(), 4);
    }
  });
}

TEST(LocalRanks, LeavingWithAnOperationPendingEndsItsGroupAndNothingElse) {
  Hosts job(1, 3);
  ASSERT_TRUE(job.joined());
  std::atomic<bool> gone = false;
  job.on_all([&](int r) {
    const int pair[] = {1, 2};
    canary_group* g = nullptr;
    if (r != 0) {
      ASSERT_EQ(canary_group_create(job.context(r), pair, 2, &g), CANARY_OK);
    }
    float v = 1;
    if (r == 0) {
      canary_op* op = nullptr;  // nobody else calls it
      ASSERT_EQ(canary_all_reduce(job.world(r), &v, &v, 1, CANARY_F32, CANARY_SUM, &op), CANARY_OK);
      job.leave(r);
      gone = true;
      return;
    }
    while (!gone) std::this_thread::yield();
    EXPECT_EQ(canary_all_reduce(job.world(r), &v, &v, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_ABORTED);
    EXPECT_NE(last_error().message.find("pending"), std::string::npos) << last_error().message;
    EXPECT_EQ(canary_all_reduce(g, &v, &v, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK) << last_error().message;
    EXPECT_EQ(v, 2);
  });
}

// Many threads asleep cost nothing, however long they wait.
TEST(LocalRanks, WaitingThreadsSleep) {
  const Hosts job(1, 8);
  ASSERT_TRUE(job.joined());
  const auto cpu = [] {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  };
  const double before = cpu();
  job.on_all([&](int r) {
    if (r == 7) std::this_thread::sleep_for(std::chrono::seconds(2));
    EXPECT_EQ(canary_barrier(job.world(r), nullptr), CANARY_OK);
  });
  if (!test::sanitized()) {
    EXPECT_LT(cpu() - before, 0.1);
  }
}

// --- what goes wrong at the door -------------------------------------------------------------------------------------

struct Thread {
  int rank, world, each;
  Strings settings;
};

// All of them at once; the sentence that each hears must have all `parts`.
void expect_refused(const std::vector<Thread>& threads, canary_status code, const Strings& parts, double within_s) {
  const auto began = std::chrono::steady_clock::now();
  const std::string join = test::join_url(test::free_port());
  test::on_threads(static_cast<int>(threads.size()), [&](int i) {
    const Thread& t = threads[static_cast<std::size_t>(i)];
    canary_context* context = nullptr;
    ASSERT_EQ(test::init(join, t.rank, t.world, t.settings, &context, t.each), code) << last_error().message;
    EXPECT_EQ(context, nullptr);
    for (const std::string& part : parts)
      EXPECT_NE(last_error().message.find(part), std::string::npos)
          << "\"" << part << "\" is not in: " << last_error().message;
  });
  EXPECT_LT(seconds_since(began), within_s);
}

TEST(LocalRanksDoor, AThreadThatNeverComesIsCounted) {
  expect_refused({{0, 4, 3, {"join_timeout=300ms"}}, {2, 4, 3, {"join_timeout=300ms"}}}, CANARY_JOIN,
                 {"2 of 3 local ranks", "300 ms", "ranks ", "1 more thread ", "CANARY_LOCAL_RANKS"}, 5);
}

TEST(LocalRanksDoor, ThreadsThatDisagreeHearItAtOnce) {
  expect_refused({{0, 4, 3, {}}, {0, 4, 3, {}}}, CANARY_JOIN, {"rank 0 joins twice from this process"}, 5);
  expect_refused({{0, 4, 3, {}}, {1, 5, 3, {}}}, CANARY_JOIN,
                 {"disagree", "a world of ", "of 4 for rank 0", "of 5 for rank 1"}, 5);
  expect_refused({{0, 4, 3, {"piece_bytes=64KiB"}}, {1, 4, 3, {}}}, CANARY_JOIN,
                 {"disagree", "piece_bytes", "64KiB", "128KiB"}, 5);
  expect_refused({{0, 4, 3, {}}, {1, 4, 2, {}}}, CANARY_JOIN, {"disagree", "local_ranks", "3", "2"}, 5);
}

TEST(LocalRanksDoor, WrongNumbersAreNamed) {
  expect_refused({{0, 2, 3, {}}}, CANARY_INVALID_ARGUMENT, {"local_ranks is 3", "world of 2"}, 5);
  expect_refused({{0, 2, -1, {}}}, CANARY_INVALID_SETTING, {"canary_config.local_ranks", "-1"}, 5);
  expect_refused({{0, 2, 2000, {}}}, CANARY_INVALID_SETTING, {"CANARY_LOCAL_RANKS", "2000"}, 5);
  expect_refused({{3, 3, 2, {}}, {1, 3, 2, {}}}, CANARY_INVALID_ARGUMENT, {"rank 3", "world of 3"}, 5);
}

TEST(LocalRanksDoor, ARankThatIsHereAlreadyIsToldSo) {
  const std::string join = test::join_url(test::free_port());
  canary_context* contexts[2] = {};
  test::on_threads(
      2, [&](int r) { ASSERT_EQ(test::init(join, r, 2, {}, &contexts[r], 2), CANARY_OK) << last_error().message; });
  canary_context* again = nullptr;
  EXPECT_EQ(test::init(join, 1, 2, {}, &again, 2), CANARY_JOIN);
  EXPECT_NE(last_error().message.find("rank 1 has joined from this process already"), std::string::npos);
  for (canary_context* c : contexts) EXPECT_EQ(canary_finalize(c), CANARY_OK);
  // Once all have left, the place is free.
  test::on_threads(2, [&](int r) {
    ASSERT_EQ(test::init(join, r, 2, {}, &contexts[r], 2), CANARY_OK) << last_error().message;
    ASSERT_EQ(canary_barrier(canary_world(contexts[r]), nullptr), CANARY_OK);
    ASSERT_EQ(canary_finalize(contexts[r]), CANARY_OK);
  });
}

TEST(LocalRanksDoor, AnOlderCallersConfigIsOneRank) {
  canary_config c = CANARY_CONFIG_INIT;
  c.struct_size = offsetof(canary_config, local_ranks);
  c.rank = 0;
  c.world_size = 1;
  c.local_ranks = 77;  // beyond what it knows of
  canary_context* context = nullptr;
  ASSERT_EQ(canary_init(&c, &context), CANARY_OK) << last_error().message;
  EXPECT_EQ(canary_finalize(context), CANARY_OK);
}

}  // namespace
}  // namespace canarynet
