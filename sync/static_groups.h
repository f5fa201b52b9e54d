// sync/static_groups.h -- the static schedule of Ripples: who averages with whom in an iteration, without a server.
//
// Source: Luo et al., "Heterogeneity-Aware Asynchronous Decentralized Training" (Ripples, also published as Prague,
// ASPLOS 2020), figures 9 and 10, extended from 4 hosts of 4 workers to any H hosts of m. Hosts count from 0, and
// worker h m + l is local worker l of host h. In four phases (iteration mod 4; cycle c = iteration div 4):
//   0     all local workers 0 together; of each host the others in pairs, from the top
//   1, 3  each host by itself
//   2     local worker min(1, m-1) with the partner host's; 0 with m-1 where m > 2; the rest in pairs, from the top
// A left-over lowest one idles. The partner host is (h + H/2) mod H where H is even, else (c - h) mod H; `rotating`
// takes (c - h) mod H for every H, which mixes faster (0.66 against 0.76 per period at 4x4). A host that would be its
// own partner idles. Groups of one iteration are disjoint, and connect everybody within a period: checked for all
// H, m <= 8.
#pragma once

#include <cstdint>

#include "sync/worker_set.h"

namespace canarynet::sync {

class StaticGroups {
 public:
  StaticGroups(int hosts, int workers_per_host, bool rotating)
      : hosts_(hosts), locals_(workers_per_host), rotating_(rotating) {}

  // Writes the group of `worker` in this iteration (from 0) to `members`, which has hosts * workers_per_host workers:
  // itself alone where it idles.
  void group_of(int worker, std::int64_t iteration, WorkerSet* members) const;
  // Iterations after which the schedule repeats.
  std::int64_t period() const { return 4 * (rotates() ? hosts_ : 1); }

 private:
  bool rotates() const { return rotating_ || hosts_ % 2 != 0; }
  int hosts_;
  int locals_;
  bool rotating_;
};

}  // namespace canarynet::sync
