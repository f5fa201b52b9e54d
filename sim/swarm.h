// sim/swarm.h -- one seed, one random cluster life: shape, settings, operations and faults; judged by reliability's verdict.
//
// The verdict: every operation ends on every surviving rank, in bounded time, with the exact result or with an error; after an error the
// group is dead on all; without a lethal fault every operation must succeed. All else follows from the seed, so a failure replays
// bit for bit: run_swarm() with the seed it reports.
#pragma once

#include <cstdint>
#include <string>

#include "base/units.h"

namespace canarynet {

struct SwarmOptions {
  std::uint64_t seed = 1;
  bool lethal = false;  // hosts crash
  bool faults = true;
};

struct SwarmReport {
  bool ok = true;
  std::string failure;            // what broke the verdict
  std::string shape;              // the cluster and its options, for people
  std::uint64_t hash = 0;         // of all events: equal on every replay
  std::uint64_t collectives = 0;  // group-wide operations
  std::uint64_t errors = 0;       // rank-wise error results
  std::uint64_t faults = 0;       // injected
  Nanos virtual_time;
};

SwarmReport run_swarm(const SwarmOptions& options);

}  // namespace canarynet
