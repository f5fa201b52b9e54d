// runtime/machine_costs.h -- what this machine's processor adds to the cost of a plan. Any thread.
#pragma once

#include "collectives/codec_pick.h"
#include "compress/spec.h"

namespace canarynet {

struct MachineCosts {
  double reduce_seconds = 0;  // to add a byte of f32
  double post_seconds = 0;    // to post a message
  bool post_measured = false;
};

// Times the reduction kernel for a millisecond, and short messages through this machine's own TCP for about one. Where
// no connection can be made, posting takes what it usually does.
MachineCosts measure_machine_costs();
// Encodes and decodes 1 MiB of made-up gradients twice, and takes the shorter times: 1 to 3 ms by codec.
CodecSpeed measure_codec(const CodecSpec& spec);

}  // namespace canarynet
