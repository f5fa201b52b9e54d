#include "compress/codec_ask.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace canarynet {
namespace {

std::vector<std::string> candidates(const std::string& text) {
  const auto number = number_asked(text);
  EXPECT_TRUE(number.ok()) << number.status().text();
  std::vector<std::string> out;
  const CodecCandidates found = candidates_of(number.value());
  for (const CodecSpec& spec : found.all()) out.push_back(to_text(spec));
  return out;
}

TEST(CodecAsk, TextsComeBackAsTheyWere) {
  for (const std::string text : {"dense", "int8", "sketch:8,mean,or-dense", "topk:0.01", "auto", "auto:0.01", "auto:1",
                                 "int8,auto", "sketch:8,mean,auto", "topk:0.001,auto", "artopk:star:0.01",
                                 "artopk:var:0.01,or-dense", "artopk:star:0.01,auto", "agtopk:0.01,auto"}) {
    const auto number = number_asked(text);
    ASSERT_TRUE(number.ok()) << number.status().text();
    EXPECT_EQ(text_asked(number.value()), text);
    EXPECT_TRUE(check_asked(number.value()).ok()) << text;
    EXPECT_EQ(asks_for_choice(number.value()), text.find("auto") != std::string::npos) << text;
  }
  EXPECT_EQ(number_asked("int8,auto,or-dense").value(), number_asked("int8,auto").value());
}

// Dense comes first, and a value that is not finite fails no operation that dense would carry.
TEST(CodecAsk, CandidatesAreDenseAndCodecsThatFallBackToIt) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(candidates("auto"), (Texts{"dense", "bf16,or-dense", "int8,or-dense"}));
  EXPECT_EQ(candidates("auto:0.01"), (Texts{"dense", "bf16,or-dense", "int8,or-dense", "topk:0.01,or-dense"}));
  EXPECT_EQ(candidates("sketch:8,mean,auto"), (Texts{"dense", "sketch:8,mean,or-dense"}));
  EXPECT_EQ(candidates("artopk:star:0.01,auto"), (Texts{"dense", "artopk:star:0.01,or-dense", "agtopk:0.01,or-dense"}));
  EXPECT_EQ(candidates("artopk:var:0.01,auto"), (Texts{"dense", "artopk:var:0.01,or-dense", "agtopk:0.01,or-dense"}));
  EXPECT_EQ(candidates("agtopk:0.01,auto"), (Texts{"dense", "agtopk:0.01,or-dense"}));
}

TEST(CodecAsk, ANumberNamesItsCodecWithAChoiceAndWithout) {
  EXPECT_EQ(to_text(codec_named(number_asked("topk:0.5").value()).value()), "topk:0.5");
  EXPECT_EQ(to_text(codec_named(number_asked("artopk:var:0.01,auto").value()).value()), "artopk:var:0.01,or-dense");
  EXPECT_FALSE(codec_named(number_asked("auto").value()).ok());
}

TEST(CodecAsk, WhatIsWrongIsSaid) {
  const auto says = [](const std::string& text, const std::string& what) {
    const auto number = number_asked(text);
    ASSERT_FALSE(number.ok()) << text;
    EXPECT_NE(number.status().text().find(what), std::string::npos) << number.status().text();
    EXPECT_NE(number.status().text().find("\"" + text + "\""), std::string::npos) << number.status().text();
  };
  says("auto:2", "the share of values that top-k may keep");
  says("auto:", "the share of values that top-k may keep");
  says("auto:0.01,or-dense", "the share of values that top-k may keep");
  says("dense,auto", "dense is what auto chooses the codec against");
  says("power:4,auto", "it needs the shape of a matrix");
  says("zip,auto", "there is no codec of this name");
  says("auto,auto", "there is no codec of this name");
  says("int8,automatic", "is no option of int8");
}

TEST(CodecAsk, OnlyNumbersOfTextsAreGood) {
  int good = 0;
  for (std::uint32_t low = 0; low < 4096; ++low) {
    for (const std::uint32_t ratio : {0u, 1u, 10'000u, 1'000'000u, 1'000'001u}) {
      const std::uint32_t number = low | ratio << 12;
      if (!check_asked(number).ok()) continue;
      ++good;
      EXPECT_EQ(number_asked(text_asked(number)).value(), number);
      if (!asks_for_choice(number)) continue;
      EXPECT_GE(candidates_of(number).count, 2u) << text_asked(number);
    }
  }
  EXPECT_GT(good, 60);
  EXPECT_FALSE(check_asked(14).ok());
  EXPECT_FALSE(check_asked(15 | 1u << 4).ok());
  EXPECT_FALSE(check_asked(3 | 1u << 10).ok());  // without or-dense
}

}  // namespace
}  // namespace canarynet
