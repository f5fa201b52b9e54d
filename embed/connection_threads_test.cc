// Many threads on one endpoint, each with connections of its own: all connect, accept, send, test and close at once.
// Also run under ThreadSanitizer.
#include <atomic>

#include "embed/connections_test_util.h"

namespace canarynet {
namespace {

using test::Handle;
using test::TestEndpoint;

TEST(ConnectionThreads, EachUsesItsOwnConnectionsOfOneEndpoint) {
  constexpr int kThreads = 4, kRounds = 6;
  TestEndpoint one, two;
  std::atomic<int> good = 0;
  test::on_threads(kThreads, [&](int t) {
    bool ok = true;
    for (int round = 0; round < kRounds && ok; ++round) {
      TestEndpoint& from = (t + round) % 2 == 0 ? one : two;
      TestEndpoint& to = (t + round) % 2 == 0 ? two : one;
      const test::Ends e = test::join_ends(from, to);
      if (e.a == nullptr || e.b == nullptr) return;
      for (const std::size_t size : {std::size_t{0}, std::size_t{5'000}, std::size_t{300'000}}) {
        const auto out = test::bytes_of(static_cast<std::uint64_t>(t * 100 + round), size);
        std::vector<std::uint8_t> in[4];
        canary_request *s[4], *r[4];
        for (int k = 0; k < 4; ++k) {
          in[k].resize(size + 1);
          s[k] = test::send(e.a, out.data(), size);
          r[k] = test::receive(e.b, in[k].data(), in[k].size());
        }
        for (int k = 0; k < 4; ++k) {
          std::size_t length = 0;
          ok = ok && test::wait(r[k], &length) == CANARY_OK && test::wait(s[k]) == CANARY_OK && length == size &&
               std::equal(out.begin(), out.end(), in[k].begin());
        }
      }
      if (round % 2 == 0) test::receive(e.b, nullptr, 0);  // closed with a request in flight
      ok = canary_close(e.a) == CANARY_OK && canary_close(e.b) == CANARY_OK && ok;
    }
    good += ok;
  });
  EXPECT_EQ(good, kThreads);
}

TEST(ConnectionThreads, OneSendsAndAnotherReceivesInTwoContexts) {
  TestEndpoint one, two;
  const test::Ends e = test::join_ends(one, two);
  constexpr int kMessages = 200;
  std::atomic<int> good = 0;
  test::on_threads(2, [&](int side) {
    for (int i = 0; i < kMessages; ++i) {
      const std::size_t size = static_cast<std::size_t>(i * 997 % 70'000);
      auto data = test::bytes_of(static_cast<std::uint64_t>(i), size);
      if (side == 0) {
        if (test::wait(test::send(e.a, data.data(), size)) != CANARY_OK) return;
        continue;
      }
      std::vector<std::uint8_t> in(70'000);
      std::size_t length = 0;
      if (test::wait(test::receive(e.b, in.data(), in.size()), &length) != CANARY_OK || length != size) return;
      if (!std::equal(data.begin(), data.end(), in.begin())) return;
    }
    ++good;
  });
  EXPECT_EQ(good, 2);
}

// A connection is used by one thread at a time. More are told so, and do no harm.
TEST(ConnectionThreads, ThatTestOneRequestAreToldItsResultOnce) {
  TestEndpoint one, two;
  const test::Ends e = test::join_ends(one, two);
  for (int round = 0; round < 100; ++round) {
    std::uint8_t in[8];
    canary_request* const received = test::receive(e.b, in, sizeof in);
    std::atomic<int> told{0};
    std::thread sender([&] { EXPECT_EQ(test::wait(test::send(e.a, "eight by", 8)), CANARY_OK); });
    test::on_threads(3, [&](int) {
      canary_status s = CANARY_WOULD_BLOCK;
      while (s == CANARY_WOULD_BLOCK ||
             (s == CANARY_INVALID_ARGUMENT && test::last_error().message.find("another thread") != std::string::npos))
        s = canary_test(received, nullptr);
      told += s == CANARY_OK;
      EXPECT_TRUE(s == CANARY_OK || test::last_error().message.find("ended") != std::string::npos);
    });
    sender.join();
    ASSERT_EQ(told, 1);
  }
  // None of its places was lost or given twice.
  std::vector<canary_request*> open;
  std::uint8_t in[80];
  for (canary_request* r = nullptr;;) {
    void* const at = in + open.size();
    const std::size_t room = 1;
    if (canary_irecv(e.b, 1, &at, &room, nullptr, nullptr, &r) != CANARY_OK) break;
    open.push_back(r);
  }
  EXPECT_EQ(open.size(), 64u);
  canary_request* unit = nullptr;
  void* nowhere = nullptr;
  const std::size_t room = 1;
  EXPECT_EQ(canary_irecv(e.b, 1, &nowhere, &room, nullptr, nullptr, &unit), CANARY_INVALID_ARGUMENT)
      << "wrong arguments are wrong whether or not there is room";
  // There is one place, and a unit of two needs two: another time.
  ASSERT_EQ(test::wait(test::send(e.a, "x", 1)), CANARY_OK);
  ASSERT_EQ(test::wait(open.front()), CANARY_OK);
  void* const places[] = {in + 70, in + 71};
  const std::size_t one_each[] = {1, 1};
  EXPECT_EQ(canary_irecv(e.b, 2, places, one_each, nullptr, nullptr, &unit), CANARY_WOULD_BLOCK);
}

TEST(ConnectionThreads, ThatAskForOneFailedConnectionHearOfItOnce) {
  for (int round = 0; round < 4; ++round) {
    TestEndpoint one;
    Handle handle;
    {
      TestEndpoint two;
      two.listen(&handle);
    }
    canary_connection* made = nullptr;
    ASSERT_EQ(canary_connect(one.raw, handle.data(), &made), CANARY_WOULD_BLOCK);
    std::atomic<int> failed{0}, ended{0};
    test::on_threads(4, [&](int t) {
      if (t == 3) {
        while (canary_abort_connection(made, "beside it") == CANARY_OK) continue;
        return;
      }
      canary_connection* mine = made;
      canary_status s = CANARY_WOULD_BLOCK;
      while (s == CANARY_WOULD_BLOCK ||
             (s == CANARY_INVALID_ARGUMENT && test::last_error().message.find("another thread") != std::string::npos))
        s = canary_connect(one.raw, handle.data(), &mine);
      ++(s == CANARY_INVALID_ARGUMENT ? ended : failed);
    });
    EXPECT_EQ(failed, 1);
    EXPECT_EQ(ended, 2);
  }
}

}  // namespace
}  // namespace canarynet
