// base/duration_text.h -- durations as messages to users write them.
#pragma once

#include <string>

#include "base/units.h"

namespace canarynet {

// "250 ms"; rounded down.
inline std::string milliseconds(Nanos t) { return std::to_string(t.count / 1'000'000) + " ms"; }

}  // namespace canarynet
