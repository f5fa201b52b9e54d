#include "collectives/codec_pick.h"

#include <gtest/gtest.h>

#include <array>

namespace canarynet {
namespace {

constexpr std::size_t kDense = 0, kHalf = 1, kQuarter = 2;

// 100 MB: dense took so long; half and a quarter of the bytes cost a rank 0.15 and 0.2 seconds.
std::array<CodecTrial, 3> trials(double dense_took) {
  return {{{1, 0, dense_took, 0}, {0.5, 0.15, 0, 0}, {0.25, 0.2, 0, 0}}};
}

TEST(CodecPick, NothingIsChosenBeforeOperationsHaveRun) {
  auto t = trials(0);
  EXPECT_EQ(pick_codec(t, kDense).best, kDense);
  t = trials(6);
  EXPECT_EQ(pick_codec(t, kHalf).best, kHalf);
}

TEST(CodecPick, BytesDecideOnSlowLinksAndWorkOnFastOnes) {
  auto t = trials(6);
  const CodecPick slow = pick_codec(t, kDense);
  EXPECT_EQ(slow.best, kQuarter);
  EXPECT_NEAR(slow.expected, 6 * 0.25 + 0.2, 1e-9);
  EXPECT_EQ(slow.runner_up, kHalf);
  EXPECT_NEAR(slow.runner_up_expected, 6 * 0.5 + 0.15, 1e-9);
  t = trials(0.18);
  const CodecPick fast = pick_codec(t, kDense);
  EXPECT_EQ(fast.best, kDense);
  EXPECT_NEAR(fast.runner_up_expected, 0.24, 1e-2);
}

// 0.295 s instead of 0.3 are not worth a trial.
TEST(CodecPick, ATrialMustPromiseToBeClearlyFaster) {
  auto t = trials(0.3);
  t[kQuarter].work = 0.22;
  EXPECT_EQ(pick_codec(t, kDense).best, kDense);
  t[kQuarter].work = 0.19;
  EXPECT_EQ(pick_codec(t, kDense).best, kQuarter);
  // One that has run need be faster only by what operations differ.
  t[kQuarter].took = 0.285;
  EXPECT_EQ(pick_codec(t, kDense).best, kQuarter);
  t[kQuarter].took = 0.295;
  EXPECT_EQ(pick_codec(t, kDense).best, kDense);
}

// A codec that turned out slow shows what computing costs here, so no other one is tried for the same reason.
TEST(CodecPick, AFailedTrialIsTakenBackAndNotRepeatedWithAnother) {
  auto t = trials(0.4);
  EXPECT_EQ(pick_codec(t, kDense).best, kQuarter);
  t[kQuarter].took = 0.7;
  const CodecPick pick = pick_codec(t, kQuarter);
  EXPECT_EQ(pick.best, kDense);
  EXPECT_NEAR(t[kQuarter].slowdown, 3, 1e-6);
  // The links change, so that times count no more; the slowdown does.
  t[kDense].took = 0.4;
  t[kQuarter].took = 0;
  EXPECT_EQ(pick_codec(t, kDense).best, kDense);
  t[kDense].took = 4;
  EXPECT_EQ(pick_codec(t, kDense).best, kQuarter);
}

// While a codec runs, what dense would take follows from its time.
TEST(CodecPick, FromTheCodecsTimeItFollowsThatDenseWouldBeFasterNow) {
  auto t = trials(0);
  t[kQuarter].took = 0.25;  // 0.2 of them computing
  EXPECT_EQ(pick_codec(t, kQuarter).best, kDense);
  t[kQuarter].took = 1.5;
  EXPECT_EQ(pick_codec(t, kQuarter).best, kQuarter);
}

TEST(CodecPick, SharesAndWorkCountPiecesAndRanks) {
  EXPECT_EQ(wire_share({}, 1 << 20, 4, 128 << 10), 1);
  const CodecSpec int8{.kind = CodecKind::kInt8};
  EXPECT_NEAR(wire_share(int8, 100 << 20, 4, 128 << 10), 0.25, 0.001);
  const CodecSpec safe{.kind = CodecKind::kInt8, .or_dense = true};
  EXPECT_NEAR(wire_share(safe, 100 << 20, 4, 128 << 10), 0.25, 0.001);
  EXPECT_GT(wire_share(int8, 256, 4, 128 << 10), 0.35);  // heads count where parts are small
  const double work = codec_work({2e-9, 1e-9}, 1000, 4, true);
  EXPECT_NEAR(work, 1000 * (2e-9 + 1e-9 * (1.5 + 1)), 1e-12);
  EXPECT_NEAR(codec_work({2e-9, 1e-9}, 1000, 4, false), 1000 * (2e-9 + 1e-9 * 1.75), 1e-12);
}

// What ranks encode and decode by a plan, in units of all values; a mesh by its plan and by its closed form.
TEST(CodecPick, PlansOfManyHopsEncodeAndDecodeMore) {
  const auto reach = Reachability::full(8, 1);
  const PlanRequest request{.ranks = 8, .count = 8 * 32 * 100, .reach = &reach};
  const auto bytes = static_cast<double>(request.count * sizeof(float));
  for (const bool feedback : {false, true}) {
    EXPECT_NEAR(codec_work({2e-9, 1e-9}, PlannerId::kMesh, request, feedback),
                codec_work({2e-9, 1e-9}, request.count * sizeof(float), 8, feedback), 1e-12);
  }
  const auto encoded = [&](PlannerId id) { return codec_work({1, 0}, id, request, true) / bytes; };
  const auto decoded = [&](PlannerId id) { return codec_work({0, 1}, id, request, false) / bytes; };
  EXPECT_NEAR(encoded(PlannerId::kRing), 1, 1e-9) << "seven eighths as partial sums, one eighth as a sum";
  EXPECT_NEAR(decoded(PlannerId::kRing), 14.0 / 8 + 1.0 / 8, 1e-9);
  EXPECT_NEAR(encoded(PlannerId::kTree), 1, 1e-9) << "a leaf its input, the root the sum; results are handed on";
  EXPECT_NEAR(decoded(PlannerId::kTree), 4, 1e-9) << "the root from three others, and what it has encoded";
  EXPECT_NEAR(encoded(PlannerId::kParameterServer), 1, 1e-9);
  EXPECT_NEAR(decoded(PlannerId::kParameterServer), 8, 1e-9);
}

// Worked by hand: 8 ranks, 10^8 values, 1 ms, 10 Gbit/s (0.32 s for all bytes), 1 % of the values.
TEST(CodecPick, ExchangesOfTopKAreWeighedAgainstADenseRing) {
  const LinkCost link{1e-3, 8e-10};
  const std::uint64_t bytes = 400'000'000;
  const double dense = 2 * 7 * 1e-3 + 2 * 7.0 / 8 * 0.32;
  const auto share = [&](const char* text, LinkCost of) {
    return top_k_share(parse_codec(text).value(), bytes, 8, of);
  };
  EXPECT_NEAR(share("agtopk:0.01", link), (3e-3 + 2 * 7 * 0.0032) / dense, 1e-9);
  EXPECT_NEAR(share("artopk:star:0.01", link), (17e-3 + (2 * 7.0 / 8 + 3) * 0.0032) / dense, 1e-9);
  EXPECT_NEAR(share("artopk:var:0.01", link) * dense, share("artopk:star:0.01", link) * dense + 3e-3 + 28 * 8e-10,
              1e-9);
  // Few values over a long way: a tree. Without a rate the bytes alone count.
  const LinkCost far{0.05, 8e-10};
  EXPECT_NEAR(share("artopk:star:0.001", far) * std::min(14 * 0.05 + 1.75 * 0.32, 6 * 0.05 + 6 * 0.32),
              9 * 0.05 + 9 * 0.00032, 1e-9);
  EXPECT_NEAR(share("agtopk:0.01", {0.05, 0}), 8 * 0.01, 1e-9);
  EXPECT_EQ(top_k_share(parse_codec("agtopk:0.01").value(), bytes, 1, link), 1);
}

}  // namespace
}  // namespace canarynet
