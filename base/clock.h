// base/clock.h -- the source of time. Only composition roots (runtime, daemon, tools) hold a SystemClock; everything
// else is handed `now` or a Clock&, so that it runs under virtual time as well.
#pragma once

#include "base/units.h"

namespace canarynet {

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic; the origin is unspecified.
  virtual Nanos now() const = 0;
};

// CLOCK_MONOTONIC.
class SystemClock final : public Clock {
 public:
  Nanos now() const override;
};

// A clock that tests and the simulator set by hand.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(Nanos start = {}) : now_(start) {}
  Nanos now() const override { return now_; }
  void advance(Nanos by) { now_ += by; }
  void set(Nanos to) { now_ = to; }

 private:
  Nanos now_;
};

}  // namespace canarynet
