// embed/op_options.h -- canary_op_options as callers hand them over: read and checked.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "base/units.h"
#include "canarynet/canarynet.h"

namespace canarynet {

// A span that callers give in nanoseconds: at most half of what a clock counts, so that it may be added to a time.
Nanos span_of(std::uint64_t nanoseconds);

// CANARY_INVALID_ARGUMENT: a size that no version has had, an unknown priority, a reserved field that is not 0. NULL
// leaves both as they are.
Status read_options(const canary_op_options* options, canary_priority* priority, Nanos* time_limit);

}  // namespace canarynet
