// Ranks that disagree, die, stop, leave or abort, over real sockets: who hears what, how soon.
//
// Bounds are five times what is promised (docs: 250 ms for a mismatch): the machines that run this are small and
// shared. The measured time is printed.
#include <sys/mman.h>

#include <barrier>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using std::chrono::steady_clock;
using test::Job;
using test::last_error;
using test::Process;
using test::Strings;

constexpr double kMismatchBound = 1.25;
constexpr double kDeathBound = 2;

double now() { return std::chrono::duration<double>(steady_clock::now().time_since_epoch()).count(); }

// --- calls that differ -----------------------------------------------------------------------------------------------

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
       return canary_reduce_scatter(g, m, m, 1000, CANARY_F32, CANARY_SUM, op);
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
      EXPECT_LT(took, kMismatchBound);
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
      EXPECT_NE(text.find("rank 2 called broadcast"), std::string::npos) << text;
      EXPECT_NE(text.find(order ? "called all_reduce" : "root=1"), std::string::npos) << text;
    });
    EXPECT_LT(told - entered, kMismatchBound);
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
      // Who needs nothing from a disagreeing rank may be through before it comes; of two whose counts differ, neither is.
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
    EXPECT_LT(told - entered, kMismatchBound);
    std::printf("%s%s: all knew after %.1f ms\n", c.name, async ? ", async" : "", (told - entered) * 1e3);
  }
}

