// runtime/machine_costs.h -- what this machine's processor adds to the cost of a plan. Any thread; takes about a
// millisecond.
#pragma once

namespace canarynet {

struct MachineCosts {
  double reduce_seconds = 0;  // to add a byte of f32
  double post_seconds = 0;    // to post a message
};

// Times the reduction kernel; posting takes what it usually does in kernel TCP, as the static choice has it.
MachineCosts measure_machine_costs();

}  // namespace canarynet
