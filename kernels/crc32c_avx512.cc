// CRC32C by folding: each step moves four 512-bit accumulators 2048 bits ahead (VPCLMULQDQ) and adds the next 256
// bytes. At the end 64 bytes with the same CRC remain for the CRC32 instruction.
#include <immintrin.h>

#include "kernels/crc32c_fold.h"
#include "kernels/variant.h"

namespace canarynet::kernels_avx512 {
namespace {

constexpr size_t kStep = 256;

inline __m512i load(const unsigned char* at) { return _mm512_loadu_si512(at); }

inline __m512i constants(Crc32cFold fold) {
  const long long low = static_cast<long long>(fold.low);
  const long long high = static_cast<long long>(fold.high);
  return _mm512_set4_epi64(high, low, high, low);
}

inline __m512i fold_into(__m512i accumulator, __m512i fold, __m512i next) {
  const __m512i low = _mm512_clmulepi64_epi128(accumulator, fold, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(accumulator, fold, 0x11);
  return _mm512_ternarylogic_epi64(low, high, next, 0x96);  // exclusive or of three
}

inline uint64_t word_at(const unsigned char* at) {
  uint64_t word;
  __builtin_memcpy(&word, at, 8);
  return word;
}

}  // namespace

uint32_t crc32c(uint32_t crc_so_far, const void* data, size_t bytes) {
  const unsigned char* at = static_cast<const unsigned char*>(data);
  if (bytes < 2 * kStep) return kernels_sse4::crc32c(crc_so_far, data, bytes);
  constexpr Crc32cFold kOverStep = crc32c_fold(8 * kStep);
  constexpr Crc32cFold kOverVector = crc32c_fold(512);
  const __m512i over_step = constants(kOverStep);
  const __m512i over_vector = constants(kOverVector);

  // A CRC of earlier bytes acts as if added to the first four bytes of these.
  const __m512i start = _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(~crc_so_far)));
  __m512i x0 = _mm512_xor_si512(load(at), start);
  __m512i x1 = load(at + 64);
  __m512i x2 = load(at + 128);
  __m512i x3 = load(at + 192);
  for (at += kStep, bytes -= kStep; bytes >= kStep; at += kStep, bytes -= kStep) {
    x0 = fold_into(x0, over_step, load(at));
    x1 = fold_into(x1, over_step, load(at + 64));
    x2 = fold_into(x2, over_step, load(at + 128));
    x3 = fold_into(x3, over_step, load(at + 192));
  }
  x1 = fold_into(x0, over_vector, x1);
  x2 = fold_into(x1, over_vector, x2);
  x3 = fold_into(x2, over_vector, x3);
  for (; bytes >= 64; at += 64, bytes -= 64) x3 = fold_into(x3, over_vector, load(at));

  alignas(64) unsigned char rest[64];
  _mm512_store_si512(rest, x3);
  uint64_t crc = 0;
  for (size_t i = 0; i < 64; i += 8) crc = _mm_crc32_u64(crc, word_at(rest + i));
  for (; bytes >= 8; bytes -= 8, at += 8) crc = _mm_crc32_u64(crc, word_at(at));
  uint32_t crc32 = static_cast<uint32_t>(crc);
  for (; bytes > 0; --bytes, ++at) crc32 = _mm_crc32_u8(crc32, *at);
  return ~crc32;
}

}  // namespace canarynet::kernels_avx512
