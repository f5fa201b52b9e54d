// sim/session_codecs_test_util.h -- for tests: sessions with codecs, and where everything that was pushed has gone.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/random.h"
#include "sim/codec_exchange_test_util.h"
#include "sim/session_test_util.h"

namespace canarynet {

// From -8 to 8, whole numbers, so that sums are exact.
inline float whole(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
  const std::uint64_t bits = mixed_bits(mixed_bits(mixed_bits(a + 1) ^ (b + 7)) ^ mixed_bits(c + 11) ^ (d * 977));
  return static_cast<float>(static_cast<int>(bits % 17) - 8);
}

// Gradients that differ from iteration to iteration.
inline SessionSetup with_codecs(SessionSetup setup, const std::vector<std::string>& codecs) {
  setup.counts = {700, 700, 700};
  setup.codecs.clear();
  for (const auto& codec : codecs) setup.codecs.push_back(codec.empty() ? 0 : number_of(codec));
  setup.gradient = [](int r, std::size_t z, int n, std::size_t i) {
    return whole(static_cast<std::uint64_t>(r), z, static_cast<std::uint64_t>(n), i);
  };
  return setup;
}

// Gradients that are the same in all iterations and colayers, so that a number of them says what was dropped.
inline SessionSetup with_equal_gradients(SessionSetup setup, const std::vector<std::string>& codecs) {
  setup = with_codecs(std::move(setup), codecs);
  setup.gradient = [](int r, std::size_t, int, std::size_t i) { return whole(static_cast<std::uint64_t>(r), 0, 0, i); };
  return setup;
}

inline bool exact(const std::string& codec) {
  for (const char* name : {"topk", "mstopk", "lwtopk", "randomk"}) {
    if (codec.starts_with(name)) return true;
  }
  return codec.empty();
}

inline double sum_left_out(const SessionWorkers& workers, std::size_t z, std::size_t i) {
  double sum = 0;
  for (const auto& w : workers) {
    const auto left = w->left_out(z);
    if (!left.empty()) sum += static_cast<double>(left[i]);
  }
  return sum;
}

// Everything that was pushed has been handed out to each worker, but for what codecs have left out. Nothing may have
// been dropped.
inline void expect_only_late(const SessionWorkers& workers, const std::vector<std::string>& codecs,
                             const std::string& what) {
  for (const auto& w : workers) {
    ASSERT_TRUE(w->error.ok()) << what << w->error.to_string();
    ASSERT_EQ(w->last.dropped, 0u) << what;
  }
  for (std::size_t z = 0; z < 3; ++z) {
    const std::string& codec = codecs[z % codecs.size()];
    for (std::size_t i = 0; i < workers[0]->given(z).size(); ++i) {
      const double left = sum_left_out(workers, z, i);
      double given = 0;
      for (const auto& w : workers) given += w->given(z)[i];
      for (const auto& w : workers) {
        const double bound = exact(codec) ? 0 : 0.01;
        ASSERT_NEAR(w->handed(z)[i] + left, given, bound) << what << codec << ", colayer " << z << ", element " << i;
      }
    }
  }
}

// The same with gradients that were dropped: of with_equal_gradients(), all colayers together.
inline void expect_only_late_or_dropped(const SessionWorkers& workers, const SessionSetup& setup,
                                        const std::string& what) {
  for (const auto& w : workers) ASSERT_TRUE(w->error.ok()) << what << w->error.to_string();
  for (std::size_t i = 0; i < setup.counts[0]; ++i) {
    double kept = 0, left = 0;
    for (std::size_t r = 0; r < workers.size(); ++r) {
      const auto& w = *workers[r];
      kept += static_cast<double>(setup.gradient(static_cast<int>(r), 0, 0, i)) *
              static_cast<double>(w.pushed - w.last.dropped);
    }
    for (std::size_t z = 0; z < 3; ++z) left += sum_left_out(workers, z, i);
    for (const auto& w : workers) {
      const double handed = w->handed(0)[i] + w->handed(1)[i] + w->handed(2)[i];
      ASSERT_EQ(handed + left, kept) << what << "element " << i;
    }
  }
}

}  // namespace canarynet
