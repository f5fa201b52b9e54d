// Takes the place of nsga2.cc in builds without pagmo.
#include "base/check.h"
#include "tools/sim/search/nsga2.h"

namespace canarynet::sim {

bool has_nsga2() { return false; }

void run_nsga2(std::span<const int> /*counts*/, const Nsga2Options& /*options*/, const Objectives& /*objectives*/) {
  CANARY_CHECK(false, "without pagmo nobody calls it");
}

}  // namespace canarynet::sim
