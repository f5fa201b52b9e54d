// matrix.h -- the one product that a fully connected network needs, on one core. Row-major floats; no BLAS.
#pragma once

#include <cstddef>
#include <span>

namespace train {

// c (m x n) = a (m x k) times b (k x n). Element (i, l) of a is a[i * a_row + l * a_column], so a transposed matrix is
// read in place; b and c are dense. The sum runs in the order of l: the same bits on every run. c overlaps neither.
struct Product {
  std::size_t m = 0, n = 0, k = 0;
  std::size_t a_row = 0, a_column = 1;
};
void multiply(const Product& shape, const float* a, const float* b, float* c);

// to (columns x rows) = from (rows x columns), transposed.
void transpose(std::size_t rows, std::size_t columns, const float* from, float* to);

}  // namespace train
