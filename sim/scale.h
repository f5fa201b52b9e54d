// sim/scale.h -- what a job of many processes costs: engines on a simulated network that join and reduce once, with the
// time, the memory and the channels that it took.
//
// Memory: all of a job's engines live in this process; what one takes is the growth of the process divided by them,
// their lanes in the simulator included. Thread: one. Failures: as text in `wrong`.
#pragma once

#include <cstdint>
#include <string>

#include "base/units.h"

namespace canarynet {

struct ScaleOptions {
  int engines = 64;
  int engines_per_machine = 1;  // that share memory
  int rails = 2;
  std::string algo;  // CANARY_ALGO
  std::uint64_t count = 4096;
  std::int64_t connect_at_join = 32;
};

struct ScaleFigures {
  std::string wrong;  // "": joined, and every rank has the right sum
  Nanos join;         // virtual
  double join_seconds = 0;
  double bytes_per_engine = 0;  // after the join
  Nanos reduce;
  double reduce_seconds = 0;
  struct Channels {  // that an engine has open
    double mean = 0;
    std::uint64_t most = 0;
  } joined, reduced;
};

ScaleFigures measure_scale(const ScaleOptions& options);

}  // namespace canarynet