INSTANTIATE_TEST_SUITE_P(All, OddArguments, testing::ValuesIn(kRooted),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

// --- deaths ----------------------------------------------------------------------------------------------------------

// What forked ranks tell their parent while they run.
struct Board {
  std::atomic<int> done[8];
  std::atomic<bool> stop;
};

class SharedBoard {
 public:
  SharedBoard()
      : board_(new (mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board{}) {}
  ~SharedBoard() { munmap(board_, sizeof(Board)); }
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;
  Board* operator->() const { return board_; }
  // Until all of `ranks` have finished `count` operations.
  bool wait(int ranks, int count) const {
    const double began = now();
    for (int r = 0; r < ranks;) {
      if (board_->done[r] >= count) {
        ++r;
      } else if (now() - began > 30) {
        return false;
      } else {
        usleep(1000);
      }
    }
    return true;
  }

 private:
  Board* board_;
};

struct Ending {
  int code = -1;
  int rank = -1;
  double at = 0;
  std::string host, message;
};

std::string to_report(canary_status code) {
  const test::Error e = last_error();
  std::ostringstream out;
  out.precision(17);
  out << code << ' ' << e.rank << ' ' << now() << ' ' << (e.host.empty() ? "-" : e.host) << ' ' << e.message;
  return out.str();
}

Ending from_report(const std::string& text) {
  Ending e;
  std::istringstream in(text);
  in >> e.code >> e.rank >> e.at >> e.host;
  std::getline(in, e.message);
  return e;
}

// Exchanges until that fails; reports how.
std::string exchange_until_error(const std::string& join, int rank, int ranks, const SharedBoard& board,
                                 std::size_t count, bool async, const Strings& settings = {}) {
  canary_context* context = nullptr;
  canary_status status = test::init(join, rank, ranks, settings, &context);
  if (status != CANARY_OK) return to_report(status);
  std::vector<float> memory(count);
  while (status == CANARY_OK && !board->stop) {
    canary_op* op = nullptr;
    status = canary_all_reduce(canary_world(context), memory.data(), memory.data(), count, CANARY_F32, CANARY_MAX,
                               async ? &op : nullptr);
    if (op != nullptr) {
      while ((status = canary_op_test(op)) == CANARY_WOULD_BLOCK) usleep(200);
    }
    ++board->done[rank];
  }
  const std::string text = to_report(status);
  canary_finalize(context);
  return text;
}

class Death : public testing::TestWithParam<std::tuple<int, std::size_t, bool, const char*>> {};

TEST_P(Death, OfAKilledRankIsToldToEverySurvivorWithItsName) {
  const auto [victim, count, async, transports] = GetParam();
  const Strings settings = {std::string("transports=") + transports};
  constexpr int kRanks = 4;
  const SharedBoard board;
  const std::string join = test::join_url(test::free_port());
  std::vector<Process> ranks;
  for (int r = 0; r < kRanks; ++r) {
    ranks.emplace_back([&, r, size = count, polls = async] {
      return exchange_until_error(join, r, kRanks, board, size, polls, settings);
    });
  }
  ASSERT_TRUE(board.wait(kRanks, 3));
  const pid_t pid = ranks[static_cast<std::size_t>(victim)].pid();
  const double killed = now();
  ranks[static_cast<std::size_t>(victim)].kill();
  double last = 0;
  for (int r = 0; r < kRanks; ++r) {
    if (r == victim) continue;
    const Ending e = from_report(ranks[static_cast<std::size_t>(r)].report());
    EXPECT_EQ(e.code, CANARY_PEER_DIED) << "rank " << r << ": " << e.message;
    EXPECT_EQ(e.rank, victim) << "rank " << r << ": " << e.message;
    EXPECT_NE(e.message.find("rank " + std::to_string(victim)), std::string::npos) << e.message;
    EXPECT_NE(e.message.find("pid " + std::to_string(pid)), std::string::npos) << e.message;
    EXPECT_NE(e.host, "-");
    last = std::max(last, e.at);
  }
  EXPECT_LT(last - killed, kDeathBound);
  std::printf("all survivors knew after %.1f ms\n", (last - killed) * 1e3);
}

INSTANTIATE_TEST_SUITE_P(All, Death,
                         testing::Combine(testing::Values(0, 2), testing::Values(std::size_t{1}, std::size_t{1} << 21),
                                          testing::Bool(), testing::Values("tcp", "shm")),
                         [](const auto& param_info) {
                           return "rank" + std::to_string(std::get<0>(param_info.param)) + "_count" +
                                  std::to_string(std::get<1>(param_info.param)) +
                                  (std::get<2>(param_info.param) ? "_polled_" : "_waited_") +
                                  std::get<3>(param_info.param);
                         });

TEST(Death, OfAnIdleJobsRankIsToldByTheNextCall) {
  const SharedBoard board;
  const std::string join = test::join_url(test::free_port());
  std::vector<Process> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.emplace_back([&, r] {
      canary_context* context = nullptr;
      if (const canary_status s = test::init(join, r, 3, {}, &context); s != CANARY_OK) return to_report(s);
      board->done[r] = 1;
      while (!board->stop) usleep(1000);
      const double began = now();
      const canary_status status = canary_barrier(canary_world(context), nullptr);
      board->done[r] = now() - began < 1 ? 2 : 3;  // known already, not found out
      return to_report(status);
    });
  }
  ASSERT_TRUE(board.wait(3, 1));
  ranks[1].kill();
  usleep(1'500'000);
  board->stop = true;
  for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
    const Ending e = from_report(ranks[r].report());
    EXPECT_EQ(e.code, CANARY_PEER_DIED) << e.message;
    EXPECT_EQ(e.rank, 1);
    EXPECT_EQ(board->done[r], 2);
  }
}

