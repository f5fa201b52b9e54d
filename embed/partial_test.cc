// Partial all-reduces through the C ABI, over real sockets.
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "canarynet/canarynet.hpp"
#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using test::Job;
using test::last_error;
using test::now;

canary_partial among(const std::vector<int>& ranks, std::uint64_t number, const double* weight = nullptr) {
  canary_partial p = CANARY_PARTIAL_INIT;
  p.ranks = ranks.data();
  p.count = static_cast<int>(ranks.size());
  p.number = number;
  p.weight = weight;
  return p;
}

TEST(Partial, PairsThatChangeEveryRoundAverageByWeights) {
  constexpr int kRanks = 4, kRounds = 60;
  Job job(kRanks);
  ASSERT_TRUE(job.joined());
  job.each([&](int rank) {
    std::vector<float> in(5000), out(5000);
    for (int round = 0; round < kRounds; ++round) {
      const int partner = rank ^ (1 + round % 3);
      const std::vector<int> pair = round % 2 == 0 ? std::vector{rank, partner} : std::vector{partner, rank};
      std::fill(in.begin(), in.end(), static_cast<float>(rank + 1));
      const double weight = rank + 1;
      const canary_partial p = among(pair, static_cast<std::uint64_t>(round), &weight);
      canary_op* op = nullptr;
      const bool waits = round % 5 == 0;
      ASSERT_EQ(canary_partial_all_reduce(job.world(rank), &p, in.data(), out.data(), in.size(), CANARY_F32, CANARY_AVG,
                                          waits ? &op : nullptr),
                CANARY_OK)
          << last_error().message;
      if (waits) {
        ASSERT_EQ(canary_op_wait(op), CANARY_OK) << last_error().message;
      }
      const double a = rank + 1, b = partner + 1;
      ASSERT_NEAR(out.back(), (a * a + b * b) / (a + b), 1e-5) << "rank " << rank << ", round " << round;
    }
  });
}

TEST(Partial, WhatIsWrongIsRefusedByNameAndNothingElseEnds) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  float x[4] = {1, 2, 3, 4};
  std::int32_t n[4] = {};
  canary_group* const world = job.world(0);
  const auto says = [&](const canary_partial* p, canary_type type, void* data, const std::string& word) {
    EXPECT_EQ(canary_partial_all_reduce(world, p, data, data, 4, type, CANARY_AVG, nullptr), CANARY_INVALID_ARGUMENT);
    EXPECT_NE(last_error().message.find(word), std::string::npos) << last_error().message;
    EXPECT_EQ(last_error().message.find("partial_all_reduce"), last_error().message.find(": ") + 2)
        << last_error().message;
  };
  const std::vector<int> both{0, 1}, twice{0, 0}, outside{0, 2}, negative{0, -1}, other{1}, three{0, 1, 1};
  const double minus = -1, weight = 1;
  says(nullptr, CANARY_F32, x, "among is NULL");
  canary_partial p = among(both, 1);
  p.struct_size = 8;
  says(&p, CANARY_F32, x, "CANARY_PARTIAL_INIT");
  for (const auto& [list, word] :
       std::vector<std::pair<std::vector<int>, std::string>>{{twice, "listed twice"},
                                                             {outside, "rank 2 is outside"},
                                                             {negative, "rank -1 is outside"},
                                                             {other, "rank 0 is not"},
                                                             {three, "3 ranks of a group of 2"}}) {
    p = among(list, 1);
    says(&p, CANARY_F32, x, word);
  }
  p = among(both, 1, &minus);
  says(&p, CANARY_F32, x, "a weight of -1");
  p = among(both, 1, &weight);
  says(&p, CANARY_I32, n, "weights take floats, not i32");
  p = among(both, 1);
  says(&p, CANARY_F32, nullptr, "input is NULL");
  canary_op_options how = CANARY_OP_OPTIONS_INIT;
  const auto refuses = [&](const char* codec, canary_type type, void* data, const std::string& word) {
    ASSERT_EQ(canary_codec(codec, &how.codec), CANARY_OK) << last_error().message;
    EXPECT_EQ(canary_partial_all_reduce_with(world, &p, data, data, 4, type, CANARY_AVG, &how, nullptr),
              CANARY_INVALID_ARGUMENT);
    EXPECT_NE(last_error().message.find(word), std::string::npos) << last_error().message;
  };
  refuses("auto", CANARY_F32, x, "is a choice, which only a group's all_reduce makes");
  refuses("artopk:star:0.1", CANARY_F32, x, "is only for a group's all_reduce");
  refuses("int8", CANARY_I32, n, "a codec takes f32, not i32");
  how.tensor = 3;
  how.momentum = 0.5F;
  refuses("int8", CANARY_F32, x, "has no use for momentum");
  how.momentum = 0;
  how.rows = 2;
  refuses("int8", CANARY_F32, x, "a matrix of 2 rows");
  p.count = 0;
  says(&p, CANARY_F32, x, "a list of 0 ranks");

  const double begun = now();
  job.each([&](int rank) {
    float mine[4] = {};
    const canary_partial q = among(both, 2);
    const std::size_t count = rank == 0 ? 4 : 3;
    EXPECT_EQ(canary_partial_all_reduce(job.world(rank), &q, mine, mine, count, CANARY_F32, CANARY_SUM, nullptr),
              CANARY_MISMATCH);
    for (const char* word : {"partial_all_reduce #2 among ranks 0, 1", "n=4", "n=3"})
      EXPECT_NE(last_error().message.find(word), std::string::npos) << last_error().message;
    EXPECT_EQ(canary_all_reduce(job.world(rank), mine, mine, 4, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK)
        << last_error().message;
  });
  EXPECT_LT(now() - begun, 10);
}

