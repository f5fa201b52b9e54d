// Programs that know only the public header, in a session with a quorum, one of whose workers is late: it sleeps once,
// for longer than it may be absent or not, or its process is stopped, for a while or for ever.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "canarynet/canarynet.hpp"
#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using test::last_error;

constexpr int kRanks = 4, kSlow = 3;
constexpr std::size_t kCounts[] = {3, 20'011};
constexpr std::size_t kAll = 20'014;
constexpr std::int64_t kPause = 30, kLast = 150;  // iterations

// What a worker's gradient is everywhere. The sums of any few of them are exact, and tell who is in them how often.
double value_of(int rank) { return 0.125 * static_cast<double>(1u << (6 * rank)); }

// What became of a worker: "ended", or its error.
struct Outcome {
  char how[400] = "";
  int named = -1;  // the rank in the error
  std::int64_t iteration = 0;
  std::uint64_t pushed = 0, dropped = 0, went_on = 0, was_late = 0;
  double total[2] = {};  // of what it was handed, per element of each colayer
  double seconds = 0;
};

struct Plan {
  const char* rule = "bsp:quorum=60";
  useconds_t sleeps_ms = 0;  // the slow one, once; 0: it is stopped instead
  int at_death = CANARY_AT_DEATH_END;
  test::Strings settings = {};
};

Outcome work(const std::string& join, int rank, const Plan& plan) {
  Outcome out;
  const auto began = std::chrono::steady_clock::now();
  const auto failed = [&] {
    std::snprintf(out.how, sizeof out.how, "%d: %s", static_cast<int>(last_error().code), last_error().message.c_str());
    out.named = last_error().rank;
    out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    return out;
  };
  canary_context* context = nullptr;
  if (test::init(join, rank, kRanks, plan.settings, &context) != CANARY_OK) return failed();
  canary_session_options o = CANARY_SESSION_OPTIONS_INIT;
  o.number = 7;
  o.counts = kCounts;
  o.colayers = 2;
  o.at_death = plan.at_death;
  canary_session* session = nullptr;
  if (canary_session_rule(plan.rule, &o) != CANARY_OK) return failed();
  if (canary_session_open(canary_world(context), &o, &session) != CANARY_OK) return failed();
  std::vector<float> gradient(kCounts[1]), sums(kAll);
  canary_session_result result = CANARY_SESSION_RESULT_INIT;
  const auto take = [&] {
    for (std::size_t i = 0; i < kAll; ++i) {
      if (sums[i] != sums[i < kCounts[0] ? 0 : kAll - 1]) return false;
    }
    out.total[0] += static_cast<double>(sums[0]);
    out.total[1] += static_cast<double>(sums[kAll - 1]);
    out.dropped = result.dropped;
    return true;
  };
  const auto odd = [&] {
    std::snprintf(out.how, sizeof out.how, "elements of a colayer differ");
    return out;
  };
  while (result.iteration <= kLast) {
    usleep(5000);
    for (int z = 0; z < 2; ++z) {
      // The buffer is used for something else as soon as the call is back.
      std::fill(gradient.begin(), gradient.end(), static_cast<float>(value_of(rank)));
      if (canary_session_push(session, z, gradient.data(), kCounts[z]) != CANARY_OK) return failed();
      std::fill(gradient.begin(), gradient.end(), -1e9F);
    }
    ++out.pushed;
    if (rank == kSlow && out.pushed == kPause) {
      if (plan.sleeps_ms == 0) raise(SIGSTOP);
      usleep(1000 * plan.sleeps_ms);
    }
    std::fill(sums.begin(), sums.end(), -1e9F);
    if (canary_session_step(session, sums.data(), kAll, &result, nullptr) != CANARY_OK) return failed();
    if (!take()) return odd();
    canary_session_state state{};
    state.struct_size = sizeof state;
    if (canary_session_read(session, &state) != CANARY_OK) return failed();
    out.went_on = state.went_on;
    out.was_late = state.was_late;
    out.iteration = result.iteration;
  }
  if (canary_session_finish(session, sums.data(), kAll, &result, nullptr) != CANARY_OK) return failed();
  if (!take()) return odd();
  if (canary_session_close(session) != CANARY_OK) return failed();
  if (canary_finalize(context) != CANARY_OK) return failed();
  std::snprintf(out.how, sizeof out.how, "ended");
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return out;
}

class Workers {
 public:
  explicit Workers(const Plan& plan) {
    const std::string join = test::join_url(test::free_port());
    for (int rank = 0; rank < kRanks; ++rank) {
      processes_.push_back(std::make_unique<test::Process>([=] {
        const Outcome outcome = work(join, rank, plan);
        return std::string(reinterpret_cast<const char*>(&outcome), sizeof outcome);
      }));
    }
  }
  void wait_until_stopped() const {
    siginfo_t stopped{};
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(processes_[kSlow]->pid()), &stopped, WSTOPPED | WEXITED | WNOWAIT), 0);
    EXPECT_EQ(stopped.si_code, CLD_STOPPED);
  }
  void wake() const { EXPECT_EQ(::kill(processes_[kSlow]->pid(), SIGCONT), 0); }
  std::array<Outcome, kRanks> outcomes() {
    std::array<Outcome, kRanks> out;
    for (int r = 0; r < kRanks; ++r) out[static_cast<std::size_t>(r)] = outcome(r);
    return out;
  }
  Outcome outcome(int rank) {
    Outcome out;
    const std::string said = processes_[static_cast<std::size_t>(rank)]->report();
    EXPECT_EQ(said.size(), sizeof out) << "rank " << rank;
    if (said.size() == sizeof out) std::copy(said.begin(), said.end(), reinterpret_cast<char*>(&out));
    return out;
  }

 private:
  std::vector<std::unique_ptr<test::Process>> processes_;
};

