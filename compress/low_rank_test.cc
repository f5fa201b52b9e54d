#include "compress/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "compress/codec_test_util.h"

namespace canarynet {
namespace {

using codec_test::Data;
using codec_test::make;

double dot(const float* a, const float* b, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// A matrix with known singular values: sum of s_i u_i v_i' with orthonormal u, v.
struct Known {
  Known(std::size_t rows_in, std::size_t columns_in, const std::vector<double>& singular, std::uint64_t seed)
      : rows(rows_in), columns(columns_in), values(rows * columns) {
    const std::size_t rank = singular.size();
    std::vector<float> u = make(Data::kGaussian, rank * rows, seed),
                       v = make(Data::kGaussian, rank * columns, seed + 1);
    orthonormalize(u.data(), rank, rows);
    orthonormalize(v.data(), rank, columns);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; ++c) {
        double sum = 0;
        for (std::size_t i = 0; i < rank; ++i) {
          sum += singular[i] * static_cast<double>(u[i * rows + r]) * v[i * columns + c];
        }
        values[r * columns + c] = static_cast<float>(sum);
      }
    }
  }
  Matrix matrix() const { return {values.data(), rows, columns}; }
  std::size_t rows, columns;
  std::vector<float> values;
};

double squared_error(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return sum;
}

std::vector<float> trip(const char* spec, const Known& known, std::vector<float>* state = nullptr,
                        std::uint64_t round = 0) {
  Coding coding{codec_test::spec_of(spec),
                {.count = known.values.size(), .rows = known.rows, .columns = known.columns, .round = round}};
  codec_test::Trip way(coding);
  if (state != nullptr && !state->empty()) way.state = *state;
  EXPECT_TRUE(way.encode(known.values).ok());
  if (state != nullptr) *state = way.state;
  std::vector<float> out;
  EXPECT_TRUE(way.decode(&out).ok());
  return out;
}

TEST(LowRank, OrthonormalizeGivesUnitVectorsAndDropsDependentOnes) {
  std::vector<float> vectors = make(Data::kHeavyTail, 5 * 200, 1);
  for (std::size_t i = 0; i < 200; ++i) vectors[3 * 200 + i] = 2 * vectors[i] - vectors[200 + i];  // the fourth depends
  orthonormalize(vectors.data(), 5, 200);
  for (std::size_t i = 0; i < 5; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      const double expected = i == j && i != 3 ? 1 : 0;
      EXPECT_NEAR(expected, dot(&vectors[i * 200], &vectors[j * 200], 200), 1e-5) << i << " " << j;
    }
  }
}

TEST(Svd, LeavesTheErrorOfTheBestApproximation) {
  const std::vector<double> singular = {10, 7, 5, 3, 2, 1, 0.5, 0.25, 0.1, 0.05, 0.01, 0.005};
  for (const auto& [rows, columns] : {std::pair<std::size_t, std::size_t>{40, 90}, {90, 40}, {12, 200}, {200, 12}}) {
    const Known known(rows, columns, singular, rows);
    double best = 0;
    for (std::size_t i = 2; i < singular.size(); ++i) best += singular[i] * singular[i];
    EXPECT_NEAR(best, squared_error(known.values, trip("svd:2", known)), best * 1e-4) << rows << " x " << columns;
  }
}

TEST(Svd, FindsTheSingularValues) {
  const std::vector<double> singular = {10, 7, 5, 3, 2, 1};
  const Known known(60, 50, singular, 2);
  Carver counter;
  SvdSpace(&counter, 60, 50, 4);
  std::vector<std::byte> memory(counter.bytes());
  Carver carver(memory);
  const SvdSpace space(&carver, 60, 50, 4);
  std::vector<float> left(4 * 60), right(4 * 50);
  truncated_svd(known.matrix(), 1, 4, 9, space, left.data(), right.data());
  for (std::size_t i = 0; i < singular.size(); ++i) EXPECT_NEAR(singular[i], std::sqrt(space.values[i]), 1e-4) << i;
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(1, dot(&left[i * 60], &left[i * 60], 60), 1e-5);
    EXPECT_NEAR(singular[i], std::sqrt(dot(&right[i * 50], &right[i * 50], 50)), 1e-4);
  }
}

