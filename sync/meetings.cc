#include "sync/meetings.h"

namespace canarynet::sync {

void Meetings::reach(int worker, const WorkerSet& set, WorkerSet* reached) const {
  if (everybody()) {
    *reached = set;
    return;
  }
  reached->clear();
  reached->add(worker);
  for (bool more = true; more;) {
    more = false;
    for (int w = set.next(); w >= 0; w = set.next(w + 1)) {
      if (reached->has(w) || !meets(w, *reached)) continue;
      reached->add(w);
      more = true;
    }
  }
}

bool Meetings::connected(const WorkerSet& set) const {
  if (everybody() || set.empty()) return true;
  reach(set.next(), set, &scratch_);
  return scratch_ == set;
}

}  // namespace canarynet::sync
