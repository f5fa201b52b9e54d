// The data path must not touch the heap, nor burn a core while nothing happens.
//
// The allocator is counted for the whole process (all ranks are threads of it, their progress threads included) between
// warm-up and end of a loop. Sanitizers bring an allocator of their own and skip that part.
#include <sys/resource.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "embed/job_test_util.h"
#include "tests/allocation_counter.h"

namespace canarynet {
namespace {

using test::Job;
using test::last_error;

using allocation_counter::arm;
using allocation_counter::disarm;

struct How {
  int ranks;
  const char* transports;
  bool shared;  // buffers from canary_mem_alloc
};

class NoAllocation : public testing::TestWithParam<How> {
 protected:
  void SetUp() override {
    if (!CANARYNET_COUNTS_MALLOC) GTEST_SKIP() << "the allocator can't be counted in this build";
  }
};

TEST_F(NoAllocation, TheCounterSeesTheLibrarysAllocations) {
  arm();
  canary_context* context = nullptr;
  EXPECT_EQ(test::init("", 0, 1, {}, &context), CANARY_OK);
  EXPECT_EQ(canary_finalize(context), CANARY_OK);
  EXPECT_GT(disarm(), 20);
  EXPECT_GT(allocation_counter::frames, 0) << "it can't say where the first one came from";
}

// One rank's part of the loops; everything it needs was made before.
class Worker {
 public:
  static constexpr int kDepth = 4;

