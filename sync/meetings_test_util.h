// sync/meetings_test_util.h -- workers on a wiring by which not all of them meet.
#pragma once

#include <initializer_list>

#include "sync/meetings.h"
#include "sync/worker_set.h"

namespace canarynet::sync {

inline WorkerSet set_of(int workers, std::initializer_list<int> members) {
  WorkerSet set(workers);
  for (const int w : members) set.add(w);
  return set;
}

// Workers stand in rows of `side`, and meet those of their row and of their column, as on BCube(side, 2).
inline Meetings rows_and_columns(int workers, int side) {
  Meetings m(workers);
  for (int a = 0; a < workers; ++a) {
    for (int b = 0; b < a; ++b) {
      if (a / side == b / side || a % side == b % side) m.add(a, b);
    }
  }
  return m;
}

}  // namespace canarynet::sync
