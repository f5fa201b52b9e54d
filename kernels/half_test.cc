// f16 and bf16: all 65536 values through every variant, against a reference that searches for the nearest value.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/reduce.h"

namespace canarynet {
namespace {

constexpr std::size_t kAll = 65536;

// A 16-bit float by its definition: sign, exponent, fraction; values as double, which holds all of them.
class Format {
 public:
  explicit Format(DataType type) : type_(type), fraction_bits_(type == CANARY_F16 ? 10 : 7) {
    const int exponent_bits = 15 - fraction_bits_;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    infinity_ = static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << fraction_bits_);
    for (int code = 0; code <= infinity_;
         ++code) {  // the code of infinity counts as the next power of two, for rounding
      const int exponent = code >> fraction_bits_;
      const int fraction = code & ((1 << fraction_bits_) - 1);
      const int significand = exponent == 0 ? fraction : fraction + (1 << fraction_bits_);
      magnitudes_.push_back(std::ldexp(significand, std::max(exponent, 1) - bias - fraction_bits_));
    }
  }

  DataType type() const { return type_; }
  double value(std::uint16_t code) const {
    const std::uint16_t magnitude = code & 0x7FFF;
    double result = magnitude < infinity_    ? magnitudes_[magnitude]
                    : magnitude == infinity_ ? std::numeric_limits<double>::infinity()
                                             : std::numeric_limits<double>::quiet_NaN();
    return (code & 0x8000) ? -result : result;
  }
  bool is_nan(std::uint16_t code) const { return (code & 0x7FFF) > infinity_; }
  bool is_quiet(std::uint16_t code) const { return (code >> (fraction_bits_ - 1) & 1) != 0; }

  // The code nearest to a number that is not NaN, ties to the even code.
  std::uint16_t nearest(double value) const {
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::fabs(value);
    if (magnitude >= magnitudes_.back()) return static_cast<std::uint16_t>(sign | infinity_);
    const auto above = std::upper_bound(magnitudes_.begin(), magnitudes_.end(), magnitude);
    const auto high = static_cast<std::uint16_t>(above - magnitudes_.begin());
    const auto low = static_cast<std::uint16_t>(high - 1);
    const double to_low = magnitude - magnitudes_[low];
    const double to_high = magnitudes_[high] - magnitude;
    const bool up = to_high < to_low || (to_high == to_low && low % 2 == 1);
    return static_cast<std::uint16_t>(sign | (up ? high : low));
  }

 private:
  DataType type_;
  int fraction_bits_;
  std::uint16_t infinity_;
  std::vector<double> magnitudes_;
};

// The combination in f32, from exact double arithmetic or comparison.
double combined(ReduceOp op, double a, double b) {
  switch (op) {
    case CANARY_SUM:
    case CANARY_AVG:
      return static_cast<float>(a + b);
    case CANARY_PROD:
      return static_cast<float>(a * b);
    case CANARY_MIN:
      if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
      return a == b ? (std::signbit(a) ? a : b) : std::min(a, b);
    case CANARY_MAX:
      if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
      return a == b ? (std::signbit(a) ? b : a) : std::max(a, b);
  }
  return 0;
}

class HalfReduce : public testing::TestWithParam<DataType> {};

TEST_P(HalfReduce, AllValuesCombineToTheNearestValueInEveryVariant) {
  const Format format(GetParam());
  Random random(16);
  std::vector<std::uint16_t> all(kAll), partner(kAll), result(kAll);
  for (std::size_t i = 0; i < kAll; ++i) all[i] = static_cast<std::uint16_t>(i);
  std::size_t count = 0;
  const KernelVariant* variants = kernel_variants(&count);
  // Partners: -0 and 1 (nothing changes), half a unit away (ties), itself, any bits.
  for (int round = 0; round < 6; ++round) {
    for (std::size_t i = 0; i < kAll; ++i) {
      const auto code = static_cast<std::uint16_t>(i);
      switch (round) {
        case 0:
          partner[i] = 0x8000;
          break;
        case 1:
          partner[i] = format.nearest(1.0);
          break;
        case 2: {
          const double gap =
              format.value(static_cast<std::uint16_t>((code & 0x7FFF) + 1)) - format.value(code & 0x7FFF);
          partner[i] = std::isfinite(gap) ? format.nearest(gap / 2) : code;
          break;
        }
        case 3:
          partner[i] = code;
          break;
        default:
          partner[i] = static_cast<std::uint16_t>(random.next() >> 20);
          break;
      }
    }
    for (ReduceOp op : {CANARY_SUM, CANARY_MIN, CANARY_MAX, CANARY_PROD}) {
      std::vector<double> expected(kAll);
      for (std::size_t i = 0; i < kAll; ++i) expected[i] = combined(op, format.value(all[i]), format.value(partner[i]));
      for (std::size_t v = 0; v < count; ++v) {
        variants[v].reduce(format.type(), op)(result.data(), all.data(), partner.data(), kAll);
        for (std::size_t i = 0; i < kAll; ++i) {
          if (std::isnan(expected[i])) {
            ASSERT_TRUE(format.is_nan(result[i]) && format.is_quiet(result[i])) << variants[v].name << " " << i;
          } else {
            ASSERT_EQ(format.nearest(expected[i]), result[i])
                << variants[v].name << " " << name_of(op) << " " << all[i] << " " << partner[i];
          }
        }
      }
    }
  }
}

TEST_P(HalfReduce, AllValuesDivideToTheNearestValueInEveryVariant) {
  const Format format(GetParam());
  std::size_t count = 0;
  const KernelVariant* variants = kernel_variants(&count);
  for (std::uint32_t divisor : {1U, 2U, 3U, 10U, 1024U}) {
    for (std::size_t v = 0; v < count; ++v) {
      std::vector<std::uint16_t> data(kAll);
      for (std::size_t i = 0; i < kAll; ++i) data[i] = static_cast<std::uint16_t>(i);
      variants[v].divide(format.type())(data.data(), kAll, divisor);
      for (std::size_t i = 0; i < kAll; ++i) {
        const auto code = static_cast<std::uint16_t>(i);
        if (format.is_nan(code)) {
          ASSERT_TRUE(format.is_nan(data[i]) && format.is_quiet(data[i])) << variants[v].name << " " << i;
        } else {
          const double quotient = static_cast<float>(format.value(code) / divisor);
          ASSERT_EQ(format.nearest(quotient), data[i]) << variants[v].name << " " << i << " / " << divisor;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, HalfReduce, testing::Values(CANARY_F16, CANARY_BF16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace canarynet
