// Calls that differ, over real sockets: every rank hears which rank called what, and soon. The measured time is
// printed.
#include <barrier>
#include <cstdio>

#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using test::Job;
using test::kToldBound;
using test::last_error;
using test::now;

// A call of rank `odd` where all others call all_reduce(1000, f32, sum).
struct Odd {
  const char* name;
  canary_status (*call)(canary_group*, void* memory, canary_op**);
  const char* says;  // of the odd one's arguments
};

canary_status usual(canary_group* g, void* m, canary_op** op) {
  return canary_all_reduce(g, m, m, 1000, CANARY_F32, CANARY_SUM, op);
}

const Odd kOdds[] = {
    {"count",
     [](canary_group* g, void* m, canary_op** op) {
       return canary_all_reduce(g, m, m, 999, CANARY_F32, CANARY_SUM, op);
     },
     "999"},
    {"large",
     [](canary_group* g, void* m, canary_op** op) {
       return canary_all_reduce(g, m, m, 100'000, CANARY_F32, CANARY_SUM, op);
     },
     "100000"},
    {"empty",
     [](canary_group* g, void* m, canary_op** op) { return canary_all_reduce(g, m, m, 0, CANARY_F32, CANARY_SUM, op); },
     "n=0"},
    {"type",
     [](canary_group* g, void* m, canary_op** op) {
       return canary_all_reduce(g, m, m, 1000, CANARY_I32, CANARY_SUM, op);
     },
     "i32"},
    {"redop",
     [](canary_group* g, void* m, canary_op** op) {
       return canary_all_reduce(g, m, m, 1000, CANARY_F32, CANARY_MAX, op);
     },
     "max"},
    {"collective",
     [](canary_group* g, void* m, canary_op** op) { return canary_broadcast(g, m, m, 1000, CANARY_F32, 0, op); },
     "broadcast"},
    {"scatter",
     [](canary_group* g, void* m, canary_op** op) {
       return canary_reduce_scatter(g, m, static_cast<float*>(m) + 200'000, 1000, CANARY_F32, CANARY_SUM, op);
     },
     "reduce_scatter"},
    {"barrier", [](canary_group* g, void*, canary_op** op) { return canary_barrier(g, op); }, "barrier"},
};

class Mismatch : public testing::TestWithParam<Odd> {};

TEST_P(Mismatch, IsToldToEveryRankSoonAfterTheLastOneCame) {
  const Odd& odd = GetParam();
  for (const int who : {0, 2, 3}) {
    for (const bool async : {false, true}) {
      constexpr int kRanks = 4;
      Job job(kRanks);
      ASSERT_TRUE(job.joined());
      std::barrier start(kRanks);
      std::atomic<double> entered = 0, told = 0;
      job.each([&](int r) {
        std::vector<float> memory(400'000);
        canary_op* op = nullptr;
        start.arrive_and_wait();
        if (r == who) {
          usleep(30'000);  // comes last
          entered = now();
        }
        canary_status status = (r == who ? odd.call : usual)(job.world(r), memory.data(), async ? &op : nullptr);
        if (op != nullptr) status = canary_op_wait(op);
        // An operation that needs nothing from a disagreeing rank may have completed there: the next call tells.
        const int number = status == CANARY_OK ? 2 : 1;
        if (status == CANARY_OK) status = usual(job.world(r), memory.data(), nullptr);
        const double at = now();
        for (double seen = told; seen < at && !told.compare_exchange_weak(seen, at);) {
        }
        ASSERT_EQ(status, CANARY_MISMATCH) << odd.name << " rank " << r;
        const test::Error e = last_error();
        EXPECT_EQ(e.op_number, number) << e.message;
        EXPECT_NE(e.message.find("operation #1 of group 1: rank "), std::string::npos) << e.message;
        EXPECT_NE(e.message.find("rank " + std::to_string(who) + " called "), std::string::npos) << e.message;
        EXPECT_NE(e.message.find(odd.says), std::string::npos) << e.message;
        EXPECT_NE(e.message.find("all_reduce f32 n=1000 sum"), std::string::npos) << e.message;
        EXPECT_TRUE(e.rank >= 0 && e.rank < kRanks) << e.message;
      });
      const double took = told - entered;
      EXPECT_LT(took, kToldBound);
      std::printf("%s, rank %d%s: all knew after %.1f ms\n", odd.name, who, async ? ", async" : "", took * 1e3);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Mismatch, testing::ValuesIn(kOdds),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(Mismatch, OrderAndRootAreCompared) {
  for (const bool order : {false, true}) {
    Job job(3);
    ASSERT_TRUE(job.joined());
    std::atomic<double> entered = 0, told = 0;
    job.each([&](int r) {
      std::vector<float> a(1000), b(1000);
      const int root = !order && r == 2 ? 1 : 0;
      canary_op *reduce = nullptr, *cast = nullptr;
      if (r == 2) {
        usleep(30'000);
        entered = now();
      }
      const auto call_cast = [&] {
        return canary_broadcast(job.world(r), b.data(), b.data(), b.size(), CANARY_F32, root, &cast);
      };
      if (order && r == 2) {
        ASSERT_EQ(call_cast(), CANARY_OK);
      }
      ASSERT_EQ(canary_all_reduce(job.world(r), a.data(), a.data(), a.size(), CANARY_F32, CANARY_SUM, &reduce),
                CANARY_OK);
      if (cast == nullptr) {
        ASSERT_EQ(call_cast(), CANARY_OK);
      }
      const canary_status first = canary_op_wait(reduce);
      if (order) {
        EXPECT_EQ(first, CANARY_MISMATCH) << r;
      }
      canary_status second = canary_op_wait(cast);
      // The root of a broadcast may be through before the others come.
      if (second == CANARY_OK) second = canary_barrier(job.world(r), nullptr);
      EXPECT_EQ(second, CANARY_MISMATCH) << r;
      told = std::max(told.load(), now());
      const std::string text = last_error().message;
      // In another order both operations differ, and signatures of either may be the first to meet.
      const bool of_second = order && text.find("operation #2 ") != std::string::npos;
      const char* const theirs = of_second ? "rank 2 called all_reduce" : "rank 2 called broadcast";
      EXPECT_NE(text.find(theirs), std::string::npos) << text;
      EXPECT_NE(text.find(of_second ? "called broadcast"
                          : order   ? "called all_reduce"
                                    : "root=1"),
                std::string::npos)
          << text;
    });
    EXPECT_LT(told - entered, kToldBound);
    std::printf("%s: all knew after %.1f ms\n", order ? "order" : "root", (told - entered) * 1e3);
  }
}

// A call in which rank 2 differs, what its own arguments are called and what those of the others.
struct Rooted {
  const char* name;
  canary_status (*call)(canary_group*, float* memory, int rank, bool odd, canary_op**);
  const char* odd;
  const char* usual;
  int partner = -1;  // all_to_all_v: whose counts differ from rank 2's
};

const Rooted kRooted[] = {
    {"reduce_root",
     [](canary_group* g, float* m, int, bool odd, canary_op** op) {
       return canary_reduce(g, m, m + 3000, 1000, CANARY_F32, CANARY_SUM, odd ? 1 : 0, op);
     },
     "reduce f32 n=1000 sum root=1", "reduce f32 n=1000 sum root=0"},
    {"reduce_redop",
     [](canary_group* g, float* m, int, bool odd, canary_op** op) {
       return canary_reduce(g, m, m + 3000, 1000, CANARY_F32, odd ? CANARY_MIN : CANARY_SUM, 0, op);
     },
     "reduce f32 n=1000 min", "reduce f32 n=1000 sum"},
    {"gather_count",
     [](canary_group* g, float* m, int, bool odd, canary_op** op) {
       return canary_gather(g, m, m + 3000, odd ? 999 : 1000, CANARY_F32, 1, op);
     },
     "gather f32 n=999 root=1", "gather f32 n=1000 root=1"},
    {"gather_own_root",
     [](canary_group* g, float* m, int, bool odd, canary_op** op) {
       return canary_gather(g, m, m + 3000, 1000, CANARY_F32, odd ? 2 : 1, op);
     },
     "gather f32 n=1000 root=2", "gather f32 n=1000 root=1"},
    {"scatter_type",
     [](canary_group* g, float* m, int, bool odd, canary_op** op) {
       return canary_scatter(g, m, m + 3000, 1000, odd ? CANARY_I32 : CANARY_F32, 1, op);
     },
     "scatter i32 n=1000 root=1", "scatter f32 n=1000 root=1"},
    {"all_to_all_count",
     [](canary_group* g, float* m, int, bool odd, canary_op** op) {
       return canary_all_to_all(g, m, m + 3000, odd ? 0 : 1000, CANARY_F32, op);
     },
     "all_to_all f32 n=0", "all_to_all f32 n=1000"},
    {"all_gather_v_counts",
     [](canary_group* g, float* m, int, bool odd, canary_op** op) {
       const std::size_t counts[] = {10, 20, 30}, others[] = {10, 25, 30};
       return canary_all_gather_v(g, m, m + 3000, odd ? others : counts, CANARY_F32, op);
     },
     "all_gather_v f32 n=65 counts=[10,25,30]", "all_gather_v f32 n=60 counts=[10,20,30]"},
    {"all_gather_v_order",
     [](canary_group* g, float* m, int, bool odd, canary_op** op) {
       const std::size_t counts[] = {10, 20, 30}, others[] = {20, 10, 30};
       return canary_all_gather_v(g, m, m + 3000, odd ? others : counts, CANARY_F32, op);
     },
     "counts=[20,10,30]", "counts=[10,20,30]"},
    {"all_to_all_v_sends_more",
     [](canary_group* g, float* m, int, bool odd, canary_op** op) {
       const std::size_t ten[] = {10, 10, 10}, send[] = {10, odd ? 11u : 10u, 10};
       return canary_all_to_all_v(g, m, send, nullptr, m + 3000, ten, nullptr, CANARY_F32, op);
     },
     "with 11 elements for rank 1", "rank 1 called all_to_all_v f32 mesh piece=131072 with 10 elements from rank 2", 1},
    {"all_to_all_v_sends_unasked",
     [](canary_group* g, float* m, int, bool odd, canary_op** op) {
       // Only rank 2 has something to send, and rank 0 does not know of it.
       const std::size_t none[] = {0, 0, 0}, send[] = {odd ? 100'000u : 0u, 0, 0};
       return canary_all_to_all_v(g, m, send, nullptr, m + 200'000, none, nullptr, CANARY_F32, op);
     },
     "with 100000 elements for rank 0", "with 0 elements from rank 2", 0},
    {"all_to_all_v_waits_for_nothing",
     [](canary_group* g, float* m, int, bool odd, canary_op** op) {
       const std::size_t none[] = {0, 0, 0}, receive[] = {odd ? 5u : 0u, 0, 0};
       return canary_all_to_all_v(g, m, none, nullptr, m + 3000, receive, nullptr, CANARY_F32, op);
     },
     "with 5 elements from rank 0", "with 0 elements for rank 2", 0},
};

class OddArguments : public testing::TestWithParam<Rooted> {};

TEST_P(OddArguments, AreNamedOnEveryRank) {
  const Rooted& c = GetParam();
  for (const bool async : {false, true}) {
    Job job(3);
    ASSERT_TRUE(job.joined());
    std::atomic<double> entered = 0, told = 0;
    job.each([&](int r) {
      std::vector<float> memory(400'000);
      canary_op* op = nullptr;
      if (r == 2) {
        usleep(30'000);  // comes last
        entered = now();
      }
      canary_status status = c.call(job.world(r), memory.data(), r, r == 2, async ? &op : nullptr);
      if (op != nullptr) status = canary_op_wait(op);
      // A rank that needs nothing from a disagreeing one may be through before it comes; when the counts of two differ,
      // neither is.
      if (r == c.partner || (c.partner >= 0 && r == 2)) {
        EXPECT_EQ(status, CANARY_MISMATCH) << "rank " << r;
      }
      if (status == CANARY_OK) status = usual(job.world(r), memory.data(), nullptr);
      for (double seen = told, at = now(); seen < at && !told.compare_exchange_weak(seen, at);) {
      }
      ASSERT_EQ(status, CANARY_MISMATCH) << "rank " << r << ": " << last_error().message;
      const test::Error e = last_error();
      EXPECT_NE(e.message.find("rank 2 called "), std::string::npos) << e.message;
      EXPECT_NE(e.message.find(c.odd), std::string::npos) << e.message;
      EXPECT_NE(e.message.find(c.usual), std::string::npos) << e.message;
    });
    EXPECT_LT(told - entered, kToldBound);
    std::printf("%s%s: all knew after %.1f ms\n", c.name, async ? ", async" : "", (told - entered) * 1e3);
  }
}

INSTANTIATE_TEST_SUITE_P(All, OddArguments, testing::ValuesIn(kRooted),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

}  // namespace
}  // namespace canarynet
