// Compares every variant with the scalar one, bit for bit, and the scalar one with values computed another way.
#include "kernels/reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/variant.h"

namespace canarynet {
namespace {

constexpr DataType kTypes[] = {CANARY_F32, CANARY_F64, CANARY_F16, CANARY_BF16,
                               CANARY_I8,  CANARY_U8,  CANARY_I32, CANARY_I64};
constexpr ReduceOp kOps[] = {CANARY_SUM, CANARY_AVG, CANARY_MIN, CANARY_MAX, CANARY_PROD};

// Layout of the floating-point types; fraction_bits 0 for integers.
struct Layout {
  unsigned bits;
  unsigned fraction_bits;
};
Layout layout_of(DataType type) {
  switch (type) {
    case CANARY_F32:
      return {32, 23};
    case CANARY_F64:
      return {64, 52};
    case CANARY_F16:
      return {16, 10};
    case CANARY_BF16:
      return {16, 7};
    default:
      return {static_cast<unsigned>(size_of(type) * 8), 0};
  }
}

std::uint64_t get(const void* base, std::size_t index, std::size_t size) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, static_cast<const char*>(base) + index * size, size);
  return bits;
}
void put(void* base, std::size_t index, std::size_t size, std::uint64_t bits) {
  std::memcpy(static_cast<char*>(base) + index * size, &bits, size);
}

bool is_nan(DataType type, std::uint64_t bits) {
  const Layout layout = layout_of(type);
  if (layout.fraction_bits == 0) return false;
  const std::uint64_t magnitude = bits & ((std::uint64_t{1} << (layout.bits - 1)) - 1);
  const std::uint64_t infinity = (std::uint64_t{1} << (layout.bits - 1)) - (std::uint64_t{1} << layout.fraction_bits);
  return magnitude > infinity;
}
bool is_quiet(DataType type, std::uint64_t bits) { return (bits >> (layout_of(type).fraction_bits - 1) & 1) != 0; }

// Bit patterns that go wrong first: zeros, subnormals, ones, extremes, infinities, NaNs quiet and signalling; all with
// both signs.
std::vector<std::uint64_t> special_values(DataType type) {
  const Layout layout = layout_of(type);
  const std::uint64_t sign = std::uint64_t{1} << (layout.bits - 1);
  std::vector<std::uint64_t> magnitudes = {0, 1, 2, 3, sign - 1, sign - 2, sign / 2, sign / 2 - 1, 0x7F & (sign - 1)};
  if (layout.fraction_bits != 0) {
    const std::uint64_t unit = std::uint64_t{1} << layout.fraction_bits;
    const std::uint64_t infinity = sign - unit;
    const std::uint64_t one = (sign / 2 - unit);  // exponent bits 0111…1
    for (std::uint64_t bits : {unit, unit - 1, unit + 1, infinity, infinity - 1, infinity + 1, infinity + unit / 2, one,
                               one + 1, one - 1, one + unit, one + unit / 2}) {
      magnitudes.push_back(bits);
    }
  }
  std::vector<std::uint64_t> values;
  for (std::uint64_t magnitude : magnitudes) {
    values.push_back(magnitude);
    values.push_back(magnitude | sign);
  }
  return values;
}

// One third are special values, one third any bits, one third numbers of similar size (sums that round, not overflow).
std::vector<char> make_operand(DataType type, std::size_t elements, std::uint64_t seed) {
  const std::size_t size = size_of(type);
  const Layout layout = layout_of(type);
  const std::vector<std::uint64_t> specials = special_values(type);
  Random random(seed);
  std::vector<char> operand(elements * size);
  for (std::size_t i = 0; i < elements; ++i) {
    const std::uint64_t any = random.next();
    std::uint64_t bits = any;
    if (any % 3 == 0) bits = specials[(any >> 8) % specials.size()];
    if (any % 3 == 1 && layout.fraction_bits != 0) {
      const std::uint64_t unit = std::uint64_t{1} << layout.fraction_bits;
      const std::uint64_t one = (std::uint64_t{1} << (layout.bits - 2)) - unit;
      bits = (any & (std::uint64_t{1} << (layout.bits - 1))) | (one + (any >> 8) % (4 * unit));
    }
    put(operand.data(), i, size, bits);
  }
  return operand;
}

void expect_same(DataType type, const char* expected, const char* actual, std::size_t elements,
                 const std::string& what) {
  const std::size_t size = size_of(type);
  if (std::memcmp(expected, actual, elements * size) == 0) return;
  for (std::size_t i = 0; i < elements; ++i) {
    const std::uint64_t want = get(expected, i, size);
    const std::uint64_t got = get(actual, i, size);
    if (is_nan(type, want) && is_nan(type, got) && is_quiet(type, got)) continue;
    ASSERT_EQ(want, got) << what << ", element " << i;
  }
}

