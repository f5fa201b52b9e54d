// sync/property_test_util.h -- runs a property over many seeds and names the one that failed.
//
//   CANARY_SYNC_SEED=17       only this seed
//   CANARY_SYNC_LIVES=10      ten times as many seeds: a longer campaign
//   CANARY_TEST_QUICK=1       a quarter of them, as under sanitizers
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>

namespace canarynet::sync {

// Returns how many it ran.
inline std::uint64_t for_each_seed(const char* what, std::uint64_t seeds,
                                   const std::function<void(std::uint64_t)>& property) {
  std::uint64_t first = 1;
  if (std::getenv("CANARY_TEST_QUICK") != nullptr) seeds = (seeds + 3) / 4;
  if (const char* times = std::getenv("CANARY_SYNC_LIVES")) seeds *= std::strtoull(times, nullptr, 10);
  if (const char* only = std::getenv("CANARY_SYNC_SEED")) {
    first = std::strtoull(only, nullptr, 10);
    seeds = 1;
  }
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    property(seed);
    if (testing::Test::HasFailure()) {
      std::cout << what << ": failed with CANARY_SYNC_SEED=" << seed << std::endl;
      break;
    }
  }
  return seeds;
}

}  // namespace canarynet::sync