TEST(Partial, ATensorIsInOneExchangeAtATime) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  canary_op_options how = CANARY_OP_OPTIONS_INIT;
  ASSERT_EQ(canary_codec("int8", &how.codec), CANARY_OK);
  how.tensor = 3;
  const std::vector<int> both{0, 1};
  float x[2][4] = {{1, 2, 3, 4}, {3, 4, 5, 6}}, y[2][4] = {}, z[4] = {};
  const auto call = [&](int rank, std::uint64_t number, float* to, canary_op** op) {
    const canary_partial p = among(both, number);
    return canary_partial_all_reduce_with(job.world(rank), &p, x[rank], to, 4, CANARY_F32, CANARY_AVG, &how, op);
  };
  canary_op* op = nullptr;
  ASSERT_EQ(call(0, 1, y[0], &op), CANARY_OK) << last_error().message;
  canary_op* second = nullptr;
  ASSERT_EQ(call(0, 2, z, &second), CANARY_OK) << last_error().message;
  ASSERT_EQ(canary_op_set_deadline(second, 2'000'000'000), CANARY_OK);
  EXPECT_EQ(canary_op_wait(second), CANARY_INVALID_ARGUMENT);
  EXPECT_NE(last_error().message.find("tensor 3 is being exchanged"), std::string::npos) << last_error().message;
  ASSERT_EQ(call(1, 1, y[1], nullptr), CANARY_OK) << last_error().message;
  ASSERT_EQ(canary_op_wait(op), CANARY_OK) << last_error().message;
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(y[0][i], y[1][i]);
    EXPECT_NEAR(y[0][i], x[0][i] + 1, 0.05);
  }
}

TEST(Partial, AMemberThatIsKilledIsNamedAndTheOthersAverageWithoutIt) {
  test::expect_good_without_rank_2([](canary_context* context, int rank, const auto& ready) -> std::string {
    float x = static_cast<float>(rank);
    if (rank == 2) {
      ready();
      pause();
    }
    const std::vector<int> all{0, 1, 2, 3}, rest{0, 1, 3};
    const canary_partial with = among(all, 1), without = among(rest, 2);
    float y = 0;
    canary_status code =
        canary_partial_all_reduce(canary_world(context), &with, &x, &y, 1, CANARY_F32, CANARY_AVG, nullptr);
    if (code != CANARY_PEER_DIED || last_error().rank != 2) return "not told: " + last_error().message;
    code = canary_partial_all_reduce(canary_world(context), &without, &x, &y, 1, CANARY_F32, CANARY_SUM, nullptr);
    if (code != CANARY_OK || y != 4) return "not without it: " + last_error().message;
    return "good";
  });
}

TEST(Partial, InCpp) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  // The C++ face is over the same calls; a context of its own shows that it compiles and runs.
  const std::string url = test::join_url(test::free_port());
  Context context({.join = url, .rank = 0, .world_size = 1});
  const std::vector<int> me{0};
  std::vector<double> in{2, 4}, out(2);
  context.world().partial_all_reduce({.ranks = me, .number = 1, .weight = 3}, in, out);
  EXPECT_EQ(out, in);
  context.world().partial_all_reduce_async({.ranks = me, .number = 2, .weight = 3}, in, CANARY_SUM).wait();
  EXPECT_EQ(in, (std::vector<double>{6, 12}));
  EXPECT_THROW(context.world().partial_all_reduce({.ranks = me, .number = 2}, in), Error);
}

}  // namespace
}  // namespace canarynet
