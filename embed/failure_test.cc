// Ranks die, stop, leave or abort, over real sockets, and the others hear of it soon. The measured time is printed.
#include <sys/mman.h>

#include <barrier>
#include <cstdio>
#include <sstream>

#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using test::Job;
using test::kToldBound;
using test::last_error;
using test::now;
using test::Process;
using test::Strings;

constexpr double kDeathBound = 2;

// --- deaths ----------------------------------------------------------------------------------------------------------

// Forked ranks report to their parent here while they run.
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

// Processes that do so, one per rank.
std::vector<Process> exchanging(int ranks, const SharedBoard& board, std::size_t count, bool async,
                                const Strings& settings = {}) {
  const std::string join = test::join_url(test::free_port());
  std::vector<Process> out;
  for (int r = 0; r < ranks; ++r)
    out.emplace_back([&, r] { return exchange_until_error(join, r, ranks, board, count, async, settings); });
  return out;
}

class Death : public testing::TestWithParam<std::tuple<int, std::size_t, bool, const char*>> {};

TEST_P(Death, OfAKilledRankIsToldToEverySurvivorWithItsName) {
  const auto [victim, count, async, transports] = GetParam();
  const Strings settings = {std::string("transports=") + transports};
  constexpr int kRanks = 4;
  const SharedBoard board;
  std::vector<Process> ranks = exchanging(kRanks, board, count, async, settings);
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
  std::vector<Process> ranks = exchanging(kRanks, board, 1000, false, {"silence_limit=1s"});
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
  EXPECT_LT(last - stopped, 1 + kDeathBound) << "one second is the silence limit here";
  EXPECT_GT(last - stopped, 0.5);
  ASSERT_EQ(kill(ranks[1].pid(), SIGCONT), 0);
  const double resumed = now();
  const Ending e = from_report(ranks[1].report());
  EXPECT_GT(e.code, CANARY_WOULD_BLOCK);
  EXPECT_LT(e.at - resumed, 5);
  std::printf("silent: %.0f ms; the resumed rank after %.0f ms: %s\n", (last - stopped) * 1e3, (e.at - resumed) * 1e3,
              e.message.c_str());
}

TEST(Silence, OfAStoppedRankIsWaitedForAndTheJobGoesOn) {
  constexpr int kRanks = 3;
  for (const char* transports : {"tcp", "shm"}) {
    const SharedBoard board;
    std::vector<Process> ranks = exchanging(kRanks, board, 1000, false, {std::string("transports=") + transports});
    ASSERT_TRUE(board.wait(kRanks, 3));
    for (const std::size_t victim : {std::size_t{0}, std::size_t{2}}) {
      ASSERT_EQ(kill(ranks[victim].pid(), SIGSTOP), 0);
      usleep(2'500'000);
      const int before = board->done[victim];
      ASSERT_EQ(kill(ranks[victim].pid(), SIGCONT), 0);
      const double resumed = now();
      ASSERT_TRUE(board.wait(kRanks, before + 3));
      EXPECT_LT(now() - resumed, 1) << "rank " << victim << ", " << transports;
    }
    // Its end is proven at once all the same, also while it is stopped.
    ASSERT_EQ(kill(ranks[1].pid(), SIGSTOP), 0);
    usleep(1'500'000);
    const double killed = now();
    ranks[1].kill();
    for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
      const Ending e = from_report(ranks[r].report());
      EXPECT_EQ(e.code, CANARY_PEER_DIED) << e.message;
      EXPECT_EQ(e.rank, 1) << e.message;
      EXPECT_LT(e.at - killed, kDeathBound);
      std::printf("told %.0f ms after the kill of the stopped rank\n", (e.at - killed) * 1e3);
    }
  }
}

TEST(Silence, IsNobodysWhenAllWereStopped) {
  constexpr int kRanks = 4;
  const SharedBoard board;
  std::vector<Process> ranks = exchanging(kRanks, board, 1000, false, {"silence_limit=1s"});
  ASSERT_TRUE(board.wait(kRanks, 3));
  for (const double seconds : {1.6, 1.6, 5.0}) {
    for (const Process& p : ranks) ASSERT_EQ(kill(p.pid(), SIGSTOP), 0);
    usleep(static_cast<useconds_t>(seconds * 1e6));
    const int before = board->done[0];
    for (const Process& p : ranks) ASSERT_EQ(kill(p.pid(), SIGCONT), 0);
    usleep(500'000);
    ASSERT_TRUE(board.wait(kRanks, before + 3)) << "after " << seconds << " s";
  }
  // Nobody has been named so far: the first to be is one that really dies.
  ranks[3].kill();
  for (const std::size_t r : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
    const Ending e = from_report(ranks[r].report());
    EXPECT_EQ(e.code, CANARY_PEER_DIED) << e.message;
    EXPECT_EQ(e.rank, 3) << e.message;
  }
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
        EXPECT_LT(now() - began, kToldBound);
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
      EXPECT_LT(now() - began, 0.2 + kToldBound);
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

}  // namespace
}  // namespace canarynet
