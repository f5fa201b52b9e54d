// sim/scale.h -- the cost of a job of many processes: engines on a simulated network join and reduce once, and it tells
// the time, the memory and the channels that this took.
//
// Memory: all of a job's engines live in this process. An engine's share is the growth of the process divided by their
// number, their lanes in the simulator included. Thread: one. Failures: as text in `wrong`.
#pragma once

#include <cstdint>
#include <string>

#include "base/units.h"

namespace canarynet {

struct ScaleOptions {
  int engines = 64;
  int engines_per_machine = 1;  // these share memory
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
