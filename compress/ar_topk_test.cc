#include "compress/ar_topk.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "compress/codec_test_util.h"

namespace canarynet {
namespace {

TEST(ArTopK, StarRotatesTheRoot) {
  RootHistogram histogram(3);
  for (std::uint64_t iteration = 0; iteration < 10; ++iteration) histogram.count(star_root(iteration, 3));
  EXPECT_EQ(4U, histogram.counts()[0]);
  EXPECT_EQ(3U, histogram.counts()[1]);
  EXPECT_EQ(3U, histogram.counts()[2]);
}

TEST(ArTopK, VarTakesTheLargestNormAndOfEqualsTheLowestRank) {
  const auto root = [](std::vector<double> norms) { return var_root(norms).value(); };
  EXPECT_EQ(2U, root({1, 2, 3}));
  EXPECT_EQ(1U, root({1, 3, 3}));
  EXPECT_EQ(0U, root({0, 0, 0}));
  EXPECT_EQ(0U, root({7}));
}

TEST(ArTopK, ANormThatIsNotFiniteNamesItsRank) {
  const std::vector<double> norms = {1, std::numeric_limits<double>::quiet_NaN(), 3};
  const Result<std::size_t> root = var_root(norms);
  EXPECT_EQ(CANARY_INVALID_ARGUMENT, root.status().code());
  EXPECT_NE(std::string::npos, root.status().text().find("rank 1"));
}

TEST(ArTopK, TakenAndResidualHoldEveryInputExactly) {
  const std::vector<float> input = codec_test::make(codec_test::Data::kHeavyTail, 1000, 4);
  std::vector<float> values = input;
  std::vector<std::uint32_t> indices;
  for (std::uint32_t i = 3; i < 1000; i += 17) indices.push_back(i);
  std::vector<float> taken(indices.size());
  ASSERT_TRUE(take_at(indices, values, taken).ok());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    EXPECT_EQ(0, values[indices[i]]);
    values[indices[i]] += taken[i];
  }
  EXPECT_EQ(input, values);
}

TEST(ArTopK, IndicesThatARootCannotHaveSentChangeNothing) {
  std::vector<float> values = {1, 2, 3}, taken(2);
  const std::vector<std::uint32_t> beyond = {1, 3}, twice = {1, 1};
  EXPECT_NE(std::string::npos, take_at(beyond, values, taken).text().find("3 elements"));
  EXPECT_NE(std::string::npos, take_at(twice, values, taken).text().find("ascend"));
  EXPECT_EQ((std::vector<float>{1, 2, 3}), values);
}

}  // namespace
}  // namespace canarynet
