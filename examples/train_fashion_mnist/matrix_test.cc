#include "examples/train_fashion_mnist/matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "examples/train_fashion_mnist/random.h"

namespace train {
namespace {

std::vector<float> numbers(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (auto& v : values) v = random.symmetric();
  return values;
}

// Sizes around the tile's edges; both orders of a.
TEST(Multiply, MatchesAPlainLoop) {
  for (const std::size_t m : {1u, 3u, 4u, 5u, 17u}) {
    for (const std::size_t n : {1u, 10u, 16u, 31u}) {
      for (const std::size_t k : {1u, 7u, 256u, 300u, 513u}) {
        const auto a = numbers(m * k, 1), b = numbers(k * n, 2);
        for (const bool transposed : {false, true}) {
          const Product shape = {.m = m, .n = n, .k = k, .a_row = transposed ? 1 : k, .a_column = transposed ? m : 1};
          std::vector<float> c(m * n + 1, 77.0f);
          multiply(shape, a.data(), b.data(), c.data());
          for (std::size_t i = 0; i < m; ++i) {
            for (std::size_t j = 0; j < n; ++j) {
              double sum = 0;
              for (std::size_t l = 0; l < k; ++l) {
                sum += static_cast<double>(a[i * shape.a_row + l * shape.a_column]) * static_cast<double>(b[l * n + j]);
              }
              ASSERT_NEAR(c[i * n + j], sum, 1e-4) << m << " x " << n << " x " << k;
            }
          }
          ASSERT_EQ(c[m * n], 77.0f);  // nothing written past the end
        }
      }
    }
  }
}

TEST(Multiply, OfNothingIsZero) {
  std::vector<float> c(6, 5.0f);
  multiply({.m = 2, .n = 3, .k = 0, .a_row = 0}, nullptr, nullptr, c.data());
  EXPECT_EQ(c, std::vector<float>(6, 0.0f));
}

TEST(Transpose, SwapsRowsAndColumns) {
  const std::size_t rows = 19, columns = 33;
  const auto from = numbers(rows * columns, 3);
  std::vector<float> to(from.size());
  transpose(rows, columns, from.data(), to.data());
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) ASSERT_EQ(to[c * rows + r], from[r * columns + c]);
  }
}

}  // namespace
}  // namespace train
