// kernels/crc32c_fold.h -- compile-time constants that move a CRC32C over bits it has not seen; internal to kernels/.
//
// Bits are in reflected order, as in the CRC. Bit i of a 32-bit value is the coefficient of x^(31-i), of a 64-bit one
// of x^(63-i). In that order a carry-less product of two values comes out multiplied by x once more, which the
// exponents below take back. C headers only and consteval, so that nothing is emitted into the files of an instruction
// set (see variant.h).
#pragma once

#include <stdint.h>

namespace canarynet {

inline constexpr uint32_t kCrc32cPolynomial = 0x82F63B78;  // x^32 is implicit

// a * b modulo the polynomial.
consteval uint32_t crc32c_product(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 0x80000000U; bit != 0; bit >>= 1) {  // x^0, x^1, ...; b moves up along
    if (a & bit) product ^= b;
    b = (b >> 1) ^ ((b & 1) ? kCrc32cPolynomial : 0);
  }
  return product;
}

// x^exponent modulo the polynomial, by squaring: compilers limit the steps of a constant.
consteval uint32_t crc32c_power(unsigned exponent) {
  uint32_t power = 0x80000000U;   // x^0
  uint32_t square = 0x40000000U;  // x^1
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) power = crc32c_product(power, square);
    square = crc32c_product(square, square);
  }
  return power;
}

// For crc32q(0, clmul(crc, K)) = `crc` moved over `bytes` zero bytes: crc32q multiplies by x^32, the order by x.
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
