// Event loops that hear of messages and connections by a descriptor (canary_endpoint_fd). Also run under
// ThreadSanitizer.
#include <poll.h>

#include <atomic>
#include <thread>

#include "canarynet/connections.hpp"
#include "embed/connections_test_util.h"

namespace canarynet {
namespace {

using test::Ends;
using test::Handle;
using test::last_error;
using test::TestEndpoint;

constexpr int kPatienceMs = 20'000;

int descriptor_of(const TestEndpoint& endpoint) {
  int fd = -1;
  EXPECT_EQ(canary_endpoint_fd(endpoint.raw, &fd), CANARY_OK) << last_error().message;
  EXPECT_GE(fd, 0);
  return fd;
}

bool readable(int fd, int limit_ms) {
  pollfd p{fd, POLLIN, 0};
  return poll(&p, 1, limit_ms) == 1 && (p.revents & POLLIN) != 0;
}

void drain(const TestEndpoint& endpoint) { ASSERT_EQ(canary_endpoint_drain(endpoint.raw), CANARY_OK); }

// Sleeps on the descriptor, drains, looks; until `look` says that it is done.
template <typename Look>
void loop_until(const TestEndpoint& endpoint, int fd, const Look& look) {
  for (;;) {
    ASSERT_TRUE(readable(fd, kPatienceMs)) << "not readable within " << kPatienceMs << " ms";
    ASSERT_NO_FATAL_FAILURE(drain(endpoint));
    if (look()) return;
  }
}

// Rings for what was seen before they came.
void settle(const TestEndpoint& endpoint, int fd) {
  while (readable(fd, 50)) ASSERT_NO_FATAL_FAILURE(drain(endpoint));
}

TEST(EndpointFd, TellsOfConnectionsThatAreMadeAndThatCanBeAccepted) {
  TestEndpoint from, to;
  const int dials = descriptor_of(from), listens = descriptor_of(to);
  EXPECT_EQ(descriptor_of(to), listens) << "one for each endpoint";
  Handle handle;
  canary_listener* const listener = to.listen(&handle);
  EXPECT_TRUE(readable(listens, 0)) << "at first";
  drain(from);
  drain(to);
  EXPECT_FALSE(readable(listens, 50));
  Ends ends;
  ASSERT_EQ(canary_connect(from.raw, handle.data(), &ends.a), CANARY_WOULD_BLOCK);
  loop_until(to, listens, [&] { return canary_accept(listener, &ends.b) == CANARY_OK; });
  loop_until(from, dials, [&] { return canary_connect(from.raw, handle.data(), &ends.a) == CANARY_OK; });
  EXPECT_FALSE(readable(dials, 50)) << "it was drained, and nothing is new";
  EXPECT_FALSE(readable(listens, 50));
}

TEST(EndpointFd, TellsOfAConnectionThatCanNotBeMade) {
  TestEndpoint from, to;
  Handle handle;
  canary_listener* const listener = to.listen(&handle);
  const int fd = descriptor_of(from);
  ASSERT_EQ(canary_close_listener(listener), CANARY_OK);
  drain(from);
  canary_connection* connection = nullptr;
  ASSERT_EQ(canary_connect(from.raw, handle.data(), &connection), CANARY_WOULD_BLOCK);
  canary_status result = CANARY_WOULD_BLOCK;
  loop_until(from, fd,
             [&] { return (result = canary_connect(from.raw, handle.data(), &connection)) != CANARY_WOULD_BLOCK; });
  EXPECT_EQ(result, CANARY_CLOSED);
}

TEST(EndpointFd, TellsOfMessagesAlsoOfThoseThatFail) {
  TestEndpoint from, to;
  const Ends ends = join_ends(from, to);
  const int sends = descriptor_of(from), receives = descriptor_of(to);
  std::vector<std::uint8_t> data = test::bytes_of(1, 300'000), room(data.size());
  for (int round = 0; round < 20; ++round) {
    canary_request* const in = test::receive(ends.b, room.data(), room.size());
    canary_request* const out = test::send(ends.a, data.data(), data.size());
    loop_until(to, receives, [&] { return canary_test(in, nullptr) == CANARY_OK; });
    loop_until(from, sends, [&] { return canary_test(out, nullptr) == CANARY_OK; });
    ASSERT_EQ(room, data);
  }
  canary_request* const never = test::receive(ends.b, room.data(), room.size());
  settle(to, receives);
  ASSERT_EQ(canary_abort_connection(ends.a, "enough"), CANARY_OK);
  canary_status result = CANARY_WOULD_BLOCK;
  loop_until(to, receives, [&] { return (result = canary_test(never, nullptr)) != CANARY_WOULD_BLOCK; });
  EXPECT_EQ(result, CANARY_ABORTED);
}

// The other end sends whenever it likes: no order of a completion, a drain and a look loses one.
TEST(EndpointFd, LosesNoWakeUpBetweenAThreadThatSendsAndOneThatSleeps) {
  constexpr int kMessages = 3000;
  TestEndpoint from, to;
  const Ends ends = join_ends(from, to);
  const int fd = descriptor_of(to);
  std::thread sender([&] {
    std::uint64_t word = 0;
    for (int i = 0; i < kMessages; ++i) {
      canary_request* const r = test::send(ends.a, &word, sizeof word);
      if (test::wait(r) != CANARY_OK) return;
    }
  });
  std::uint64_t word = 0;
  for (int i = 0; i < kMessages; ++i) {
    canary_request* const r = test::receive(ends.b, &word, sizeof word);
    loop_until(to, fd, [&] { return canary_test(r, nullptr) == CANARY_OK; });
    if (HasFatalFailure()) break;
  }
  sender.join();
}

// Made while messages complete: it shows what waits already.
TEST(EndpointFd, MayBeMadeAtAnyTime) {
  for (int round = 0; round < 20; ++round) {
    TestEndpoint from, to;
    const Ends ends = join_ends(from, to);
    std::uint64_t in = 0, out = 7;
    canary_request* const receive = test::receive(ends.b, &in, sizeof in);
    canary_request* const send = test::send(ends.a, &out, sizeof out);
    const int fd = descriptor_of(to);
    loop_until(to, fd, [&] { return canary_test(receive, nullptr) == CANARY_OK; });
    EXPECT_EQ(test::wait(send), CANARY_OK);
    if (HasFatalFailure()) return;
  }
}

TEST(EndpointFd, IsRefusedToCallsThatMakeNoSense) {
  TestEndpoint endpoint;
  EXPECT_EQ(canary_endpoint_fd(endpoint.raw, nullptr), CANARY_INVALID_ARGUMENT);
  int fd = -1;
  EXPECT_EQ(canary_endpoint_fd(nullptr, &fd), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_endpoint_drain(endpoint.raw), CANARY_INVALID_ARGUMENT);
  EXPECT_NE(last_error().message.find("canary_endpoint_fd makes it"), std::string::npos) << last_error().message;
  canary_endpoint* const ended = endpoint.raw;
  endpoint.destroy();
  EXPECT_EQ(canary_endpoint_fd(ended, &fd), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_endpoint_drain(ended), CANARY_INVALID_ARGUMENT);
}

TEST(EndpointFd, InCppIsTheSame) {
  Endpoint endpoint({"rails=lo"});
  Endpoint::Listener listener = endpoint.listen();
  const int fd = endpoint.fd();
  endpoint.drain();
  Endpoint::Connecting connecting = endpoint.connect(listener.address);
  std::optional<Connection> a = connecting.test(), b;
  while (!a || !b) {
    ASSERT_TRUE(readable(fd, kPatienceMs));
    endpoint.drain();
    if (!a) a = connecting.test();
    if (!b) b = listener.accept();
  }
}

}  // namespace
}  // namespace canarynet
