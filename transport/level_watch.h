// transport/level_watch.h -- says when a measured level has changed for good: the change detector of link estimates.
//
// What: a level is announced once it has been more than a fifth (and more than a floor) away from the announced one for
// a while. A change back soon after is believed later than the one before it, so a level that alternates is announced
// a few times and then no more; some quiet seconds restore the trust.
// Units: the caller's. Pure, one owner thread. Nothing here allocates.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/units.h"

namespace canarynet {

class LevelWatch {
 public:
  static constexpr std::int64_t kPart = 5;
  static constexpr Nanos kLasts = 200_ms;
  static constexpr Nanos kLastsMax = 6400_ms;
  static constexpr Nanos kCalm = 4_s;

  // Levels that differ by less than `floor` are the same.
  explicit LevelWatch(std::int64_t floor) : floor_(floor) {}

  // `level` is what is measured now; 0: nothing yet. A level that was `seen` for some time before it was believed has
  // lasted for that long already; half of kLasts counts at most, since what was seen are a few samples. True: the level
  // is announced now.
  bool look(Nanos now, std::int64_t level, Nanos seen = {}) {
    if (level == 0) return false;
    const std::int64_t band = std::max(announced_ / kPart, floor_);
    const int side = announced_ == 0 || level > announced_ + band ? 1 : level < announced_ - band ? -1 : 0;
    if (side != side_) since_ = side == 0 ? now : now - std::min(seen, kLasts / 2);
    side_ = side;
    if (side == 0) {
      if (now - since_ >= kCalm) {
        lasts_ = kLasts;
        announced_side_ = 0;
      }
      return false;
    }
    if (now - since_ < lasts_) return false;
    if (side == -announced_side_) lasts_ = std::min(lasts_ * 2, kLastsMax);
    announced_side_ = announced_ == 0 ? 0 : side;
    announced_ = level;
    side_ = 0;
    since_ = now;
    return true;
  }
  std::int64_t announced() const { return announced_; }  // 0: nothing yet

 private:
  std::int64_t floor_;
  std::int64_t announced_ = 0;
  int side_ = 0;  // of the announced level on which the measured one lies, since when
  Nanos since_;
  int announced_side_ = 0;  // where the last change went
  Nanos lasts_ = kLasts;
};

}  // namespace canarynet
