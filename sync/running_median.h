// sync/running_median.h -- the median (or another quantile) of the last 15 values: it follows a change after eight of
// them and forgets a single outlier. A fixed array; one owner thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/units.h"

namespace canarynet::sync {

class RunningMedian {
 public:
  static constexpr std::size_t kWindow = 15;

  void add(Nanos value) {
    values_[next_] = value;
    next_ = (next_ + 1) % kWindow;
    if (count_ < kWindow) ++count_;
  }
  std::size_t count() const { return count_; }
  // The value that `percent` of those seen are not above; 0 before the first.
  Nanos quantile(int percent) const {
    if (count_ == 0) return {};
    auto sorted = values_;
    const std::size_t at = std::min(count_ - 1, count_ * static_cast<std::size_t>(percent) / 100);
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(at),
                     sorted.begin() + static_cast<std::ptrdiff_t>(count_));
    return sorted[at];
  }
  Nanos median() const { return quantile(50); }

 private:
  std::array<Nanos, kWindow> values_{};
  std::size_t count_ = 0;
  std::size_t next_ = 0;
};

}  // namespace canarynet::sync
