// runtime/halt_poll.h -- whether a thread that found nothing to do polls a little longer before it sleeps.
//
// Waking a sleeping thread takes longer than a message does, and on an idle virtual CPU many times as long. Polling
// pays where the next thing comes soon (a reply), and is a wasted core where it does not. So, as KVM's halt polling
// does: a thread polls while its recent waits were short, and for a while not at all after it polled in vain or had to
// share its core. Times in ns. One thread. Nothing here reads a clock.
#pragma once

#include <algorithm>

#include "base/units.h"

namespace canarynet {

class HaltPoll {
 public:
  // `longest`: of one wait; 0: never.
  explicit HaltPoll(Nanos longest = {}) : longest_(longest) {}

  // There was something to do, `waited` after the last time.
  void found(Nanos now, Nanos waited) {
    if (looking_ && now - last_look_ > kDescheduled) {
      lose_core(now);
      return;
    }
    if (waited <= window_) {
      in_vain_ = 0;
      lost_for_ = std::max(kClosed, lost_for_ - lost_for_ / 64);
    }
    if (waited <= longest_ * 4) {  // asleep, a wait is longer than it would have been
      long_waits_ = 0;
      if (now >= closed_until_) window_ = longest_;
    } else if (++long_waits_ == kInVain) {
      window_ = {};
    }
    looking_ = false;
  }
  // Nothing to do at `now`, for so long already. True: look again at once.
  bool goes_on(Nanos now, Nanos waited) {
    if (window_.count == 0) return false;
    const Nanos pause = now - last_look_;
    last_look_ = now;
    if (looking_ && pause > kDescheduled) {
      lose_core(now);
      return false;
    }
    looking_ = waited < window_;
    if (!looking_ && ++in_vain_ == kInVain) close(now, kClosed);
    return looking_;
  }
  // The thread does something else now.
  void stop() { looking_ = false; }

 private:
  static constexpr int kInVain = 4;
  static constexpr Nanos kClosed = 10_ms;
  static constexpr Nanos kClosedLongest = 2_s;
  static constexpr Nanos kDescheduled = 150_us;  // between two looks: somebody else has the core

  void close(Nanos now, Nanos how_long) {
    window_ = {};
    in_vain_ = 0;
    looking_ = false;
    closed_until_ = now + how_long;
  }
  // The thread that has it (a caller that polls itself) keeps it for milliseconds: trying again soon would cost more
  // than all that polling saves.
  void lose_core(Nanos now) {
    close(now, lost_for_);
    lost_for_ = std::min(lost_for_ * 2, kClosedLongest);
  }

  Nanos longest_;
  Nanos window_;
  Nanos closed_until_;
  Nanos last_look_;
  Nanos lost_for_ = kClosed;  // how long it does not poll after it has lost its core
  bool looking_ = false;
  int in_vain_ = 0;
  int long_waits_ = 0;
};

}  // namespace canarynet
