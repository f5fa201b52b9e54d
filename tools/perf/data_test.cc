#include "tools/perf/data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tools/perf/options.h"

namespace canarynet::perf {
namespace {

const std::vector<canary_type> kTypes = {CANARY_F32, CANARY_F64, CANARY_F16, CANARY_BF16,
                                         CANARY_I8,  CANARY_U8,  CANARY_I32, CANARY_I64};
const std::vector<canary_redop> kRedops = {CANARY_SUM, CANARY_AVG, CANARY_MIN, CANARY_MAX, CANARY_PROD};

double from_f16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

template <typename T>
T read(const Table& table, std::size_t index) {
  T value;
  std::memcpy(&value, table.bytes.data() + index * sizeof(T), sizeof value);
  return value;
}

TEST(HalfConversion, RoundsToNearestEven) {
  EXPECT_EQ(to_f16(1.0f), 0x3c00);
  EXPECT_EQ(to_f16(-2.0f), 0xc000);
  EXPECT_EQ(to_f16(65504.0f), 0x7bff);
  EXPECT_EQ(to_f16(2049.0f), to_f16(2048.0f));
  EXPECT_EQ(to_f16(2051.0f), to_f16(2052.0f));
  EXPECT_EQ(to_f16(std::ldexp(1.0f, -24)), 1);
  EXPECT_EQ(to_f16(0.0f), 0);
  for (int i = 0; i <= 2048; ++i) EXPECT_EQ(from_f16(to_f16(static_cast<float>(i))), i);
  EXPECT_EQ(to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(to_bf16(257.0f), to_bf16(256.0f));
  EXPECT_EQ(to_bf16(259.0f), to_bf16(260.0f));
}

// The order of the additions must not matter, or "exact" would depend on the algorithm.
TEST(Inputs, SumsOfFloatsAreExactInEveryOrder) {
  for (const int ranks : {1, 2, 3, 4, 7, 8, 300}) {
    std::vector<Table> inputs;
    for (int r = 0; r < ranks; ++r) inputs.push_back(input_table(CANARY_F16, CANARY_SUM, ranks, r, 0));
    for (std::size_t i = 0; i < kPeriod; ++i) {
      double magnitude = 0;
      for (const auto& t : inputs) magnitude += std::fabs(from_f16(read<std::uint16_t>(t, i)));
      ASSERT_LE(magnitude, 2048);
    }
  }
}

TEST(Expected, SumAndAverageOfF32MatchAPlainLoop) {
  const int ranks = 7;
  const auto sum = reduced_table(CANARY_F32, CANARY_SUM, ranks, 1),
             avg = reduced_table(CANARY_F32, CANARY_AVG, ranks, 1);
  for (std::size_t i = 0; i < kPeriod; ++i) {
    float s = 0, a = 0;
    for (int r = 0; r < ranks; ++r) {
      s += read<float>(input_table(CANARY_F32, CANARY_SUM, ranks, r, 1), i);
      a += read<float>(input_table(CANARY_F32, CANARY_AVG, ranks, r, 1), i);
    }
    ASSERT_EQ(read<float>(sum, i), s);
    ASSERT_EQ(read<float>(avg, i), a / 7.0f);
    if (i == 20) break;  // building tables is the slow part
  }
}

TEST(Expected, IntegersWrapAndAveragesTruncateTowardZero) {
  bool wrapped = false, negative = false;
  const auto a = input_table(CANARY_I8, CANARY_SUM, 2, 0, 0), b = input_table(CANARY_I8, CANARY_SUM, 2, 1, 0);
  const auto sum = reduced_table(CANARY_I8, CANARY_SUM, 2, 0);
  const auto c = input_table(CANARY_I32, CANARY_AVG, 2, 0, 0), d = input_table(CANARY_I32, CANARY_AVG, 2, 1, 0);
  const auto avg = reduced_table(CANARY_I32, CANARY_AVG, 2, 0);
  for (std::size_t i = 0; i < kPeriod; ++i) {
    const int exact = read<std::int8_t>(a, i) + read<std::int8_t>(b, i);
    wrapped |= exact > 127 || exact < -128;
    ASSERT_EQ(read<std::int8_t>(sum, i), static_cast<std::int8_t>(exact));
    const int total = read<std::int32_t>(c, i) + read<std::int32_t>(d, i);
    negative |= total < 0 && total % 2 != 0;
    ASSERT_EQ(read<std::int32_t>(avg, i), total / 2);
  }
  EXPECT_TRUE(wrapped);
  EXPECT_TRUE(negative);
}

TEST(Expected, ProductsMinimaAndMaximaMatchAPlainLoop) {
  const int ranks = 5;
  for (const auto redop : {CANARY_PROD, CANARY_MIN, CANARY_MAX}) {
    std::vector<Table> inputs;
    for (int r = 0; r < ranks; ++r) inputs.push_back(input_table(CANARY_F64, redop, ranks, r, 0));
    const auto result = reduced_table(CANARY_F64, redop, ranks, 0);
    for (std::size_t i = 0; i < kPeriod; ++i) {
      double v = read<double>(inputs[0], i);
      for (int r = 1; r < ranks; ++r) {
        const double w = read<double>(inputs[static_cast<std::size_t>(r)], i);
        v = redop == CANARY_PROD ? v * w : redop == CANARY_MIN ? std::min(v, w) : std::max(v, w);
      }
      ASSERT_EQ(read<double>(result, i), v);
      if (redop == CANARY_PROD) {
        ASSERT_LE(std::fabs(v), 4);
      }
    }
  }
}

// An output that kept the last round's values, or to which nothing was added, must be noticed.
TEST(Expected, DiffersBetweenPatternsAndFromTheInputs) {
  for (const auto type : kTypes) {
    for (const auto redop : kRedops) {
      const auto first = reduced_table(type, redop, 4, 0), second = reduced_table(type, redop, 4, 1);
      const auto input = input_table(type, redop, 4, 0, 0);
      EXPECT_GT(count_wrong(first, 0, second.bytes.data(), kPeriod), kPeriod / 4) << name_of(type) << name_of(redop);
      EXPECT_GT(count_wrong(first, 0, input.bytes.data(), kPeriod), kPeriod / 4) << name_of(type) << name_of(redop);
    }
  }
}

TEST(Filling, IsCheckedToTheElement) {
  const auto table = input_table(CANARY_I32, CANARY_MAX, 4, 2, 0);
  const std::size_t count = 5000, first = 777;
  std::vector<std::byte> data(count * 4);
  fill(table, first, data.data(), count);
  EXPECT_EQ(count_wrong(table, first, data.data(), count), 0u);
  EXPECT_GT(count_wrong(table, first + 1, data.data(), count), count / 2);
  data[4 * 4321] ^= std::byte{1};
  data[4 * 4999 + 3] ^= std::byte{128};
  EXPECT_EQ(count_wrong(table, first, data.data(), count), 2u);
}

TEST(Hash, SeesEveryByteAndItsPlace) {
  std::vector<std::byte> data(1003);
  const auto plain = hash_of(data.data(), data.size());
  for (const std::size_t at : {0u, 8u, 9u, 500u, 999u, 1002u}) {
    data[at] = std::byte{1};
    EXPECT_NE(hash_of(data.data(), data.size()), plain) << at;
    data[at] = std::byte{0};
  }
  EXPECT_NE(hash_of(data.data(), 1002), plain);
  EXPECT_EQ(hash_of(data.data(), data.size()), plain);
}

}  // namespace
}  // namespace canarynet::perf
