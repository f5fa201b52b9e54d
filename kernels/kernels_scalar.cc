// The specification: plain C++, element by element. Every other variant must give the same bits (but for NaN payloads).
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/variant.h"

namespace canarynet::kernels_scalar {
namespace {

// Storage types of the 16-bit floats.
struct Half {
  std::uint16_t bits;
};
struct Brain {
  std::uint16_t bits;
};

constexpr std::uint32_t kF32Infinity = 0x7F800000;

float widen(Brain value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

float widen(Half value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1FU;
  const std::uint32_t fraction = value.bits & 0x3FFU;
  if (exponent == 0) {  // zero or subnormal: fraction units of 2^-24, exact in f32
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return sign ? -magnitude : magnitude;
  }
  const std::uint32_t rebiased = exponent == 0x1F ? kF32Infinity : (exponent + 127 - 15) << 23;
  return std::bit_cast<float>(sign | rebiased | (fraction << 13));
}

// `value` >> `shift`, rounded to nearest, ties to even; 0 < shift < 32.
std::uint32_t shift_to_nearest_even(std::uint32_t value, std::uint32_t shift) {
  const std::uint32_t half_minus_one = (1U << (shift - 1)) - 1;
  return (value + half_minus_one + ((value >> shift) & 1U)) >> shift;
}

void narrow(float value, Brain* out) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > kF32Infinity) {  // rounding might carry a NaN into infinity: truncate, set the quiet bit
    out->bits = static_cast<std::uint16_t>((bits >> 16) | 0x40U);
    return;
  }
  out->bits = static_cast<std::uint16_t>(shift_to_nearest_even(bits, 16));
}

void narrow(float value, Half* out) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const std::uint32_t exponent = magnitude >> 23;
  std::uint32_t half;
  if (magnitude > kF32Infinity) {
    half = 0x7E00U;
  } else if (exponent >= 127 + 16) {  // 2^16 and above
    half = 0x7C00U;
  } else if (exponent >= 127 - 14) {  // normal; the carry of rounding may reach infinity, as it should
    half = shift_to_nearest_even(magnitude - ((127U - 15U) << 23), 13);
  } else if (exponent >= 127 - 25) {  // subnormal: units of 2^-24; the carry may reach the smallest normal
    half = shift_to_nearest_even((magnitude & 0x7FFFFFU) | 0x800000U, 126 - exponent);
  } else {
    half = 0;
  }
  out->bits = static_cast<std::uint16_t>((bits >> 16 & 0x8000U) | half);
}

struct Sum {
  template <typename T>
  static T combine(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
};

struct Prod {
  template <typename T>
  static T combine(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(static_cast<U>(a) * static_cast<U>(b)));
    } else {
      return a * b;
    }
  }
};

struct Min {
  template <typename T>
  static T combine(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a || b != b) return a + b;  // quiet NaN
      if (a == b) return std::signbit(a) ? a : b;
    }
    return b < a ? b : a;
  }
};

struct Max {
  template <typename T>
  static T combine(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a || b != b) return a + b;
      if (a == b) return std::signbit(a) ? b : a;
    }
    return a < b ? b : a;
  }
};

// memcpy because only element alignment is promised for the type behind void*, and its dynamic type is the caller's.
template <typename T>
T load(const void* base, std::size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + index * sizeof(T), sizeof(T));
  return value;
}
template <typename T>
void store(void* base, std::size_t index, T value) {
  std::memcpy(static_cast<char*>(base) + index * sizeof(T), &value, sizeof(T));
}

template <typename T, typename Op>
void reduce_all(void* dst, const void* a, const void* b, std::size_t elements) {
  for (std::size_t i = 0; i < elements; ++i) {
    if constexpr (std::is_arithmetic_v<T>) {
      store<T>(dst, i, Op::combine(load<T>(a, i), load<T>(b, i)));
    } else {
      T result;
      narrow(Op::combine(widen(load<T>(a, i)), widen(load<T>(b, i))), &result);
      store<T>(dst, i, result);
    }
  }
}

template <typename T>
void divide_all(void* data, std::size_t elements, std::uint32_t divisor) {
  for (std::size_t i = 0; i < elements; ++i) {
    if constexpr (std::is_integral_v<T>) {  // i64 holds every value of the narrower types and of the divisor
      store<T>(data, i,
               static_cast<T>(static_cast<std::int64_t>(load<T>(data, i)) / static_cast<std::int64_t>(divisor)));
    } else if constexpr (std::is_floating_point_v<T>) {
      store<T>(data, i, load<T>(data, i) / static_cast<T>(divisor));
    } else {
      T result;
      narrow(widen(load<T>(data, i)) / static_cast<float>(divisor), &result);
      store<T>(data, i, result);
    }
  }
}

template <typename T>
VariantReduceFn reduce_for(canary_redop op) {
  switch (op) {
    case CANARY_SUM:
    case CANARY_AVG:
      return reduce_all<T, Sum>;
    case CANARY_MIN:
      return reduce_all<T, Min>;
    case CANARY_MAX:
      return reduce_all<T, Max>;
    case CANARY_PROD:
      return reduce_all<T, Prod>;
  }
  return nullptr;
}

}  // namespace

VariantReduceFn reduce(canary_type type, canary_redop op) {
  switch (type) {
    case CANARY_F32:
      return reduce_for<float>(op);
    case CANARY_F64:
      return reduce_for<double>(op);
    case CANARY_F16:
      return reduce_for<Half>(op);
    case CANARY_BF16:
      return reduce_for<Brain>(op);
    case CANARY_I8:
      return reduce_for<std::int8_t>(op);
    case CANARY_U8:
      return reduce_for<std::uint8_t>(op);
    case CANARY_I32:
      return reduce_for<std::int32_t>(op);
    case CANARY_I64:
      return reduce_for<std::int64_t>(op);
  }
  return nullptr;
}

VariantDivideFn divide(canary_type type) {
  switch (type) {
    case CANARY_F32:
      return divide_all<float>;
    case CANARY_F64:
      return divide_all<double>;
    case CANARY_F16:
      return divide_all<Half>;
    case CANARY_BF16:
      return divide_all<Brain>;
    case CANARY_I8:
      return divide_all<std::int8_t>;
    case CANARY_U8:
      return divide_all<std::uint8_t>;
    case CANARY_I32:
      return divide_all<std::int32_t>;
    case CANARY_I64:
      return divide_all<std::int64_t>;
  }
  return nullptr;
}

}  // namespace canarynet::kernels_scalar
