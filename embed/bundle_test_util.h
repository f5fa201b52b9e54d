// embed/bundle_test_util.h -- models whose tensors lie in memory in different ways, and ranks that bundle them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "canarynet/canarynet.hpp"
#include "embed/job_test_util.h"

namespace canarynet::test {

using Sizes = std::vector<std::size_t>;

// Whole numbers that every type has, and that differ from tensor to tensor and from place to place.
inline int value_of(int rank, std::size_t tensor, std::size_t element, int iteration) {
  return static_cast<int>((tensor * 31 + element * 7 + static_cast<std::size_t>(iteration) * 13) % 61) + rank;
}

inline std::uint16_t half_of(double v) {  // of halves of whole numbers from 0 to 2047
  if (v == 0) return 0;
  int exponent = 15;
  for (; v >= 2; v /= 2) ++exponent;
  for (; v < 1; v *= 2) --exponent;
  return static_cast<std::uint16_t>(exponent << 10 | static_cast<int>((v - 1) * 1024));
}

template <typename T>
T number(double v) {
  if constexpr (std::is_same_v<T, f16>) {
    return {half_of(v)};
  } else {
    return static_cast<T>(v);
  }
}

// Where a rank's tensors lie.
enum class Lies { kUp, kDown, kScattered, kMixed, kGaps };

template <typename T>
class Model {
 public:
  Model(const Sizes& sizes, Lies lies, int rank) : sizes_(sizes) {
    std::vector<std::size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), 0u);
    if (lies == Lies::kDown) std::reverse(order.begin(), order.end());
    if (lies == Lies::kMixed && rank % 2 != 0) std::reverse(order.begin(), order.end());
    if (lies == Lies::kScattered) {
      for (std::size_t i = 0; i + 1 < order.size(); i += 2) std::swap(order[i], order[i + 1]);
    }
    const std::size_t gap = lies == Lies::kGaps ? 3 : 0;
    const std::size_t all = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
    memory_.resize(1 + all + gap * sizes.size(), number<T>(7));  // from 1 on: aligned to elements alone
    tensors_.resize(sizes.size());
    std::size_t at = 1;
    for (const std::size_t t : order) {
      tensors_[t] = std::span(memory_).subspan(at, sizes[t]);
      at += sizes[t] + gap;
    }
  }
  std::vector<std::span<T>>& tensors() { return tensors_; }
  std::vector<canary_tensor> list() const {
    std::vector<canary_tensor> out;
    for (const auto& t : tensors_) out.push_back({t.empty() ? nullptr : t.data(), t.size()});
    return out;
  }
  void fill(std::size_t t, int rank, int iteration) {
    for (std::size_t i = 0; i < sizes_[t]; ++i) tensors_[t][i] = number<T>(value_of(rank, t, i, iteration));
  }
  // Elements that do not hold the sum or average; all are overwritten.
  std::size_t wrong(int ranks, int iteration, canary_redop redop) {
    std::size_t count = 0;
    for (std::size_t t = 0; t < sizes_.size(); ++t) {
      for (std::size_t i = 0; i < sizes_[t]; ++i) {
        const double mean = value_of(0, t, i, iteration) + (ranks - 1) / 2.0;
        count += !(tensors_[t][i] == number<T>(redop == CANARY_AVG ? mean : mean * ranks));
        tensors_[t][i] = number<T>(99);
      }
    }
    return count;
  }

 private:
  Sizes sizes_;
  std::vector<T> memory_;
  std::vector<std::span<T>> tensors_;
};

inline const Sizes kSizes = {3, 0, 1, 70'001, 5, 5, 64, 1, 0, 2000, 33'333, 17};

// Ranks that use the C++ classes, a thread each.
struct Ranks {
  explicit Ranks(int count) : join(join_url(free_port())), ranks(count) {}
  void each(const std::function<void(Context&)>& body) const {
    on_threads(ranks, [&](int rank) {
      Context context({.join = join, .rank = rank, .world_size = ranks});
      body(context);
    });
  }
  std::string join;
  int ranks;
};

inline void expect_refused(canary_status status, const std::string& words) {
  EXPECT_EQ(status, CANARY_INVALID_ARGUMENT) << words;
  EXPECT_NE(last_error().message.find(words), std::string::npos) << last_error().message;
}

}  // namespace canarynet::test
