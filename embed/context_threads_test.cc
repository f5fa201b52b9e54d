// Many application threads on one context: each has a group of its own to call in, all of them wait, poll, form and end
// groups, read counters and errors at the same time. Also run under ThreadSanitizer.
#include <barrier>
#include <numeric>

#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using test::Job;
using test::last_error;

constexpr int kThreads = 4;  // per rank

// One group of all ranks for each thread.
std::vector<std::vector<canary_group*>> groups_of(const Job& job) {
  std::vector<std::vector<canary_group*>> out(static_cast<std::size_t>(job.ranks()));
  job.each([&](int r) {
    std::vector<int> all(static_cast<std::size_t>(job.ranks()));
    std::iota(all.begin(), all.end(), 0);
    for (int t = 0; t < kThreads; ++t) {
      canary_group* g = nullptr;
      EXPECT_EQ(canary_group_create(job.context(r), all.data(), job.ranks(), &g), CANARY_OK) << last_error().message;
      out[static_cast<std::size_t>(r)].push_back(g);
    }
  });
  return out;
}

// body(rank, thread) on kThreads threads of each rank.
void on_all_threads(const Job& job, const std::function<void(int, int)>& body) {
  test::on_threads(job.ranks() * kThreads, [&](int i) { body(i / kThreads, i % kThreads); });
}

class ContextThreads : public testing::TestWithParam<const char*> {};

