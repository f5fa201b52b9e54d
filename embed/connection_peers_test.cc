// Connections and their peers' lives, over shared memory and (CANARY_TRANSPORTS=tcp) real TCP on loopback: several
// endpoints in one process, peers that are stopped, that have ended, that accept and say nothing.
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "embed/connections_test_util.h"

namespace canarynet {
namespace {

using test::Ends;
using test::Handle;
using test::last_error;
using test::TestEndpoint;

// A forked endpoint that accepts one connection and echoes every message of up to 1 MiB, until it is killed.
class Echo {
 public:
  // `first`: what its process does before it makes the endpoint; `then`: once it is connected.
  explicit Echo(const test::Strings& settings = {}, const std::function<void()>& first = {},
                const std::function<void()>& then = {}) {
    int ends[2];
    if (pipe(ends) != 0) abort();
    process_ = std::make_unique<test::Process>([&]() -> std::string {
      if (first) first();
      TestEndpoint e(settings);
      Handle made;
      canary_listener* l = e.listen(&made);
      if (write(ends[1], made.data(), made.size()) != static_cast<ssize_t>(made.size())) return "write";
      canary_connection* c = test::accept(l);
      if (then) then();
      std::vector<std::uint8_t> data(1 << 20);
      for (;;) {
        std::size_t bytes = 0;
        canary_request* r = nullptr;
        void* at = data.data();
        const std::size_t room = data.size();
        if (canary_irecv(c, 1, &at, &room, nullptr, nullptr, &r) != CANARY_OK) return "irecv";
        canary_status s = CANARY_WOULD_BLOCK;
        while ((s = canary_test(r, &bytes)) == CANARY_WOULD_BLOCK) usleep(200);
        if (s != CANARY_OK) return std::string(canary_status_name(s)) + ": " + last_error().message;
        if (canary_isend(c, data.data(), bytes, 0, nullptr, &r) != CANARY_OK) return "isend";
        while ((s = canary_test(r, nullptr)) == CANARY_WOULD_BLOCK) usleep(200);
        if (s != CANARY_OK) return std::string(canary_status_name(s)) + ": " + last_error().message;
      }
    });
    EXPECT_EQ(read(ends[0], handle.data(), handle.size()), static_cast<ssize_t>(handle.size()));
    close(ends[0]);
    close(ends[1]);
  }
  test::Process& process() { return *process_; }
  void signal(int number) const { ::kill(process_->pid(), number); }

  Handle handle{};

