// base/clock.h -- where time comes from. Only composition roots (runtime, daemon, tools) hold a SystemClock; everything
// else is handed `now`, so that it runs under virtual time as well.
#pragma once

#include "base/units.h"

namespace canarynet {

// CLOCK_MONOTONIC.
class SystemClock {
 public:
  Nanos now() const;
};

}  // namespace canarynet