TEST(Death, AStoppedRankIsSilentAndFindsItselfCutOffWhenItResumes) {
  constexpr int kRanks = 3;
  const SharedBoard board;
  const std::string join = test::join_url(test::free_port());
  std::vector<Process> ranks;
  for (int r = 0; r < kRanks; ++r) {
    ranks.emplace_back([&, r] { return exchange_until_error(join, r, kRanks, board, 1000, false); });
  }
  ASSERT_TRUE(board.wait(kRanks, 3));
  const double stopped = now();
  ASSERT_EQ(kill(ranks[1].pid(), SIGSTOP), 0);
  double last = 0;
  for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
    const Ending e = from_report(ranks[r].report());
    EXPECT_EQ(e.code, CANARY_PEER_SILENT) << e.message;
    EXPECT_EQ(e.rank, 1) << e.message;
    last = std::max(last, e.at);
  }
  EXPECT_LT(last - stopped, 1 + kDeathBound) << "one second is the silence limit";
  EXPECT_GT(last - stopped, 0.5);
  ASSERT_EQ(kill(ranks[1].pid(), SIGCONT), 0);
  const double resumed = now();
  const Ending e = from_report(ranks[1].report());
  EXPECT_GT(e.code, CANARY_WOULD_BLOCK);
  EXPECT_LT(e.at - resumed, 5);
  std::printf("silent: %.0f ms; the resumed rank after %.0f ms: %s\n", (last - stopped) * 1e3, (e.at - resumed) * 1e3,
              e.message.c_str());
}

// --- leaving ---------------------------------------------------------------------------------------------------------

