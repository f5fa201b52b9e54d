#include "compress/error_feedback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "compress/codec_test_util.h"
#include "kernels/crc32c.h"

namespace canarynet {
namespace {

using codec_test::Data;
using codec_test::kAllData;
using codec_test::make;

double ulp_of(double a, double b) {
  const auto larger = static_cast<float>(std::max(std::fabs(a), std::fabs(b)));
  return static_cast<double>(std::nextafter(larger, std::numeric_limits<float>::infinity())) - larger;
}

TEST(ErrorFeedback, NothingIsLostOnlyLate) {
  for (const char* text : {"dense", "fp16", "bf16", "int8", "sketch:8", "sketch:2,mean", "topk:0.02", "lwtopk:0.1",
                           "mstopk:0.1", "randomk:0.1", "onebit", "signsgd", "terngrad", "power:2", "svd:1+sketch:8"}) {
    for (const Data data : kAllData) {
      if (data == Data::kOneHuge) continue;  // what is near the end of the range of floats may leave it when added up
      ErrorFeedback feedback;
      Coding coding{codec_test::spec_of(text), codec_test::segment_of(1000)};
      ASSERT_TRUE(feedback.prepare(7, 1000).ok());
      codec_test::Trip trip(coding);
      for (std::uint64_t step = 0; step < 5; ++step) {
        trip.coding.segment.round = step;
        const std::vector<float> gradient = make(data, 1000, step);
        std::vector<float> compensated(1000), sent;
        feedback.compensate(7, gradient.data(), 1000, compensated.data());
        ASSERT_TRUE(trip.encode(compensated).ok()) << text;
        ASSERT_TRUE(trip.decode(&sent).ok()) << text;
        feedback.settle(7, compensated.data(), sent.data(), 1000);
        for (std::size_t i = 0; i < 1000; ++i) {
          const float residual = feedback.residual(7)[i];
          const double sum = static_cast<double>(sent[i]) + residual;
          if (traits_of(coding.spec).sparsifier) {
            ASSERT_EQ(compensated[i], sum) << text << " " << codec_test::name_of(data) << " " << i;
          } else {
            ASSERT_LE(std::fabs(sum - compensated[i]), ulp_of(sent[i], residual)) << text << " " << i;
          }
        }
      }
    }
  }
}

TEST(ErrorFeedback, TheSumOfWhatWasSentFollowsTheSumOfTheGradients) {
  ErrorFeedback feedback;
  ASSERT_TRUE(feedback.prepare(1, 500).ok());
  codec_test::Trip trip({codec_test::spec_of("topk:0.05"), {.count = 500}});
  std::vector<double> given(500), got(500);
  for (std::uint64_t step = 0; step < 200; ++step) {
    const std::vector<float> gradient = make(Data::kConstant, 500, step);
    std::vector<float> compensated(500), sent;
    feedback.compensate(1, gradient.data(), 500, compensated.data());
    ASSERT_TRUE(trip.encode(compensated).ok() && trip.decode(&sent).ok());
    feedback.settle(1, compensated.data(), sent.data(), 500);
    for (std::size_t i = 0; i < 500; ++i) {
      given[i] += gradient[i];
      got[i] += sent[i];
    }
  }
  // One in twenty goes per step, the oldest first: no element is more than 20 gradients behind.
  for (std::size_t i = 0; i < 500; ++i) EXPECT_LE(std::fabs(given[i] - got[i]), 20.5 * 0.37) << i;
}

TEST(ErrorFeedback, GainIsTheShareOfTheEnergyThatWasSent) {
  ErrorFeedback feedback;
  ASSERT_TRUE(feedback.prepare(1, 2).ok());
  EXPECT_EQ(1, feedback.gain(1));
  const float all[] = {3, 4}, first[] = {3, 0}, second[] = {0, 4};
  feedback.settle(1, all, first, 2);
  EXPECT_DOUBLE_EQ(9.0 / 25, feedback.gain(1));
  feedback.settle(1, all, second, 2);
  EXPECT_DOUBLE_EQ((0.9 * 9 + 0.1 * 16) / 25, feedback.gain(1));
  ASSERT_TRUE(feedback.prepare(2, 1).ok());
  const float one[] = {5};
  feedback.settle(2, one, one, 1);
  EXPECT_DOUBLE_EQ((0.9 * 9 + 0.1 * 16 + 25) / 50, feedback.gain());
}

TEST(ErrorFeedback, ExchangesOfPartsLeaveTheRestOfTheirTensorAsItIs) {
  ErrorFeedback feedback;
  ASSERT_TRUE(feedback.prepare(1, 10).ok());
  const TensorPart low{0, 4}, high{4, 6};
  const auto below = feedback.begin(1, nullptr, 0, low), above = feedback.begin(1, nullptr, 0, high);
  ASSERT_EQ(below.residual.size(), 4u);
  ASSERT_EQ(above.left_out.size(), 6u);
  std::fill(below.left_out.begin(), below.left_out.end(), 1.0F);
  std::fill(above.left_out.begin(), above.left_out.end(), 2.0F);
  feedback.commit(1, 12, 16, 4, low);
  EXPECT_EQ(feedback.residual(1)[3], 1);
  EXPECT_EQ(feedback.residual(1)[4], 0) << "the other one is still under way";
  EXPECT_DOUBLE_EQ(feedback.energy(), 40) << "as if the whole tensor were like that";
  feedback.commit(1, 0, 24, 24, high);
  EXPECT_EQ(feedback.residual(1, high)[0], 2);
  EXPECT_EQ(feedback.residual(1, low)[0], 1);
  EXPECT_DOUBLE_EQ(feedback.left_energy(), 4 + 24);
  const auto again = feedback.begin(1, nullptr, 0, low);
  EXPECT_EQ(again.residual[0], 1);
  EXPECT_EQ(again.left_out[0], 0);
  feedback.commit(1, 1, 1, 0, low);
  EXPECT_DOUBLE_EQ(feedback.left_energy(), 24);
  ErrorFeedback restored;
  ASSERT_TRUE(restored.restore(feedback.save()).ok());
  EXPECT_DOUBLE_EQ(restored.left_energy(), 24);
  feedback.commit_all_sent(1, high);
  EXPECT_DOUBLE_EQ(feedback.left_energy(), 0);
  EXPECT_EQ(feedback.residual(1)[9], 0);
}

TEST(ErrorFeedback, MomentumOfAPartIsItsOwn) {
  ErrorFeedback feedback;
  ASSERT_TRUE(feedback.prepare(1, 4).ok());
  const std::vector<float> ones(2, 1.0F);
  const TensorPart low{0, 2}, high{2, 2};
  for (const TensorPart part : {low, high}) {
    const auto exchange = feedback.begin(1, ones.data(), 0.5F, part);
    std::fill(exchange.left_out.begin(), exchange.left_out.end(), 1.0F);
    feedback.commit(1, 0, 2, 2, part);
  }
  EXPECT_EQ(feedback.begin(1, ones.data(), 0.5F, high).residual[0], 1.5F) << "half of the velocity, and the residual";
  feedback.commit(1, 4.5, 4.5, 0, high);
  EXPECT_EQ(feedback.velocity(1)[2], 0) << "it was sent";
  EXPECT_EQ(feedback.velocity(1)[0], 1) << "and this was not";
  feedback.commit_all_sent(1, low);
  EXPECT_EQ(feedback.velocity(1)[0], 0);
}

TEST(ErrorFeedback, ATensorKeepsItsSize) {
  ErrorFeedback feedback;
  ASSERT_TRUE(feedback.prepare(9, 10).ok());
  EXPECT_TRUE(feedback.prepare(9, 10).ok());
  const Status status = feedback.prepare(9, 11);
  EXPECT_EQ(CANARY_MISMATCH, status.code());
  EXPECT_NE(std::string::npos, status.text().find("tensor 9 has 10 elements"));
}

// One exchange of three elements by a codec that sends those of `sent` that are true.
void exchange(ErrorFeedback* feedback, const std::vector<float>& gradient, float momentum,
              const std::vector<bool>& sent) {
  const ErrorFeedback::Exchange begun = feedback->begin(5, gradient.data(), momentum);
  for (std::size_t i = 0; i < gradient.size(); ++i) begun.left_out[i] = sent[i] ? 0 : gradient[i] + begun.residual[i];
  feedback->commit(5, 1, 1, 0);
}

std::vector<float> copy(std::span<const float> values) { return {values.begin(), values.end()}; }

TEST(ErrorFeedback, MomentumGathersUntilItsElementIsSentAndBeginsAnewThen) {
  ErrorFeedback feedback;
  ASSERT_TRUE(feedback.prepare(5, 3).ok());
  EXPECT_TRUE(feedback.velocity(5).empty());
  exchange(&feedback, {1, 4, 8}, 0.5F, {false, true, false});
  EXPECT_EQ(copy(feedback.residual(5)), (std::vector<float>{1, 0, 8}));
  EXPECT_EQ(copy(feedback.velocity(5)), (std::vector<float>{1, 0, 8}));
  exchange(&feedback, {1, 4, 0}, 0.5F, {false, false, false});
  EXPECT_EQ(copy(feedback.velocity(5)), (std::vector<float>{1.5F, 4, 4}));
  EXPECT_EQ(copy(feedback.residual(5)), (std::vector<float>{2.5F, 4, 12}));
  // What would have been sent, residual and velocity together, is what codecs choose from.
  EXPECT_EQ(copy(feedback.begin(5, std::vector<float>{1, 1, 1}.data(), 0.5F).residual),
            (std::vector<float>{3.25F, 6, 14}));
  // That exchange failed: it has changed nothing.
  EXPECT_EQ(copy(feedback.velocity(5)), (std::vector<float>{1.5F, 4, 4}));
  exchange(&feedback, {0, 0, 0}, 0.5F, {true, true, true});
  EXPECT_EQ(copy(feedback.velocity(5)), (std::vector<float>{0, 0, 0}));
}

TEST(ErrorFeedback, AnExchangeWithoutMomentumEndsTheVelocity) {
  for (const bool dense : {false, true}) {
    ErrorFeedback feedback;
    ASSERT_TRUE(feedback.prepare(5, 3).ok());
    exchange(&feedback, {1, 2, 3}, 0.9F, {false, false, false});
    if (dense) {
      feedback.commit_all_sent(5);
    } else {
      exchange(&feedback, {1, 2, 3}, 0, {false, false, false});
      EXPECT_EQ(copy(feedback.residual(5)), (std::vector<float>{2, 4, 6}));
    }
    EXPECT_TRUE(feedback.velocity(5).empty());
    exchange(&feedback, {1, 1, 1}, 0.9F, {false, true, false});
    EXPECT_EQ(copy(feedback.velocity(5)), (std::vector<float>{1, 0, 1}));
  }
}

TEST(ErrorFeedback, AVelocityBeyondTheRangeOfFloatsEndsAndTheStateCanBeRestored) {
  ErrorFeedback feedback, other;
  ASSERT_TRUE(feedback.prepare(5, 1).ok());
  for (const float gradient : {-3e38F, 2.3e38F, 3.3e38F}) exchange(&feedback, {gradient}, 0.1F, {false});
  EXPECT_TRUE(std::isfinite(feedback.residual(5)[0]));
  EXPECT_EQ(copy(feedback.velocity(5)), (std::vector<float>{0}));
  EXPECT_TRUE(other.restore(feedback.save()).ok());
}

TEST(ErrorFeedback, AGradientCountsNoMoreThanItsMomentumLetsIt) {
  constexpr float kMomentum = 0.75F;
  for (const std::size_t every : {1, 3, 40}) {
    ErrorFeedback feedback;
    ASSERT_TRUE(feedback.prepare(5, 1).ok());
    double got = 0;
    for (std::size_t step = 0; step < 120; ++step) {
      const bool sends = (step + 1) % every == 0;
      const std::vector<float> gradient{step == 0 ? 1.0F : 0};
      const float all = gradient[0] + feedback.begin(5, gradient.data(), kMomentum).residual[0];
      exchange(&feedback, gradient, kMomentum, {sends});
      if (sends) got += all;
    }
    // Sent at once it counts once; late, as often as its momentum has had time for.
    double wanted = 0;
    for (std::size_t i = 0; i < every; ++i) wanted += std::pow(kMomentum, i);
    EXPECT_NEAR(got, wanted, 1e-5) << "sent every " << every;
    EXPECT_LE(got, 1 / (1 - kMomentum) + 1e-5);
  }
}

TEST(ErrorFeedback, VelocityAndRightFactorAreSavedTooAndStatesWithoutThemAreStillRead) {
  ErrorFeedback feedback, other;
  ASSERT_TRUE(feedback.prepare(5, 3).ok());
  exchange(&feedback, {1, 2, 3}, 0.5F, {false, true, false});
  const std::span<float> factor = feedback.right_factor(5, 4);
  EXPECT_EQ(copy(factor), std::vector<float>(4)) << "a cold start";
  std::iota(factor.begin(), factor.end(), 1.0F);
  std::vector<std::uint8_t> bytes = feedback.save();
  EXPECT_EQ(bytes.size(), feedback.saved_bytes());
  ASSERT_TRUE(other.restore(bytes).ok());
  EXPECT_EQ(copy(other.velocity(5)), (std::vector<float>{1, 0, 3}));
  EXPECT_EQ(bytes, other.save());
  EXPECT_EQ(copy(other.right_factor(5, 4)), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(copy(other.right_factor(5, 2)), std::vector<float>(2)) << "of another length it begins anew";
  // As versions 2 and 1 wrote it: no right factor before the checksum, and no velocity either.
  const std::size_t kVelocity = sizeof(std::uint64_t) + 3 * sizeof(float), kChecksum = 4;
  const std::size_t kRightFactor = sizeof(std::uint64_t) + 4 * sizeof(float);
  const auto restore_older = [&](std::uint8_t version, std::size_t without) {
    bytes.resize(bytes.size() - without - kChecksum);
    bytes[4] = version;
    const std::uint32_t crc = crc32c(0, bytes.data(), bytes.size());
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<std::uint8_t>(crc >> 8 * i));
    const Status restored = other.restore(bytes);
    ASSERT_TRUE(restored.ok()) << restored.text();
    EXPECT_EQ(copy(other.residual(5)), (std::vector<float>{1, 0, 3}));
    EXPECT_EQ(copy(other.velocity(5)), version == 2 ? (std::vector<float>{1, 0, 3}) : std::vector<float>());
    EXPECT_EQ(copy(other.right_factor(5, 4)), std::vector<float>(4));
  };
  restore_older(2, kRightFactor);
  restore_older(1, kVelocity);
}

ErrorFeedback example() {
  ErrorFeedback feedback;
  const float compensated[] = {1.5F, -2, 3}, sent[] = {1, -2, 0};
  EXPECT_TRUE(feedback.prepare(5, 3).ok() && feedback.prepare(3, 0).ok());
  feedback.settle(5, compensated, sent, 3);
  EXPECT_TRUE(feedback.prepare(6, 2).ok());
  const float gradient[] = {1, 2};
  feedback.begin(6, gradient, 0.5F).left_out[0] = 1;
  feedback.commit(6, 1, 1, 1);
  return feedback;
}

TEST(ErrorFeedback, WhatIsSavedComesBack) {
  const ErrorFeedback feedback = example();
  const std::vector<std::uint8_t> bytes = feedback.save();
  ErrorFeedback other;
  ASSERT_TRUE(other.prepare(77, 4).ok());
  ASSERT_TRUE(other.restore(bytes).ok());
  EXPECT_EQ(3U, other.tensors());
  EXPECT_EQ(bytes, other.save());
  EXPECT_EQ(0.5F, other.residual(5)[0]);
  EXPECT_EQ(feedback.gain(5), other.gain(5));
}

TEST(ErrorFeedback, DamagedBytesChangeNothing) {
  const std::vector<std::uint8_t> good = example().save();
  ErrorFeedback feedback;
  ASSERT_TRUE(feedback.prepare(1, 2).ok());
  const std::vector<std::uint8_t> before = feedback.save();
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_FALSE(feedback.restore({good.data(), bytes}).ok()) << "cut to " << bytes;
  }
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::vector<std::uint8_t> bad = good;
    bad[bit / 8] = static_cast<std::uint8_t>(bad[bit / 8] ^ 1U << bit % 8);
    EXPECT_FALSE(feedback.restore(bad).ok()) << "bit " << bit;
  }
  EXPECT_EQ(before, feedback.save());
}

}  // namespace
}  // namespace canarynet
