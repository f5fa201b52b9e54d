// Costs of exchanging compressed gradients: the inequalities that follow from the forms, and the paper's measurements.
#include "collectives/topk_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/random.h"

namespace canarynet {
namespace {

double gbit(double rate) { return 8 / (rate * 1e9); }  // β

TopkRequest request_of(int ranks, double bytes, double ratio, double alpha, double rate) {
  return {.ranks = ranks, .bytes = bytes, .ratio = ratio, .link = {alpha, gbit(rate)}};
}

TEST(TopkCost, FollowsTheFormsOfThePaper) {
  // n = 8, α = 1 ms, Mcβ = 1 ms: lg n = 3.
  const TopkRequest request{.ranks = 8, .bytes = 1e6, .ratio = 0.1, .link = {1e-3, 1e-8}};
  EXPECT_DOUBLE_EQ(topk_cost(TopkExchange::kAllGather, request), 3e-3 + 14e-3);
  EXPECT_DOUBLE_EQ(topk_cost(TopkExchange::kRing, request), 17e-3 + (1.75 + 3) * 1e-3);
  EXPECT_DOUBLE_EQ(topk_cost(TopkExchange::kTree, request), 9e-3 + 9e-3);
}

// The page's three inequalities, for any number of ranks: which one is cheaper is a matter of (α/β) / Mc alone.
TEST(TopkCost, TheCheaperOneFollowsFromStartUpTimeOverTransferTime) {
  constexpr std::uint64_t kSeed = 11;
  Random random(kSeed);
  const auto uniform = [&](double low, double high) {  // of the logarithm
    const double u = static_cast<double>(random.below(1'000'000)) / 1e6;
    return low * std::pow(high / low, u);
  };
  for (int i = 0; i < 5000; ++i) {
    const TopkRequest r{.ranks = 2 + static_cast<int>(random.below(200)),
                        .bytes = uniform(1e5, 1e10),
                        .ratio = uniform(1e-3, 1),
                        .link = {uniform(1e-6, 0.1), gbit(uniform(0.1, 100))}};
    const double n = r.ranks, lg = std::log2(n);
    const double x = r.link.alpha / r.link.beta, sent = r.bytes * r.ratio;
    const double ag = topk_cost(TopkExchange::kAllGather, r), ring = topk_cost(TopkExchange::kRing, r),
                 tree = topk_cost(TopkExchange::kTree, r);
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", request " + std::to_string(i));
    if (r.ranks == 2) {
      EXPECT_LT(ring, tree);
    } else {
      EXPECT_EQ(ring < tree, x < (lg - (n - 1) / n) / (n - 1 - lg) * sent);
    }
    EXPECT_EQ(ring < ag, x < (1 - 1 / n - lg / (2 * (n - 1))) * sent);
    EXPECT_EQ(tree < ag, x < ((n - 1) / lg - 1.5) * sent);
    const double best = topk_cost(cheapest_topk(r), r);
    EXPECT_LE(best, std::min(ag, std::min(ring, tree)));
  }
}

TEST(TopkCost, ChoosingTheRootByVarianceCostsAnAllGatherOfOneFloatEach) {
  TopkRequest r = request_of(8, 1e8, 0.01, 4e-3, 5);
  const double ag = topk_cost(TopkExchange::kAllGather, r), ring = topk_cost(TopkExchange::kRing, r),
               tree = topk_cost(TopkExchange::kTree, r);
  r.root = TopkRoot::kVariance;
  EXPECT_EQ(topk_cost(TopkExchange::kAllGather, r), ag);
  // The paper measured 12 to 12.9 ms for this at α = 4 ms, n = 8.
  EXPECT_NEAR(topk_cost(TopkExchange::kRing, r) - ring, 0.0120, 0.0005);
  EXPECT_NEAR(topk_cost(TopkExchange::kTree, r) - tree, 0.0120, 0.0005);
}

TEST(TopkCost, OneRankExchangesNothing) {
  const TopkRequest alone = request_of(1, 1e9, 0.1, 1e-3, 10);
  for (const auto exchange : {TopkExchange::kAllGather, TopkExchange::kRing, TopkExchange::kTree})
    EXPECT_EQ(topk_cost(exchange, alone), 0) << name_of(exchange);
}

TEST(TopkCost, CompressionPaysUntilItTakesWhatItSaves) {
  const TopkRequest r = request_of(8, 1e8, 0.01, 1e-3, 10);
  EXPECT_DOUBLE_EQ(dense_ring_cost(r), 14e-3 + 1.75 * 80e-3);
  const double saved = dense_ring_cost(r) - topk_cost(cheapest_topk(r), r);
  EXPECT_TRUE(compression_pays(r, saved * 0.999));
  EXPECT_FALSE(compression_pays(r, saved * 1.001));
  EXPECT_FALSE(compression_pays(request_of(8, 1e8, 1, 1e-3, 10), 0)) << "all values, and their indices";
  EXPECT_EQ(dense_ring_cost(request_of(1, 1e9, 0.1, 1e-3, 10)), 0);
}

// Table II of the paper: milliseconds on 8 ranks, of 10^8 and 10^9 floats. The all-gathers include the compression.
struct Measured {
  double alpha_ms, rate;                   // Gbit/s
  double tenth[2], permille[2], dense[2];  // c = 0.1 and 0.001, and the dense ring
};
constexpr Measured kTable2[] = {
    {10, 10, {525, 5010}, {70, 482}, {716, 5774}},     {10, 5, {976, 9507}, {74, 534}, {1271, 11380}},
    {10, 1, {4568, 45355}, {111, 898}, {5773, 56190}}, {100, 10, {798, 5280}, {340, 745}, {1975, 7024}},
    {100, 5, {1248, 9805}, {345, 791}, {2530, 12621}}, {100, 1, {4830, 45645}, {380, 1154}, {7028, 57442}}};

// What the all-gather's form leaves of a measurement is the compression. It depends on the size and the ratio, not on
// the network.
double left_of(const Measured& row, int size, double ratio) {
  const auto request = request_of(8, size == 0 ? 4e8 : 4e9, ratio, row.alpha_ms * 1e-3, row.rate);
  const double measured = (ratio == 0.1 ? row.tenth : row.permille)[size];
  return measured - 1e3 * topk_cost(TopkExchange::kAllGather, request);
}

TEST(TopkCost, ThePapersTable2LeavesTheSameCompressionTimeOnAllNetworks) {
  for (const int size : {0, 1}) {
    for (const double ratio : {0.1, 0.001}) {
      double least = HUGE_VAL, most = 0;
      for (const Measured& row : kTable2) {
        least = std::min(least, left_of(row, size, ratio));
        most = std::max(most, left_of(row, size, ratio));
      }
      EXPECT_GT(least, size == 0 ? 30 : 300) << ratio;
      EXPECT_LT(most, 1.25 * least) << ratio;
    }
  }
}

// With one compression time for a size and a ratio, taken from all six networks.
TEST(TopkCost, TheWinnerAtEachPointOfThePapersTable2IsTheMeasuredOne) {
  for (const int size : {0, 1}) {
    for (const double ratio : {0.1, 0.001}) {
      double compress = 0;
      for (const Measured& row : kTable2) compress += left_of(row, size, ratio) / std::size(kTable2);
      for (const Measured& row : kTable2) {
        SCOPED_TRACE(testing::Message() << row.alpha_ms << " ms, " << row.rate << " Gbit/s, size " << size << ", ratio "
                                        << ratio);
        const auto r = request_of(8, size == 0 ? 4e8 : 4e9, ratio, row.alpha_ms * 1e-3, row.rate);
        const double gathered = 1e3 * topk_cost(TopkExchange::kAllGather, r) + compress,
                     dense = 1e3 * dense_ring_cost(r);
        const double measured = (ratio == 0.1 ? row.tenth : row.permille)[size];
        EXPECT_EQ(gathered < dense, measured < row.dense[size]);
        EXPECT_NEAR(gathered, measured, 0.02 * measured);
        EXPECT_NEAR(dense, row.dense[size], 0.025 * row.dense[size]);
        EXPECT_TRUE(compression_pays(r, compress * 1e-3));
      }
    }
  }
}

}  // namespace
}  // namespace canarynet
