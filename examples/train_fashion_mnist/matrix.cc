#include "examples/train_fashion_mnist/matrix.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace train {
namespace {

// A tile of c stays in registers while k runs; the strip of b it meets (kDepth rows) stays in the first-level cache.
constexpr std::size_t kHigh = 4, kDepth = 256;

typedef float FourLanes __attribute__((vector_size(16)));
typedef float EightLanes __attribute__((vector_size(32)));

// Inlined into one function per instruction set; the compiler takes it from there.
template <typename Lanes>
[[gnu::always_inline]] inline void multiply_with(const Product& s, const float* a, const float* b, float* c) {
  constexpr std::size_t kLanes = sizeof(Lanes) / sizeof(float), kWide = 2 * kLanes;
  alignas(64) std::array<float, kDepth * kWide> strip;
  if (s.k == 0) std::fill(c, c + s.m * s.n, 0.0f);
  for (std::size_t l0 = 0; l0 < s.k; l0 += kDepth) {
    const std::size_t depth = std::min(kDepth, s.k - l0);
    for (std::size_t j0 = 0; j0 < s.n; j0 += kWide) {
      const std::size_t wide = std::min(kWide, s.n - j0);
      // Packed, and padded with zeros at the right edge, so that the tile below has one size only.
      for (std::size_t l = 0; l < depth; ++l) {
        float* to = strip.data() + l * kWide;
        std::memcpy(to, b + (l0 + l) * s.n + j0, wide * sizeof(float));
        std::fill(to + wide, to + kWide, 0.0f);
      }
      for (std::size_t i0 = 0; i0 < s.m; i0 += kHigh) {
        const std::size_t high = std::min(kHigh, s.m - i0);
        std::array<const float*, kHigh> row;  // at the lower edge the last one again; its results are dropped
        for (std::size_t i = 0; i < kHigh; ++i) row[i] = a + (i0 + std::min(i, high - 1)) * s.a_row + l0 * s.a_column;
        // Named one by one: as an array they might live in memory.
        Lanes c00{}, c01{}, c10{}, c11{}, c20{}, c21{}, c30{}, c31{};
        for (std::size_t l = 0; l < depth; ++l) {
          Lanes b0, b1;
          std::memcpy(&b0, strip.data() + l * kWide, sizeof b0);
          std::memcpy(&b1, strip.data() + l * kWide + kLanes, sizeof b1);
          const std::size_t at = l * s.a_column;
          const float a0 = row[0][at], a1 = row[1][at], a2 = row[2][at], a3 = row[3][at];
          c00 += a0 * b0;
          c01 += a0 * b1;
          c10 += a1 * b0;
          c11 += a1 * b1;
          c20 += a2 * b0;
          c21 += a2 * b1;
          c30 += a3 * b0;
          c31 += a3 * b1;
        }
        const Lanes sums[] = {c00, c01, c10, c11, c20, c21, c30, c31};
        std::array<float, kHigh * kWide> tile;
        static_assert(sizeof sums == sizeof tile);
        std::memcpy(tile.data(), sums, sizeof sums);
        for (std::size_t i = 0; i < high; ++i) {
          float* to = c + (i0 + i) * s.n + j0;
          const float* from = tile.data() + i * kWide;
          if (l0 == 0) {
            std::memcpy(to, from, wide * sizeof(float));
          } else {
            for (std::size_t j = 0; j < wide; ++j) to[j] += from[j];
          }
        }
      }
    }
  }
}

void multiply_baseline(const Product& s, const float* a, const float* b, float* c) {
  multiply_with<FourLanes>(s, a, b, c);
}

using Multiply = void (*)(const Product&, const float*, const float*, float*);

#ifdef __x86_64__
[[gnu::target("avx2,fma")]] void multiply_avx2(const Product& s, const float* a, const float* b, float* c) {
  multiply_with<EightLanes>(s, a, b, c);
}
Multiply choose() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? multiply_avx2 : multiply_baseline;
}
#else
Multiply choose() { return multiply_baseline; }
#endif

}  // namespace

void multiply(const Product& shape, const float* a, const float* b, float* c) {
  static const Multiply chosen = choose();
  chosen(shape, a, b, c);
}

void transpose(std::size_t rows, std::size_t columns, const float* from, float* to) {
  constexpr std::size_t kBlock = 16;
  for (std::size_t r0 = 0; r0 < rows; r0 += kBlock) {
    for (std::size_t c0 = 0; c0 < columns; c0 += kBlock) {
      for (std::size_t r = r0; r < std::min(rows, r0 + kBlock); ++r) {
        for (std::size_t c = c0; c < std::min(columns, c0 + kBlock); ++c) to[c * rows + r] = from[r * columns + c];
      }
    }
  }
}

}  // namespace train
