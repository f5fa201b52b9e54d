// sim/swarm_life.h -- the makings of one random life of a cluster: its shape, its settings, how much its ranks do, and
// how it ends.
#pragma once

#include <string>

#include "base/random.h"
#include "sim/cluster.h"
#include "sim/swarm.h"

namespace canarynet {

// The event that ends groups in a lethal life.
enum class Ending : std::uint8_t {
  kNone,
  kCrash,     // a host's process or machine ends
  kFreeze,    // a host stops for longer than the silence limit
  kCut,       // frames between hosts vanish, one way or both, while control lives or not
  kAbort,     // a rank aborts one group
  kDeadline,  // a caller's deadline, which passes or not
};

struct Life {
  ClusterOptions cluster;
  std::string shape;       // for people
  bool safe_rail = false;  // rail 0 never fails: longer outages are allowed on the others
  int rails = 1;
  bool pairs = true;  // every rank meets every other
  Ending ending = Ending::kNone;

  int collectives = 0;  // to be called, over all groups
  int messages = 0;     // to be sent
  int groups = 0;       // to be made beside the group of all
  int depth = 4;        // collectives under way at once
  bool large = false;   // some of them of megabytes
  std::int64_t large_bytes = 4 << 20;

  bool near = false;          // hosts may share memory, see SwarmOptions
  bool slow_readers = false;  // they stop in the middle of frames
  int stops = 0;              // how often all stand still

  int ranks() const { return cluster.hosts * cluster.ranks_per_host; }
  // Whether two hosts share a network or memory.
  bool meet(int a, int b) const { return share_memory(a, b) || share_network(a, b); }
  bool share_network(int a, int b) const;
  bool share_memory(int a, int b) const;
};

Life draw_life(Random& random, const SwarmOptions& options);

}  // namespace canarynet