enum class Target { kSeparate, kFirst, kSecond };

// Runs both kernels on copies placed `shift` elements off a 64-byte boundary and compares result and surroundings.
void compare(const KernelVariant& variant, DataType type, ReduceOp op, std::size_t elements, std::size_t shift,
             Target target, const std::vector<char>& a, const std::vector<char>& b) {
  const std::size_t size = size_of(type);
  const std::size_t bytes = elements * size;
  const std::string what = std::string(variant.name) + " " + std::string(name_of(type)) + " " +
                           std::string(name_of(op)) + " count " + std::to_string(elements) + " shift " +
                           std::to_string(shift) + " target " + std::to_string(static_cast<int>(target));
  std::vector<char> expected(bytes + 1);
  kernels_scalar::reduce(type, op)(expected.data(), a.data(), b.data(), elements);

  constexpr std::size_t kMargin = 64;
  constexpr char kFence = 0x5C;
  const auto place = [&](std::vector<char>* room) {
    room->assign(bytes + shift * size + 2 * kMargin + 64 + 1, kFence);
    const std::size_t past = reinterpret_cast<std::uintptr_t>(room->data()) % 64;
    return room->data() + (64 - past) + kMargin + shift * size;
  };
  std::vector<char> room_a, room_b, room_dst;
  char* const at_a = place(&room_a);
  char* const at_b = place(&room_b);
  char* const at_dst = target == Target::kFirst ? at_a : target == Target::kSecond ? at_b : place(&room_dst);
  if (bytes != 0) {
    std::memcpy(at_a, a.data(), bytes);
    std::memcpy(at_b, b.data(), bytes);
  }
  variant.reduce(type, op)(at_dst, at_a, at_b, elements);
  ASSERT_NO_FATAL_FAILURE(expect_same(type, expected.data(), at_dst, elements, what));
  for (std::size_t i = 1; i <= kMargin; ++i) ASSERT_EQ(at_dst[-static_cast<std::ptrdiff_t>(i)], kFence) << what;
  for (std::size_t i = 0; i < kMargin; ++i) ASSERT_EQ(at_dst[bytes + i], kFence) << what;
  if (target == Target::kSeparate && bytes != 0) {
    ASSERT_EQ(0, std::memcmp(at_a, a.data(), bytes)) << what << ": source written";
    ASSERT_EQ(0, std::memcmp(at_b, b.data(), bytes)) << what << ": source written";
  }
}

std::vector<KernelVariant> all_variants() {
  std::size_t count = 0;
  const KernelVariant* variants = kernel_variants(&count);
  return {variants, variants + count};
}

TEST(Reduce, EveryVariantMatchesScalarForEveryCount) {
  std::vector<std::size_t> counts;
  for (std::size_t count = 0; count <= 70; ++count) counts.push_back(count);
  for (std::size_t count : {127, 128, 129, 255, 256, 257, 1001}) counts.push_back(count);
  for (const KernelVariant& variant : all_variants()) {
    for (DataType type : kTypes) {
      for (ReduceOp op : kOps) {
        for (std::size_t count : counts) {
          const std::vector<char> a = make_operand(type, count, 2 * count + 1);
          const std::vector<char> b = make_operand(type, count, 2 * count + 2);
          for (Target target : {Target::kSeparate, Target::kFirst, Target::kSecond}) {
            ASSERT_NO_FATAL_FAILURE(compare(variant, type, op, count, count % 4, target, a, b));
          }
        }
      }
    }
  }
}

TEST(Reduce, EveryVariantMatchesScalarOnManyElementsAtAnyAlignment) {
  constexpr std::size_t kElements = 20011;
  for (DataType type : kTypes) {
    const std::vector<char> a = make_operand(type, kElements, 71);
    const std::vector<char> b = make_operand(type, kElements, 72);
    for (const KernelVariant& variant : all_variants()) {
      for (ReduceOp op : kOps) {
        for (std::size_t shift : {0, 1, 3}) {
          ASSERT_NO_FATAL_FAILURE(compare(variant, type, op, kElements, shift, Target::kFirst, a, b));
        }
      }
    }
  }
}

