// embed/op_options.h -- canary_op_options as callers hand them over: read and checked.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "base/units.h"
#include "canarynet/canarynet.h"

namespace canarynet {

// A span that callers give in nanoseconds: at most half of what a clock counts, so that it may be added to a time.
Nanos span_of(std::uint64_t nanoseconds);

struct OptionsRead {
  canary_priority priority = CANARY_PRIORITY_NORMAL;
  Nanos time_limit{};
  std::uint32_t codec = 0;
  std::uint64_t tensor = 0;
  float momentum = 0;
  std::uint64_t rows = 0;
};

// CANARY_INVALID_ARGUMENT: a size that no version has had, an unknown priority, a codec for a call that takes none, a
// tensor or rows without a codec, a momentum without a tensor or out of range. NULL leaves `read` as it is.
Status read_options(const canary_op_options* options, bool takes_codec, OptionsRead* read);

}  // namespace canarynet
