// canary-run with plain processes: environment, output, ends, signals, and that nothing is left behind. No privilege is
// needed.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>

#include "tools/run/run_test_util.h"

namespace canarynet::run {
namespace {

using ::testing::Test;

std::vector<std::string> sorted_lines(const std::string& text) {
  auto lines = lines_of(text);
  std::sort(lines.begin(), lines.end());
  return lines;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(PlainRanks, GetTheirEnvironment) {
  const auto e = run(canary_run("-n 3",
                                "echo $CANARY_RANK/$CANARY_WORLD_SIZE $CANARY_LOCAL_RANK/$CANARY_LOCAL_SIZE "
                                "$CANARY_SOCKET_IFNAME ${CANARY_HOST_ID-none} ${CANARY_INSECURE-none}"));
  EXPECT_EQ(e.code, 0) << e.err;
  EXPECT_EQ(sorted_lines(e.out), (std::vector<std::string>{"[0] 0/3 0/3 =lo none none", "[1] 1/3 1/3 =lo none none",
                                                           "[2] 2/3 2/3 =lo none none"}));
}

TEST(PlainRanks, MeetAtOneLoopbackPortThatIsFree) {
  const auto e = run(canary_run("-n 2 --no-prefix", "echo $CANARY_JOIN"));
  const auto lines = lines_of(e.out);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], lines[1]);
  EXPECT_GE(number_after(lines[0], "tcp://127.0.0.1:"), 1024) << lines[0];
  EXPECT_EQ(run(canary_run("-n 1 --no-prefix --port 12345", "echo $CANARY_JOIN")).out, "tcp://127.0.0.1:12345\n");
}

TEST(PlainRanks, KeepWhatTheUserSet) {
  Job::Options o;
  o.environment = {"CANARY_SOCKET_IFNAME=eth", "CANARY_HOST_ID=mine"};
  EXPECT_EQ(run(canary_run("-n 1", "echo $CANARY_SOCKET_IFNAME $CANARY_HOST_ID"), o).out, "[0] eth mine\n");
}

TEST(AliasRanks, GetLoopbackAddressesAsTheirNics) {
  const auto e = run(canary_run("-n 4 --hosts 2 --fabric alias --nics 2 --rate 400mbit,100mbit",
                                "echo $CANARY_RAILS $CANARY_PACING_RATE $CANARY_HOST_ID ${CANARY_INSECURE-none} "
                                "$CANARY_LOCAL_RANK/$CANARY_LOCAL_SIZE; cat $CANARY_RUN_STATE >&2"));
  EXPECT_EQ(e.code, 0) << e.err;
  const std::string first = "127.1.0.1/24,127.2.0.1/24 400mbit,100mbit host-0 none ",
                    second = "127.1.0.2/24,127.2.0.2/24 400mbit,100mbit host-1 none ";
  EXPECT_EQ(sorted_lines(e.out), (std::vector<std::string>{"[0] " + first + "0/2", "[1] " + first + "1/2",
                                                           "[2] " + second + "0/2", "[3] " + second + "1/2"}));
  EXPECT_TRUE(has(e.err, "EMULATED by loopback addresses: every connection paced to its NIC's 400mbit,100mbit"))
      << e.err;
  EXPECT_TRUE(has(e.err, R"("fabric": {"kind": "alias", "emulated": true})")) << e.err;
  EXPECT_TRUE(has(e.err, R"("address": "127.2.0.2", "switch": "sw1", "rate": "100mbit")")) << e.err;
}

TEST(AliasRanks, NeedNoPrivilegesAndTheirNicsCannotBeChanged) {
  const std::string limit = "echo 0 > /proc/sys/user/max_pid_namespaces && exec ";
  if (run({"unshare", "-U", "-r", "sh", "-c", limit + "true"}).code == 0) {
    const auto e = run({"unshare", "-U", "-r", "sh", "-c",
                        limit + CANARY_RUN " -n 2 --hosts 2 --fabric alias -q -- sh -c 'echo $CANARY_HOST_ID "
                                           "${CANARY_PACING_RATE-none}'"});
    EXPECT_EQ(e.code, 0) << e.err;
    EXPECT_EQ(sorted_lines(e.out), (std::vector<std::string>{"[0] host-0 none", "[1] host-1 none"}));
  }
  const auto refused = run(canary_run("-n 1 --hosts 1 --fabric alias -q",
                                      std::string(CANARY_RUN) + " link $CANARY_RUN_STATE host=0,nic=0,rate=1mbit"));
  EXPECT_NE(refused.code, 0);
  EXPECT_TRUE(has(refused.err, "emulated by loopback addresses can't be changed")) << refused.err;
}

TEST(Output, ComesInWholeLinesWithTheRankInFront) {
  const auto e =
      run(canary_run("-n 4",
                     "i=0; while [ $i -lt 200 ]; do printf %s start-; echo $CANARY_RANK-$i; i=$((i+1)); done; "
                     "printf last"));
  EXPECT_EQ(e.code, 0);
  int next[4] = {};
  int last = 0;
  for (const auto& line : lines_of(e.out)) {
    ASSERT_GT(line.size(), 4u);
    const int rank = line[1] - '0';
    ASSERT_TRUE(rank >= 0 && rank < 4) << line;
    const std::string front = "[" + std::to_string(rank) + "] ";
    if (line == front + "last") {
      ++last;
    } else {
      EXPECT_EQ(line, front + "start-" + std::to_string(rank) + "-" + std::to_string(next[rank]++));
    }
  }
  EXPECT_EQ(last, 4);
  for (const int n : next) EXPECT_EQ(n, 200);
}

TEST(Output, KeepsTheTwoStreamsApart) {
  const auto e = run(canary_run("-n 1 --no-prefix", "echo to-out; echo to-err >&2"));
  EXPECT_EQ(e.out, "to-out\n");
  EXPECT_EQ(e.err, "to-err\n");
}

TEST(Output, IsCompleteWhenARankDiesRightAfterWriting) {
  const auto e = run(canary_run("-n 2 --no-prefix -q", "head -c 300000 /dev/zero | tr '\\0' x; echo; exit 0"));
  EXPECT_EQ(std::count(e.out.begin(), e.out.end(), 'x'), 600000);
}

TEST(Output, ALineOfAMegabyteStaysOneLine) {
  const auto e = run(canary_run("-n 1", "head -c 1000000 /dev/zero | tr '\\0' x; echo"));
  EXPECT_EQ(e.out, "[0] " + std::string(1'000'000, 'x') + "\n");
}

TEST(Ends, ExitStatusIsThatOfTheFirstRankThatFailed) {
  const auto e = run(canary_run("-n 3 --grace 10s",
                                "[ $CANARY_RANK = 1 ] && exit 7; [ $CANARY_RANK = 2 ] && sleep 0.3 && exit 9; exit 0"));
  EXPECT_EQ(e.code, 7);
  EXPECT_TRUE(has(e.err, "rank 1 exited with status 7")) << e.err;
  EXPECT_TRUE(has(e.err, "rank 2 exited with status 9")) << e.err;
}

TEST(Ends, ASignalCountsAs128AndItsNumber) {
  const auto e = run(canary_run("-n 2", "[ $CANARY_RANK = 0 ] && kill -SEGV $$; exit 0"));
  EXPECT_EQ(e.code, 128 + SIGSEGV);
  EXPECT_TRUE(has(e.err, "rank 0 was killed by SIGSEGV")) << e.err;
}

TEST(Ends, TheOthersAreStoppedAfterTheGracePeriod) {
  const auto start = std::chrono::steady_clock::now();
  const auto e = run(canary_run("-n 3 --grace 300ms",
                                "[ $CANARY_RANK = 1 ] && exit 3; trap 'echo asked; exit 0' TERM; sleep 60 & wait"));
  EXPECT_EQ(e.code, 3);
  EXPECT_GE(seconds_since(start), 0.3);
  EXPECT_LT(seconds_since(start), 20);
  EXPECT_EQ(sorted_lines(e.out), (std::vector<std::string>{"[0] asked", "[2] asked"}));
}

TEST(Ends, RanksThatIgnoreSigtermAreKilled) {
  const auto e =
      run(canary_run("-n 2 --grace 0s", "[ $CANARY_RANK = 1 ] && exit 3; trap '' TERM; while :; do sleep 0.1; done"));
  EXPECT_EQ(e.code, 3);
}

TEST(Ends, KeepGoingLeavesTheOthersAlone) {
  const auto e =
      run(canary_run("-n 2 --keep-going --grace 0s", "[ $CANARY_RANK = 1 ] && exit 3; sleep 0.5; echo finished"));
  EXPECT_EQ(e.code, 3);
  EXPECT_EQ(e.out, "[0] finished\n");
}

TEST(Ends, ATimeLimitStopsAll) {
  const auto e = run(canary_run("-n 2 --timeout 300ms", "exec sleep 60"));
  EXPECT_EQ(e.code, 124);
  EXPECT_TRUE(has(e.err, "--timeout")) << e.err;
}

TEST(Ends, ACommandThatIsNotThereIsNamed) {
  const auto e = run({CANARY_RUN, "-n", "2", "--", "/no/such/program"});
  EXPECT_EQ(e.code, 127);
  EXPECT_TRUE(has(e.err, "/no/such/program: No such file")) << e.err;
}

TEST(Arguments, ThatAreWrongEndWithStatus2AndTheReason) {
  const auto e = run({CANARY_RUN, "-n", "3", "--hosts", "2", "--", "true"});
  EXPECT_EQ(e.code, 2);
  EXPECT_TRUE(has(e.err, "-n 3: --hosts 2 takes a multiple of 2")) << e.err;
  EXPECT_EQ(run({CANARY_RUN, "link"}).code, 2);
  EXPECT_EQ(run({CANARY_RUN, "link", "/no/such/state", "host=0,nic=0,up"}).code, 2);
  const auto help = run({CANARY_RUN, "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_TRUE(has(help.out, "--topology") && has(help.out, "canary-run link STATE"));
}

TEST(Signals, GoToAllRanks) {
  for (const int number : {SIGUSR1, SIGUSR2, SIGHUP}) {
    Job job(canary_run("-n 2", "trap 'echo got; exit 0' USR1 USR2 HUP; echo ready; sleep 60 & wait"));
    ASSERT_TRUE(eventually([&] { return lines_of(job.out()).size() == 2; }));
    ::kill(job.pid(), number);
    const auto e = job.wait();
    EXPECT_EQ(e.code, 0) << e.err;
    EXPECT_EQ(std::count(e.out.begin(), e.out.end(), 'g'), 2) << e.out;
  }
}

TEST(Signals, SigtermEndsTheJobWithItsStatus) {
  Job job(canary_run("-n 2", "echo ready; exec sleep 60"));
  ASSERT_TRUE(eventually([&] { return lines_of(job.out()).size() == 2; }));
  ::kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.wait().code, 128 + SIGTERM);
}

TEST(Signals, ASecondInterruptDoesNotWait) {
  Job job(canary_run("-n 1 --grace 60s", "trap '' INT; echo ready; while :; do sleep 0.1; done"));
  ASSERT_TRUE(eventually([&] { return has(job.out(), "ready"); }));
  ::kill(job.pid(), SIGINT);
  ::usleep(100'000);
  ::kill(job.pid(), SIGINT);
  EXPECT_EQ(job.wait(20).code, 128 + SIGKILL);
}

TEST(StateFile, HasThePidsOfTheRanksAsSeenFromOutside) {
  Job job(canary_run("-n 3 --grace 0s", "echo $CANARY_RUN_STATE; exec sleep 60"));
  ASSERT_TRUE(eventually([&] { return lines_of(job.out()).size() == 3; }));
  EXPECT_TRUE(has(job.out(), "[1] " + state_path_in(job.folder()))) << job.out();
  const auto ranks = pids_in(job.state(), "ranks");
  ASSERT_EQ(ranks.size(), 3u) << job.state();
  // A process that has just begun another program has no environment for a moment.
  const std::string environment = "/proc/" + std::to_string(ranks[1]) + "/environ";
  EXPECT_TRUE(eventually([&] { return has(slurp(environment), "CANARY_RANK=1"); }, 5)) << slurp(environment);
  ::kill(ranks[1], SIGKILL);
  const auto e = job.wait();
  EXPECT_EQ(e.code, 128 + SIGKILL);
  EXPECT_TRUE(has(e.err, "rank 1 was killed by SIGKILL")) << e.err;
}

TEST(StateFile, GoesWhereItIsAskedToAndDisappears) {
  char folder[] = "/tmp/run_test_state.XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/s.json";
  const auto e = run(canary_run("-n 1 --state " + path, "cat " + path));
  EXPECT_TRUE(has(e.out, "\"world_size\": 1")) << e.out;
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  ::rmdir(folder);
}

// Grandchildren in sessions of their own are the hardest to find again.
constexpr const char* kStubborn =
    "trap '' TERM INT HUP; setsid sh -c 'trap \"\" TERM; sleep 300' & echo ready; sleep 300";

class NothingIsLeft : public Test {
 protected:
  void start(const std::string& arguments, const std::string& script, bool own_group = false) {
    Job::Options o;
    o.environment = {census_.mark()};
    o.own_group = own_group;
    job_ = std::make_unique<Job>(canary_run(arguments, script), o);
  }
  void expect_nothing_left() {
    EXPECT_EQ(census_.leftovers(), "");
    EXPECT_TRUE(eventually([&] { return job_->leftover_files().empty(); }, 5)) << *job_->leftover_files().begin();
  }
  bool ready(std::size_t ranks) {
    return eventually([&] { return lines_of(job_->out()).size() == ranks; });
  }
  Census census_;
  std::unique_ptr<Job> job_;
};

TEST_F(NothingIsLeft, AfterANormalEnd) {
  start("-n 2", "setsid sleep 300 & exit 0");
  EXPECT_EQ(job_->wait().code, 0);
  expect_nothing_left();
}

TEST_F(NothingIsLeft, AfterSigterm) {
  start("-n 2 --grace 200ms", kStubborn);
  ASSERT_TRUE(ready(2));
  ASSERT_GE(census_.processes().size(), 5u) << "the census does not see the job";
  ::kill(job_->pid(), SIGTERM);
  EXPECT_EQ(job_->wait().code, 128 + SIGKILL);
  expect_nothing_left();
}

TEST_F(NothingIsLeft, AfterSigkill) {
  start("-n 2", kStubborn);
  ASSERT_TRUE(ready(2));
  ::kill(job_->pid(), SIGKILL);
  job_->wait();
  expect_nothing_left();
}

TEST_F(NothingIsLeft, AfterSigkillOfTheWholeGroup) {
  start("-n 2", kStubborn, true);
  ASSERT_TRUE(ready(2));
  ::kill(-job_->pid(), SIGKILL);
  job_->wait();
  expect_nothing_left();
}

TEST_F(NothingIsLeft, AfterSigkillWhileNobodyReadsTheOutput) {
  Job::Options o;
  o.environment = {census_.mark()};
  const std::string script = "sh -c 'echo $$ >&2; exec " + std::string(CANARY_RUN) + " -q -n 1 -- yes' | sleep 60";
  job_ = std::make_unique<Job>(std::vector<std::string>{"sh", "-c", script}, o);
  ASSERT_NE(job_->state(), "");
  ASSERT_TRUE(eventually([&] { return census_.processes().size() >= 5; }));
  ::usleep(300'000);  // lets the pipe fill up
  ::kill(std::stoi(job_->err()), SIGKILL);
  EXPECT_TRUE(eventually([&] { return census_.processes().size() == 2; })) << "sh and sleep should be all that is left";
  for (const pid_t pid : census_.processes()) ::kill(pid, SIGKILL);
  job_->wait();
  expect_nothing_left();
}

TEST_F(NothingIsLeft, AfterSigkillOfTheInitProcess) {
  start("-n 2", kStubborn);
  ASSERT_TRUE(ready(2));
  const auto children =
      slurp("/proc/" + std::to_string(job_->pid()) + "/task/" + std::to_string(job_->pid()) + "/children");
  if (children.empty()) GTEST_SKIP() << "this kernel does not list children";
  ::kill(std::stoi(children), SIGKILL);
  EXPECT_EQ(job_->wait().code, 128 + SIGKILL);
  EXPECT_TRUE(has(job_->err(), "init process was killed")) << job_->err();
  expect_nothing_left();
}

// A container that allows no namespaces, imitated by a limit of none in a user namespace.
TEST_F(NothingIsLeft, WithoutPidNamespaces) {
  Job::Options o;
  o.environment = {census_.mark()};
  const std::string limit = "echo 0 > /proc/sys/user/max_pid_namespaces && exec ";
  if (run({"unshare", "-U", "-r", "sh", "-c", limit + "true"}).code != 0) GTEST_SKIP() << "no user namespaces here";
  const auto e = run({"unshare", "-U", "-r", "sh", "-c", limit + CANARY_RUN " -n 2 --grace 0s -- sh -c 'exit 4'"});
  EXPECT_EQ(e.code, 4) << e.err;
  EXPECT_TRUE(has(e.err, "no PID namespace")) << e.err;
  EXPECT_EQ(run({"unshare", "-U", "-r", "sh", "-c", limit + CANARY_RUN " -n 1 --hosts 1 -- true"}).code, 125);

  job_ = std::make_unique<Job>(
      std::vector<std::string>{"unshare", "-U", "-r", "sh", "-c",
                               limit + CANARY_RUN " -n 2 -- sh -c 'setsid sleep 300 & echo ready; sleep 300'"},
      o);
  ASSERT_TRUE(ready(2)) << job_->err();
  ::kill(job_->pid(), SIGKILL);
  job_->wait();
  expect_nothing_left();
}

}  // namespace
}  // namespace canarynet::run
