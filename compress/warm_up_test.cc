#include "compress/warm_up.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "compress/spec.h"

namespace canarynet {
namespace {

std::uint32_t number(const char* text) { return codec_number(parse_codec(text).value()).value(); }

std::string at(const char* text, double first, std::uint64_t step, std::uint64_t steps) {
  const auto now = warmed_up(number(text), first, step, steps);
  return now.ok() ? to_text(codec_of_number(now.value()).value()) : now.status().text();
}

TEST(WarmUp, TheShareFallsByAQuarterFromStageToStageAndEndsAtTheCodecsOwn) {
  EXPECT_EQ(at("topk:0.001", 0.25, 0, 400), "topk:0.25");
  EXPECT_EQ(at("topk:0.001", 0.25, 99, 400), "topk:0.25");
  EXPECT_EQ(at("topk:0.001", 0.25, 100, 400), "topk:0.0625");
  EXPECT_EQ(at("topk:0.001", 0.25, 200, 400), "topk:0.015625");
  EXPECT_EQ(at("topk:0.001", 0.25, 399, 400), "topk:0.003906");
  EXPECT_EQ(at("topk:0.001", 0.25, 400, 400), "topk:0.001");
  EXPECT_EQ(at("topk:0.001", 0.25, std::numeric_limits<std::uint64_t>::max(), 400), "topk:0.001");
  // All else of the codec stays.
  EXPECT_EQ(at("topk:0.01,or-dense", 0.16, 0, 10), "topk:0.16,or-dense");
  EXPECT_EQ(at("topk:0.01,or-dense", 0.16, 9, 10), "topk:0.04,or-dense");
  EXPECT_EQ(at("artopk:var:0.01", 0.02, 0, 10), "artopk:var:0.02");
}

TEST(WarmUp, TheShareNeverRisesAndNeverFallsBelowTheCodecsOwn) {
  for (const char* text : {"artopk:star:0.01", "randomk:0.000001", "lwtopk:1", "agtopk:0.3"}) {
    const std::uint32_t own = codec_of_number(number(text)).value().ratio_ppm;
    std::uint32_t before = 1'000'000;
    for (std::uint64_t step = 0; step <= 1'000; ++step) {
      const auto now = warmed_up(number(text), 1, step, 1'000);
      ASSERT_TRUE(now.ok()) << text;
      const std::uint32_t ppm = codec_of_number(now.value()).value().ratio_ppm;
      ASSERT_LE(ppm, before) << text << ", step " << step;
      ASSERT_GE(ppm, own) << text << ", step " << step;
      before = ppm;
    }
    EXPECT_EQ(before, own) << text;
    EXPECT_EQ(warmed_up(number(text), 1, 0, 0).value(), number(text)) << "without steps there is no warm-up";
  }
}

TEST(WarmUp, WhatHasNoShareOrFallsUpwardsIsRefused) {
  EXPECT_NE(at("int8", 0.25, 0, 10).find("codec int8 keeps no share"), std::string::npos);
  for (const double first : {0.005, 1.01, 0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_NE(at("topk:0.01", first, 0, 10).find("takes one from its own to 1"), std::string::npos) << first;
  }
  EXPECT_FALSE(warmed_up(12'345, 0.25, 0, 10).ok());
}

}  // namespace
}  // namespace canarynet
