// When a part of a communicator fails: the effect on its other connections, on those that are being made, and on its
// peers.
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "plugins/nccl/plugin_test_util.h"

namespace canarynet::nccl::test {
namespace {

// A send that is longer than its receive ends a connection, with this reason, without anybody's death.
constexpr const char* kReason = "1048576 bytes were sent, the receive has room for 1000";

// Breaks a connection within one communicator. Nothing is closed.
void break_it(const Net& net, void* context) {
  const Ends e = join(net, context, context);
  std::vector<std::uint8_t> out(1 << 20), in(1000);
  void* r = receive(net, e.receive, in.data(), in.size());
  send(net, e.send, out.data(), out.size());
  EXPECT_EQ(wait(net, r), Result::kInvalidUsage);
  close(net, e);
}

class AFailedCommunicator : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    Log::clear();
    net = net_of(GetParam());
    ASSERT_EQ(net->init(&context), Result::kSuccess) << Log::text();
    ASSERT_EQ(net->init(&peer), Result::kSuccess) << Log::text();
  }
  void TearDown() override {
    EXPECT_EQ(net->finalize(context), Result::kSuccess);
    EXPECT_EQ(net->finalize(peer), Result::kSuccess);
    EXPECT_TRUE(no_library_threads());
  }
  void* listen(void* in, Handle* handle) {
    void* listener = nullptr;
    EXPECT_EQ(net->listen(in, handle->data(), &listener), Result::kSuccess) << Log::text();
    return listener;
  }
  void* connect(void* from, Handle* handle) {
    void* comm = nullptr;
    EXPECT_TRUE(poll_until([&] {
      EXPECT_EQ(net->connect(from, handle->data(), &comm), Result::kSuccess) << Log::text();
      return comm != nullptr || HasFailure();
    }));
    return comm;
  }
  void* accept(void* listener) {
    void* comm = nullptr;
    EXPECT_TRUE(poll_until([&] {
      EXPECT_EQ(net->accept(listener, &comm), Result::kSuccess) << Log::text();
      return comm != nullptr || HasFailure();
    }));
    return comm;
  }
  std::unique_ptr<Net> net;
  void* context = nullptr;  // the one that fails
  void* peer = nullptr;     // another rank's
};
INSTANTIATE_TEST_SUITE_P(Versions, AFailedCommunicator, testing::Values(11, 12),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

TEST_P(AFailedCommunicator, AcceptsConnectsAndListensNoMore) {
  Handle mine, theirs;
  void* const waiting = listen(context, &mine);
  void* const other = listen(peer, &theirs);
  void* comm = nullptr;
  ASSERT_EQ(net->accept(waiting, &comm), Result::kSuccess);
  break_it(*net, context);
  Log::clear();
  EXPECT_EQ(net->accept(waiting, &comm), Result::kInvalidUsage);
  EXPECT_TRUE(has(Log::text(), "accept: the communicator has failed before")) << Log::text();
  EXPECT_TRUE(has(Log::text(), kReason)) << Log::text();
  EXPECT_EQ(net->connect(context, theirs.data(), &comm), Result::kInvalidUsage);
  EXPECT_TRUE(has(Log::text(), "connect: the communicator has failed before")) << Log::text();
  void* listener = nullptr;
  EXPECT_EQ(net->listen(context, mine.data(), &listener), Result::kInvalidUsage);
  EXPECT_EQ(comm, nullptr);
  EXPECT_EQ(listener, nullptr);
  EXPECT_EQ(net->close_listen(waiting), Result::kSuccess);
  EXPECT_EQ(net->close_listen(other), Result::kSuccess);
}

TEST_P(AFailedCommunicator, TellsThoseThatItHasNotAcceptedYet) {
  Handle handle;
  void* const listener = listen(context, &handle);
  void* const comm = connect(peer, &handle);
  ASSERT_NE(comm, nullptr);
  std::vector<std::uint8_t> out(1 << 20);
  void* const s = send(*net, comm, out.data(), out.size());
  break_it(*net, context);
  Log::clear();
  EXPECT_EQ(wait(*net, s), Result::kRemoteError);
  EXPECT_TRUE(has(Log::text(), kReason)) << Log::text();
  // A newcomer from a communicator that knows nothing of the failure is refused.
  void *unaware = nullptr, *none = nullptr;
  ASSERT_EQ(net->init(&unaware), Result::kSuccess);
  Result late = Result::kSuccess;
  EXPECT_TRUE(poll_until([&] { return (late = net->connect(unaware, handle.data(), &none)) != Result::kSuccess; }));
  EXPECT_EQ(none, nullptr);
  EXPECT_TRUE(has(Log::text(), "does not listen under this handle")) << Log::text();
  EXPECT_EQ(net->finalize(unaware), Result::kSuccess);
  EXPECT_EQ(net->close_send(comm), Result::kSuccess);
  EXPECT_EQ(net->close_listen(listener), Result::kSuccess);
}

TEST_P(AFailedCommunicator, GivesUpWhatItIsConnecting) {
  Handle handle;
  void* const listener = listen(peer, &handle);
  void* comm = nullptr;  // asked for once: it is up, but NCCL has not been told yet
  ASSERT_EQ(net->connect(context, handle.data(), &comm), Result::kSuccess);
  ASSERT_EQ(comm, nullptr);
  void* const accepted = accept(listener);
  ASSERT_NE(accepted, nullptr);
  std::uint8_t in = 0;
  void* const r = receive(*net, accepted, &in, 1);
  break_it(*net, context);
  EXPECT_EQ(wait(*net, r), Result::kRemoteError);
  EXPECT_EQ(net->connect(context, handle.data(), &comm), Result::kInvalidUsage);
  EXPECT_EQ(comm, nullptr);
  EXPECT_EQ(net->close_receive(accepted), Result::kSuccess);
  EXPECT_EQ(net->close_listen(listener), Result::kSuccess);
}

// NCCL's service thread makes connections while its progress thread meets the failure.
TEST_P(AFailedCommunicator, GivesUpWhatIsMadeAtThatMoment) {
  struct Made {
    void *send = nullptr, *receive = nullptr, *request = nullptr;
  };
  for (int round = 0; round < 10; ++round) {
    void *failing = nullptr, *other = nullptr;
    ASSERT_EQ(net->init(&failing), Result::kSuccess);
    ASSERT_EQ(net->init(&other), Result::kSuccess);
    std::vector<Made> made;
    std::uint8_t in = 0;
    std::thread service([&] {
      for (Result result = Result::kSuccess; result == Result::kSuccess;) {
        Handle handle;
        void* const listener = listen(other, &handle);
        Made m;
        while (m.send == nullptr && result == Result::kSuccess) result = net->connect(failing, handle.data(), &m.send);
        // A connection that was refused here may be up at the other end.
        poll_until([&] { return net->accept(listener, &m.receive) != Result::kSuccess || m.receive != nullptr; },
                   result == Result::kSuccess ? 20 : 0.05);
        if (m.receive != nullptr) m.request = receive(*net, m.receive, &in, 1);
        made.push_back(m);
        EXPECT_EQ(net->close_listen(listener), Result::kSuccess);
      }
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(round));
    break_it(*net, failing);
    service.join();
    // The last one comes first: with the first that fails here the others are given up on this side, too.
    std::reverse(made.begin(), made.end());
    for (const Made& m : made) {
      if (m.request != nullptr) {
        EXPECT_EQ(wait(*net, m.request), Result::kRemoteError);
      }
      EXPECT_EQ(net->close_send(m.send), Result::kSuccess);
      EXPECT_EQ(net->close_receive(m.receive), Result::kSuccess);
    }
    EXPECT_EQ(net->finalize(failing), Result::kSuccess);
    EXPECT_EQ(net->finalize(other), Result::kSuccess);
  }
}

TEST_P(AFailedCommunicator, LeavesOthersOfTheProcessAlone) {
  void* third = nullptr;
  ASSERT_EQ(net->init(&third), Result::kSuccess);
  const Ends before = join(*net, third, peer);
  break_it(*net, context);
  EXPECT_TRUE(exchange(*net, before));
  const Ends after = join(*net, third, peer);
  EXPECT_TRUE(exchange(*net, after));
  close(*net, before);
  close(*net, after);
  EXPECT_EQ(net->finalize(third), Result::kSuccess);
}

// NCCL's thread that moves messages ends at any error, even at one that no peer could have seen.
TEST_P(AFailedCommunicator, TellsItsPeersOfItsOwnMistakesToo) {
  struct Mistake {
    const char* name;
    const char* heard;
    std::function<Result(const Ends& own)> make;
  };
  char data[10] = {};
  void* request = nullptr;
  const Mistake mistakes[] = {
      {"a send to receive from", "made to send",
       [&](const Ends& own) { return net->irecv(own.send, {data}, {1}, {0}, &request); }},
      {"a receive to send by", "made to receive",
       [&](const Ends& own) { return net->isend(own.receive, data, 1, 0, nullptr, &request); }},
      {"nine receives", "too many receives",
       [&](const Ends& own) {
         return net->irecv(own.receive, std::vector<void*>(9, data), std::vector<std::size_t>(9, 1),
                           std::vector<int>(9), &request);
       }},
      {"a request that is done", "not in flight",
       [&](const Ends& own) {
         void* r = receive(*net, own.receive, data, 1);
         EXPECT_EQ(wait(*net, send(*net, own.send, "x", 1)), Result::kSuccess);
         EXPECT_EQ(wait(*net, r), Result::kSuccess);
         int done = 0;
         return net->test(r, &done, nullptr);
       }},
  };
  for (const Mistake& mistake : mistakes) {
    void* makes_it = nullptr;
    ASSERT_EQ(net->init(&makes_it), Result::kSuccess);
    const Ends own = join(*net, makes_it, makes_it);
    const Ends e = join(*net, makes_it, peer);
    // The peer's context fails with it, so each error has a new one.
    std::uint8_t in = 0;
    void* const r = receive(*net, e.receive, &in, 1);
    Log::clear();
    EXPECT_NE(mistake.make(own), Result::kSuccess) << mistake.name;
    EXPECT_EQ(wait(*net, r), Result::kRemoteError) << mistake.name;
    EXPECT_TRUE(has(Log::text(), mistake.heard)) << mistake.name << ": " << Log::text();
    close(*net, own);
    close(*net, e);
    EXPECT_EQ(net->finalize(makes_it), Result::kSuccess);
    EXPECT_EQ(net->finalize(peer), Result::kSuccess);
    ASSERT_EQ(net->init(&peer), Result::kSuccess);
  }
}

TEST(WithoutContexts, ANegativeLengthIsToldToThePeer) {
  for (const bool sends : {true, false}) {
    Log::clear();
    const auto net = net_of(8);
    void* context = nullptr;
    ASSERT_EQ(net->init(&context), Result::kSuccess);
    const Ends e = join(*net, context, context);
    const std::size_t negative = 0xFFFF'FFFF;  // an int of v8
    std::vector<std::uint8_t> data(1 << 20);
    void *request = nullptr, *waits = nullptr;
    if (sends) {
      waits = receive(*net, e.receive, data.data(), 1);
      EXPECT_EQ(net->isend(e.send, data.data(), negative, 0, nullptr, &request), Result::kInternalError);
    } else {
      waits = send(*net, e.send, data.data(), data.size());
      EXPECT_EQ(net->irecv(e.receive, {data.data()}, {negative}, {0}, &request), Result::kInternalError);
    }
    EXPECT_EQ(wait(*net, waits), Result::kRemoteError);
    EXPECT_TRUE(has(Log::text(), "negative length")) << Log::text();
    close(*net, e);
  }
}

// Acts as one end of two communicators between two processes. The first is aborted by `aborts` while both carry
// messages; everything under way on the second, and everything that follows, must arrive exactly. Returns "" or what
// was wrong.
std::string with_one_of_two_aborted(const Net& net, int from_other, int to_other, bool aborts) {
  void* context = nullptr;
  if (net.init(&context) != Result::kSuccess) return "init";
  const Pair first = meet(net, context, from_other, to_other), second = meet(net, context, from_other, to_other);
  if (testing::Test::HasFailure()) return "meet";
  const auto big = bytes_of(3, 16 << 20);
  std::vector<std::uint8_t> in1(big.size()), in2(big.size());
  // No message will come for it: the receive is under way at the end, as if kernels still ran.
  void* const doomed_receive = receive(net, first.receive, in1.data(), in1.size());
  void* const receives = receive(net, second.receive, in2.data(), in2.size());
  void* const sends = send(net, second.send, big.data(), big.size());
  char ready = 1;
  write_all(to_other, &ready, 1);
  read_all(from_other, &ready, 1);
  if (aborts) {
    if (net.close_send(first.send) != Result::kSuccess) return "closeSend";
    if (net.close_receive(first.receive) != Result::kSuccess) return "closeRecv";
  } else {
    if (wait(net, doomed_receive) != Result::kRemoteError) return "the aborted one goes on";
    if (!has(Log::text(), "has closed the connection")) return "it says something else";
  }
  if (wait(net, sends) != Result::kSuccess) return "the other communicator's send failed";
  if (wait(net, receives) != Result::kSuccess) return "the other communicator's receive failed";
  if (in2 != big) return "wrong bytes";
  for (std::uint64_t round = 0; round < 50; ++round) {
    const auto out = bytes_of(round, 100'000);
    std::vector<std::uint8_t> in(out.size());
    void* const r = receive(net, second.receive, in.data(), in.size());
    void* const s = send(net, second.send, out.data(), out.size());
    if (wait(net, s) != Result::kSuccess || wait(net, r) != Result::kSuccess || in != out)
      return "round " + std::to_string(round);
  }
  write_all(to_other, &ready, 1);
  read_all(from_other, &ready, 1);
  if (!aborts &&
      (net.close_send(first.send) != Result::kSuccess || net.close_receive(first.receive) != Result::kSuccess))
    return "close of the aborted one";
  if (net.close_send(second.send) != Result::kSuccess || net.close_receive(second.receive) != Result::kSuccess)
    return "close";
  return net.finalize(context) == Result::kSuccess ? "" : "finalize";
}

TEST(WithoutContexts, TheAbortOfOneCommunicatorLeavesTheOthersOfBothProcessesAlone) {
  for (const int version : {8, 9, 10}) {
    for (const bool child_aborts : {false, true}) {
      Log::clear();
      const auto net = net_of(version);
      const Pipes pipes;
      Process child([&]() -> std::string {
        const std::string wrong = with_one_of_two_aborted(*net, pipes.down[0], pipes.up[1], child_aborts);
        return wrong.empty() ? "fine" : wrong + "\nwarnings: " + Log::text();
      });
      EXPECT_EQ(with_one_of_two_aborted(*net, pipes.up[0], pipes.down[1], !child_aborts), "") << Log::text();
      EXPECT_EQ(child.report(), "fine") << "version " << version;
      ASSERT_FALSE(HasFailure()) << "version " << version;
    }
  }
}

// Interfaces without contexts don't tell communicators apart: what is made after a failure belongs to another one.
TEST(WithoutContexts, AFailureIsNotHeldAgainstWhatIsMadeLater) {
  for (const int version : {8, 9, 10}) {
    Log::clear();
    const auto net = net_of(version);
    void* context = nullptr;
    ASSERT_EQ(net->init(&context), Result::kSuccess);
    Handle handle;
    void* listener = nullptr;
    ASSERT_EQ(net->listen(context, handle.data(), &listener), Result::kSuccess);
    break_it(*net, context);
    Ends e;
    EXPECT_TRUE(poll_until([&] {
      if (e.send == nullptr) {
        EXPECT_EQ(net->connect(context, handle.data(), &e.send), Result::kSuccess) << Log::text();
      }
      if (e.receive == nullptr) {
        EXPECT_EQ(net->accept(listener, &e.receive), Result::kSuccess) << Log::text();
      }
      return (e.send != nullptr && e.receive != nullptr) || HasFailure();
    }));
    EXPECT_EQ(net->close_listen(listener), Result::kSuccess);
    EXPECT_TRUE(exchange(*net, e));
    close(*net, e);
    EXPECT_TRUE(no_library_threads());
  }
}

const Environment kShortJoin = {
    {"CANARY_JOIN_TIMEOUT", "2s"}};                    // in which this test's own connections are made as well
constexpr std::chrono::milliseconds kAbandoned{4300};  // more than twice that

TEST(WithoutContexts, AConnectThatIsNotAskedForAgainLetsTheEndpointEnd) {
  EXPECT_EQ(in_process(kShortJoin,
                       []() -> std::string {
                         const auto net = net_of(8);
                         void *context = nullptr, *listener = nullptr, *comm = nullptr;
                         Handle handle;
                         if (net->init(&context) != Result::kSuccess) return "init";
                         if (net->listen(context, handle.data(), &listener) != Result::kSuccess) return "listen";
                         if (net->connect(context, handle.data(), &comm) != Result::kSuccess) return "connect";
                         if (net->close_listen(listener) != Result::kSuccess) return "closeListen";
                         if (net->init(&context) != Result::kSuccess) return "init";
                         if (library_threads() != 1) return "it may still be asked for";
                         std::this_thread::sleep_for(kAbandoned);
                         if (net->init(&context) != Result::kSuccess) return "init";
                         return no_library_threads() ? "" : "the endpoint goes on";
                       }),
            "fine");
}

TEST(WithoutContexts, AListenerThatNobodyAsksAnyMoreEndsWithTheLastConnection) {
  EXPECT_EQ(in_process(kShortJoin,
                       []() -> std::string {
                         const auto net = net_of(10);
                         void *context = nullptr, *left = nullptr, *asked = nullptr, *comm = nullptr;
                         Handle handle;
                         if (net->init(&context) != Result::kSuccess) return "init";
                         if (net->listen(context, handle.data(), &left) != Result::kSuccess) return "listen";
                         if (net->listen(context, handle.data(), &asked) != Result::kSuccess) return "listen";
                         const Ends first = join(*net, context, context), last = join(*net, context, context);
                         std::this_thread::sleep_for(kAbandoned);
                         close(*net, first);
                         if (net->accept(left, &comm) != Result::kSuccess) return "closed beside a live connection";
                         std::this_thread::sleep_for(kAbandoned);
                         if (net->accept(asked, &comm) != Result::kSuccess) return "accept";
                         close(*net, last);
                         if (library_threads() != 1) return "the endpoint has ended under a listener";
                         if (net->close_listen(asked) != Result::kSuccess) return "closeListen";
                         if (!no_library_threads()) return "the endpoint goes on";
                         if (net->accept(left, &comm) != Result::kRemoteError) return "it was not closed";
                         if (!has(Log::text(), "taken for abandoned")) return "it is not told";
                         return net->close_listen(left) == Result::kSuccess ? "" : "closeListen";
                       }),
            "fine");
}

// --- processes -------------------------------------------------------------------------------------------------------

int status_of_aborting(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGABRT, SIG_DFL);
    alarm(60);
    setenv("CANARY_ABORT_ON_ERROR", "1", 1);
    body();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(Failures, AMistakeAbortsTheProcessWhereThatIsAskedFor) {
  const int status = status_of_aborting([] {
    const auto net = net_of(11);
    void *context = nullptr, *request = nullptr;
    net->init(&context);
    const Ends e = join(*net, context, context);
    net->isend(e.receive, "x", 1, 0, nullptr, &request);
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << status;
}

TEST(Failures, NoEndpointToBeHadAbortsTheProcessWhereThatIsAskedFor) {
  Handle handle;
  const auto net = net_of(11);
  void *context = nullptr, *listener = nullptr;
  ASSERT_EQ(net->init(&context), Result::kSuccess);
  ASSERT_EQ(net->listen(context, handle.data(), &listener), Result::kSuccess);
  for (const bool connects : {true, false}) {
    const int status = status_of_aborting([&] {
      void *own = nullptr, *comm = nullptr;
      if (net->init(&own) != Result::kSuccess) return;
      const rlimit none{3, 3};  // of open files
      setrlimit(RLIMIT_NOFILE, &none);
      if (connects) {
        net->connect(own, handle.data(), &comm);
      } else {
        net->listen(own, handle.data(), &comm);
      }
    });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << status << (connects ? " connect" : " listen");
  }
  EXPECT_EQ(net->close_listen(listener), Result::kSuccess);
  EXPECT_EQ(net->finalize(context), Result::kSuccess);
}

// A peer that stands still answers nothing: a call that waits for it takes until CANARY_SILENCE_LIMIT.
TEST(Failures, ClosingAndFinalizingDoNotWaitForAPeerThatStandsStill) {
  EXPECT_EQ(in_process({{"CANARY_SILENCE_LIMIT", "40s"}},
                       []() -> std::string {
                         constexpr int kPairs = 8;
                         Pipes pipes;
                         const auto net = net_of(12);
                         Process peer([&]() -> std::string {
                           void* context = nullptr;
                           if (net->init(&context) != Result::kSuccess) return "init";
                           for (int i = 0; i < kPairs; ++i) meet(*net, context, pipes.down[0], pipes.up[1]);
                           write_all(pipes.up[1], "!", 1);
                           std::this_thread::sleep_for(std::chrono::seconds(60));
                           return "";
                         });
                         void* context = nullptr;
                         if (net->init(&context) != Result::kSuccess) return "init";
                         std::vector<Pair> pairs;
                         for (int i = 0; i < kPairs; ++i)
                           pairs.push_back(meet(*net, context, pipes.up[0], pipes.down[1]));
                         char word = 0;
                         read_all(pipes.up[0], &word, 1);
                         kill(peer.pid(), SIGSTOP);
                         int status = 0;
                         if (waitpid(peer.pid(), &status, WUNTRACED) != peer.pid() || !WIFSTOPPED(status))
                           return "stop";
                         std::vector<std::uint8_t> out(8 << 20), in(8 << 20);
                         for (std::size_t i = 0; i < pairs.size(); i += 2) {  // half of them with requests in flight
                           send(*net, pairs[i].send, out.data(), out.size());
                           receive(*net, pairs[i].receive, in.data(), in.size());
                         }
                         const double limit = sanitized() ? 5.0 : 1.0;
                         auto began = std::chrono::steady_clock::now();
                         for (const Pair& p : pairs) {
                           if (net->close_send(p.send) != Result::kSuccess) return "closeSend";
                           if (net->close_receive(p.receive) != Result::kSuccess) return "closeReceive";
                         }
                         if (seconds_since(began) > limit)
                           return "closing took " + std::to_string(seconds_since(began)) + " s";
                         began = std::chrono::steady_clock::now();
                         if (net->finalize(context) != Result::kSuccess) return "finalize";
                         if (seconds_since(began) > limit + 0.5)
                           return "finalize took " + std::to_string(seconds_since(began)) + " s";
                         return no_library_threads() ? "" : "the endpoint goes on";
                       }),
            "fine");
}

}  // namespace
}  // namespace canarynet::nccl::test
