// The specification of CRC32C: eight bytes a step through eight tables.
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/crc32c_fold.h"
#include "kernels/variant.h"

namespace canarynet::kernels_scalar {
namespace {

static_assert(std::endian::native == std::endian::little, "the words below are taken from memory as they are");

using Table = std::array<std::array<std::uint32_t, 256>, 8>;

// table[k][byte]: the CRC of `byte` followed by k zero bytes.
constexpr Table make_table() {
  Table table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kCrc32cPolynomial : 0);
    table[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t shorter = table[k - 1][byte];
      table[k][byte] = (shorter >> 8) ^ table[0][shorter & 0xFF];
    }
  }
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

uint32_t crc32c(uint32_t crc, const void* data, size_t bytes) {
  const unsigned char* at = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    word ^= crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= kTable[7 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; bytes > 0; --bytes, ++at) crc = (crc >> 8) ^ kTable[0][(crc ^ *at) & 0xFF];
  return ~crc;
}

}  // namespace canarynet::kernels_scalar
