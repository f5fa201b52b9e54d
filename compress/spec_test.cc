#include "compress/spec.h"

#include <gtest/gtest.h>

#include <string>

namespace canarynet {
namespace {

TEST(CodecSpec, TextsComeBackAsTheyWere) {
  for (const std::string text : {"dense",
                                 "fp16",
                                 "bf16",
                                 "int8",
                                 "onebit",
                                 "signsgd",
                                 "terngrad",
                                 "terngrad,seed=9",
                                 "sketch:1",
                                 "sketch:8",
                                 "sketch:4,mean",
                                 "sketch:8,mean,or-dense",
                                 "topk:0.01",
                                 "topk:1",
                                 "lwtopk:0.001",
                                 "mstopk:0.000001",
                                 "randomk:0.25,seed=18446744073709551615",
                                 "power:4",
                                 "power:1024,seed=3",
                                 "svd:2+sketch:8",
                                 "artopk:star:0.01",
                                 "artopk:var:1",
                                 "agtopk:0.000001",
                                 "artopk:var:0.01,or-dense",
                                 "power:4+sketch:6,mean,seed=1,or-dense"}) {
    const Result<CodecSpec> spec = parse_codec(text);
    ASSERT_TRUE(spec.ok()) << spec.status().text();
    EXPECT_EQ(text, to_text(spec.value()));
    EXPECT_TRUE(check(spec.value()).ok()) << text;
    EXPECT_EQ(spec.value(), parse_codec(to_text(spec.value())).value());
  }
}

TEST(CodecSpec, DifferentParametersAreNotEqual) {
  EXPECT_NE(parse_codec("sketch:8").value(), parse_codec("sketch:7").value());
  EXPECT_NE(parse_codec("sketch:8").value(), parse_codec("sketch:8,mean").value());
  EXPECT_NE(parse_codec("topk:0.01").value(), parse_codec("topk:0.011").value());
  EXPECT_NE(parse_codec("randomk:0.1").value(), parse_codec("randomk:0.1,seed=1").value());
  EXPECT_EQ(parse_codec("topk:0.010").value(), parse_codec("topk:1e-2").value());
}

TEST(CodecSpec, ErrorsNameTheTextAndWhatIsWrong) {
  const struct {
    const char* text;
    const char* why;
  } cases[] = {
      {"", "no codec of this name"},
      {"sketches:8", "there are dense, fp16"},
      {"sketch", "1 to 8"},
      {"sketch:0", "1 to 8"},
      {"sketch:9", "1 to 8"},
      {"sketch:8x", "1 to 8"},
      {"int8:3", "takes no parameter"},
      {"topk:0", "above 0"},
      {"topk:1.5", "at most 1"},
      {"topk:nan", "above 0"},
      {"topk:0.0000001", "steps"},
      {"power:0", "1 to 1024"},
      {"power:1025", "1 to 1024"},
      {"topk:0.1+sketch:8", "only power and svd"},
      {"power:4+int8", "sketch:BITS"},
      {"power:4+sketch:12", "1 to 8"},
      {"int8,mean", "\"mean\" is no option"},
      {"sketch:8,", "\"\" is no option"},
      {"topk:0.1,seed=1", "no option of topk"},
      {"randomk:0.1,seed=-1", "below 2^64"},
      {"artopk:0.01", "star or var, as in artopk:star:0.01"},
      {"artopk:star", "above 0"},
      {"artopk:mean:0.01", "star or var"},
      {"artopk:star:0.01:2", "above 0"},
      {"agtopk:star:0.01", "above 0"},
      {"agtopk", "above 0"},
      {"artopk:var:0.01,mean", "no option of artopk"},
  };
  for (const auto& each : cases) {
    const Result<CodecSpec> spec = parse_codec(each.text);
    ASSERT_FALSE(spec.ok()) << each.text;
    EXPECT_EQ(CANARY_INVALID_ARGUMENT, spec.status().code());
    EXPECT_NE(std::string::npos, spec.status().text().find(each.why)) << spec.status().text();
    EXPECT_NE(std::string::npos, spec.status().text().find(std::string("\"") + each.text + "\""));
  }
}

TEST(CodecSpec, CodecsOfMatricesHaveNumbersWithTheirRankAndTheBitsOfTheirFactors) {
  for (const char* text : {"power:1", "power:1024", "power:4+sketch:8", "power:4+sketch:6,mean,or-dense", "svd:2",
                           "svd:7+sketch:8,mean"}) {
    const CodecSpec spec = parse_codec(text).value();
    EXPECT_TRUE(needs_shape(spec.kind) && makes_chain(spec.kind));
    const auto number = codec_number(spec);
    ASSERT_TRUE(number.ok()) << number.status().text();
    const auto again = codec_of_number(number.value());
    ASSERT_TRUE(again.ok()) << text << ": " << again.status().text();
    EXPECT_EQ(again.value(), spec) << text;
  }
  EXPECT_EQ(codec_number(parse_codec("power:4+sketch:8").value()).value(), 12u | 8u << 4 | 4u << 12)
      << "numbers never change";
  EXPECT_FALSE(codec_number(parse_codec("power:4,seed=7").value()).ok());
  for (const std::uint32_t number : {12u, 12u | 1025u << 12, 12u | 65'540u << 12, 12u | 9u << 4 | 4u << 12,
                                     12u | 1u << 8 | 4u << 12, 13u | 1u << 10 | 4u << 12}) {
    EXPECT_FALSE(codec_of_number(number).ok()) << number;
  }
}

TEST(CodecSpec, FieldsThatAKindDoesNotHaveAreRefused) {
  EXPECT_FALSE(check(CodecSpec{.kind = CodecKind::kInt8, .bits = 3}).ok());
  EXPECT_FALSE(check(CodecSpec{.kind = CodecKind::kSketch}).ok());
  EXPECT_FALSE(check(CodecSpec{.kind = CodecKind::kSketch, .bits = 8, .factor_bits = 1}).ok());
  EXPECT_FALSE(check(CodecSpec{.kind = CodecKind::kTopK}).ok());
  EXPECT_FALSE(check(CodecSpec{.kind = CodecKind::kTopK, .ratio_ppm = 1'000'001}).ok());
  EXPECT_FALSE(check(CodecSpec{.kind = CodecKind::kPower, .factor_bits = 9, .rank = 1}).ok());
  EXPECT_FALSE(check(CodecSpec{.kind = CodecKind::kBf16, .seed = 1}).ok());
  EXPECT_FALSE(check(CodecSpec{.kind = CodecKind::kBf16, .member_mean = true}).ok());
  EXPECT_FALSE(check(CodecSpec{.kind = static_cast<CodecKind>(15)}).ok());
  EXPECT_FALSE(check(CodecSpec{.kind = CodecKind::kArTopK, .ratio_ppm = 10}).ok());
  EXPECT_FALSE(check(CodecSpec{.kind = CodecKind::kArTopK, .bits = 4, .ratio_ppm = 10}).ok());
}

}  // namespace
}  // namespace canarynet
