// Send and receive in a group through the C ABI over real TCP on loopback: sizes, orders, misuse, deaths, and no touch
// of the heap.
#include <barrier>
#include <cstring>

#include "embed/job_test_util.h"
#include "tests/allocation_counter.h"

namespace canarynet {
namespace {

using test::Job;
using test::last_error;

constexpr std::size_t kSizes[] = {0, 1, 100, 8192, 600 * 1024, (1 << 20) + 3, 16 << 20};

std::uint8_t pattern(std::size_t size, int from, std::size_t i) {
  return static_cast<std::uint8_t>(i * 7 + (i >> 8) * 13 + size + static_cast<std::size_t>(from) * 31);
}
std::vector<std::uint8_t> message(std::size_t size, int from) {
  std::vector<std::uint8_t> out(size);
  for (std::size_t i = 0; i < size; ++i) out[i] = pattern(size, from, i);
  return out;
}

TEST(SendRecv, EverySizeGoesRoundARingEightDeep) {
  Job job(3);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    const int to = (r + 1) % 3, from = (r + 2) % 3;
    for (const std::size_t size : kSizes) {
      const std::size_t depth = size > (1 << 21) ? 2 : 8;
      const auto out = message(size, r), expected = message(size, from);
      std::vector<std::vector<std::uint8_t>> in(depth, std::vector<std::uint8_t>(size + 1, 0xEE));
      std::vector<canary_op*> ops;
      for (std::size_t k = 0; k < depth; ++k) {
        canary_op *s = nullptr, *g = nullptr;
        ASSERT_EQ(canary_send(job.world(r), out.data(), size, CANARY_U8, to, &s), CANARY_OK) << last_error().message;
        ASSERT_EQ(canary_recv(job.world(r), in[k].data(), size, CANARY_U8, from, &g), CANARY_OK)
            << last_error().message;
        ops.insert(ops.end(), {s, g});
      }
      for (canary_op* op : ops) ASSERT_EQ(canary_op_wait(op), CANARY_OK) << last_error().message;
      for (const auto& got : in) {
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), got.begin())) << size;
        ASSERT_EQ(got[size], 0xEE);
      }
    }
  });
}

TEST(SendRecv, BlockingCallsAlternateAndPollersGetThrough) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    std::int64_t value = 0;
    for (std::int64_t i = 0; i < 300; ++i) {
      if (r == 0) {
        ASSERT_EQ(canary_send(job.world(0), &i, 1, CANARY_I64, 1, nullptr), CANARY_OK) << last_error().message;
        canary_op* op = nullptr;
        ASSERT_EQ(canary_recv(job.world(0), &value, 1, CANARY_I64, 1, &op), CANARY_OK);
        canary_status s = CANARY_WOULD_BLOCK;
        while ((s = canary_op_test(op)) == CANARY_WOULD_BLOCK) std::this_thread::yield();
        ASSERT_EQ(s, CANARY_OK);
        ASSERT_EQ(value, 2 * i);
      } else {
        ASSERT_EQ(canary_recv(job.world(1), &value, 1, CANARY_I64, 0, nullptr), CANARY_OK) << last_error().message;
        value *= 2;
        ASSERT_EQ(canary_send(job.world(1), &value, 1, CANARY_I64, 0, nullptr), CANARY_OK);
      }
    }
  });
}

TEST(SendRecv, ToOneselfAndInSubgroupsBesideCollectives) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    const int order[] = {1, 0};
    canary_group* g = nullptr;
    ASSERT_EQ(canary_group_create(job.context(r), order, 2, &g), CANARY_OK) << last_error().message;
    const int mine = canary_group_rank(g);
    ASSERT_EQ(mine, 1 - r);
    float sum = 1, sent = static_cast<float>(r), got = -1, self = -1;
    canary_op *a = nullptr, *b = nullptr, *c = nullptr, *d = nullptr;
    ASSERT_EQ(canary_recv(g, &got, 1, CANARY_F32, 1 - mine, &a), CANARY_OK);
    ASSERT_EQ(canary_recv(g, &self, 1, CANARY_F32, mine, &b), CANARY_OK);
    ASSERT_EQ(canary_all_reduce(g, &sum, &sum, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK) << last_error().message;
    ASSERT_EQ(canary_group_destroy(g), CANARY_INVALID_ARGUMENT) << "receives are pending";
    ASSERT_EQ(canary_send(g, &sent, 1, CANARY_F32, mine, &c), CANARY_OK);
    ASSERT_EQ(canary_send(g, &sent, 1, CANARY_F32, 1 - mine, &d), CANARY_OK);
    for (canary_op* op : {a, b, c, d}) ASSERT_EQ(canary_op_wait(op), CANARY_OK) << last_error().message;
    EXPECT_EQ(got, static_cast<float>(1 - r));
    EXPECT_EQ(self, static_cast<float>(r));
    EXPECT_EQ(sum, 2);
    ASSERT_EQ(canary_barrier(g, nullptr), CANARY_OK);
    EXPECT_EQ(canary_group_destroy(g), CANARY_OK) << last_error().message;
  });
}

