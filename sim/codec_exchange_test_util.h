// sim/codec_exchange_test_util.h -- all-reduces with a codec through a cluster, for tests: made-up gradients, one
// exchange by all ranks, and whether anything got lost.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "compress/codec_ask.h"
#include "sim/cluster_test_util.h"

namespace canarynet {

inline constexpr std::uint64_t kTensor = 7;

inline std::uint32_t number_of(const std::string& text) {
  const auto number = number_asked(text);
  EXPECT_TRUE(number.ok()) << text;
  return number.value();
}

using Values = std::vector<std::vector<float>>;  // [rank][element]

inline Values gradients(int ranks, std::size_t count, std::uint64_t seed) {
  Random random(seed);
  Values out(static_cast<std::size_t>(ranks), std::vector<float>(count));
  for (auto& of_rank : out) {
    for (float& v : of_rank) {
      // A sum of twelve is close to a normal distribution, as gradients are.
      double sum = -6;
      for (int i = 0; i < 12; ++i) sum += static_cast<double>(random.below(1 << 20)) / (1 << 20);
      v = static_cast<float>(0.01 * sum);
    }
  }
  return out;
}

// One all-reduce by all ranks.
struct Exchange {
  Exchange(Cluster& c, const Values& input, const std::string& codec, std::uint64_t tensor = kTensor,
           ReduceOp op = CANARY_SUM, float momentum = 0, std::uint64_t rows = 0)
      : cluster(c), in(input), out(in.size(), std::vector<float>(in[0].size(), -1)) {
    for (std::size_t r = 0; r < in.size(); ++r) {
      tickets.push_back(std::make_unique<OpTicket>());
      request.push_back({.collective = Collective::kAllReduce,
                         .input = in[r].data(),
                         .output = out[r].data(),
                         .count = in[r].size(),
                         .type = CANARY_F32,
                         .redop = op,
                         .codec = codec.empty() ? 0 : number_of(codec),
                         .tensor = tensor,
                         .momentum = momentum,
                         .rows = rows});
    }
  }
  void submit(std::size_t r) { cluster.submit(cluster.world(static_cast<int>(r)), request[r], tickets[r].get()); }
  void submit_all() {
    for (std::size_t r = 0; r < in.size(); ++r) submit(r);
  }
  bool finish(Nanos limit = 20_s) {
    return cluster.run_until([&] { return all_done(tickets); }, limit);
  }
  // Submits, finishes, and looks whether all ranks got the same bits.
  void expect_equal(const std::string& what) {
    submit_all();
    ASSERT_TRUE(finish()) << what;
    for (std::size_t r = 0; r < in.size(); ++r) {
      ASSERT_EQ(tickets[r]->code, CANARY_OK) << what << ": " << tickets[r]->status.to_string();
      const std::size_t bytes = out[0].size() * sizeof(float);
      ASSERT_TRUE(bytes == 0 || std::memcmp(out[r].data(), out[0].data(), bytes) == 0)
          << what << ": ranks 0 and " << r << " differ";
    }
  }
  // Submits, finishes, and looks whether all ranks refused the call with these words.
  void expect_refused(const std::string& words) {
    submit_all();
    ASSERT_TRUE(finish());
    for (const auto& ticket : tickets) {
      EXPECT_EQ(ticket->code, CANARY_INVALID_ARGUMENT);
      EXPECT_NE(ticket->status.text().find(words), std::string::npos) << ticket->status.text();
    }
  }
  Cluster& cluster;
  Values in, out;
  std::vector<OpRequest> request;
  Tickets tickets;
};

inline std::vector<float> residual(Cluster& c, int rank) {
  const auto now = c.world(rank)->feedback.residual(kTensor);
  return {now.begin(), now.end()};
}

inline std::vector<float> velocity(Cluster& c, int rank) {
  const auto now = c.world(rank)->feedback.velocity(kTensor);
  return {now.begin(), now.end()};
}

// What all ranks hold of element i, in double.
inline double sum_of(const Values& values, std::size_t i) {
  double sum = 0;
  for (const auto& of_rank : values) sum += of_rank[i];
  return sum;
}

// Nothing is lost, only late: inputs and what was left out before = result + what is left out now.
inline void expect_conserved(const Exchange& e, const Values& before, const Values& after, double times,
                             const std::string& what) {
  double scale = 0;
  for (const auto& of_rank : e.in) {
    for (const float v : of_rank) scale = std::max(scale, std::abs(static_cast<double>(v)));
  }
  for (std::size_t i = 0; i < e.in[0].size(); ++i) {
    const double given = sum_of(e.in, i) + sum_of(before, i);
    const double kept = times * e.out[0][i] + sum_of(after, i);
    ASSERT_NEAR(given, kept, 3e-5 * (scale + std::abs(given) + std::abs(kept))) << what << ", element " << i;
  }
}

// Of both NICs of all hosts.
inline std::uint64_t sent_bytes(Cluster& c) {
  std::uint64_t sum = 0;
  for (int h = 0; h < c.hosts(); ++h) {
    for (int rail = 0; rail < 2; ++rail) sum += c.fabric().nic_counters(h, rail).tx_bytes;
  }
  return sum;
}

}  // namespace canarynet
