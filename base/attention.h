// base/attention.h -- how long an agent did not look: a peer whose words wait unread is not silent.
//
// A process may be stopped, or get no core, while its peers speak. Code that measures silence calls missed() once per
// poll and moves its clocks by the result. Then only time in which it looked counts; a peer that is really silent is
// named later by the length of the pause, and by no more. Times in ns, handed in. One thread.
#pragma once

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace canarynet {

class Attention {
 public:
  // `usual`: the longest gap between two polls if all goes well.
  explicit Attention(Nanos usual) : usual_(usual) {}

  // The part of the time since the last call that exceeds it; 0 at the first call.
  Nanos missed(Nanos now) {
    const Nanos gap = std::exchange(began_, true) ? now - last_ : Nanos{};
    last_ = now;
    return std::max(gap - usual_, Nanos{});
  }

 private:
  Nanos usual_;
  Nanos last_;
  bool began_ = false;
};

}  // namespace canarynet
