#include "examples/train_fashion_mnist/options.h"

#include <gtest/gtest.h>

namespace train {
namespace {

TEST(TrainOptions, TakeBothSpellings) {
  const auto parsed = parse_options({"--steps", "30", "--batch=64", "--min-accuracy", "85", "--json", "x.json",
                                     "--seed=0", "--network=conv", "--codec", "sketch:8"});
  ASSERT_EQ(parsed.exit_status, -1) << parsed.text;
  EXPECT_EQ(parsed.options.steps, 30u);
  EXPECT_EQ(parsed.options.batch, 64u);
  EXPECT_DOUBLE_EQ(parsed.options.accuracy_min, 0.85);
  EXPECT_EQ(parsed.options.json, "x.json");
  EXPECT_EQ(parsed.options.network, "conv");
  EXPECT_EQ(parsed.options.codec, "sketch:8");
  EXPECT_DOUBLE_EQ(parse_options({"--min-accuracy=0.85"}).options.accuracy_min, 0.85);
}

TEST(TrainOptions, MomentumIsEitherTheOptimizersOrThatOfTheCodec) {
  EXPECT_EQ(parse_options({}).options.momentum, 0.9F);
  const auto parsed = parse_options({"--codec=topk:0.01", "--codec-momentum=0.5", "--warm-up=30", "--buckets=one"});
  ASSERT_EQ(parsed.exit_status, -1) << parsed.text;
  EXPECT_EQ(parsed.options.codec_momentum, 0.5F);
  EXPECT_EQ(parsed.options.momentum, 0);
  EXPECT_EQ(parsed.options.warm_up, 30u);
  EXPECT_TRUE(parsed.options.one_bucket);
  EXPECT_EQ(parse_options({"--codec=topk:0.01", "--codec-momentum=0.5", "--momentum=0.9"}).exit_status, 2);
  EXPECT_EQ(parse_options({"--codec=topk:0.01", "--codec-momentum=0.5", "--momentum=0"}).exit_status, -1);
}

TEST(TrainOptions, SlowRanksArePicked) {
  const auto parsed =
      parse_options({"--sync=canary:s=18,p=6", "--slow", "1:4x,3:2.5x", "--pace=60", "--seconds", "30"});
  ASSERT_EQ(parsed.exit_status, -1) << parsed.text;
  EXPECT_EQ(parsed.options.sync, "canary:s=18,p=6");
  EXPECT_EQ(parsed.options.pace_ms, 60);
  EXPECT_EQ(parsed.options.seconds, 30);
  EXPECT_EQ(parsed.options.slowness_of(1), 4);
  EXPECT_EQ(parsed.options.slowness_of(3), 2.5);
  EXPECT_EQ(parsed.options.slowness_of(0), 1);
}

TEST(TrainOptions, DeltasOfLocalStepsMayHaveACodec) {
  const auto parsed = parse_options({"--sync=diloco:h=20", "--codec=int8"});
  ASSERT_EQ(parsed.exit_status, -1) << parsed.text;
  EXPECT_EQ(parsed.options.codec, "int8");
  EXPECT_EQ(parse_options({"--sync=esync", "--codec=int8"}).exit_status, -1);
  EXPECT_EQ(parse_options({"--sync=ripples:smart", "--codec=int8"}).exit_status, 2);
  EXPECT_EQ(parse_options({"--sync=diloco:h=20", "--codec=topk:0.1", "--warm-up=30"}).exit_status, 2);
}

TEST(TrainOptions, ErrorsNameTheOptionAndItsValue) {
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{"--steps", "0"},
                                             {"--steps", "many"},
                                             {"--batch="},
                                             {"--rate", "-1"},
                                             {"--rate", "nan"},
                                             {"--steps"},
                                             {"--speed", "1"},
                                             {"steps", "4"},
                                             {"--min-accuracy", "101"},
                                             {"--momentum", "1"},
                                             {"--buckets", "two"},
                                             {"--merge", "given"},
                                             {"--merge", "wfbp", "--codec", "int8"},
                                             {"--codec", "power:4", "--buckets", "one"},
                                             {"--feedback", "no", "--codec", "terngrad"},
                                             {"--feedback", "off"},
                                             {"--codec-momentum", "0.5", "--feedback", "off", "--codec", "topk:0.1"},
                                             {"--ratio", "0.1:0.01", "--feedback", "off", "--codec", "topk"},
                                             {"--sync", "diloco:h=5", "--feedback", "off", "--codec", "terngrad"},
                                             {"--codec=svd:4", "--buckets=one"},
                                             {"--codec-momentum", "1", "--codec", "topk:0.1"},
                                             {"--codec-momentum", "0.5"},
                                             {"--warm-up", "5"},
                                             {"--ratio", "0.1:0.01"},
                                             {"--ratio", "0.1", "--codec", "topk"},
                                             {"--ratio", "", "--codec", "topk"},
                                             {"--ratio", ":", "--codec", "topk"},
                                             {"--ratio", "0.01:0.1", "--codec", "topk"},
                                             {"--ratio", "2:0.1", "--codec", "topk"},
                                             {"--ratio", "0.1:0", "--codec", "topk"},
                                             {"--warm-up", "5", "--ratio", "0.1:0.01", "--codec", "topk"},
                                             {"--network", "deep"},
                                             {"--slow", "1:4x"},
                                             {"--pace", "5"},
                                             {"--seconds", "5"},
                                             {"--slow", "1", "--sync", "bsp"},
                                             {"--slow", "", "--sync", "bsp"},
                                             {"--slow", "1:4", "--sync", "bsp"},
                                             {"--slow", "1:0.5x", "--sync", "bsp"},
                                             {"--slow", "1:nanx", "--sync", "bsp"},
                                             {"--slow", "-1:4x", "--sync", "bsp"},
                                             {"--slow", "1:4x,", "--sync", "bsp"},
                                             {"--slow", "1:4x,1:2x", "--sync", "bsp"},
                                             {"--pace", "-1", "--sync", "bsp"},
                                             {"--seconds", "0", "--sync", "bsp"},
                                             {"--seconds", "5", "--steps", "7", "--sync", "bsp"},
                                             {"--sync", "bsp", "--codec", "int8"},
                                             {"--sync", "bsp", "--buckets", "one"},
                                             {"--sync", "bsp", "--merge", "wfbp"},
                                             {"--sync", "bsp", "--exchange-only", "5"}}) {
    const auto parsed = parse_options(arguments);
    EXPECT_EQ(parsed.exit_status, 2) << arguments[0];
    EXPECT_NE(parsed.text.find(arguments[0].substr(0, arguments[0].find('='))), std::string::npos) << parsed.text;
  }
  EXPECT_EQ(parse_options({"--codec", "int8", "--exchange-only", "5"}).exit_status, 2);
  EXPECT_EQ(parse_options({"--help"}).exit_status, 0);
}

}  // namespace
}  // namespace train
