// The rank whose end decides canary-run's exit status, whatever order the kernel reports the ends in.
#include "tools/run/ranks.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <string>
#include <vector>

namespace canarynet::run {
namespace {

constexpr int exited(int code) { return code << 8; }
constexpr int killed(int signal) { return signal; }

// Real processes that never get their go-ahead; the tests report their ends by hand.
class RanksTest : public ::testing::Test {
 protected:
  RanksTest() : ranks(options_of(), [this](int, const std::string& text) { return told += text, true; }) {
    EXPECT_TRUE(pids.open().ok());
    EXPECT_TRUE(ranks.spawn(pids, "tcp://127.0.0.1:1", "/none").ok());
    children = ranks.outer_pids();
  }
  ~RanksTest() override {
    for (const pid_t pid : children) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
  const RunOptions& options_of() {
    options.ranks = 3;
    options.command = {"true"};
    return options;
  }
  void end(int rank, int status, Nanos now) { ranks.ended(children[static_cast<std::size_t>(rank)], status, now); }

  RunOptions options;
  std::string told;
  OuterPids pids;
  Ranks ranks;
  std::vector<pid_t> children;
};

TEST_F(RanksTest, AKilledRanksStatusCountsThoughASurvivorsErrorWasSeenFirst) {
  end(2, exited(1), 1_s);  // its connection to the dying rank ended before that had ended
  end(0, killed(SIGKILL), 1020_ms);
  end(1, exited(1), 1030_ms);
  EXPECT_EQ(ranks.exit_code(), 128 + SIGKILL);
}

TEST_F(RanksTest, ASurvivorThatAbortsIsNotTheCause) {
  end(1, killed(SIGABRT), 1_s);
  end(0, killed(SIGSEGV), 1020_ms);
  EXPECT_EQ(ranks.exit_code(), 128 + SIGSEGV);
}

TEST_F(RanksTest, TheFirstOfTwoKilledOnesCounts) {
  end(1, killed(SIGKILL), 1_s);
  end(0, killed(SIGSEGV), 1010_ms);
  end(2, exited(3), 1020_ms);
  EXPECT_EQ(ranks.exit_code(), 128 + SIGKILL);
}

TEST_F(RanksTest, AFailureIsNotExcusedByADeathLongAfterIt) {
  end(1, exited(3), 1_s);
  end(0, killed(SIGKILL), 4_s);
  EXPECT_EQ(ranks.exit_code(), 3);
}

TEST_F(RanksTest, WhomCanaryRunStopsItselfIsNotTheCause) {
  end(1, exited(3), 1_s);
  ranks.stop(124, 1500_ms);
  end(0, killed(SIGTERM), 1600_ms);
  EXPECT_EQ(ranks.exit_code(), 3);
}

}  // namespace
}  // namespace canarynet::run
