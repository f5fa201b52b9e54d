// A process that forks without exec (a data loader does): its child must keep nobody's connections alive, and its calls
// be refused in words. Through the public headers alone, over real sockets and shared memory.
#include <sys/mman.h>
#include <sys/syscall.h>

#include <array>
#include <ctime>
#include <sstream>

#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using std::chrono::steady_clock;
using test::last_error;
using test::Process;
using test::Strings;

constexpr double kAtOnce = 0.5;  // silence is noticed after a second

// Shared by all processes of a test.
struct Board {
  std::atomic<int> joined{0};
  std::atomic<int> child{0};  // of the one that forks
  std::atomic<bool> forked{false};
  std::atomic<bool> done{false};
};

class Shared {
 public:
  Shared() {
    void* at = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) abort();
    board_ = new (at) Board;
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() {
    end_child();
    munmap(board_, sizeof(Board));
  }
  void end_child() const {
    if (const int child = board_->child.exchange(0); child > 0) kill(child, SIGKILL);
  }
  Board* operator->() const { return board_; }

 private:
  Board* board_;
};

template <typename Done>
bool within(double seconds, const Done& done) {
  const auto start = steady_clock::now();
  while (!done()) {
    if (test::seconds_since(start) > seconds) return false;
    usleep(1000);
  }
  return true;
}

// A child that does nothing for as long as the test takes. `bare`: by a system call, of which no library hears.
void fork_sleeper(const Shared& board, bool bare) {
  const pid_t child = bare ? static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) : fork();
  if (child == 0) {
    alarm(60);
    for (;;) pause();
  }
  board->child = child;
  board->forked = true;
}

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

canary_context* join(const std::string& url, int rank, int ranks, const Strings& settings, const Shared& board) {
  canary_context* context = nullptr;
  EXPECT_EQ(test::init(url, rank, ranks, settings, &context), CANARY_OK) << last_error().message;
  ++board->joined;
  return context;
}

class Fork : public testing::TestWithParam<const char*> {
 protected:
  const Strings settings_{std::string("transports=") + GetParam()};
  const std::string url_ = test::join_url(test::free_port());
};

TEST_P(Fork, AKilledRankIsNoticedAtOnceThoughItsChildLives) {
  constexpr int kRanks = 3, kVictim = 2;
  const Shared board;
  std::vector<Process> processes;
  for (int r = 0; r < kRanks; ++r) {
    processes.emplace_back([&, r]() -> std::string {
      canary_context* context = join(url_, r, kRanks, settings_, board);
      if (r == kVictim) {
        fork_sleeper(board, false);
        for (;;) pause();
      }
      const canary_status status = canary_barrier(canary_world(context), nullptr);
      const double at = test::now();
      EXPECT_EQ(status, CANARY_PEER_DIED) << last_error().message;
      EXPECT_EQ(last_error().rank, kVictim) << last_error().message;
      canary_finalize(context);
      return std::to_string(at);
    });
  }
  ASSERT_TRUE(within(60, [&] { return board->joined == kRanks && board->forked; }));
  usleep(100'000);  // the others are in the barrier
  const double killed = test::now();
  processes[kVictim].kill();
  for (int r = 0; r < kVictim; ++r) {
    double at = 0;
    std::istringstream(processes[static_cast<std::size_t>(r)].report()) >> at;
    EXPECT_GT(at, 0);
    EXPECT_LT(at - killed, kAtOnce) << "rank " << r;
  }
}

// Also where the fork is one that the library can't see, whose child keeps all descriptors open.
TEST_P(Fork, AParentSleepsWhenItsPeerIsDeadAndItsChildLives) {
  for (const bool bare : {false, true}) {
    constexpr int kRanks = 2, kVictim = 1;
    const Shared board;
    std::vector<Process> processes;
    for (int r = 0; r < kRanks; ++r) {
      processes.emplace_back([&, r]() -> std::string {
        canary_context* context = join(url_, r, kRanks, settings_, board);
        if (r == kVictim) {
          for (;;) pause();
        }
        fork_sleeper(board, bare);
        const canary_status status = canary_barrier(canary_world(context), nullptr);
        EXPECT_EQ(status, CANARY_PEER_DIED) << last_error().message;
        EXPECT_EQ(last_error().rank, kVictim) << last_error().message;
        const double before = cpu_seconds();
        usleep(500'000);
        const double used = cpu_seconds() - before;
        // One that spins uses as much as this loaded machine gives it.
        EXPECT_LT(used, test::sanitized() ? 0.1 : 0.03) << "of half a second in which there was nothing to do";
        const auto start = steady_clock::now();
        EXPECT_EQ(canary_finalize(context), CANARY_OK);
        EXPECT_LT(test::seconds_since(start), 3);
        board->done = true;
        return "done";
      });
    }
    ASSERT_TRUE(within(60, [&] { return board->joined == kRanks && board->forked; }));
    usleep(100'000);
    processes[kVictim].kill();
    EXPECT_TRUE(within(60, [&] { return board->done.load(); }));
    board.end_child();  // it holds the pipe of the report, too
    EXPECT_EQ(processes[0].report(), "done") << (bare ? "bare clone()" : "fork()");
  }
}

INSTANTIATE_TEST_SUITE_P(Over, Fork, testing::Values("tcp", "shm,tcp"),
                         [](const auto& param) { return std::string(param.index == 0 ? "tcp" : "shared_memory"); });

}  // namespace
}  // namespace canarynet