TEST(Reduce, SpecialValuesMeetEachOtherInEveryVariant) {
  for (DataType type : kTypes) {
    const std::vector<std::uint64_t> specials = special_values(type);
    const std::size_t count = specials.size() * specials.size();
    const std::size_t size = size_of(type);
    std::vector<char> a(count * size), b(count * size);
    for (std::size_t i = 0; i < count; ++i) {
      put(a.data(), i, size, specials[i / specials.size()]);
      put(b.data(), i, size, specials[i % specials.size()]);
    }
    for (const KernelVariant& variant : all_variants()) {
      for (ReduceOp op : kOps) {
        ASSERT_NO_FATAL_FAILURE(compare(variant, type, op, count, 0, Target::kSeparate, a, b));
      }
    }
  }
}

template <typename T>
T scalar(DataType type, ReduceOp op, T a, T b) {
  T result;
  kernels_scalar::reduce(type, op)(&result, &a, &b, 1);
  return result;
}

TEST(ScalarReduce, F32EqualsDoubleArithmeticRoundedOnce) {  // 53 bits hold enough that the second rounding is harmless
  const std::vector<char> a = make_operand(CANARY_F32, 50000, 81);
  const std::vector<char> b = make_operand(CANARY_F32, 50000, 82);
  for (std::size_t i = 0; i < 50000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(get(a.data(), i, 4)));
    const float y = std::bit_cast<float>(static_cast<std::uint32_t>(get(b.data(), i, 4)));
    const float sum = static_cast<float>(static_cast<double>(x) + static_cast<double>(y));
    const float product = static_cast<float>(static_cast<double>(x) * static_cast<double>(y));
    const float got_sum = scalar(CANARY_F32, CANARY_SUM, x, y);
    const float got_product = scalar(CANARY_F32, CANARY_PROD, x, y);
    if (std::isnan(sum)) {
      EXPECT_TRUE(std::isnan(got_sum));
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(sum), std::bit_cast<std::uint32_t>(got_sum)) << x << " + " << y;
    }
    if (std::isnan(product)) {
      EXPECT_TRUE(std::isnan(got_product));
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(product), std::bit_cast<std::uint32_t>(got_product)) << x << " * " << y;
    }
  }
}

TEST(ScalarReduce, MinAndMaxOrderZerosAndPropagateNan) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(std::signbit(scalar(CANARY_F64, CANARY_MIN, 0.0, -0.0)));
  EXPECT_TRUE(std::signbit(scalar(CANARY_F64, CANARY_MIN, -0.0, 0.0)));
  EXPECT_FALSE(std::signbit(scalar(CANARY_F64, CANARY_MAX, 0.0, -0.0)));
  EXPECT_FALSE(std::signbit(scalar(CANARY_F64, CANARY_MAX, -0.0, 0.0)));
  EXPECT_TRUE(std::signbit(scalar(CANARY_F64, CANARY_MAX, -0.0, -0.0)));
  for (ReduceOp op : {CANARY_MIN, CANARY_MAX}) {
    EXPECT_TRUE(std::isnan(scalar(CANARY_F64, op, kNan, 1.0)));
    EXPECT_TRUE(std::isnan(scalar(CANARY_F64, op, -kInfinity, kNan)));
  }
  EXPECT_EQ(-kInfinity, scalar(CANARY_F64, CANARY_MIN, 5.0, -kInfinity));
  EXPECT_EQ(kInfinity, scalar(CANARY_F64, CANARY_MAX, kInfinity, 5.0));
  EXPECT_EQ(-2.0F, scalar(CANARY_F32, CANARY_MIN, 1.0F, -2.0F));
  EXPECT_EQ(1.0F, scalar(CANARY_F32, CANARY_MAX, 1.0F, -2.0F));
}

TEST(ScalarReduce, BytesWrapForAllPairs) {
  for (int x = -128; x < 128; ++x) {
    for (int y = -128; y < 128; ++y) {
      const auto sx = static_cast<std::int8_t>(x), sy = static_cast<std::int8_t>(y);
      const auto ux = static_cast<std::uint8_t>(x + 128), uy = static_cast<std::uint8_t>(y + 128);
      const auto modulo = [](int value) { return ((value + 128) % 256 + 256) % 256 - 128; };
      ASSERT_EQ(modulo(x + y), scalar(CANARY_I8, CANARY_SUM, sx, sy));
      ASSERT_EQ(modulo(x * y), scalar(CANARY_I8, CANARY_PROD, sx, sy));
      ASSERT_EQ(x < y ? x : y, scalar(CANARY_I8, CANARY_MIN, sx, sy));
      ASSERT_EQ(x > y ? x : y, scalar(CANARY_I8, CANARY_MAX, sx, sy));
      ASSERT_EQ((ux + uy) % 256, scalar(CANARY_U8, CANARY_SUM, ux, uy));
      ASSERT_EQ((ux * uy) % 256, scalar(CANARY_U8, CANARY_PROD, ux, uy));
      ASSERT_EQ(ux < uy ? ux : uy, scalar(CANARY_U8, CANARY_MIN, ux, uy));
      ASSERT_EQ(ux > uy ? ux : uy, scalar(CANARY_U8, CANARY_MAX, ux, uy));
    }
  }
}