// Everybody was handed what all have pushed, each gradient once.
void expect_all_counted(const std::array<Outcome, kRanks>& outcomes) {
  double pushed = 0;
  for (int r = 0; r < kRanks; ++r) {
    const Outcome& o = outcomes[static_cast<std::size_t>(r)];
    EXPECT_STREQ(o.how, "ended") << "rank " << r;
    EXPECT_EQ(o.dropped, 0u) << "rank " << r;
    pushed += static_cast<double>(o.pushed) * value_of(r);
  }
  for (const Outcome& o : outcomes) {
    for (const double total : o.total) EXPECT_EQ(total, pushed);
  }
}

TEST(Straggler, TheOthersGoOnWhileItSleepsAndWhatItPushesLateCounts) {
  for (const char* const rule : {"bsp:quorum=60,absences=1048576", "ssp:2,quorum=60,absences=1048576"}) {
    SCOPED_TRACE(rule);
    Workers workers({.rule = rule, .sleeps_ms = 3000});
    const auto outcomes = workers.outcomes();
    expect_all_counted(outcomes);
    EXPECT_GT(outcomes[0].went_on, 5u);
    EXPECT_GT(outcomes[kSlow].was_late, 0u);
  }
}

TEST(Straggler, AfterItsAbsencesItIsWaitedFor) {
  Workers workers({.rule = "bsp:quorum=60,absences=5", .sleeps_ms = 3000});
  const auto outcomes = workers.outcomes();
  expect_all_counted(outcomes);
  for (const Outcome& o : outcomes) EXPECT_GT(o.seconds, 3.0);
  EXPECT_LT(outcomes[0].pushed, outcomes[kSlow].pushed + 20);
}

// Rounds are exchanged by all processes, also for workers that have nothing: one that is stopped holds up all.
TEST(Straggler, AProcessThatIsStoppedHoldsUpTheOthersAndLosesNothing) {
  Workers workers({.rule = "bsp:quorum=60,absences=1048576"});
  workers.wait_until_stopped();
  usleep(2'000'000);
  workers.wake();
  expect_all_counted(workers.outcomes());
}

// Nobody has proved its death: it is silent, and after the limit it counts as dead. Its machine may be back later.
TEST(Straggler, WhoStandsStillForEverEndsTheSessionOrLeavesItToTheOthers) {
  for (const int at_death : {CANARY_AT_DEATH_END, CANARY_AT_DEATH_GO_ON}) {
    SCOPED_TRACE(at_death);
    Workers workers(
        {.rule = "bsp:quorum=60,absences=5", .at_death = at_death, .settings = {"CANARY_SILENCE_LIMIT=2s"}});
    workers.wait_until_stopped();
    std::array<Outcome, kRanks> outcomes;
    for (int r = 0; r < kSlow; ++r) {
      Outcome& o = outcomes[static_cast<std::size_t>(r)] = workers.outcome(r);
      if (at_death == CANARY_AT_DEATH_GO_ON) {
        EXPECT_STREQ(o.how, "ended") << "rank " << r;
        for (int z = 0; z < 2; ++z) EXPECT_EQ(o.total[z], outcomes[0].total[z]) << "rank " << r << ", colayer " << z;
        EXPECT_GT(o.pushed, static_cast<std::uint64_t>(kPause) + 20) << "rank " << r;
      } else {
        EXPECT_EQ(o.named, kSlow) << "rank " << r << ": " << o.how;
        EXPECT_NE(std::string(o.how).find("rank 3"), std::string::npos) << o.how;
      }
      EXPECT_LT(o.seconds, 20.0) << "rank " << r;
    }
    workers.wake();
    const Outcome its = workers.outcome(kSlow);
    EXPECT_STRNE(its.how, "ended");
    EXPECT_STRNE(its.how, "");
    std::printf("the one that was stopped, afterwards: %s\n", its.how);
  }
}

}  // namespace
}  // namespace canarynet
