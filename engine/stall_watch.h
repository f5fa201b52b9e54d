// engine/stall_watch.h -- notices that messages over a link make no progress, and says what they wait for.
//
// An idle application is nothing unusual, so a stall is a warning and never an error: what ends a link is a silent or
// dead peer. One line per link tells of its longest stall and how many connections share the fate; it comes again after
// twice the time, and anew when something has moved in between.
// Thread: the endpoint's. Pure but for its own state.
#pragma once

#include <string>

#include "base/units.h"

namespace canarynet {

class EndpointLink;

class StallWatch {
 public:
  // The warning that is due, or "".
  std::string check(const EndpointLink& link, Nanos now, Nanos limit);

 private:
  Nanos told_since_;  // progress that the last warning was about
  Nanos next_;
  Nanos pause_;
};

}  // namespace canarynet