TEST(Svd, ReproducesAMatrixOfItsRank) {
  const Known known(30, 20, {3, 2, 1}, 3);
  EXPECT_LT(squared_error(known.values, trip("svd:3", known)), 1e-9);
  EXPECT_LT(squared_error(known.values, trip("svd:1000", known)), 1e-9);  // the rank is cut to 20
}

TEST(Svd, ErrorTargetGivesTheRank) {
  const std::vector<double> squares = {16, 4, 1, 0.25};
  const double sum = 21.25;
  EXPECT_EQ(0U, rank_for_error(squares, sum, 1));
  EXPECT_EQ(1U, rank_for_error(squares, sum, 0.5));
  EXPECT_EQ(2U, rank_for_error(squares, sum, 0.25));
  EXPECT_EQ(4U, rank_for_error(squares, sum, 0));
  EXPECT_EQ(5U, rank_for_error(squares, sum + 1, 0.1));
}

TEST(Power, AWarmStartComesNearTheBestApproximation) {
  const std::vector<double> singular = {10, 8, 2, 1.5, 1, 0.5};
  const Known known(80, 60, singular, 5);
  double best = 0;
  for (std::size_t i = 2; i < singular.size(); ++i) best += singular[i] * singular[i];
  std::vector<float> state;
  const double first = squared_error(known.values, trip("power:2", known, &state, 0));
  double last = first;
  for (std::uint64_t round = 1; round < 8; ++round) {
    const double error = squared_error(known.values, trip("power:2", known, &state, round));
    EXPECT_LE(error, last * (1 + 1e-4)) << round;
    last = error;
  }
  EXPECT_GT(first, best * 1.02) << "the test's own premise: a cold start is not there yet";
  EXPECT_NEAR(best, last, best * 1e-3);
}

// What makes it fit for all-reduce: sums of both ranks' products are the products of the sum.
TEST(Power, FactorsOfASumAreSumsOfProducts) {
  const Known a(20, 30, {3, 2, 1}, 6), b(20, 30, {2, 2, 1}, 8);
  Known sum = a;
  for (std::size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += b.values[i];
  std::vector<float> start(2 * 30), left_a(40), left_b(40), left(40), right_a(60), right_b(60), right(60);
  warm_start(start.data(), 2, 30, 1, 1);
  power_left(a.matrix(), 1, start.data(), 2, left_a.data());
  power_left(b.matrix(), 1, start.data(), 2, left_b.data());
  power_left(sum.matrix(), 1, start.data(), 2, left.data());
  for (std::size_t i = 0; i < left.size(); ++i) EXPECT_NEAR(left[i], left_a[i] + left_b[i], 1e-5);
  orthonormalize(left.data(), 2, 20);
  power_right(a.matrix(), 1, left.data(), 2, right_a.data());
  power_right(b.matrix(), 1, left.data(), 2, right_b.data());
  power_right(sum.matrix(), 1, left.data(), 2, right.data());
  for (std::size_t i = 0; i < right.size(); ++i) EXPECT_NEAR(right[i], right_a[i] + right_b[i], 1e-5);
}

TEST(Power, ExtremeValuesNeitherOverflowNorVanish) {
  for (const double size : {1e36, 1e-36}) {
    const Known known(20, 30, {size, size / 2}, 4);
    std::vector<float> state;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::vector<float> out = trip("power:2", known, &state, round);
      EXPECT_LT(squared_error(known.values, out), size * size * 1e-9) << size;
    }
    EXPECT_LT(squared_error(known.values, trip("svd:2", known)), size * size * 1e-9) << size;
  }
}

}  // namespace
}  // namespace canarynet