TEST_P(ContextThreads, CallTheirOwnGroupsAndWaitOrPoll) {
  Job job(2, {GetParam()});
  ASSERT_TRUE(job.joined());
  const auto groups = groups_of(job);
  on_all_threads(job, [&](int r, int t) {
    canary_group* g = groups[static_cast<std::size_t>(r)][static_cast<std::size_t>(t)];
    std::vector<float> a(static_cast<std::size_t>(t) * 5'000 + 1), b(100'000);
    for (int round = 0; round < 25; ++round) {
      const auto value = static_cast<float>(r + t * 10 + round);
      std::fill(a.begin(), a.end(), value);
      std::fill(b.begin(), b.end(), value);
      canary_op *first = nullptr, *second = nullptr;
      ASSERT_EQ(canary_all_reduce(g, a.data(), a.data(), a.size(), CANARY_F32, CANARY_SUM, &first), CANARY_OK);
      ASSERT_EQ(canary_all_reduce(g, b.data(), b.data(), b.size(), CANARY_F32, CANARY_MAX, &second), CANARY_OK);
      ASSERT_EQ(canary_op_set_deadline(second, 60'000'000'000), CANARY_OK);
      canary_status status = CANARY_WOULD_BLOCK;
      if (t % 2 == 0) {
        status = canary_op_wait(first);
      } else {
        while ((status = canary_op_test(first)) == CANARY_WOULD_BLOCK) std::this_thread::yield();
      }
      ASSERT_EQ(status, CANARY_OK) << last_error().message;
      ASSERT_EQ(canary_op_wait(second), CANARY_OK) << last_error().message;
      ASSERT_EQ(a.back(), 2 * value + (r == 0 ? 1.f : -1.f));
      ASSERT_EQ(b.back(), value + (r == 0 ? 1.f : 0.f));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Driven, ContextThreads,
                         testing::Values("progress_thread=1", "progress_thread=0", "spin_budget=50us"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           name[name.find('=')] = '_';
                           return name;
                         });

TEST(ContextThreads, WaitForWhatAnotherThreadSubmitted) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  for (int round = 0; round < 20; ++round) {
    std::vector<float> memory[2][kThreads];
    canary_op* ops[2][kThreads] = {};
    job.each([&](int r) {
      for (int t = 0; t < kThreads; ++t) {
        memory[r][t].assign(20'000, static_cast<float>(t + 1));
        ASSERT_EQ(canary_all_reduce(job.world(r), memory[r][t].data(), memory[r][t].data(), 20'000, CANARY_F32,
                                    CANARY_SUM, &ops[r][t]),
                  CANARY_OK);
      }
    });
    // In another order than they were called in.
    on_all_threads(job, [&](int r, int t) {
      const int mine = kThreads - 1 - t;
      ASSERT_EQ(canary_op_wait(ops[r][mine]), CANARY_OK) << last_error().message;
      ASSERT_EQ(memory[r][mine].back(), static_cast<float>(2 * (mine + 1)));
    });
  }
}

TEST(ContextThreads, FormAndEndGroupsAndReadCountersBesideEachOther) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  std::atomic<int> busy = 2 * (kThreads - 1);
  std::barrier<> completed[2] = {std::barrier<>(2), std::barrier<>(2)};
  on_all_threads(job, [&](int r, int t) {
    canary_context* context = job.context(r);
    if (t == 0) {  // looks on
      while (busy > 0) {
        canary_nic_stats nics[16];
        std::size_t count = 0;
        ASSERT_EQ(canary_stats(context, nics, 16, &count), CANARY_OK);
        ASSERT_GE(count, 1u);
        canary_link_stats links[4];
        links[0].struct_size = sizeof links[0];
        ASSERT_EQ(canary_links(context, links, 4, &count), CANARY_OK);
        ASSERT_GE(count, 1u);
        ASSERT_NE(canary_group_algorithm(job.world(r)), nullptr);
        std::this_thread::yield();
      }
      return;
    }
    // Lists must differ between threads that ask at the same time: here by order or by members.
    const int lists[3][2] = {{0, 1}, {1, 0}, {r, -1}};
    const int* list = lists[t - 1];
    const int size = t == 3 ? 1 : 2;
    for (int round = 0; round < 10; ++round) {
      canary_group* g = nullptr;
      EXPECT_EQ(canary_group_create(context, list, size, &g), CANARY_OK) << last_error().message;
      if (g == nullptr) break;
      float v = 1;
      EXPECT_EQ(canary_all_reduce(g, &v, &v, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK) << last_error().message;
      EXPECT_EQ(v, static_cast<float>(size));
      // An abort ends what is still pending elsewhere, also what has completed here.
      if (size == 2) completed[t - 1].arrive_and_wait();
      if (round % 3 == 2 && r == list[0]) {
        EXPECT_EQ(canary_group_abort(g, "enough"), CANARY_OK);
      }
      if (round % 3 == 2) {
        EXPECT_EQ(canary_op_test(nullptr), CANARY_INVALID_ARGUMENT);  // errors of this thread alone
        float w = 1;
        const canary_status status = canary_all_reduce(g, &w, &w, 1, CANARY_F32, CANARY_SUM, nullptr);
        EXPECT_EQ(status, CANARY_ABORTED);
        EXPECT_NE(last_error().message.find("enough"), std::string::npos) << last_error().message;
      }
      EXPECT_EQ(canary_group_destroy(g), CANARY_OK) << last_error().message;
    }
    --busy;
  });
}

TEST(ContextThreads, AreAllToldWhenARankAborts) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  const auto groups = groups_of(job);
  std::atomic<int> waiting = 0;
  on_all_threads(job, [&](int r, int t) {
    canary_group* g = groups[static_cast<std::size_t>(r)][static_cast<std::size_t>(t)];
    if (r == 0) {
      canary_op* op = nullptr;
      ASSERT_EQ(canary_barrier(g, &op), CANARY_OK);
      ++waiting;
      EXPECT_EQ(canary_op_wait(op), CANARY_ABORTED);
      EXPECT_NE(last_error().message.find("thread " + std::to_string(t)), std::string::npos) << last_error().message;
    } else {
      while (waiting < kThreads) std::this_thread::yield();
      EXPECT_EQ(canary_group_abort(g, ("thread " + std::to_string(t)).c_str()), CANARY_OK);
    }
  });
}

}  // namespace
}  // namespace canarynet
