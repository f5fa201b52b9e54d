#include "compress/error_feedback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "compress/codec_test_util.h"

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

TEST(ErrorFeedback, ATensorKeepsItsSize) {
  ErrorFeedback feedback;
  ASSERT_TRUE(feedback.prepare(9, 10).ok());
  EXPECT_TRUE(feedback.prepare(9, 10).ok());
  const Status status = feedback.prepare(9, 11);
  EXPECT_EQ(CANARY_MISMATCH, status.code());
  EXPECT_NE(std::string::npos, status.text().find("tensor 9 has 10 elements"));
}

ErrorFeedback example() {
  ErrorFeedback feedback;
  const float compensated[] = {1.5F, -2, 3}, sent[] = {1, -2, 0};
  EXPECT_TRUE(feedback.prepare(5, 3).ok() && feedback.prepare(3, 0).ok());
  feedback.settle(5, compensated, sent, 3);
  return feedback;
}

TEST(ErrorFeedback, WhatIsSavedComesBack) {
  const ErrorFeedback feedback = example();
  const std::vector<std::uint8_t> bytes = feedback.save();
  ErrorFeedback other;
  ASSERT_TRUE(other.prepare(77, 4).ok());
  ASSERT_TRUE(other.restore(bytes).ok());
  EXPECT_EQ(2U, other.tensors());
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