TEST(ScalarReduce, WordsWrap) {
  using I32 = std::numeric_limits<std::int32_t>;
  using I64 = std::numeric_limits<std::int64_t>;
  EXPECT_EQ(I32::min(), scalar(CANARY_I32, CANARY_SUM, I32::max(), 1));
  EXPECT_EQ(1, scalar(CANARY_I32, CANARY_PROD, I32::max(), I32::max()));
  EXPECT_EQ(I32::min(), scalar(CANARY_I32, CANARY_PROD, I32::min(), -1));
  EXPECT_EQ(I64::max(), scalar(CANARY_I64, CANARY_SUM, I64::min(), std::int64_t{-1}));
  EXPECT_EQ(std::int64_t{1}, scalar(CANARY_I64, CANARY_PROD, I64::max(), I64::max()));
  EXPECT_EQ(std::int64_t{1} << 62, scalar(CANARY_I64, CANARY_PROD, std::int64_t{1} << 31, std::int64_t{1} << 31));
  EXPECT_EQ(std::int64_t{-6700417} * 641, scalar(CANARY_I64, CANARY_PROD, std::int64_t{-6700417}, std::int64_t{641}));
  EXPECT_EQ(I64::min(), scalar(CANARY_I64, CANARY_MIN, I64::min(), I64::max()));
  EXPECT_EQ(std::int64_t{0}, scalar(CANARY_I64, CANARY_MAX, std::int64_t{-1}, std::int64_t{0}));
}

TEST(Divide, EveryVariantMatchesScalar) {
  for (const KernelVariant& variant : all_variants()) {
    for (DataType type : kTypes) {
      const DivideFn kernel = variant.divide(type);
      if (kernel == nullptr) {
        EXPECT_EQ(0U, layout_of(type).fraction_bits) << "floats are divided by every variant";
        continue;
      }
      for (std::uint32_t divisor : {1U, 2U, 3U, 7U, 1000U, 16777217U, 4294967295U}) {
        for (std::size_t count : {0, 1, 5, 15, 16, 17, 33, 64, 1001}) {
          const std::vector<char> data = make_operand(type, count, 90 + count);
          std::vector<char> expected = data, actual = data;
          expected.push_back(0x5C);
          actual.push_back(0x5C);
          kernels_scalar::divide(type)(expected.data(), count, divisor);
          kernel(actual.data(), count, divisor);
          ASSERT_NO_FATAL_FAILURE(expect_same(type, expected.data(), actual.data(), count, variant.name));
          ASSERT_EQ(0x5C, actual.back());
        }
      }
    }
  }
}

template <typename T>
T divided(DataType type, T value, std::uint32_t divisor) {
  divide(type, &value, 1, divisor);
  return value;
}

TEST(Divide, IntegersTruncateTowardZeroAndFloatsRound) {
  EXPECT_EQ(-3, divided<std::int32_t>(CANARY_I32, -7, 2));
  EXPECT_EQ(3, divided<std::int32_t>(CANARY_I32, 7, 2));
  EXPECT_EQ(0, divided<std::int32_t>(CANARY_I32, std::numeric_limits<std::int32_t>::max(), 4294967295U));
  EXPECT_EQ(-42, divided<std::int8_t>(CANARY_I8, -128, 3));
  EXPECT_EQ(0, divided<std::int8_t>(CANARY_I8, -128, 1000));
  EXPECT_EQ(127, divided<std::uint8_t>(CANARY_U8, 255, 2));
  EXPECT_EQ(-3074457345618258602, divided<std::int64_t>(CANARY_I64, std::numeric_limits<std::int64_t>::min(), 3));
  EXPECT_EQ(1.0F / 3.0F, divided<float>(CANARY_F32, 1.0F, 3));
  EXPECT_EQ(1.0 / 3.0, divided<double>(CANARY_F64, 1.0, 3));
  EXPECT_EQ(0x3555, divided<std::uint16_t>(CANARY_F16, 0x3C00, 3));   // 0.33325195
  EXPECT_EQ(0x3EAB, divided<std::uint16_t>(CANARY_BF16, 0x3F80, 3));  // 0.333984
}

}  // namespace
}  // namespace canarynet
