#include "compress/low_rank.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace canarynet {
namespace {

constexpr std::size_t kLanes = 8;  // independent sums, so that the compiler may use vectors

float dot(const float* a, const float* b, std::size_t count, float scale) {
  float lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) lanes[j] += a[i + j] * scale * b[i + j];
  }
  for (std::size_t j = 0; i < count; ++i, ++j) lanes[j] += a[i] * scale * b[i];
  for (std::size_t apart = kLanes / 2; apart != 0; apart /= 2) {
    for (std::size_t j = 0; j < apart; ++j) lanes[j] += lanes[j + apart];
  }
  return lanes[0];
}

template <typename A, typename B>
double wide_dot(const A* a, const B* b, std::size_t count) {
  double lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) lanes[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
  }
  for (std::size_t j = 0; i < count; ++i, ++j) lanes[j] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

template <typename T>
void scale_by(T* vector, std::size_t length, double factor) {
  for (std::size_t i = 0; i < length; ++i) vector[i] = static_cast<T>(static_cast<double>(vector[i]) * factor);
}

template <typename T>
void subtract(T* vector, const T* other, double factor, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i) {
    vector[i] = static_cast<T>(static_cast<double>(vector[i]) - factor * static_cast<double>(other[i]));
  }
}

template <typename T>
void gram_schmidt(T* vectors, std::size_t rank, std::size_t length) {
  // What is left of a dependent vector is rounding, relative to its length before.
  constexpr double kDependent = sizeof(T) == sizeof(float) ? 1e-5 : 1e-12;
  for (std::size_t i = 0; i < rank; ++i) {
    T* const vector = vectors + i * length;
    const double before = std::sqrt(wide_dot(vector, vector, length));
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t j = 0; j < i; ++j) {
        const T* const other = vectors + j * length;
        subtract(vector, other, wide_dot(vector, other, length), length);
      }
      const double norm = std::sqrt(wide_dot(vector, vector, length));
      // The other vectors are exactly orthogonal only after the second pass, which normalises again.
      const bool dependent = !(norm > (pass == 0 ? kDependent * before : 0.5));
      scale_by(vector, length, dependent || norm == 0 ? 0.0 : 1 / norm);
    }
  }
}

float bounded(double value, std::size_t rank) {
  // A sum of `rank` products with numbers of at most about 1 must stay finite.
  const double most = static_cast<double>(std::numeric_limits<float>::max()) / (2.0 * static_cast<double>(rank));
  return static_cast<float>(std::clamp(value, -most, most));
}

// Multiplies by M and by its transpose, for the SVD.
void times_rows(const Matrix& matrix, float scale, const double* right, std::size_t width, double* left) {
  for (std::size_t row = 0; row < matrix.rows; ++row) {
    const float* const values = matrix.values + row * matrix.columns;
    for (std::size_t i = 0; i < width; ++i) {
      left[i * matrix.rows + row] = scale * wide_dot(values, right + i * matrix.columns, matrix.columns);
    }
  }
}
void times_columns(const Matrix& matrix, float scale, const double* left, std::size_t width, double* right) {
  std::fill(right, right + width * matrix.columns, 0.0);
  for (std::size_t row = 0; row < matrix.rows; ++row) {
    const float* const values = matrix.values + row * matrix.columns;
    for (std::size_t i = 0; i < width; ++i) {
      const double factor = scale * left[i * matrix.rows + row];
      double* const sum = right + i * matrix.columns;
      for (std::size_t j = 0; j < matrix.columns; ++j) sum[j] += factor * static_cast<double>(values[j]);
    }
  }
}

// Turns the plane of two vectors of `right` until they are orthogonal, and those of `left` with them. False if they
// were.
bool rotate(const SvdSpace& space, std::size_t p, std::size_t q, std::size_t rows, std::size_t columns) {
  double* const a = space.right + p * columns;
  double* const b = space.right + q * columns;
  const double aa = wide_dot(a, a, columns), bb = wide_dot(b, b, columns), ab = wide_dot(a, b, columns);
  if (!(std::fabs(ab) > 1e-13 * std::sqrt(aa * bb))) return false;
  const double zeta = (bb - aa) / (2 * ab);
  const double tangent = std::copysign(1.0, zeta) / (std::fabs(zeta) + std::sqrt(1 + zeta * zeta));
  const double cosine = 1 / std::sqrt(1 + tangent * tangent), sine = cosine * tangent;
  const auto turn = [&](double* x, double* y, std::size_t length) {
    for (std::size_t i = 0; i < length; ++i) {
      const double before = x[i];
      x[i] = cosine * before - sine * y[i];
      y[i] = sine * before + cosine * y[i];
    }
  };
  turn(a, b, columns);
  turn(space.left + p * rows, space.left + q * rows, rows);
  return true;
}

}  // namespace

float scale_of(std::uint32_t greatest_magnitude) {
  const auto greatest = std::bit_cast<float>(greatest_magnitude);
  if (greatest == 0) return 1;
  return std::ldexp(1.0F, std::clamp(-std::ilogb(greatest), -120, 120));
}

void warm_start(float* right, std::size_t rank, std::size_t columns, std::uint64_t seed, std::uint64_t round) {
  const RandomNumbers numbers(seed, round);
  for (std::size_t i = 0; i < rank; ++i) {
    float* const vector = right + i * columns;
    double norm = std::sqrt(wide_dot(vector, vector, columns));
    if (norm == 0 || !std::isfinite(norm)) {
      for (std::size_t j = 0; j < columns; ++j) {
        vector[j] = static_cast<float>(numbers.at(i * columns + j) >> 40) * 0x1p-23F - 1.0F;
      }
      norm = std::sqrt(wide_dot(vector, vector, columns));
    }
    if (norm > 0) scale_by(vector, columns, 1 / norm);
  }
}

