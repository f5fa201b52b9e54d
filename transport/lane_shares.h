// transport/lane_shares.h -- notices when a channel's bytes spread over its lanes otherwise than before, for the log.
//
// Asked from timers, not per piece. Units: ns, bytes, percent. One owner thread. Allocates once.
#pragma once

#include <cmath>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/units.h"

namespace canarynet {

class LaneShares {
 public:
  static constexpr Nanos kInterval = 1_s;
  static constexpr std::uint64_t kBytesMin = 1 << 20;  // less says nothing of a lane
  static constexpr int kNoticeable = 10;               // percent

  // `sent` are the bytes of each lane so far. True when the shares since the last answer differ noticeably from those
  // that were last told.
  bool changed(Nanos now, std::span<const std::uint64_t> sent) {
    if (told_.empty()) {
      before_.assign(sent.begin(), sent.end());
      told_.assign(sent.size(), 0);
      shares_.assign(sent.size(), 0);
      looked_at_ = now;
      return false;
    }
    if (now - looked_at_ < kInterval) return false;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < before_.size(); ++i) total += sent[i] - before_[i];
    if (total < kBytesMin) return false;
    bool differs = false;
    for (std::size_t i = 0; i < before_.size(); ++i) {
      const double part = static_cast<double>(sent[i] - before_[i]) / static_cast<double>(total);
      shares_[i] = static_cast<int>(std::lround(part * 100));
      differs |= std::abs(shares_[i] - told_[i]) >= kNoticeable;
      before_[i] = sent[i];
    }
    looked_at_ = now;
    if (differs) told_ = shares_;
    return differs;
  }
  // The share of a lane, in percent, as of the last look.
  int share(std::size_t lane) const { return shares_[lane]; }

 private:
  std::vector<std::uint64_t> before_;
  std::vector<int> told_, shares_;
  Nanos looked_at_;
};

}  // namespace canarynet
