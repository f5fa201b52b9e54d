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

TEST(TrainOptions, ErrorsNameTheOptionAndItsValue) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{{"--steps", "0"},
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
                                                                     {"--codec-momentum", "1", "--codec", "topk:0.1"},
                                                                     {"--codec-momentum", "0.5"},
                                                                     {"--warm-up", "5"},
                                                                     {"--network", "deep"}}) {
    const auto parsed = parse_options(arguments);
    EXPECT_EQ(parsed.exit_status, 2) << arguments[0];
    EXPECT_NE(parsed.text.find(arguments[0].substr(0, arguments[0].find('='))), std::string::npos) << parsed.text;
  }
  EXPECT_EQ(parse_options({"--codec", "int8", "--exchange-only", "5"}).exit_status, 2);
  EXPECT_EQ(parse_options({"--help"}).exit_status, 0);
}

}  // namespace
}  // namespace train
