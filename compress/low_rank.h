// compress/low_rank.h -- factors of a matrix: M (rows x columns, row by row) ~ sum over i of left_i * right_i'.
//
// PowerSGD (Vogels et al., NeurIPS 2019): one step of power iteration with a warm start. left = M right, orthonormalise
// left, right = M' left. Both products are linear in M, so ranks that begin with equal `right` may all-reduce `left`
// between the two steps and `right` after them: then the factors are those of the mean matrix.
// Truncated SVD (Canary 4.3.1 case 1 names it): subspace iteration with eight spare vectors, then one-sided Jacobi
// (Hestenes 1958) on what is left; exact where rank + 8 reaches the shorter side.
//
// Layout: `left` holds `rank` vectors of `rows` numbers one after the other, `right` `rank` vectors of `columns`.
// `scale` is a power of two that multiplies M on the way in and is taken out again at the end, so that extreme values
// neither overflow nor vanish: scale_of(greatest magnitude). Memory and threads: the caller's arrays; nothing
// allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/method.h"

namespace canarynet {

struct Matrix {
  const float* values;
  std::size_t rows;
  std::size_t columns;
};

float scale_of(std::uint32_t greatest_magnitude);

// Vectors that are zero begin anew with random numbers of (seed, round); the others are scaled to length 1.
void warm_start(float* right, std::size_t rank, std::size_t columns, std::uint64_t seed, std::uint64_t round);
void power_left(const Matrix& matrix, float scale, const float* right, std::size_t rank, float* left);
// Gram-Schmidt, twice. A vector that depends on those before it becomes zero.
void orthonormalize(float* vectors, std::size_t rank, std::size_t length);
// Takes `scale` out.
void power_right(const Matrix& matrix, float scale, const float* left, std::size_t rank, float* right);

struct Factors {
  const float* left;
  const float* right;
  std::size_t rows;
  std::size_t columns;
  std::size_t rank;
};
// Of their product, what begins in this row and column and ends in the same row.
void product_at(const Factors& factors, std::size_t row, std::size_t column, std::span<float> out);

// Parts of a workspace for the SVD.
struct SvdSpace {
  SvdSpace(Carver* carver, std::size_t rows, std::size_t columns, std::size_t rank);
  static constexpr std::size_t kSpare = 8;
  std::size_t width;  // vectors in flight
  double* left;       // width x rows
  double* right;      // width x columns
  double* values;     // width: squares of the singular values found, descending
};

// `left` gets orthonormal vectors, `right` the right singular vectors times their singular values. space.values keeps
// the squares of all `width` values found (of scale * M).
void truncated_svd(const Matrix& matrix, float scale, std::size_t rank, std::uint64_t seed, const SvdSpace& space,
                   float* left, float* right);

// The smallest rank whose relative error ||M - M_rank|| / ||M|| is at most `error`, from the squares of the singular
// values in descending order and the sum of all squares (those not listed count as error). The number listed + 1 if the
// list is too short to tell.
std::size_t rank_for_error(std::span<const double> squares, double sum_of_all, double error);

}  // namespace canarynet