  // `context`: that of the group, when its memory is wanted; or null.
  Worker(canary_group* group, canary_context* context) : group_(group), context_(context) {
    for (std::size_t i = 0; i < kDepth; ++i) {
      if (context_ == nullptr) {
        own_[i].resize(kLarge);
        memory_[i] = own_[i].data();
      } else {
        void* m = nullptr;
        EXPECT_EQ(canary_mem_alloc(context_, kLarge * sizeof(float), &m), CANARY_OK) << last_error().message;
        memory_[i] = static_cast<float*>(m);
      }
    }
    std::fill(std::begin(sends_), std::end(sends_), counts_[canary_group_rank(group)]);
  }
  ~Worker() {
    for (float* m : memory_) {
      if (context_ != nullptr) {
        EXPECT_EQ(canary_mem_free(context_, m), CANARY_OK) << last_error().message;
      }
    }
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  // `rounds` all-reduces of 1 MiB and of 4 B, each of them waited for.
  bool synchronous(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      if (!reduce(0, kLarge, nullptr) || !reduce(0, 1, nullptr)) return false;
    }
    return true;
  }
  // The same, several in flight, half of them polled for.
  bool asynchronous(int rounds) {
    for (const std::size_t n : {kLarge, std::size_t{1}}) {
      for (int i = 0; i < rounds; i += kDepth) {
        canary_op* ops[kDepth] = {};
        for (std::size_t k = 0; k < kDepth; ++k) {
          if (!reduce(k, n, &ops[k])) return false;
        }
        for (int k = 0; k < kDepth; ++k) {
          canary_status status = CANARY_WOULD_BLOCK;
          while (k % 2 == 0 && (status = canary_op_test(ops[k])) == CANARY_WOULD_BLOCK) std::this_thread::yield();
          if (k % 2 != 0) status = canary_op_wait(ops[k]);
          if (status != CANARY_OK) return false;
        }
      }
    }
    return true;
  }
  // Has kDepth of each shape pending at once on each rank in turn: what a shape needs is made when it is first needed.
  bool go_deep(int ranks, std::barrier<>& everybody) {
    bool ok = true;
    for (const std::size_t n : {kLarge, std::size_t{1}}) {
      for (int turn = 0; turn < ranks; ++turn) {
        canary_op* ops[kDepth] = {};
        const bool early = turn == canary_group_rank(group_);
        if (!early) everybody.arrive_and_wait();
        for (std::size_t k = 0; k < kDepth; ++k) ok = ok && reduce(k, n, &ops[k]);
        if (early) everybody.arrive_and_wait();
        for (canary_op* op : ops) ok = ok && canary_op_wait(op) == CANARY_OK;
      }
    }
    return ok;
  }
  // The other operations, which share the path.
  bool others(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      float* m = memory_[0];
      const std::size_t block = 10'000, own = static_cast<std::size_t>(canary_group_rank(group_)) * block;
      if (canary_broadcast(group_, m, m, kLarge, CANARY_F32, 1, nullptr) != CANARY_OK ||
          canary_reduce_scatter(group_, m, m + own, block, CANARY_F32, CANARY_MAX, nullptr) != CANARY_OK ||
          canary_all_gather(group_, m + own, m, block, CANARY_F32, nullptr) != CANARY_OK ||
          canary_reduce(group_, m, m, kLarge, CANARY_F32, CANARY_MAX, 0, nullptr) != CANARY_OK ||
          canary_gather(group_, m + own, m, block, CANARY_F32, 1, nullptr) != CANARY_OK ||
          canary_scatter(group_, m, m + own, block, CANARY_F32, 0, nullptr) != CANARY_OK ||
          canary_all_to_all(group_, m, memory_[1], block, CANARY_F32, nullptr) != CANARY_OK ||
          canary_all_gather_v(group_, memory_[1], m, counts_, CANARY_F32, nullptr) != CANARY_OK ||
          canary_all_to_all_v(group_, m, sends_, nullptr, memory_[1], counts_, nullptr, CANARY_F32, nullptr) !=
              CANARY_OK ||
          canary_barrier(group_, nullptr) != CANARY_OK) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr std::size_t kLarge = 1 << 18;  // 1 MiB
  bool reduce(std::size_t which, std::size_t count, canary_op** op) {
    float* m = memory_[which];
    return canary_all_reduce(group_, m, m, count, CANARY_F32, CANARY_MAX, op) == CANARY_OK;
  }
  canary_group* group_;
  canary_context* context_;
  std::vector<float> own_[kDepth];
  float* memory_[kDepth] = {};
  const std::size_t counts_[4] = {1000, 2000, 3000, 4000};  // from each rank
  std::size_t sends_[4];                                    // what everybody gets from this one
};

TEST_P(NoAllocation, OnTheDataPathOfAnyRank) {
  const auto [ranks, transports, shared] = GetParam();
  // Control's heartbeats allocate, a few small blocks an interval, and so does a warning of a rank that a busy machine
  // keeps from running; they are no part of the data path.
  Job job(ranks, {"heartbeat_interval=60s", "silence_limit=600s", "silence_warning=0",
                  std::string("transports=") + transports});
  ASSERT_TRUE(job.joined());
  struct {
    const char* name;
    bool (Worker::*loop)(int);
  } const kinds[] = {{"sync", &Worker::synchronous}, {"async", &Worker::asynchronous}, {"others", &Worker::others}};
  for (const auto& kind : kinds) {
    std::barrier warm(ranks, []() noexcept { arm(); });
    long counted = -1;
    std::barrier ended(ranks, [&]() noexcept { counted = disarm(); });
    std::barrier<> turns(ranks);
    std::atomic<int> good = 0;
    job.each([&, from_arena = shared, n = ranks](int r) {
      Worker worker(job.world(r), from_arena ? job.context(r) : nullptr);
      bool ok = worker.go_deep(n, turns) && (worker.*kind.loop)(12);
      warm.arrive_and_wait();
      ok = ok && (worker.*kind.loop)(50);
      ended.arrive_and_wait();
      good += ok;
    });
    EXPECT_EQ(good, ranks) << kind.name;
    EXPECT_EQ(counted, 0) << kind.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, NoAllocation,
                         testing::Values(How{2, "tcp", false}, How{3, "tcp", false}, How{4, "tcp", false},
                                         How{2, "shm", false}, How{4, "shm", false}, How{2, "tcp,shm", true},
                                         How{3, "shm", true}),
                         [](const auto& param_info) {
                           std::string name =
                               std::to_string(param_info.param.ranks) + "_" + param_info.param.transports;
                           std::replace(name.begin(), name.end(), ',', '_');
                           return name + (param_info.param.shared ? "_shared" : "");
                         });

// A bundle's iterations, whose messages are those operations: merged in place, merged by copies, and as it plans.
TEST_F(NoAllocation, InABundlesIterations) {
  constexpr int kRanks = 3;
  constexpr std::size_t kTensors = 12, kCount = 3000;
  struct {
    canary_merge policy;
    std::size_t distance;  // of tensors in memory
  } const kinds[] = {
      {CANARY_MERGE_WFBP, kCount}, {CANARY_MERGE_SYNCEASGD, kCount + 1}, {CANARY_MERGE_EXACT, kCount + 1}};
  Job job(kRanks, {"heartbeat_interval=60s", "silence_limit=600s", "silence_warning=0", "transports=tcp"});
  ASSERT_TRUE(job.joined());
  for (const auto& kind : kinds) {
    std::barrier warm(kRanks, []() noexcept { arm(); });
    long counted = -1;
    std::barrier ended(kRanks, [&]() noexcept { counted = disarm(); });
    std::barrier<> turns(kRanks);
    std::atomic<int> good = 0;
    job.each([&](int rank) {
      std::vector<float> memory(kTensors * kind.distance);
      std::vector<canary_tensor> list;
      for (std::size_t t = 0; t < kTensors; ++t) list.push_back({memory.data() + t * kind.distance, kCount});
      canary_bundle_options options = CANARY_BUNDLE_OPTIONS_INIT;
      options.policy = kind.policy;
      canary_bundle* bundle = nullptr;
      bool ok = canary_bundle_create(job.world(rank), list.data(), kTensors, CANARY_F32, CANARY_MAX, &options,
                                     &bundle) == CANARY_OK;
      const auto iterate = [&](int turn) {
        if (turn >= 0 && turn != rank) turns.arrive_and_wait();
        for (std::size_t t = 0; t < kTensors; ++t) ok = ok && canary_bundle_submit(bundle, t) == CANARY_OK;
        if (turn == rank) turns.arrive_and_wait();
        ok = ok && canary_bundle_wait(bundle) == CANARY_OK;
      };
      // All messages pending on each rank in turn, by each of the plans; the last plan is made in the first of them.
      for (int i = 0; i < 10 * kRanks; ++i) iterate(i % kRanks);
      for (int i = 0; i < 10; ++i) iterate(-1);
      warm.arrive_and_wait();
      for (int i = 0; i < 50; ++i) iterate(-1);
      ended.arrive_and_wait();
      good += ok;
      canary_bundle_destroy(bundle);
    });
    EXPECT_EQ(good, kRanks) << kind.policy;
    EXPECT_EQ(counted, 0) << kind.policy;
  }
}

// Chains of operations, whose arrays are there after the first call of a size.
TEST_F(NoAllocation, InAllReducesOfMatricesAndOfLargestValues) {
  Job job(3, {"heartbeat_interval=60s", "silence_limit=600s", "silence_warning=0"});
  ASSERT_TRUE(job.joined());
  std::barrier warm(3, []() noexcept { arm(); });
  long counted = -1;
  std::barrier ended(3, [&]() noexcept { counted = disarm(); });
  std::atomic<int> good = 0;
  job.each([&](int rank) {
    constexpr std::size_t kRows = 120, kCount = kRows * 100;
    std::vector<float> gradient(kCount), sum(kCount);
    for (std::size_t i = 0; i < kCount; ++i) gradient[i] = static_cast<float>((i * 31 + 7) % 101) * 0.01F;
    const char* const names[] = {"power:2", "power:2+sketch:8", "svd:1", "artopk:star:0.01", "artopk:var:0.01"};
    canary_op_options options[std::size(names)];
    for (std::size_t i = 0; i < std::size(names); ++i) {
      options[i] = CANARY_OP_OPTIONS_INIT;
      EXPECT_EQ(canary_codec(names[i], &options[i].codec), CANARY_OK);
      options[i].tensor = i + 1;
      if (i < 3) options[i].rows = kRows;
    }
    const auto iterate = [&](int iterations) {
      for (int i = 0; i < iterations; ++i) {
        for (const canary_op_options& o : options) {
          if (canary_all_reduce_with(job.world(rank), gradient.data(), sum.data(), kCount, CANARY_F32, CANARY_AVG, &o,
                                     nullptr) != CANARY_OK) {
            return false;
          }
        }
      }
      return true;
    };
    bool ok = iterate(12);
    warm.arrive_and_wait();
    ok = ok && iterate(30);
    ended.arrive_and_wait();
    good += ok;
  });
  EXPECT_EQ(good, 3);
  EXPECT_EQ(counted, 0);
}

// With a dense colayer and one that is encoded. Rank 0's gradients are zeros, so that there are null pieces.
TEST_F(NoAllocation, NorInASessionsRounds) {
  Job job(3, {"heartbeat_interval=60s", "silence_limit=600s", "silence_warning=0"});
  ASSERT_TRUE(job.joined());
  std::barrier warm(3, []() noexcept { arm(); });
  long counted = -1;
  std::barrier ended(3, [&]() noexcept { counted = disarm(); });
  std::atomic<int> good = 0;
  job.each([&](int rank) {
    const std::size_t counts[] = {20'000, 70'000};
    std::uint32_t codecs[] = {0, 0};
    EXPECT_EQ(canary_codec("sketch:8", &codecs[1]), CANARY_OK);
    canary_session_options o = CANARY_SESSION_OPTIONS_INIT;
    o.number = 1;
    o.counts = counts;
    o.colayers = 2;
    o.codecs = codecs;
    o.at_bound = CANARY_AT_BOUND_WAIT;
    o.staleness = 0;
    canary_session* session = nullptr;
    EXPECT_EQ(canary_session_open(job.world(rank), &o, &session), CANARY_OK) << last_error().message;
    std::vector<float> gradient(70'000, static_cast<float>(rank)), sums(90'000);
    canary_session_result result = CANARY_SESSION_RESULT_INIT;
    const auto iterate = [&](int iterations) {
      for (int i = 0; i < iterations; ++i) {
        for (int z = 0; z < 2; ++z) {
          if (canary_session_push(session, z, gradient.data(), counts[z]) != CANARY_OK) return false;
        }
        if (canary_session_step(session, sums.data(), sums.size(), &result, nullptr) != CANARY_OK) return false;
      }
      return true;
    };
    bool ok = iterate(12);
    warm.arrive_and_wait();
    ok = ok && iterate(50);
    ended.arrive_and_wait();
    good += ok;
    EXPECT_EQ(canary_session_finish(session, sums.data(), sums.size(), &result, nullptr), CANARY_OK);
    EXPECT_EQ(canary_session_close(session), CANARY_OK);
  });
  EXPECT_EQ(good, 3);
  EXPECT_EQ(counted, 0);
}

// --- idle ------------------------------------------------------------------------------------------------------------

// What this process has taken so far: seconds on a core, and how often one of its threads slept and came back.
struct Taken {
  double seconds = 0;
  double wakes = 0;
};

Taken taken() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return {seconds(u.ru_utime) + seconds(u.ru_stime), static_cast<double>(u.ru_nvcsw)};
}

class Idle : public testing::TestWithParam<const char*> {};

TEST_P(Idle, AJoinedJobTakesLessThanAHundredthOfACore) {
  const test::Strings settings = {std::string("transports=") + GetParam()};
  const int seconds = std::getenv("CANARY_TEST_QUICK") != nullptr ? 3 : 10;
  const std::string join = test::join_url(test::free_port());
  std::vector<test::Process> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.emplace_back([&, r]() -> std::string {
      canary_context* context = nullptr;
      if (test::init(join, r, 2, settings, &context) != CANARY_OK) return "-1 -1";
      std::vector<float> v(1 << 20);
      for (int i = 0; i < 5; ++i)
        canary_all_reduce(canary_world(context), v.data(), v.data(), v.size(), CANARY_F32, CANARY_MAX, nullptr);
      const Taken before = taken();
      std::this_thread::sleep_for(std::chrono::seconds(seconds));
      const Taken after = taken();
      const bool alive = canary_barrier(canary_world(context), nullptr) == CANARY_OK;
      canary_finalize(context);
      if (!alive) return "-2 -2";
      return std::to_string((after.seconds - before.seconds) / seconds) + ' ' +
             std::to_string((after.wakes - before.wakes) / seconds);
    });
  }
  for (test::Process& p : ranks) {
    std::istringstream text(p.report());
    double share = -3, wakes = -3;
    ASSERT_TRUE(text >> share >> wakes);
    EXPECT_GE(share, 0);
    // What a sanitizer adds to a wake-up, whose memory is cold each time, is not the library's.
    if (!test::sanitized()) {
      EXPECT_LT(share, 0.01);
    }
    // Five heartbeats a second to send and five to answer, a look at the clock every 50 ms, and the job's own: 35.
    EXPECT_LT(wakes, 60);
    std::printf("idle: %.2f %% of a core, %.0f wake-ups per second\n", share * 100, wakes);
  }
}

INSTANTIATE_TEST_SUITE_P(Over, Idle, testing::Values("tcp", "shm"),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace canarynet