TEST(SendRecv, WrongArgumentsAreNamed) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  float v = 0;
  canary_group* g = job.world(0);
  EXPECT_EQ(canary_send(nullptr, &v, 1, CANARY_F32, 1, nullptr), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_send(g, &v, 1, CANARY_F32, 2, nullptr), CANARY_INVALID_ARGUMENT);
  EXPECT_NE(last_error().message.find("peer 2 is outside of a group of 2"), std::string::npos) << last_error().message;
  EXPECT_EQ(canary_recv(g, &v, 1, CANARY_F32, -1, nullptr), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_recv(g, nullptr, 1, CANARY_F32, 1, nullptr), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_recv(g, &v, std::size_t{1} << 60, CANARY_F32, 1, nullptr), CANARY_INVALID_ARGUMENT);
}

TEST(SendRecv, OtherCountsAndTypesThanThePeersAreNamedOnBothSides) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    std::vector<float> v(1 << 20);
    const canary_status s = r == 0 ? canary_send(job.world(0), v.data(), v.size(), CANARY_F32, 1, nullptr)
                                   : canary_recv(job.world(1), v.data(), 100, CANARY_I32, 0, nullptr);
    EXPECT_EQ(s, CANARY_MISMATCH);
    const auto e = last_error();
    EXPECT_NE(e.message.find("f32 n=1048576"), std::string::npos) << e.message;
    EXPECT_NE(e.message.find("i32 n=100"), std::string::npos) << e.message;
    EXPECT_EQ(e.op, r == 0 ? "send" : "recv");
  });
}

TEST(SendRecv, ADeadPeerEndsTheWaitAndIsNamed) {
  const std::string join = test::join_url(test::free_port());
  test::Process victim([&]() -> std::string {
    canary_context* c = nullptr;
    if (test::init(join, 1, 2, {}, &c) != CANARY_OK) return "join";
    std::this_thread::sleep_for(std::chrono::seconds(30));
    return "";
  });
  canary_context* c = nullptr;
  ASSERT_EQ(test::init(join, 0, 2, {}, &c), CANARY_OK) << last_error().message;
  std::vector<float> v(1 << 20);
  canary_op* op = nullptr;
  ASSERT_EQ(canary_send(canary_world(c), v.data(), v.size(), CANARY_F32, 1, &op), CANARY_OK);
  victim.kill();
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(canary_op_wait(op), CANARY_PEER_DIED) << last_error().message;
  EXPECT_LT(test::seconds_since(began), 2.0);
  EXPECT_EQ(last_error().rank, 1);
  EXPECT_EQ(canary_finalize(c), CANARY_OK);
}

TEST(SendRecv, DoesNotTouchTheHeapOnceWarm) {
  if (!CANARYNET_COUNTS_MALLOC) GTEST_SKIP() << "the allocator can't be counted in this build";
  // Control's heartbeats allocate, a few small blocks an interval; they are no part of the data path.
  Job job(2, {"heartbeat_interval=60s", "silence_limit=600s"});
  ASSERT_TRUE(job.joined());
  std::barrier warm(2, []() noexcept { allocation_counter::arm(); });
  long counted = -1;
  std::barrier ended(2, [&]() noexcept { counted = allocation_counter::disarm(); });
  std::atomic<int> good = 0;
  job.each([&](int r) {
    std::vector<std::uint8_t> out(1 << 20, 1), in(8 << 20);
    const auto round = [&] {
      for (const std::size_t size : {std::size_t{0}, std::size_t{100}, std::size_t{60'000}, std::size_t{1} << 20}) {
        canary_op* ops[16] = {};
        for (int k = 0; k < 8; ++k) {
          const bool ok =
              canary_send(job.world(r), out.data(), size, CANARY_U8, 1 - r, &ops[2 * k]) == CANARY_OK &&
              canary_recv(job.world(r), in.data() + (k << 20), size, CANARY_U8, 1 - r, &ops[2 * k + 1]) == CANARY_OK;
          if (!ok) return false;
        }
        for (canary_op* op : ops) {
          if (canary_op_wait(op) != CANARY_OK) return false;
        }
      }
      return true;
    };
    bool ok = true;
    for (int i = 0; i < 30; ++i) ok = ok && round();
    warm.arrive_and_wait();
    for (int i = 0; i < 30; ++i) ok = ok && round();
    ended.arrive_and_wait();
    good += ok;
  });
  EXPECT_EQ(good, 2);
  EXPECT_EQ(counted, 0);
}

}  // namespace
}  // namespace canarynet
