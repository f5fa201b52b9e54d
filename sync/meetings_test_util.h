// sync/meetings_test_util.h -- workers on a wiring by which not all of them meet.
#pragma once

#include "sync/meetings.h"

namespace canarynet::sync {

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