void power_left(const Matrix& matrix, float scale, const float* right, std::size_t rank, float* left) {
  for (std::size_t row = 0; row < matrix.rows; ++row) {
    for (std::size_t i = 0; i < rank; ++i) {
      left[i * matrix.rows + row] =
          dot(matrix.values + row * matrix.columns, right + i * matrix.columns, matrix.columns, scale);
    }
  }
}

void orthonormalize(float* vectors, std::size_t rank, std::size_t length) { gram_schmidt(vectors, rank, length); }

void power_right(const Matrix& matrix, float scale, const float* left, std::size_t rank, float* right) {
  std::fill(right, right + rank * matrix.columns, 0.0F);
  for (std::size_t row = 0; row < matrix.rows; ++row) {
    const float* const values = matrix.values + row * matrix.columns;
    for (std::size_t i = 0; i < rank; ++i) {
      const float factor = left[i * matrix.rows + row];
      float* const sum = right + i * matrix.columns;
      for (std::size_t j = 0; j < matrix.columns; ++j) sum[j] += values[j] * scale * factor;
    }
  }
  const double out = 1 / static_cast<double>(scale);
  for (std::size_t i = 0; i < rank * matrix.columns; ++i) {
    right[i] = bounded(static_cast<double>(right[i]) * out, rank);
  }
}

void product_at(const Factors& factors, std::size_t row, std::size_t column, std::span<float> out) {
  std::fill(out.begin(), out.end(), 0.0F);
  for (std::size_t i = 0; i < factors.rank; ++i) {
    const float factor = factors.left[i * factors.rows + row];
    const float* const right = factors.right + i * factors.columns + column;
    for (std::size_t j = 0; j < out.size(); ++j) out[j] += factor * right[j];
  }
}

SvdSpace::SvdSpace(Carver* carver, std::size_t rows, std::size_t columns, std::size_t rank)
    : width(std::min({rows, columns, rank + kSpare})),
      left(carver->take<double>(width * rows)),
      right(carver->take<double>(width * columns)),
      values(carver->take<double>(width)) {}

void truncated_svd(const Matrix& matrix, float scale, std::size_t rank, std::uint64_t seed, const SvdSpace& space,
                   float* left, float* right) {
  const std::size_t width = space.width;
  const bool whole = width == std::min(matrix.rows, matrix.columns);
  const RandomNumbers numbers(seed, 0);
  for (std::size_t i = 0; i < width * matrix.columns; ++i) {
    space.right[i] = static_cast<double>(numbers.at(i) >> 11) * 0x1p-52 - 1.0;
  }
  double captured = 0;
  constexpr int kIterationsMax = 60;
  for (int iteration = 0; iteration < kIterationsMax; ++iteration) {
    times_rows(matrix, scale, space.right, width, space.left);
    gram_schmidt(space.left, width, matrix.rows);
    times_columns(matrix, scale, space.left, width, space.right);
    const double before = std::exchange(captured, wide_dot(space.right, space.right, width * matrix.columns));
    if (whole || captured <= before * (1 + 1e-7)) break;
  }
  constexpr int kSweepsMax = 40;  // a handful suffices; the limit is against rounding that never settles
  bool turned = true;
  for (int sweep = 0; turned && sweep < kSweepsMax; ++sweep) {
    turned = false;
    for (std::size_t p = 0; p < width; ++p) {
      for (std::size_t q = p + 1; q < width; ++q) turned |= rotate(space, p, q, matrix.rows, matrix.columns);
    }
  }
  for (std::size_t i = 0; i < width; ++i) {
    const double* const vector = space.right + i * matrix.columns;
    space.values[i] = wide_dot(vector, vector, matrix.columns);
  }
  const double out = 1 / static_cast<double>(scale);
  for (std::size_t i = 0; i < width; ++i) {
    std::size_t best = i;
    for (std::size_t j = i + 1; j < width; ++j) best = space.values[j] > space.values[best] ? j : best;
    std::swap(space.values[i], space.values[best]);
    if (best != i) {
      std::swap_ranges(space.left + i * matrix.rows, space.left + (i + 1) * matrix.rows,
                       space.left + best * matrix.rows);
      std::swap_ranges(space.right + i * matrix.columns, space.right + (i + 1) * matrix.columns,
                       space.right + best * matrix.columns);
    }
    if (i >= rank) continue;
    for (std::size_t j = 0; j < matrix.rows; ++j) {
      left[i * matrix.rows + j] = static_cast<float>(space.left[i * matrix.rows + j]);
    }
    for (std::size_t j = 0; j < matrix.columns; ++j) {
      right[i * matrix.columns + j] = bounded(space.right[i * matrix.columns + j] * out, rank);
    }
  }
}

std::size_t rank_for_error(std::span<const double> squares, double sum_of_all, double error) {
  double left_over = sum_of_all;
  const double allowed = error * error * sum_of_all;
  for (std::size_t rank = 0; rank < squares.size(); ++rank) {
    if (left_over <= allowed) return rank;
    left_over -= squares[rank];
  }
  return left_over <= allowed ? squares.size() : squares.size() + 1;
}

}  // namespace canarynet
