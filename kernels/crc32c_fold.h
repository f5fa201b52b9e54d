// kernels/crc32c_fold.h -- constants for shifting a CRC32C over bits it has not seen; internal to kernels/, all at compile time.
//
// Bit order: reflected, as the CRC is. Bit i of a 32-bit value is the coefficient of x^(31-i), of a 64-bit one of x^(63-i).
// In that order a carry-less product of two values comes out multiplied by x once more, which the exponents below take back.
// C headers only and consteval, so that nothing is emitted into the files of an instruction set (see variant.h).
#pragma once

#include <stdint.h>

namespace canarynet {

inline constexpr uint32_t kCrc32cPolynomial = 0x82F63B78;  // x^32 is implicit

// x^exponent modulo the polynomial.
consteval uint32_t crc32c_power(unsigned exponent) {
  uint32_t value = 0x80000000U;  // x^0
  for (unsigned i = 0; i < exponent; ++i) value = (value >> 1) ^ ((value & 1) ? kCrc32cPolynomial : 0);
  return value;
}

// For crc32q(0, clmul(crc, K)) = the CRC `crc` moved over `bytes` zero bytes: crc32q multiplies by x^32, the order by x.
consteval uint64_t crc32c_skip(unsigned bytes) { return crc32c_power(8 * bytes - 33); }

// For folding 128 bits (first 8 bytes: low, last 8: high) forward by `bits`: clmul(low, K.low) ^ clmul(high, K.high).
struct Crc32cFold {
  uint64_t low;
  uint64_t high;
};
consteval Crc32cFold crc32c_fold(unsigned bits) {
  return {uint64_t{crc32c_power(bits + 64 - 1)} << 32, uint64_t{crc32c_power(bits - 1)} << 32};
}

}  // namespace canarynet
