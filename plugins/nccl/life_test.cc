// The plugin's life in a process: threads, reloads, settings, failures that concern no single message. Tests that need
// an environment of their own run in a process of their own.
#include <ifaddrs.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "plugins/nccl/plugin_test_util.h"

namespace canarynet::nccl::test {
namespace {

TEST(Life, ThreadsAndSocketsBeginWithTheFirstListenAndEndWithTheLastContext) {
  const auto net = net_of(11);
  const std::size_t files = open_files();
  void *one = nullptr, *two = nullptr;
  ASSERT_EQ(net->init(&one), Result::kSuccess) << Log::text();
  ASSERT_EQ(net->init(&two), Result::kSuccess) << Log::text();
  EXPECT_NE(one, two);
  EXPECT_EQ(library_threads(), 0);
  EXPECT_EQ(open_files(), files);
  const Ends there = join(*net, one, two), back = join(*net, two, one);
  EXPECT_EQ(library_threads(), 1) << "one for all communicators";
  EXPECT_TRUE(exchange(*net, there));
  EXPECT_TRUE(exchange(*net, back));
  close(*net, there);
  EXPECT_EQ(net->finalize(one), Result::kSuccess);
  EXPECT_TRUE(exchange(*net, back));
  EXPECT_EQ(net->finalize(two), Result::kSuccess);
  EXPECT_EQ(library_threads(), 1) << "a comm is still open";
  close(*net, back);
  EXPECT_TRUE(no_library_threads());
  EXPECT_EQ(open_files(), files);
}

TEST(Life, CanBeLoadedFinalizedAndLoadedAgain) {
  const std::size_t files = open_files();
  for (int round = 0; round < 4; ++round) {
    for (const int version : {8, 10, 12}) {
      void* const again = dlopen(CANARY_NCCL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
      ASSERT_NE(again, nullptr) << dlerror();
      const auto net = net_of(version);
      void* context = nullptr;
      ASSERT_EQ(net->init(&context), Result::kSuccess);
      const Ends e = join(*net, context, context);
      EXPECT_TRUE(exchange(*net, e));
      close(*net, e);
      EXPECT_EQ(net->finalize(context), Result::kSuccess);
      EXPECT_TRUE(no_library_threads());
      dlclose(again);
    }
  }
  EXPECT_EQ(open_files(), files);
}

TEST(Life, FinalizeFreesWhatNcclLeavesBehindWhenItAborts) {
  const auto net = net_of(11);
  const std::size_t files = open_files();
  void* context = nullptr;
  ASSERT_EQ(net->init(&context), Result::kSuccess);
  Handle handles[5];
  for (Handle& handle : handles) {
    void* listener = nullptr;
    ASSERT_EQ(net->listen(context, handle.data(), &listener), Result::kSuccess);
  }
  void* comm = nullptr;  // asked for once, never again
  ASSERT_EQ(net->connect(context, handles[0].data(), &comm), Result::kSuccess);
  EXPECT_EQ(net->finalize(context), Result::kSuccess);
  EXPECT_EQ(net->finalize(nullptr), Result::kSuccess) << "of a context whose init has failed";
  EXPECT_TRUE(no_library_threads());
  EXPECT_EQ(open_files(), files);
}

TEST(Life, ManyConnectionsCloseAtOnce) {
  const auto net = net_of(11);
  void* context = nullptr;
  ASSERT_EQ(net->init(&context), Result::kSuccess);
  std::vector<Ends> ends;
  for (int i = 0; i < 64; ++i) ends.push_back(join(*net, context, context));
  for (const Ends& e : ends) EXPECT_TRUE(exchange(*net, e));
  const auto began = std::chrono::steady_clock::now();
  for (const Ends& e : ends) close(*net, e);
  EXPECT_LT(seconds_since(began), sanitized() ? 5.0 : 1.0) << "a close that waits for its peer would take longer";
  EXPECT_EQ(net->finalize(context), Result::kSuccess);
}

// NCCL asks one plugin after another with the same place for a context, and finalizes what lies there.
TEST(Life, AnInitThatFailsLeavesNothingToFinalize) {
  EXPECT_EQ(in_process({{"CANARY_SOCKET_IFNAME", "no-such-nic"}},
                       []() -> std::string {
                         int anothers = 0;
                         void* context = &anothers;
                         const auto net = net_of(12);
                         if (net->init(&context) == Result::kSuccess) return "init was not refused";
                         if (context != nullptr) return "another plugin's context was left there";
                         return net->finalize(context) == Result::kSuccess ? "" : "finalize";
                       }),
            "fine");
}

TEST(Life, NoThreadToBeHadIsAnErrorInWords) {
  const std::string said = in_process({}, []() -> std::string {
    void* context = nullptr;
    const auto net = net_of(12);
    if (net->init(&context) != Result::kSuccess) return "init";
    const rlimit none{0, 0};  // of processes, threads included; root is above it
    if (setrlimit(RLIMIT_NPROC, &none) != 0) return "skip: RLIMIT_NPROC can't be set";
    if (geteuid() == 0 && setuid(65534) != 0) return "skip: root that may not become somebody else (no CAP_SETUID)";
    pthread_t thread;
    if (pthread_create(
            &thread, nullptr, [](void* nothing) { return nothing; }, nullptr) == 0) {
      pthread_join(thread, nullptr);
      return "skip: RLIMIT_NPROC does not bind this process";
    }
    Handle handle;
    void* listener = nullptr;
    if (net->listen(context, handle.data(), &listener) != Result::kSystemError) return "listen";
    if (!has(Log::text(), "a thread of the library")) return "it is not told";
    return net->finalize(context) == Result::kSuccess ? "" : "finalize";
  });
  if (said.starts_with("skip: ")) GTEST_SKIP() << said.substr(6, said.find('\n') - 6);
  EXPECT_EQ(said, "fine");
}

TEST(Settings, AddressesBeyondLoopbackNeedAWord) {
  std::string device;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) GTEST_SKIP() << "this machine does not list its interfaces: " << std::strerror(errno);
  for (const ifaddrs* i = all; i != nullptr && device.empty(); i = i->ifa_next) {
    const bool usable = i->ifa_addr != nullptr && i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_UP) != 0;
    if (usable && (i->ifa_flags & IFF_LOOPBACK) == 0) device = i->ifa_name;
  }
  freeifaddrs(all);
  if (device.empty()) GTEST_SKIP() << "this machine has no address beyond loopback";
  const std::string name = "=" + device;
  const auto init = [] {
    void* context = nullptr;
    return net_of(11)->init(&context);
  };
  const Environment chosen = {{"NCCL_SOCKET_IFNAME", name.c_str()},
                              {"CANARY_SOCKET_IFNAME", nullptr},
                              {"CANARY_RAILS", nullptr},
                              {"CANARY_INSECURE", nullptr}};
  EXPECT_EQ(in_process(chosen,
                       [&]() -> std::string {
                         if (init() != Result::kInvalidUsage) return "init was not refused";
                         for (const char* part : {"CANARY_INSECURE=1", device.c_str(), "not a loopback address"}) {
                           if (!has(Log::text(), part)) return std::string(part) + " is not told";
                         }
                         return "";
                       }),
            "fine");
  EXPECT_EQ(in_process(chosen,
                       [&]() -> std::string {
                         setenv("CANARY_INSECURE", "1", 1);
                         if (init() != Result::kSuccess) return "init";
                         return has(Log::text(abi::LogLevel::kInfo), device) ? "" : "the NIC is not told";
                       }),
            "fine");
}

TEST(Settings, CanarysOwnChoiceOfNicsComesBeforeNccls) {
  EXPECT_EQ(in_process({{"NCCL_SOCKET_IFNAME", "lo"}, {"CANARY_SOCKET_IFNAME", "no-such-nic"}},
                       []() -> std::string {
                         void* context = nullptr;
                         if (net_of(11)->init(&context) != Result::kInvalidUsage) return "init was not refused";
                         return has(Log::text(), "no-such-nic") ? "" : "its name is not told";
                       }),
            "fine");
  EXPECT_EQ(in_process({{"NCCL_SOCKET_IFNAME", "no-such-nic"}, {"CANARY_RAILS", "127.0.0.1,127.0.0.2"}},
                       []() -> std::string {
                         void* context = nullptr;
                         const auto net = net_of(12);
                         if (net->init(&context) != Result::kSuccess) return "init";
                         Properties p;
                         if (net->properties(0, &p) != Result::kSuccess || p.speed_mbit != 20'000) return "speed";
                         return has(Log::text(abi::LogLevel::kInfo), "2 NICs") ? "" : "they are not told";
                       }),
            "fine");
}

// Runs in a namespace with two virtual cables; the other end of one of them is down.
TEST(Settings, ANicWithoutACarrierStaysARailAndAddsNothingToTheSpeed) {
  const auto run = [](const char* names, int expected) {
    return in_process(
        {{"CANARY_SOCKET_IFNAME", names}, {"CANARY_RAILS", nullptr}, {"CANARY_INSECURE", "1"}}, [&]() -> std::string {
          if (unshare(CLONE_NEWNET) != 0) return "skip: no network namespace can be made";
          for (const char* line : {"link set lo up", "link add canaryt0 type veth peer name canaryt1",
                                   "link add canaryt2 type veth peer name canaryt3",
                                   "addr add 10.77.0.1/24 dev canaryt0", "addr add 10.77.1.1/24 dev canaryt2",
                                   "link set canaryt0 up", "link set canaryt1 up", "link set canaryt2 up"}) {
            if (std::system(("ip " + std::string(line) + " 2>/dev/null").c_str()) != 0)
              return "skip: no virtual cable can be made (ip " + std::string(line) + ")";
          }
          const auto net = net_of(12);
          Properties p;
          // The kernel notices a carrier a moment later.
          poll_until(
              [&] {
                void* context = nullptr;
                EXPECT_EQ(net->init(&context), Result::kSuccess) << Log::text();
                EXPECT_EQ(net->finalize(context), Result::kSuccess);
                EXPECT_EQ(net->properties(0, &p), Result::kSuccess);
                return p.speed_mbit == expected || testing::Test::HasFailure();
              },
              10);
          if (p.speed_mbit != expected) return std::to_string(p.speed_mbit) + " Mbit/s";
          return has(Log::text(abi::LogLevel::kInfo), "canaryt2 10.77.1.1 (no carrier)") ? "" : "it is not told";
        });
  };
  const std::string both = run("=canaryt0,canaryt2", 10'000);
  if (both.starts_with("skip: ")) GTEST_SKIP() << both.substr(6, both.find('\n') - 6);
  EXPECT_EQ(both, "fine");
  EXPECT_EQ(run("=canaryt2", 10'000), "fine") << "where none has a carrier, all count";
}

TEST(Settings, AWrongOneIsNamed) {
  EXPECT_EQ(in_process({{"CANARY_PIECE_BYTES", "banana"}},
                       []() -> std::string {
                         void* context = nullptr;
                         if (net_of(9)->init(&context) != Result::kInvalidUsage) return "init was not refused";
                         return has(Log::text(), "CANARY_PIECE_BYTES=\"banana\"") ? "" : "it is not told";
                       }),
            "fine");
}

// NCCL 2.20 knows no tuner of ours: this is the only version that it shares with its successors up to 2.23.
TEST(Settings, TheOldestVersionSaysWhereTheCostModelHasNoEffect) {
  for (const int version : {8, 9}) {
    EXPECT_EQ(in_process({{"CANARY_NCCL_ALPHA", "25us"}, {"CANARY_NCCL_BANDWIDTH", "10gbit"}},
                         [&]() -> std::string {
                           void* context = nullptr;
                           if (net_of(version)->init(&context) != Result::kSuccess) return "init";
                           const bool told = has(Log::text(abi::LogLevel::kInfo), "no effect before NCCL 2.21");
                           return told == (version == 8) ? "" : "told: " + std::to_string(told);
                         }),
              "fine")
        << version;
  }
}

TEST(Settings, AWrongPacingRateIsRefusedAtInit) {
  for (const char* wrong : {"banana", "1kbit", "500mbit,500mbit,500mbit"}) {
    EXPECT_EQ(in_process({{"CANARY_PACING_RATE", wrong}, {"CANARY_RAILS", "127.0.0.1,127.0.0.2"}},
                         [&]() -> std::string {
                           void* context = nullptr;
                           if (net_of(11)->init(&context) != Result::kInvalidUsage) return "init was not refused";
                           return has(Log::text(), "CANARY_PACING_RATE=\"" + std::string(wrong) + "\"") ? ""
                                                                                                        : Log::text();
                         }),
              "fine")
        << wrong;
  }
}

TEST(Failures, AConnectToAProcessThatHasEndedFailsWithinTwoSeconds) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Process gone([&]() -> std::string {
    const auto net = net_of(11);
    void *context = nullptr, *listener = nullptr;
    Handle handle;
    if (net->init(&context) != Result::kSuccess) return "init";
    if (net->listen(context, handle.data(), &listener) != Result::kSuccess) return "listen";
    return write(ends[1], handle.data(), handle.size()) == static_cast<ssize_t>(handle.size()) ? "fine" : "write";
  });
  EXPECT_EQ(gone.report(), "fine");
  Handle handle;
  ASSERT_EQ(read(ends[0], handle.data(), handle.size()), static_cast<ssize_t>(handle.size()));
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_EQ(in_process({},
                       [&]() -> std::string {
                         const auto net = net_of(11);
                         void *context = nullptr, *comm = nullptr;
                         if (net->init(&context) != Result::kSuccess) return "init";
                         const auto began = std::chrono::steady_clock::now();
                         Result result = Result::kSuccess;
                         poll_until([&] {
                           result = net->connect(context, handle.data(), &comm);
                           return comm != nullptr || result != Result::kSuccess;
                         });
                         if (result != Result::kRemoteError) return "it was not refused";
                         if (seconds_since(began) > (sanitized() ? 10 : 2))
                           return "after " + std::to_string(seconds_since(began)) + " s";
                         if (!has(Log::text(), "127.0.0.1:")) return "its address is not told";
                         return has(Log::text(), "refuses every connection") ? "" : "the reason is not told";
                       }),
            "fine");
}

TEST(Failures, AnAcceptThatNobodyMeetsEnds) {
  EXPECT_EQ(in_process({{"CANARY_JOIN_TIMEOUT", "200ms"}},
                       []() -> std::string {
                         const auto net = net_of(11);
                         void *context = nullptr, *listener = nullptr, *comm = nullptr;
                         Handle handle;
                         if (net->init(&context) != Result::kSuccess) return "init";
                         if (net->listen(context, handle.data(), &listener) != Result::kSuccess) return "listen";
                         Result result = Result::kSuccess;
                         poll_until([&] { return (result = net->accept(listener, &comm)) != Result::kSuccess; });
                         if (result != Result::kRemoteError) return "it went on";
                         return has(Log::text(), "CANARY_JOIN_TIMEOUT") ? "" : "the reason is not told";
                       }),
            "fine");
}

TEST(Failures, AStallIsToldWithWhatItWaitsFor) {
  EXPECT_EQ(in_process({{"CANARY_STALL_WARNING", "200ms"}},
                       []() -> std::string {
                         const auto net = net_of(11);
                         void* context = nullptr;
                         if (net->init(&context) != Result::kSuccess) return "init";
                         const Ends e = join(*net, context, context);
                         std::vector<std::uint8_t> out(1 << 20);
                         send(*net, e.send, out.data(), out.size());
                         if (!poll_until([&] { return !Log::text().empty(); }, 10)) return "nothing is told";
                         for (const char* part : {"send #1 of 1048576 bytes", "the peer has not posted its receive",
                                                  "links shm", "last heard"}) {
                           if (!has(Log::text(), part)) return std::string(part) + " is not told";
                         }
                         const Log::Place place = Log::place_of("the peer has not posted its receive");
                         if (place.file != "libnccl-net-canary.so" || place.line != 0) return "by " + place.file;
                         close(*net, e);
                         return net->finalize(context) == Result::kSuccess ? "" : "finalize";
                       }),
            "fine");
}

TEST(Failures, AbortTheProcessWhereThatIsAskedFor) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGABRT, SIG_DFL);
    setenv("CANARY_ABORT_ON_ERROR", "1", 1);
    const auto net = net_of(11);
    void* context = nullptr;
    net->init(&context);
    const Ends e = join(*net, context, context);
    std::vector<std::uint8_t> out(1 << 20), in(10);
    void* r = receive(*net, e.receive, in.data(), in.size());
    send(*net, e.send, out.data(), out.size());
    wait(*net, r);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << status;
}

}  // namespace
}  // namespace canarynet::nccl::test