 private:
  std::unique_ptr<test::Process> process_;
};

void round_trip(canary_connection* c, std::size_t bytes, std::uint64_t seed) {
  const auto out = test::bytes_of(seed, bytes);
  std::vector<std::uint8_t> in(bytes);
  canary_request* r = test::receive(c, in.data(), in.size());
  canary_request* s = test::send(c, out.data(), out.size());
  ASSERT_EQ(test::wait(r), CANARY_OK) << last_error().message;
  ASSERT_EQ(test::wait(s), CANARY_OK) << last_error().message;
  ASSERT_TRUE(in == out);
}

TEST(ConnectionPeers, TwoEndpointsOfOneProcessTalkToEachOtherAndToAThird) {
  Echo third, fourth;
  TestEndpoint one, two;
  const Ends there = test::join_ends(one, two), back = test::join_ends(two, one);
  canary_connection* to_third = test::connect(one, third.handle);
  canary_connection* to_fourth = test::connect(two, fourth.handle);
  for (std::uint64_t k = 0; k < 20; ++k) {
    const std::size_t bytes = k % 5 == 0 ? 0 : 37'000 * k;
    for (const Ends& e : {there, back}) {
      const auto out = test::bytes_of(k, bytes);
      std::vector<std::uint8_t> in(bytes);
      canary_request* r = test::receive(e.b, in.data(), in.size());
      canary_request* s = test::send(e.a, out.data(), out.size());
      ASSERT_NO_FATAL_FAILURE(round_trip(to_third, bytes, k + 100));
      ASSERT_NO_FATAL_FAILURE(round_trip(to_fourth, bytes, k + 200));
      ASSERT_EQ(test::wait(r), CANARY_OK) << last_error().message;
      ASSERT_EQ(test::wait(s), CANARY_OK) << last_error().message;
      ASSERT_TRUE(in == out);
    }
  }
  // One of them ends: the other goes on.
  one.destroy();
  ASSERT_NO_FATAL_FAILURE(round_trip(to_fourth, 500'000, 7));
}

TEST(ConnectionPeers, AStoppedProcessThatIsResumedInTimeCostsAPause) {
  Echo echo;
  TestEndpoint one;
  canary_connection* c = test::connect(one, echo.handle);
  ASSERT_NO_FATAL_FAILURE(round_trip(c, 100'000, 1));
  const auto out = test::bytes_of(2, 1 << 20);
  std::vector<std::uint8_t> in(1 << 20);
  canary_request* r = test::receive(c, in.data(), in.size());
  echo.signal(SIGSTOP);
  canary_request* s = test::send(c, out.data(), out.size());
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_EQ(canary_test(r, nullptr), CANARY_WOULD_BLOCK);
  echo.signal(SIGCONT);
  ASSERT_EQ(test::wait(r), CANARY_OK) << last_error().message;
  ASSERT_EQ(test::wait(s), CANARY_OK) << last_error().message;
  EXPECT_TRUE(in == out);
  ASSERT_NO_FATAL_FAILURE(round_trip(c, 1000, 3));
}

TEST(ConnectionPeers, AProcessStoppedForTooLongIsSilentAndFindsItsConnectionsEnded) {
  Echo echo({"silence_limit=1s"});
  TestEndpoint one({"silence_limit=1s"});
  canary_connection* c = test::connect(one, echo.handle);
  ASSERT_NO_FATAL_FAILURE(round_trip(c, 100'000, 1));
  std::vector<std::uint8_t> in(100);
  canary_request* r = test::receive(c, in.data(), in.size());
  echo.signal(SIGSTOP);
  EXPECT_EQ(test::wait(r), CANARY_PEER_SILENT) << last_error().message;
  const std::string text = last_error().message;
  EXPECT_NE(text.find("(pid " + std::to_string(echo.process().pid()) + ")"), std::string::npos) << text;
  echo.signal(SIGCONT);
  const std::string heard = echo.process().report();
  EXPECT_TRUE(heard.starts_with("PEER_") || heard.starts_with("CLOSED")) << heard;
}

TEST(ConnectionPeers, ConnectingToAProcessThatHasEndedFailsSoonAndNamesItsAddress) {
  Handle handle;
  {
    Echo echo;
    handle = echo.handle;
  }
  TestEndpoint one;
  canary_connection* c = nullptr;
  canary_status s = CANARY_WOULD_BLOCK;
  const auto began = std::chrono::steady_clock::now();
  ASSERT_TRUE(test::poll_until([&] { return (s = canary_connect(one.raw, handle.data(), &c)) != CANARY_WOULD_BLOCK; }));
  EXPECT_EQ(s, CANARY_PEER_DIED) << last_error().message;
  EXPECT_GT(test::seconds_since(began), 0.9) << "CANARY_SILENCE_LIMIT";
  EXPECT_LT(test::seconds_since(began), test::sanitized() ? 10 : 5);
  EXPECT_NE(last_error().message.find("the peer at 127.0.0.1:"), std::string::npos) << last_error().message;
  EXPECT_EQ(c, nullptr);
}

TEST(ConnectionPeers, AConnectUnderWayIsGivenUpAtOnce) {
  Handle dead;
  {
    Echo echo;
    dead = echo.handle;
  }
  // Its kernel accepts for it, and nobody answers.
  Echo stopped;
  stopped.signal(SIGSTOP);
  auto one = std::make_unique<TestEndpoint>();
  for (const Handle& handle : {dead, stopped.handle}) {
    for (const int wait_ms : {0, 1, 150}) {
      canary_connection* c = nullptr;
      ASSERT_EQ(canary_connect(one->raw, handle.data(), &c), CANARY_WOULD_BLOCK);
      std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
      const auto began = std::chrono::steady_clock::now();
      EXPECT_EQ(canary_close(c), CANARY_OK);
      EXPECT_LT(test::seconds_since(began), 0.5);
    }
  }
  canary_connection* c = nullptr;
  ASSERT_EQ(canary_connect(one->raw, stopped.handle.data(), &c), CANARY_WOULD_BLOCK);
  const auto began = std::chrono::steady_clock::now();
  one->destroy();
  EXPECT_LT(test::seconds_since(began), 2.0);
}

// --- shared memory ---------------------------------------------------------------------------------------------------

// Whether the endpoint's traffic has gone through shared memory, and nothing but heartbeats over its NIC; or the other
// way round.
void expect_by_memory(const TestEndpoint& e, bool memory) {
  canary_nic_stats nics[3] = {};
  std::size_t count = 0;
  ASSERT_EQ(canary_endpoint_stats(e.raw, nics, 3, &count), CANARY_OK) << last_error().message;
  ASSERT_EQ(count, memory ? 2u : 1u);
  EXPECT_EQ(nics[0].transmit_bytes > 100'000, !memory);
  EXPECT_EQ(nics[1].transmit_bytes > 100'000, memory);
}

TEST(ConnectionPeers, ProcessesOfAHostMeetInSharedMemoryUnlessASettingOfEitherSaysOtherwise) {
  struct Case {
    test::Strings there, here;
    bool memory;
  };
  const Case cases[] = {{{"transports=tcp,shm"}, {"transports=tcp,shm"}, true},
                        {{"transports=shm"}, {"transports=tcp,shm"}, true},
                        {{"transports=tcp"}, {"transports=tcp,shm"}, false},
                        {{"transports=tcp,shm"}, {"transports=tcp"}, false},
                        {{"transports=tcp,shm", "host_id=a"}, {"transports=tcp,shm", "host_id=b"}, false}};
  for (const Case& k : cases) {
    Echo echo(k.there);
    TestEndpoint one(k.here);
    canary_connection* c = test::connect(one, echo.handle);
    ASSERT_NO_FATAL_FAILURE(round_trip(c, 500'000, 1));
    ASSERT_NO_FATAL_FAILURE(expect_by_memory(one, k.memory)) << k.there[0] << " and " << k.here[0];
  }
}

TEST(ConnectionPeers, WhoHasNoTransportInCommonIsToldWhatDecides) {
  Echo echo({"transports=shm"});
  TestEndpoint one({"transports=tcp"});
  canary_connection* c = nullptr;
  canary_status s = CANARY_WOULD_BLOCK;
  ASSERT_TRUE(
      test::poll_until([&] { return (s = canary_connect(one.raw, echo.handle.data(), &c)) != CANARY_WOULD_BLOCK; }));
  EXPECT_EQ(s, CANARY_UNREACHABLE) << last_error().message;
  EXPECT_NE(last_error().message.find("CANARY_TRANSPORTS"), std::string::npos) << last_error().message;
}

TEST(ConnectionPeers, ProcessesOfOtherUsersMeetOverTcp) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  Echo echo({"transports=tcp,shm"}, [] {
    if (setgid(65534) != 0 || setuid(65534) != 0) abort();
  });
  TestEndpoint one({"transports=tcp,shm"});
  canary_connection* c = test::connect(one, echo.handle);
  ASSERT_NO_FATAL_FAILURE(round_trip(c, 500'000, 1));
  ASSERT_NO_FATAL_FAILURE(expect_by_memory(one, false));
}

TEST(ConnectionPeers, TheEndOfAProcessIsToldAtOnceAlsoWhileItIsStoppedOrAChildOfItLivesOn) {
  for (const char* transports : {"transports=tcp", "transports=tcp,shm"}) {
    for (const char* what : {"runs", "is stopped", "has a child"}) {
      SCOPED_TRACE(std::string(transports) + ", " + what);
      Echo echo({transports}, {}, [&] {
        if (std::strcmp(what, "has a child") != 0 || fork() != 0) return;
        usleep(3'000'000);
        _exit(0);
      });
      TestEndpoint one({transports});
      canary_connection* c = test::connect(one, echo.handle);
      ASSERT_NO_FATAL_FAILURE(round_trip(c, 500'000, 1));
      std::vector<std::uint8_t> in(100);
      canary_request* r = test::receive(c, in.data(), in.size());
      if (std::strcmp(what, "is stopped") == 0) echo.signal(SIGSTOP);
      const auto began = std::chrono::steady_clock::now();
      echo.signal(SIGKILL);
      EXPECT_EQ(test::wait(r), CANARY_PEER_DIED) << last_error().message;
      EXPECT_LT(test::seconds_since(began), test::sanitized() ? 10 : 1.5);
    }
  }
}

TEST(ConnectionPeers, SixteenConnectionsEightDeepBothWays) {
  constexpr std::size_t kConnections = 16, kDepth = 8, kWaves = 3;
  constexpr std::size_t kLengths[] = {256 * 1024, 150 * 1024, 64 * 1024, 1000, 0};
  TestEndpoint one({"lanes_per_rail=2"}), two({"lanes_per_rail=2"});
  std::vector<Ends> ends;
  for (std::size_t c = 0; c < kConnections; ++c) ends.push_back(test::join_ends(one, two));
  for (std::size_t wave = 0; wave < kWaves; ++wave) {
    struct Message {
      std::vector<std::uint8_t> out, in;
      canary_request *send, *receive;
    };
    std::vector<Message> messages;
    messages.reserve(kConnections * kDepth * 2);
    for (std::size_t k = 0; k < kDepth; ++k) {
      for (std::size_t c = 0; c < kConnections; ++c) {
        for (const bool there : {true, false}) {
          const std::size_t bytes = kLengths[(c + k + wave) % std::size(kLengths)];
          Message& m = messages.emplace_back();
          m.out = test::bytes_of(messages.size(), bytes);
          m.in.resize(bytes);
          m.receive = test::receive(there ? ends[c].b : ends[c].a, m.in.data(), bytes);
          m.send = test::send(there ? ends[c].a : ends[c].b, m.out.data(), bytes);
        }
      }
    }
    for (Message& m : messages) {
      ASSERT_EQ(test::wait(m.receive), CANARY_OK) << last_error().message;
      ASSERT_EQ(test::wait(m.send), CANARY_OK) << last_error().message;
      ASSERT_TRUE(m.in == m.out);
    }
  }
}

}  // namespace
}  // namespace canarynet
