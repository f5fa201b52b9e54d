// pace.h -- sleeps within an iteration, so that this rank computes as fast as a slower machine would.
//
// The sleep is spread as the work is: a third follows the forward pass, the rest is spread over the buckets of the
// backward pass, which appear one after the other. Its length follows from what the iteration before computed. One
// thread; times in milliseconds.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>

namespace train {

// How long an iteration that computes for `computed` ms has to sleep on a machine that takes at least `least` ms for
// one, and `factor` times as long as others.
inline double sleep_of(double computed, double least, double factor) {
  return std::max(0.0, factor * std::max(least, computed) - computed);
}

class Pace {
 public:
  Pace(double least_ms, double factor, std::size_t buckets)
      : least_(least_ms),
        factor_(factor),
        buckets_(static_cast<double>(buckets)),
        sleep_(sleep_of(0, least_ms, factor)) {}

  void after_forward() { sleep(sleep_ / 3); }
  // Before each bucket is handed over.
  void before_bucket() { sleep(sleep_ * 2 / 3 / buckets_); }
  // Both passes took this long, sleeps and exchange left out.
  void computed(double ms) { sleep_ = sleep_of(ms, least_, factor_); }
  // Slept since the last call.
  double taken() { return std::exchange(slept_, 0.0); }

 private:
  void sleep(double ms) {
    if (ms <= 0) return;
    const auto start = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
    slept_ += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }

  double least_, factor_, buckets_, sleep_;
  double slept_ = 0;
};

}  // namespace train