TEST(Leaving, IsNoDeathForThoseWhoGoOn) {
  for (const int leaver : {0, 2}) {
    Job job(3);
    ASSERT_TRUE(job.joined());
    std::vector<int> stay;
    for (int r = 0; r < 3; ++r) {
      if (r != leaver) stay.push_back(r);
    }
    std::atomic<int> rounds = 0;
    job.each([&](int r) {
      if (r == leaver) {
        EXPECT_EQ(canary_barrier(job.world(r), nullptr), CANARY_OK) << last_error().message;
        while (rounds < 20) usleep(1000);  // in the middle of the others' work
        job.leave(r);
        return;
      }
      canary_group* g = nullptr;
      ASSERT_EQ(canary_group_create(job.context(r), stay.data(), 2, &g), CANARY_OK) << last_error().message;
      ASSERT_EQ(canary_barrier(job.world(r), nullptr), CANARY_OK) << last_error().message;
      // Longer than the silence limit after it left. The first of the two says when to end.
      std::vector<float> memory(10'000, 1);
      const double began = now();
      for (float go_on = 1; go_on == 1;) {
        ASSERT_EQ(canary_all_reduce(g, memory.data(), memory.data(), memory.size(), CANARY_F32, CANARY_AVG, nullptr),
                  CANARY_OK)
            << last_error().message;
        ASSERT_EQ(memory[777], 1);
        ++rounds;
        usleep(500);
        go_on = now() - began < 2.5 ? 1 : 0;
        ASSERT_EQ(canary_broadcast(g, &go_on, &go_on, 1, CANARY_F32, 0, nullptr), CANARY_OK) << last_error().message;
      }
      // An operation that needs it is lost, and says why.
      EXPECT_EQ(canary_barrier(job.world(r), nullptr), CANARY_PEER_DIED);
      EXPECT_EQ(last_error().rank, leaver);
      EXPECT_NE(last_error().message.find("left the job"), std::string::npos) << last_error().message;
      // The other group is untouched by that.
      EXPECT_EQ(canary_barrier(g, nullptr), CANARY_OK) << last_error().message;
      EXPECT_EQ(canary_group_destroy(g), CANARY_OK) << last_error().message;
    });
  }
}

TEST(Leaving, RightAfterTheLastOperationLosesNobodysResult) {
  for (int round = 0; round < 10; ++round) {
    Job job(4);
    ASSERT_TRUE(job.joined());
    job.each([&](int r) {
      std::vector<float> memory(50'000, static_cast<float>(r));
      EXPECT_EQ(
          canary_all_reduce(job.world(r), memory.data(), memory.data(), memory.size(), CANARY_F32, CANARY_SUM, nullptr),
          CANARY_OK)
          << last_error().message;
      EXPECT_EQ(memory[49'999], 6);
      job.leave(r);
    });
  }
}

// --- what the caller ends --------------------------------------------------------------------------------------------

TEST(Abort, EndsPendingAndLaterOperationsOfTheGroupEverywhereAndNoOtherGroup) {
  Job job(3);
  ASSERT_TRUE(job.joined());
  std::barrier both(2);
  job.each([&](int r) {
    const int pair[] = {2, 1};
    canary_group* g = nullptr;
    if (r != 0) {
      ASSERT_EQ(canary_group_create(job.context(r), pair, 2, &g), CANARY_OK) << last_error().message;
      float v = 1;
      canary_op* op = nullptr;
      if (r == 2) {
        ASSERT_EQ(canary_all_reduce(g, &v, &v, 1, CANARY_F32, CANARY_SUM, &op), CANARY_OK);
        EXPECT_EQ(canary_op_test(op), CANARY_WOULD_BLOCK);
        both.arrive_and_wait();
        const double began = now();
        EXPECT_EQ(canary_op_wait(op), CANARY_ABORTED);
        EXPECT_LT(now() - began, kMismatchBound);
      } else {
        both.arrive_and_wait();
        EXPECT_EQ(canary_group_abort(g, "the loss is NaN"), CANARY_OK);
        EXPECT_EQ(canary_group_abort(g, "twice changes nothing"), CANARY_OK);
        EXPECT_EQ(canary_barrier(g, nullptr), CANARY_ABORTED);
      }
      const test::Error e = last_error();
      EXPECT_EQ(e.rank, 1) << e.message;
      EXPECT_EQ(e.op_number, 1);
      EXPECT_GT(e.group, 1u);
      EXPECT_NE(e.message.find("aborted by rank 1"), std::string::npos) << e.message;
      EXPECT_NE(e.message.find("the loss is NaN"), std::string::npos) << e.message;
      EXPECT_EQ(canary_barrier(g, nullptr), CANARY_ABORTED);
      EXPECT_NE(last_error().message.find("the loss is NaN"), std::string::npos) << last_error().message;
    }
    float v = 1;
    EXPECT_EQ(canary_all_reduce(job.world(r), &v, &v, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK)
        << last_error().message;
    EXPECT_EQ(v, 3);
    if (g != nullptr) {
      EXPECT_EQ(canary_group_destroy(g), CANARY_OK) << last_error().message;
    }
    // The same ranks may form a new one.
    if (r != 0) {
      ASSERT_EQ(canary_group_create(job.context(r), pair, 2, &g), CANARY_OK) << last_error().message;
      EXPECT_EQ(canary_barrier(g, nullptr), CANARY_OK) << last_error().message;
    }
  });
}

TEST(Deadline, EndsAnOperationThatAnotherRankDoesNotCall) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  std::barrier both(2);
  job.each([&](int r) {
    std::vector<float> v(1000, 1);
    canary_op* op = nullptr;
    // One that is met costs nothing.
    ASSERT_EQ(canary_all_reduce(job.world(r), v.data(), v.data(), v.size(), CANARY_F32, CANARY_SUM, &op), CANARY_OK);
    EXPECT_EQ(canary_op_set_deadline(op, 60'000'000'000), CANARY_OK);
    EXPECT_EQ(canary_op_wait(op), CANARY_OK) << last_error().message;
    if (r == 0) {
      ASSERT_EQ(canary_all_reduce(job.world(r), v.data(), v.data(), v.size(), CANARY_F32, CANARY_SUM, &op), CANARY_OK);
      const double began = now();
      EXPECT_EQ(canary_op_set_deadline(op, 200'000'000), CANARY_OK);
      EXPECT_EQ(canary_op_wait(op), CANARY_DEADLINE);
      EXPECT_GE(now() - began, 0.19);
      EXPECT_LT(now() - began, 0.2 + kMismatchBound);
      EXPECT_NE(last_error().message.find("not entered by rank 1"), std::string::npos) << last_error().message;
      EXPECT_EQ(last_error().op_number, 2);
      EXPECT_GE(last_error().elapsed_ns, 190'000'000u);
      both.arrive_and_wait();
    } else {
      both.arrive_and_wait();
      // The group has ended for this rank as well.
      usleep(100'000);
      EXPECT_EQ(canary_all_reduce(job.world(r), v.data(), v.data(), v.size(), CANARY_F32, CANARY_SUM, nullptr),
                CANARY_DEADLINE);
    }
  });
}

TEST(EntryLimit, NamesTheRankThatDoesNotCall) {
  Job job(3, {"entry_limit=1s"});
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    if (r == 1) {
      usleep(2'500'000);
      return;
    }
    EXPECT_EQ(canary_barrier(job.world(r), nullptr), CANARY_ENTRY_TIMEOUT);
    EXPECT_EQ(last_error().rank, 1) << last_error().message;
    EXPECT_NE(last_error().message.find("rank 1 did not call operation #1"), std::string::npos) << last_error().message;
  });
}

// --- silence -----------------------------------------------------------------------------------------------------------

TEST(Silence, ARankThatRunsOnlyInsideCallsMayComputeBetweenThem) {
  const test::Strings threaded = {"silence_limit=300ms", "heartbeat_interval=50ms"};
  test::Strings driven = threaded;
  driven.push_back("progress_thread=0");
  for (const int slow : {0, 2}) {
    std::vector<test::Strings> settings(3, threaded);
    settings[static_cast<std::size_t>(slow)] = driven;
    Job job(settings);
    ASSERT_TRUE(job.joined());
    job.each([&](int r) {
      for (int round = 0; round < 2; ++round) {
        if (r == slow) std::this_thread::sleep_for(std::chrono::milliseconds(900));
        float value = 1;
        ASSERT_EQ(canary_all_reduce(job.world(r), &value, &value, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK)
            << last_error().message;
        ASSERT_EQ(value, 3);
      }
    });
  }
}

// --- polling ---------------------------------------------------------------------------------------------------------

TEST(Polling, ARankThatOnlyTestsIsAsGoodAsOneThatWaits) {
  for (const char* setting : {"progress_thread=1", "progress_thread=0"}) {
    Job job(3, {setting});
    ASSERT_TRUE(job.joined());
    job.each([&](int r) {
      std::vector<float> v(300'000);
      for (int round = 0; round < 20; ++round) {
        std::fill(v.begin(), v.end(), static_cast<float>(r + round));
        canary_op* op = nullptr;
        ASSERT_EQ(canary_all_reduce(job.world(r), v.data(), v.data(), v.size(), CANARY_F32, CANARY_SUM, &op),
                  CANARY_OK);
        canary_status status = CANARY_WOULD_BLOCK;
        if (r == 2) {
          status = canary_op_wait(op);
        } else {
          while ((status = canary_op_test(op)) == CANARY_WOULD_BLOCK) std::this_thread::yield();
        }
        ASSERT_EQ(status, CANARY_OK) << last_error().message;
        ASSERT_EQ(v[299'999], static_cast<float>(3 + 3 * round));
      }
    });
  }
}

TEST(Polling, TheProgressThreadCompletesWhatNobodyLooksAt) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    std::vector<float> v(1 << 20, 1);
    canary_op* op = nullptr;
    ASSERT_EQ(canary_all_reduce(job.world(r), v.data(), v.data(), v.size(), CANARY_F32, CANARY_SUM, &op), CANARY_OK);
    // Reading the buffer before the library gave it back is the caller's fault: look at a counter instead.
    const double began = now();
    while (std::string(canary_group_algorithm(job.world(r))).empty() && now() - began < 20) usleep(1000);
    EXPECT_LT(now() - began, 20);
    EXPECT_EQ(canary_op_test(op), CANARY_OK) << last_error().message;
    EXPECT_EQ(v[12345], 2);
  });
}

}  // namespace
}  // namespace canarynet
