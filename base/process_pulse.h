// base/process_pulse.h -- what one process can see of another on its host, to tell whether it stands still.
#pragma once

#include <cstdint>

namespace canarynet {

struct ProcessPulse {
  std::uint64_t ran_ns = 0;  // on a core, all its threads together
  bool wants_core = false;   // one of them is on a core, or waits for one, or for the kernel
};

}  // namespace canarynet
