// Compares the oracle with arithmetic that is not its own: the processor's, and the library's kernels.
#include "sim/oracle.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/reduce.h"

namespace canarynet {
namespace {

constexpr DataType kTypes[] = {CANARY_F32, CANARY_F64, CANARY_F16, CANARY_BF16,
                               CANARY_I8,  CANARY_U8,  CANARY_I32, CANARY_I64};
constexpr ReduceOp kOps[] = {CANARY_SUM, CANARY_PROD, CANARY_MIN, CANARY_MAX, CANARY_AVG};

std::vector<std::byte> input_of(const oracle::Shape& s, int rank) {
  std::vector<std::byte> out(oracle::input_bytes(s, rank));
  oracle::fill_input(s, rank, out.data());
  return out;
}

std::vector<std::byte> output_of(const oracle::Shape& s, int rank) {
  std::vector<std::byte> out(oracle::output_bytes(s, rank));
  oracle::expected_output(s, rank, out.data());
  return out;
}

void add(const oracle::Shape& s, std::vector<std::byte>* sum, const std::vector<std::byte>& input) {
  reduce_kernel(s.type, s.redop)(sum->data(), sum->data(), input.data(), s.count);
}

template <typename T>
T at(const std::vector<std::byte>& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void expect_sums_of_the_processor(DataType type) {
  for (const int ranks : {1, 2, 3, 7, 33}) {
    const oracle::Shape s{.ranks = ranks, .count = 1300, .type = type, .salt = 5};
    std::vector<std::vector<std::byte>> inputs;
    for (int r = 0; r < ranks; ++r) inputs.push_back(input_of(s, r));
    const auto expected = output_of(s, 0);
    for (std::size_t i = 0; i < s.count; ++i) {
      T up = 0, down = 0;
      for (std::size_t r = 0; r < inputs.size(); ++r) {
        up += at<T>(inputs[r], i);
        down += at<T>(inputs[inputs.size() - 1 - r], i);
      }
      ASSERT_EQ(up, at<T>(expected, i)) << ranks << " ranks, element " << i;
      ASSERT_EQ(down, at<T>(expected, i)) << ranks << " ranks, element " << i << ", added from the last rank down";
    }
  }
}

TEST(Oracle, ExpectsTheSumsOfTheProcessorInEveryOrder) {
  expect_sums_of_the_processor<float>(CANARY_F32);
  expect_sums_of_the_processor<double>(CANARY_F64);
}

TEST(Oracle, ExpectsWhatTheKernelsGiveInAllTypesAndOperations) {
  for (const DataType type : kTypes) {
    for (const ReduceOp op : kOps) {
      const oracle::Shape s{.ranks = 5, .count = 1300, .type = type, .redop = op, .salt = 9};
      std::vector<std::byte> sum = input_of(s, 0);
      for (int r = 1; r < s.ranks; ++r) add(s, &sum, input_of(s, r));
      if (op == CANARY_AVG) divide(type, sum.data(), s.count, static_cast<std::uint32_t>(s.ranks));
      EXPECT_EQ(sum, output_of(s, 0)) << oracle::to_string(s);
    }
  }
}

TEST(Oracle, AnElementIsTheSameWhereverItsBlockBegins) {
  for (const DataType type : kTypes) {
    const oracle::Shape whole{.ranks = 3, .count = 2100, .type = type, .salt = 4};
    oracle::Shape scattered = whole;
    scattered.collective = Collective::kReduceScatter;
    scattered.count = 700;
    const auto expected = output_of(whole, 0);
    std::vector<std::byte> joined;
    for (int r = 0; r < scattered.ranks; ++r) {
      const auto block = output_of(scattered, r);
      joined.insert(joined.end(), block.begin(), block.end());
    }
    EXPECT_EQ(joined, expected) << oracle::to_string(whole);
    EXPECT_NE(std::memcmp(expected.data(), expected.data() + 512 * size_of(type), 512 * size_of(type)), 0)
        << oracle::to_string(whole) << ": elements repeat, so a piece in a wrong place would not show";
  }
}

TEST(Oracle, FindsOneWrongBitInAnyElement) {
  for (const DataType type : kTypes) {
    const oracle::Shape s{.ranks = 3, .count = 40, .type = type, .salt = 1};
    auto output = output_of(s, 0);
    ASSERT_EQ(oracle::compare(s, 0, output.data()), "");
    for (std::byte& b : output) {
      b ^= std::byte{0x10};
      ASSERT_NE(oracle::compare(s, 0, output.data()), "") << oracle::to_string(s) << ", byte " << (&b - output.data());
      b ^= std::byte{0x10};
    }
  }
}

TEST(Oracle, FindsAContributionThatIsMissingWhereResultsAreRounded) {
  for (const DataType type : {CANARY_F32, CANARY_F64, CANARY_F16, CANARY_BF16}) {
    const oracle::Shape s{.ranks = 4, .count = 1300, .type = type, .salt = 3, .rounds = true};
    std::vector<std::byte> sum = input_of(s, 0);
    for (int r = 1; r < s.ranks - 1; ++r) add(s, &sum, input_of(s, r));
    EXPECT_NE(oracle::compare(s, 0, sum.data()), "") << oracle::to_string(s);
    add(s, &sum, input_of(s, s.ranks - 1));
    EXPECT_EQ(oracle::compare(s, 0, sum.data()), "");
  }
}

}  // namespace
}  // namespace canarynet
