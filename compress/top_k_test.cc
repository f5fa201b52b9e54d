#include "compress/top_k.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "compress/codec_test_util.h"

namespace canarynet {
namespace {

using codec_test::Data;
using codec_test::kAllData;
using codec_test::make;

struct Space {
  Space(std::size_t count, std::size_t k) : memory(bytes(count, k)), carver(memory), space(&carver, count, k) {}
  static std::size_t bytes(std::size_t count, std::size_t k) {
    Carver counter;
    TopKSpace(&counter, count, k);
    return counter.bytes();
  }
  std::vector<std::byte> memory;
  Carver carver;
  TopKSpace space;
};

// By definition: a stable sort by magnitude.
std::vector<std::uint32_t> by_magnitude(const std::vector<float>& values) {
  std::vector<std::uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return std::fabs(values[a]) > std::fabs(values[b]); });
  return order;
}
std::vector<std::uint32_t> first_in_order(std::vector<std::uint32_t> order, std::size_t k) {
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}
std::vector<std::uint32_t> expected_top_k(const std::vector<float>& values, std::size_t k) {
  return first_in_order(by_magnitude(values), k);
}

TEST(TopK, IsExactWithTiesToTheLowerIndex) {
  for (const Data data : kAllData) {
    for (const std::size_t count :
         {std::size_t{1}, std::size_t{5}, std::size_t{4096}, std::size_t{4097}, std::size_t{60'001}}) {
      const std::vector<float> values = make(data, count, count);
      const std::vector<std::uint32_t> order = by_magnitude(values);
      std::set<std::size_t> ks = {1, count / 1000 + 1, count / 100 + 1, count / 10 + 1, count / 2 + 1, count};
      for (const std::size_t k : ks) {
        if (k > count) continue;
        Space space(count, k);
        choose_top_k(values.data(), count, k, 1000, space.space);
        const std::vector<std::uint32_t> expected = first_in_order(order, k);
        for (std::size_t i = 0; i < k; ++i) {
          ASSERT_EQ(expected[i] + 1000, space.space.chosen.indices[i])
              << codec_test::name_of(data) << " " << count << " k " << k << " at " << i;
          ASSERT_EQ(values[expected[i]], space.space.chosen.values[i]);
        }
      }
    }
  }
}

// The sample's positions are known, so data can lie to it: then the radix selection must step in.
TEST(TopK, IsExactWhereTheSampleMisleads) {
  constexpr std::size_t kCount = 200'000, kKept = 200;
  for (const bool sample_is_large : {false, true}) {
    std::vector<float> values(kCount, sample_is_large ? 1e-3F : 1.0F);
    for (std::size_t j = 0; j < sample_of(kCount); ++j) {
      values[sampled_position(j, kCount, 0)] = sample_is_large && j < 100 ? 5.0F : 1e-6F;
    }
    for (std::size_t i = 0; i < kCount; i += 3) values[i] += static_cast<float>(i) * 1e-9F;
    Space space(kCount, kKept);
    choose_top_k(values.data(), kCount, kKept, 0, space.space);
    const std::vector<std::uint32_t> expected = expected_top_k(values, kKept);
    for (std::size_t i = 0; i < kKept; ++i) ASSERT_EQ(expected[i], space.space.chosen.indices[i]) << i;
  }
}

TEST(MsTopK, TakesKOfWhichNoneIsFarBelowTheThreshold) {
  for (const Data data : kAllData) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{50}, std::size_t{3000}, std::size_t{300'000}}) {
      for (const std::size_t k : {std::size_t{1}, count / 50 + 1, count / 3 + 1, count}) {
        if (k > count) continue;
        const std::vector<float> values = make(data, count, count + k);
        Space space(count, k);
        choose_ms_top_k(values.data(), count, k, 7, space.space);
        std::size_t last = 0;
        double taken = 0;
        for (std::size_t i = 0; i < k; ++i) {
          const std::size_t index = space.space.chosen.indices[i];
          ASSERT_LT(index, count);
          ASSERT_TRUE(i == 0 || index > last) << codec_test::name_of(data) << count << " k " << k;
          ASSERT_EQ(values[index], space.space.chosen.values[i]);
          taken += std::fabs(static_cast<double>(values[index]));
          last = index;
        }
        if (data != Data::kGaussian || k < 256) continue;
        double best = 0;
        for (const std::uint32_t index : expected_top_k(values, k))
          best += std::fabs(static_cast<double>(values[index]));
        EXPECT_GE(taken, 0.98 * best) << count << " k " << k;
      }
    }
  }
}

TEST(RandomK, ChoosesOnePositionOfEachStretchAndAllEquallyOften) {
  constexpr std::size_t kCount = 103, kKept = 10;
  std::vector<int> hits(kCount);
  for (std::uint64_t round = 0; round < 4000; ++round) {
    for (std::size_t j = 0; j < kKept; ++j) {
      const std::size_t at = random_position(j, kKept, kCount, 42, round);
      ASSERT_GE(at, j * kCount / kKept);
      ASSERT_LT(at, (j + 1) * kCount / kKept);
      ++hits[at];
    }
  }
  for (const int each : hits) EXPECT_NEAR(388, each, 90);
}

TEST(LayerTopK, KeepsTheShareOfEveryLayer) {
  const std::size_t layers[] = {100, 10, 1, 889};
  Coding coding{codec_test::spec_of("lwtopk:0.1"), {.count = 1000, .layers = layers}};
  std::vector<float> values = make(Data::kGaussian, 1000, 6);
  for (std::size_t i = 0; i < 100; ++i) values[i] *= 1000;  // a whole-tensor choice would take the first layer only
  codec_test::Trip trip(coding);
  ASSERT_TRUE(trip.encode(values).ok());
  std::vector<float> decoded;
  ASSERT_TRUE(trip.decode(&decoded).ok());
  const std::size_t kept[] = {10, 1, 1, 89};
  std::size_t at = 0;
  for (std::size_t layer = 0; layer < 4; ++layer) {
    const auto begin = decoded.begin() + static_cast<std::ptrdiff_t>(at);
    const auto end = begin + static_cast<std::ptrdiff_t>(layers[layer]);
    EXPECT_EQ(kept[layer], static_cast<std::size_t>(std::count_if(begin, end, [](float x) { return x != 0; })));
    at += layers[layer];
  }
}

TEST(Pairs, ListsThatNoEncoderWritesAreRefusedBeforeAnythingIsAdded) {
  const Coding coding{codec_test::spec_of("topk:0.5"), {.count = 8}};
  std::vector<std::byte> workspace(workspace_bytes(coding));
  SegmentDecoder decoder(coding, workspace);
  ASSERT_TRUE(decoder.open({}).ok());
  const auto add = [&](std::vector<std::uint32_t> indices, std::vector<float> values, std::uint32_t count) {
    std::vector<std::uint8_t> body(4 + 4 * indices.size() + 4 * values.size());
    std::memcpy(body.data(), &count, 4);
    std::memcpy(body.data() + 4, indices.data(), 4 * indices.size());
    std::memcpy(body.data() + 4 + 4 * indices.size(), values.data(), 4 * values.size());
    std::vector<float> out(4, 1.0F);
    const Status status = decoder.decode_add({2, 4}, body, out.data());
    if (!status.ok()) {
      EXPECT_EQ(std::vector<float>(4, 1.0F), out) << status.text();
    }
    return status.text();
  };
  EXPECT_EQ("", add({0, 3}, {1, 2}, 2));
  EXPECT_NE(std::string::npos, add({0, 4}, {1, 2}, 2).find("index 4 of pair 1 lies beyond"));
  EXPECT_NE(std::string::npos, add({3, 3}, {1, 2}, 2).find("does not ascend"));
  EXPECT_NE(std::string::npos, add({0, 1}, {1, std::nanf("")}, 2).find("not finite"));
  EXPECT_NE(std::string::npos, add({0, 1}, {1, 2}, 3).find("bytes instead of"));
  EXPECT_NE(std::string::npos, add({0, 1}, {1, 2}, 0xFFFFFFFF).find("4294967295 pairs"));
}

}  // namespace
}  // namespace canarynet
