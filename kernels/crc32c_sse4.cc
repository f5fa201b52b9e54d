// CRC32C with the CRC32 instruction. It takes 3 cycles but one can start every cycle, so three neighbouring blocks run
// side by side; then the first two CRCs are moved over the blocks that follow them with a carry-less multiplication.
#include <immintrin.h>

#include "kernels/crc32c_fold.h"
#include "kernels/variant.h"

namespace canarynet::kernels_sse4 {
namespace {

// Large blocks hide the combination, small ones leave little for the serial tail.
constexpr size_t kLargeBlock = 4096;
constexpr size_t kSmallBlock = 256;

inline uint64_t word_at(const unsigned char* at) {
  uint64_t word;
  __builtin_memcpy(&word, at, 8);
  return word;
}

inline uint64_t multiply(uint64_t crc, uint64_t constant) {
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(crc)),
                                               _mm_cvtsi64_si128(static_cast<long long>(constant)), 0);
  return static_cast<uint64_t>(_mm_cvtsi128_si64(product));
}

// Takes all groups of three blocks off the front. kOverOne, kOverTwo: crc32c_skip() of one block and of two.
template <size_t kBlock, uint64_t kOverOne, uint64_t kOverTwo>
inline uint64_t take_triples(uint64_t crc, const unsigned char** at, size_t* bytes) {
  const unsigned char* first = *at;
  size_t left = *bytes;
  for (; left >= 3 * kBlock; left -= 3 * kBlock, first += 3 * kBlock) {
    uint64_t second_crc = 0;
    uint64_t third_crc = 0;
    for (size_t i = 0; i < kBlock; i += 8) {
      crc = _mm_crc32_u64(crc, word_at(first + i));
      second_crc = _mm_crc32_u64(second_crc, word_at(first + kBlock + i));
      third_crc = _mm_crc32_u64(third_crc, word_at(first + 2 * kBlock + i));
    }
    crc = third_crc ^ _mm_crc32_u64(0, multiply(crc, kOverTwo) ^ multiply(second_crc, kOverOne));
  }
  *at = first;
  *bytes = left;
  return crc;
}

}  // namespace

uint32_t crc32c(uint32_t crc_so_far, const void* data, size_t bytes) {
  const unsigned char* at = static_cast<const unsigned char*>(data);
  uint64_t crc = ~crc_so_far;
  crc = take_triples<kLargeBlock, crc32c_skip(kLargeBlock), crc32c_skip(2 * kLargeBlock)>(crc, &at, &bytes);
  crc = take_triples<kSmallBlock, crc32c_skip(kSmallBlock), crc32c_skip(2 * kSmallBlock)>(crc, &at, &bytes);
  for (; bytes >= 8; bytes -= 8, at += 8) crc = _mm_crc32_u64(crc, word_at(at));
  uint32_t crc32 = static_cast<uint32_t>(crc);
  if (bytes >= 4) {  // frames' headers end so
    uint32_t word;
    __builtin_memcpy(&word, at, 4);
    crc32 = _mm_crc32_u32(crc32, word);
    bytes -= 4;
    at += 4;
  }
  for (; bytes > 0; --bytes, ++at) crc32 = _mm_crc32_u8(crc32, *at);
  return ~crc32;
}

}  // namespace canarynet::kernels_sse4
