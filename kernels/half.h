// kernels/half.h -- the 16-bit floats by definition: to f32 and back, element by element, rounded to nearest even.
//
// For the scalar kernels and whatever else is compiled for the baseline CPU; internal to kernels/ and its tests. The
// files of an instruction set must not include it (see variant.h).
#pragma once

#include <bit>
#include <cstdint>

namespace canarynet::kernels_scalar {

// Storage types of the 16-bit floats.
struct Half {
  std::uint16_t bits;
};
struct Brain {
  std::uint16_t bits;
};

inline constexpr std::uint32_t kF32Infinity = 0x7F800000;

inline float widen(Brain value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

inline float widen(Half value) {
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
inline std::uint32_t shift_to_nearest_even(std::uint32_t value, std::uint32_t shift) {
  const std::uint32_t half_minus_one = (1U << (shift - 1)) - 1;
  return (value + half_minus_one + ((value >> shift) & 1U)) >> shift;
}

inline void narrow(float value, Brain* out) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > kF32Infinity) {  // rounding might carry a NaN into infinity: truncate, set the quiet bit
    out->bits = static_cast<std::uint16_t>((bits >> 16) | 0x40U);
    return;
  }
  out->bits = static_cast<std::uint16_t>(shift_to_nearest_even(bits, 16));
}

inline void narrow(float value, Half* out) {
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

}  // namespace canarynet::kernels_scalar
