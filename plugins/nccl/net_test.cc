// The plugin through its exported objects alone, over loopback: everything that NCCL relies on, for every version.
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "plugins/nccl/handle.h"
#include "plugins/nccl/plugin_test_util.h"

namespace canarynet::nccl::test {
namespace {

constexpr std::size_t kEagerMax = 64 << 10;  // a quarter of CANARY_EAGER_BYTES
constexpr std::size_t kSizes[] = {0, 1, 100, 8192, 65536, 614'400, (1 << 20) + 3};

class EveryVersion : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    Log::clear();
    net = net_of(GetParam());
    ASSERT_EQ(net->init(&context), Result::kSuccess) << Log::text();
    EXPECT_EQ(context != nullptr, GetParam() >= 11);
  }
  void TearDown() override { EXPECT_EQ(net->finalize(context), Result::kSuccess); }
  void close(const Ends& e) {
    EXPECT_EQ(net->close_send(e.send), Result::kSuccess);
    EXPECT_EQ(net->close_receive(e.receive), Result::kSuccess);
  }
  std::unique_ptr<Net> net;
  void* context = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Versions, EveryVersion, testing::Values(8, 9, 10, 11, 12),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

TEST_P(EveryVersion, ShowsOneDeviceThatTakesHostMemory) {
  int count = 77;
  ASSERT_EQ(net->devices(&count), Result::kSuccess);
  EXPECT_EQ(count, 1);
  Properties p;
  ASSERT_EQ(net->properties(0, &p), Result::kSuccess);
  EXPECT_EQ(p.name, "Canary");
  EXPECT_GE(p.speed_mbit, 10'000) << "loopback does not tell: what NCCL assumes of such NICs";
  EXPECT_EQ(p.receives_max, 1);
  EXPECT_EQ(p.pointer_support, abi::kPointerHost);
  EXPECT_NE(net->properties(1, &p), Result::kSuccess);
  EXPECT_TRUE(has(Log::text(), "there is no device 1")) << Log::text();
}

TEST_P(EveryVersion, CarriesEverySizeWhoeverCallsFirst) {
  const Ends e = join(*net, context, context);
  for (const std::size_t size : kSizes) {
    for (const bool receive_first : {true, false}) {
      const auto out = bytes_of(size + 1, size);
      std::vector<std::uint8_t> in(size + 16, 0xEE);
      void *r = nullptr, *s = nullptr;
      if (receive_first) r = receive(*net, e.receive, in.data(), in.size());
      s = send(*net, e.send, out.data(), size);
      if (!receive_first) r = receive(*net, e.receive, in.data(), in.size());
      int sent[2] = {-1, -1}, received[2] = {-1, -1};
      ASSERT_EQ(wait(*net, s, sent), Result::kSuccess) << Log::text();
      ASSERT_EQ(wait(*net, r, received), Result::kSuccess) << Log::text();
      EXPECT_EQ(sent[0], static_cast<int>(size));
      EXPECT_EQ(received[0], static_cast<int>(size)) << "a send may be shorter than its receive";
      EXPECT_EQ(sent[1], -1) << "NCCL sums all entries";
      EXPECT_EQ(received[1], -1);
      ASSERT_TRUE(std::equal(out.begin(), out.end(), in.begin())) << size;
      ASSERT_EQ(in[size], 0xEE);
    }
  }
  close(e);
}

TEST_P(EveryVersion, KeepsTheOrderEightDeepInMixes) {
  constexpr int kDepth = 8, kMessages = 60;
  const Ends e = join(*net, context, context);
  const auto size_of = [](int k) { return kSizes[static_cast<std::size_t>(k * 5) % std::size(kSizes)]; };
  std::vector<std::vector<std::uint8_t>> out(kMessages), in(kDepth, std::vector<std::uint8_t>((1 << 20) + 3));
  std::vector<void*> sends(kMessages), receives(kMessages);
  int posted_s = 0, posted_r = 0, done_s = 0, done_r = 0;
  const bool ended = poll_until([&] {
    if (posted_s < kMessages && posted_s - done_s < kDepth) {
      auto& buffer = out[static_cast<std::size_t>(posted_s)];
      buffer = bytes_of(static_cast<std::uint64_t>(posted_s), size_of(posted_s));
      void* request = reinterpret_cast<void*>(0x1);
      EXPECT_EQ(net->isend(e.send, buffer.data(), buffer.size(), 3, nullptr, &request), Result::kSuccess);
      if (request != nullptr) sends[static_cast<std::size_t>(posted_s++)] = request;
    }
    if (posted_r < kMessages && posted_r - done_r < kDepth) {
      auto& buffer = in[static_cast<std::size_t>(posted_r % kDepth)];
      void* request = reinterpret_cast<void*>(0x1);
      EXPECT_EQ(net->irecv(e.receive, {buffer.data()}, {buffer.size()}, {3}, &request), Result::kSuccess);
      if (request != nullptr) receives[static_cast<std::size_t>(posted_r++)] = request;
    }
    int done = 0, bytes = -1;
    if (done_s < posted_s) {
      EXPECT_EQ(net->test(sends[static_cast<std::size_t>(done_s)], &done, &bytes), Result::kSuccess) << Log::text();
      done_s += done;
    }
    if (done_r < posted_r) {
      EXPECT_EQ(net->test(receives[static_cast<std::size_t>(done_r)], &done, &bytes), Result::kSuccess) << Log::text();
      if (done != 0) {
        const auto expected = bytes_of(static_cast<std::uint64_t>(done_r), size_of(done_r));
        EXPECT_EQ(bytes, static_cast<int>(expected.size()));
        EXPECT_TRUE(
            std::equal(expected.begin(), expected.end(), in[static_cast<std::size_t>(done_r % kDepth)].begin()));
        ++done_r;
      }
    }
    return (done_s == kMessages && done_r == kMessages) || HasFailure();
  });
  EXPECT_TRUE(ended);
  close(e);
}

TEST_P(EveryVersion, FillsGroupedReceivesByTag) {
  const Ends e = join(*net, context, context);
  char a[10], b[20], c[20];
  void* request = reinterpret_cast<void*>(0x1);
  ASSERT_EQ(net->irecv(e.receive, {a, b, c}, {sizeof a, sizeof b, sizeof c}, {5, 6, 6}, &request), Result::kSuccess);
  ASSERT_NE(request, nullptr);
  void* const sends[] = {send(*net, e.send, "first six", 9, 6), send(*net, e.send, "five", 4, 5),
                         send(*net, e.send, "second six", 10, 6)};
  int bytes[4] = {-1, -1, -1, -1};
  ASSERT_EQ(wait(*net, request, bytes), Result::kSuccess) << Log::text();
  EXPECT_EQ(std::string(a, 4), "five");
  EXPECT_EQ(std::string(b, 9), "first six");
  EXPECT_EQ(std::string(c, 10), "second six");
  EXPECT_EQ((std::array{bytes[0], bytes[1], bytes[2], bytes[3]}), (std::array{4, 9, 10, -1}));
  for (void* s : sends) EXPECT_EQ(wait(*net, s), Result::kSuccess);
  close(e);
}

TEST_P(EveryVersion, TakesThirtyTwoRequestsAndThenSaysTryAgain) {
  const Ends e = join(*net, context, context);
  std::vector<std::uint8_t> memory(64);
  std::vector<void*> requests;
  void* request = nullptr;
  for (int i = 0; i < 100; ++i) {
    request = reinterpret_cast<void*>(0x1);
    ASSERT_EQ(net->irecv(e.receive, {memory.data() + i % 32}, {1}, {0}, &request), Result::kSuccess);
    if (request == nullptr) break;
    requests.push_back(request);
  }
  EXPECT_EQ(request, nullptr);
  EXPECT_EQ(requests.size(), 32u);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto value = static_cast<std::uint8_t>(i);
    void* s = send(*net, e.send, &value, 1);
    ASSERT_EQ(wait(*net, s), Result::kSuccess);
    ASSERT_EQ(wait(*net, requests[i]), Result::kSuccess);
    EXPECT_EQ(memory[i], value);
  }
  close(e);
}

TEST_P(EveryVersion, RefusesASendThatIsLongerThanItsReceive) {
  const Ends e = join(*net, context, context);
  std::vector<std::uint8_t> out(1 << 20), in(1000);
  void* r = receive(*net, e.receive, in.data(), in.size());
  void* s = send(*net, e.send, out.data(), out.size());
  EXPECT_EQ(wait(*net, s), Result::kInvalidUsage);  // first: they share a context, which is given up at the first error
  EXPECT_EQ(wait(*net, r), Result::kInvalidUsage);
  EXPECT_TRUE(has(Log::text(), "1048576 bytes were sent, the receive has room for 1000")) << Log::text();
  void* again = reinterpret_cast<void*>(0x1);
  EXPECT_EQ(net->isend(e.send, out.data(), 1, 0, nullptr, &again), Result::kInvalidUsage) << "it stays failed";
  EXPECT_EQ(again, nullptr);
  close(e);
}

// This holds whichever was posted first. A small message may be acknowledged before its receive is posted: its sender
// is told with the next request.
TEST_P(EveryVersion, RefusesALongerSendAtEverySize) {
  const std::pair<std::size_t, std::size_t> lengths[] = {
      {0, 1},     {1, 2},         {1000, 1001},       {100, 8192},       {8192, 8193},
      {0, 65536}, {65536, 65537}, {614'400, 1 << 20}, {1 << 20, 3 << 20}};
  std::vector<std::uint8_t> out(3 << 20, 7), in(1 << 20);
  for (const auto& [room, length] : lengths) {
    for (const bool receive_first : {true, false}) {
      SCOPED_TRACE(std::to_string(length) + " bytes for " + std::to_string(room) +
                   (receive_first ? ", receive first" : ", send first"));
      if (HasFailure()) return;  // perhaps no connection was made
      void* mine = nullptr;
      ASSERT_EQ(net->init(&mine), Result::kSuccess);
      const Ends e = join(*net, mine, mine);
      Log::clear();
      std::fill(in.begin(), in.end(), 0);
      void* r = receive_first ? receive(*net, e.receive, in.data(), room) : nullptr;
      void* s = send(*net, e.send, out.data(), length);
      if (!receive_first) r = receive(*net, e.receive, in.data(), room);
      const Result sent = wait(*net, s);
      EXPECT_EQ(wait(*net, r), Result::kInvalidUsage);
      const std::string told =
          std::to_string(length) + " bytes were sent, the receive has room for " + std::to_string(room);
      EXPECT_TRUE(has(Log::text(), told)) << Log::text();
      if (receive_first || length > kEagerMax) {
        EXPECT_EQ(sent, Result::kInvalidUsage);
      }
      Log::clear();
      void* next = nullptr;
      Result later = sent;
      EXPECT_TRUE(poll_until([&] {
        later = net->isend(e.send, out.data(), 1, 0, nullptr, &next);
        if (later == Result::kSuccess && next != nullptr) later = wait(*net, next);
        return later != Result::kSuccess;
      }));
      EXPECT_EQ(later, Result::kInvalidUsage);
      EXPECT_TRUE(has(Log::text(), told)) << Log::text();
      EXPECT_TRUE(std::all_of(in.begin() + static_cast<std::ptrdiff_t>(room), in.end(), [](auto b) { return b == 0; }))
          << "written past the receive's room";
      close(e);
      EXPECT_EQ(net->finalize(mine), Result::kSuccess);
    }
  }
}

// NCCL keeps the last warning for ncclGetLastError, and goes on to call on a connection that has failed.
TEST_P(EveryVersion, TheLastWarningKeepsTheCauseOfAFailure) {
  const Ends e = join(*net, context, context);
  std::vector<std::uint8_t> out(5000), in(1000);
  void* r = receive(*net, e.receive, in.data(), in.size());
  void* s = send(*net, e.send, out.data(), out.size());
  EXPECT_EQ(wait(*net, s), Result::kInvalidUsage);
  EXPECT_EQ(wait(*net, r), Result::kInvalidUsage);
  for (const bool sends : {true, false}) {
    Log::clear();
    void* again = nullptr;
    EXPECT_EQ(sends ? net->isend(e.send, out.data(), 1, 0, nullptr, &again)
                    : net->irecv(e.receive, {in.data()}, {1}, {0}, &again),
              Result::kInvalidUsage);
    EXPECT_TRUE(has(Log::text(), "5000 bytes were sent, the receive has room for 1000")) << Log::text();
  }
  close(e);
}

TEST_P(EveryVersion, RegistersHostMemoryOnlyAndChecksItsBounds) {
  const Ends e = join(*net, context, context);
  std::vector<std::uint8_t> memory(1000);
  void* mr = nullptr;
  ASSERT_EQ(net->register_memory(e.send, memory.data(), memory.size(), abi::kPointerHost, &mr), Result::kSuccess);
  void* none = nullptr;
  EXPECT_EQ(net->register_memory(e.send, memory.data(), memory.size(), abi::kPointerCuda, &none),
            Result::kInternalError);
  EXPECT_TRUE(has(Log::text(), "only host memory")) << Log::text();
  void* request = nullptr;
  ASSERT_EQ(net->isend(e.send, memory.data() + 1, 999, 0, mr, &request), Result::kSuccess);
  void* r = receive(*net, e.receive, memory.data(), 0 + 999);
  EXPECT_EQ(wait(*net, request), Result::kSuccess);
  EXPECT_EQ(wait(*net, r), Result::kSuccess);
  EXPECT_EQ(net->isend(e.send, memory.data() + 1, 1000, 0, mr, &request), Result::kInternalError);
  EXPECT_EQ(request, nullptr);
  EXPECT_EQ(net->deregister(e.send, mr), Result::kSuccess);
  request = reinterpret_cast<void*>(0x1);
  EXPECT_EQ(net->iflush(e.receive, &request), Result::kSuccess);
  EXPECT_EQ(request, nullptr);
  close(e);
}

TEST_P(EveryVersion, ClosesAtOnceWithRequestsInFlightOnEitherSide) {
  for (const bool sender_first : {true, false}) {
    const Ends e = join(*net, context, context);
    std::vector<std::uint8_t> out(32 << 20), in(32 << 20);
    for (int k = 0; k < 4; ++k) {
      send(*net, e.send, out.data(), out.size());
      receive(*net, e.receive, in.data(), in.size());
    }
    const auto began = std::chrono::steady_clock::now();
    if (sender_first) {
      EXPECT_EQ(net->close_send(e.send), Result::kSuccess);
      EXPECT_EQ(net->close_receive(e.receive), Result::kSuccess);
    } else {
      EXPECT_EQ(net->close_receive(e.receive), Result::kSuccess);
      EXPECT_EQ(net->close_send(e.send), Result::kSuccess);
    }
    EXPECT_LT(seconds_since(began), sanitized() ? 5.0 : 1.0);
  }
}

TEST_P(EveryVersion, RefusesForeignHandlesInWords) {
  Handle foreign{};
  std::memcpy(foreign.data(), "\x02\x00socket address", 16);
  void* comm = reinterpret_cast<void*>(0x1);
  EXPECT_EQ(net->connect(context, foreign.data(), &comm), Result::kInvalidUsage);
  EXPECT_EQ(comm, nullptr);
  EXPECT_TRUE(has(Log::text(), "not made by Canary")) << Log::text();

  Handle good;
  void* listener = nullptr;
  ASSERT_EQ(net->listen(context, good.data(), &listener), Result::kSuccess);
  Handle other = good;
  other[kEndpointBytes + 2] = std::byte{9};
  EXPECT_EQ(net->connect(context, other.data(), &comm), Result::kInvalidUsage);
  EXPECT_TRUE(has(Log::text(), "handles of version 9, this one of version 1")) << Log::text();
  other = good;
  other[2] = std::byte{9};
  EXPECT_EQ(net->connect(context, other.data(), &comm), Result::kInvalidUsage);
  EXPECT_TRUE(has(Log::text(), "it has version 9")) << Log::text();
  other = good;
  other[kEndpointBytes + 4] = std::byte{100};
  other[kEndpointBytes + 9] = std::byte{1};
  EXPECT_EQ(net->connect(context, other.data(), &comm), Result::kInvalidUsage);
  EXPECT_TRUE(has(Log::text(), "here none, at the peer 100 ns and 256 bytes/s")) << Log::text();

  // The listener was closed without accepting.
  ASSERT_EQ(net->close_listen(listener), Result::kSuccess);
  Result result = Result::kSuccess;
  const bool ended = poll_until([&] {
    result = net->connect(context, good.data(), &comm);
    return comm != nullptr || result != Result::kSuccess;
  });
  EXPECT_TRUE(ended);
  EXPECT_EQ(result, Result::kRemoteError);
  // Before v11 the endpoint goes with its last user.
  const char* const why =
      context != nullptr ? "does not listen under this handle any more" : "refuses every connection";
  EXPECT_TRUE(has(Log::text(), why)) << Log::text();
}

// The source line that a warning with this part in it names.
std::string source_of(const std::string& part) {
  const Log::Place place = Log::place_of(part);
  std::ifstream source(std::string(CANARY_SOURCE_ROOT "/") + place.file);
  std::string text;
  for (int i = 0; i < place.line; ++i) std::getline(source, text);
  return place.file + ": " + text;
}

TEST_P(EveryVersion, WarningsNameTheSourceLineThatGivesThem) {
  Properties p;
  EXPECT_NE(net->properties(1, &p), Result::kSuccess);
  EXPECT_TRUE(source_of("there is no device 1").starts_with("plugins/nccl/net.cc:   return fail("))
      << source_of("there is no device 1");
  const Ends e = join(*net, context, context);
  void* none = nullptr;
  EXPECT_NE(net->register_memory(e.send, &p, sizeof p, abi::kPointerCuda, &none), Result::kSuccess);
  EXPECT_TRUE(has(source_of("only host memory"), "only host memory")) << source_of("only host memory");
  // The library's errors: the line that has called it.
  EXPECT_NE(net->register_memory(e.send, nullptr, 100, abi::kPointerHost, &none), Result::kSuccess);
  EXPECT_TRUE(has(source_of("NULL argument"), "fail(\"regMr\", s)")) << source_of("NULL argument") << "\n"
                                                                     << Log::text();
  close(e);
}

// --- processes -------------------------------------------------------------------------------------------------------

TEST(Processes, ExchangeBothWaysAndHearOfADeathWithinTwoSeconds) {
  Log::clear();
  Pipes pipes;
  const auto net = net_of(11);
  constexpr std::size_t kBytes = 1 << 20;
  Process victim([&]() -> std::string {
    void* context = nullptr;
    if (net->init(&context) != Result::kSuccess) return "init";
    const Pair p = meet(*net, context, pipes.down[0], pipes.up[1]);
    const auto out = bytes_of(2, kBytes);
    std::vector<std::uint8_t> in(kBytes);
    void* r = receive(*net, p.receive, in.data(), in.size());
    void* s = send(*net, p.send, out.data(), out.size());
    if (wait(*net, r) != Result::kSuccess || wait(*net, s) != Result::kSuccess) return "exchange";
    write_all(pipes.up[1], "!", 1);
    std::this_thread::sleep_for(std::chrono::seconds(60));
    return "";
  });
  void* context = nullptr;
  ASSERT_EQ(net->init(&context), Result::kSuccess) << Log::text();
  const Pair p = meet(*net, context, pipes.up[0], pipes.down[1]);
  const auto out = bytes_of(1, kBytes);
  std::vector<std::uint8_t> in(kBytes);
  void* r = receive(*net, p.receive, in.data(), in.size());
  void* s = send(*net, p.send, out.data(), out.size());
  ASSERT_EQ(wait(*net, s), Result::kSuccess) << Log::text();
  ASSERT_EQ(wait(*net, r), Result::kSuccess) << Log::text();
  EXPECT_EQ(in, bytes_of(2, kBytes));
  char word = 0;
  read_all(pipes.up[0], &word, 1);

  r = receive(*net, p.receive, in.data(), in.size());
  s = send(*net, p.send, out.data(), out.size());
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  Log::clear();
  victim.kill();
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(wait(*net, s), Result::kRemoteError);
  EXPECT_EQ(wait(*net, r), Result::kRemoteError);
  EXPECT_LT(seconds_since(began), sanitized() ? 10.0 : 2.0);
  const std::string text = Log::text();
  EXPECT_TRUE(has(text, "(pid " + std::to_string(victim.pid()) + ")")) << text;
  EXPECT_TRUE(has(text, "links shm")) << text;
  EXPECT_TRUE(has(text, "1 messages with 1048576 bytes outstanding")) << text;
  EXPECT_TRUE(has(text, "last heard")) << text;
  const auto closing = std::chrono::steady_clock::now();
  EXPECT_EQ(net->close_send(p.send), Result::kSuccess);
  EXPECT_EQ(net->close_receive(p.receive), Result::kSuccess);
  EXPECT_EQ(net->finalize(context), Result::kSuccess);
  EXPECT_LT(seconds_since(closing), sanitized() ? 5.0 : 1.5);
}

// One of a ring of three dies: the third one's neighbours both live, and it would never learn of it untold.
TEST(Processes, ThePeersOfAFailedCommunicatorAreTold) {
  Log::clear();
  Pipes pipes;
  const auto net = net_of(12);
  Process bystander([&]() -> std::string {
    void* context = nullptr;
    if (net->init(&context) != Result::kSuccess) return "init";
    const Pair p = meet(*net, context, pipes.down[0], pipes.up[1]);
    std::vector<std::uint8_t> in(1000);
    const Result result = wait(*net, receive(*net, p.receive, in.data(), in.size()));
    if (result != Result::kRemoteError) return "result " + std::to_string(static_cast<int>(result));
    for (const char* part : {"told by the peer", "1048576 bytes were sent, the receive has room for 1000"}) {
      if (!has(Log::text(), part)) return std::string(part) + " is not told:\n" + Log::text();
    }
    return "fine";
  });
  void* context = nullptr;
  ASSERT_EQ(net->init(&context), Result::kSuccess) << Log::text();
  const Pair p = meet(*net, context, pipes.up[0], pipes.down[1]);
  // Something goes wrong on another connection of this communicator. Nothing is closed.
  const Ends e = join(*net, context, context);
  std::vector<std::uint8_t> out(1 << 20), in(1000);
  void* r = receive(*net, e.receive, in.data(), in.size());
  send(*net, e.send, out.data(), out.size());
  EXPECT_EQ(wait(*net, r), Result::kInvalidUsage);
  EXPECT_EQ(bystander.report(), "fine");
  for (void* comm : {e.send, p.send}) EXPECT_EQ(net->close_send(comm), Result::kSuccess);
  for (void* comm : {e.receive, p.receive}) EXPECT_EQ(net->close_receive(comm), Result::kSuccess);
  EXPECT_EQ(net->finalize(context), Result::kSuccess);
}

TEST(Processes, AForkedChildForgetsItsParentsConnections) {
  const auto net = net_of(11);
  void* context = nullptr;
  ASSERT_EQ(net->init(&context), Result::kSuccess) << Log::text();
  const Ends e = join(*net, context, context);
  char late = 0;
  void* const in_flight = receive(*net, e.receive, &late, 1);
  // Unlike the C library's, the allocator of AddressSanitizer does not survive a fork() while another thread is in it:
  // the endpoint's may be, as long as it takes in what was posted.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  Process child([&]() -> std::string {
    const auto refused = [](Result result) {
      const bool told = has(Log::text(), "after fork()");
      Log::clear();
      return result == Result::kInvalidUsage && told;
    };
    Log::clear();
    void *request = nullptr, *mr = nullptr;
    int done = 0;
    if (!refused(net->isend(e.send, "x", 1, 0, nullptr, &request))) return "isend was taken";
    if (!refused(net->register_memory(e.send, &late, 1, abi::kPointerHost, &mr))) return "regMr was taken";
    if (!refused(net->test(in_flight, &done, nullptr))) return "test goes on for ever";
    if (net->close_send(e.send) != Result::kSuccess || net->close_receive(e.receive) != Result::kSuccess)
      return "close";
    void* own = nullptr;  // the child may have a context of its own
    if (net->init(&own) != Result::kSuccess) return "init";
    const Ends mine = join(*net, own, own);
    char got = 0;
    void* r = receive(*net, mine.receive, &got, 1);
    void* s = send(*net, mine.send, "y", 1);
    if (wait(*net, s) != Result::kSuccess || wait(*net, r) != Result::kSuccess || got != 'y') return "exchange";
    // The end of its parent's context does not concern it.
    if (net->finalize(context) != Result::kSuccess) return "finalize of the parent's";
    net->close_send(mine.send);
    net->close_receive(mine.receive);
    if (library_threads() != 1) return "its endpoint has ended with its parent's context";
    if (net->finalize(own) != Result::kSuccess) return "finalize";
    return no_library_threads() ? "fine" : "its endpoint goes on";
  });
  EXPECT_EQ(child.report(), "fine");
  void* s = send(*net, e.send, "x", 1);
  EXPECT_EQ(wait(*net, s), Result::kSuccess) << Log::text();
  EXPECT_EQ(wait(*net, in_flight), Result::kSuccess) << Log::text();
  EXPECT_EQ(late, 'x');
  EXPECT_EQ(net->close_send(e.send), Result::kSuccess);
  EXPECT_EQ(net->close_receive(e.receive), Result::kSuccess);
  EXPECT_EQ(net->finalize(context), Result::kSuccess);
}

}  // namespace
}  // namespace canarynet::nccl::test
