// collectives/measured_table_test_util.h -- rows of measured tables, for tests.
#pragma once

#include "collectives/measured_table.h"

namespace canarynet {

inline MeasuredRow row(Collective collective, int size_class, PlannerId planner) {
  MeasuredRow r;
  r.collective = collective;
  r.size_class = size_class;
  r.planner = planner;
  return r;
}

inline MeasuredRow trial(MeasuredRow r) {
  r.reason = RowReason::kTrial;
  r.to_follow = 1u << static_cast<unsigned>(PlannerId::kTree);
  return r;
}

inline MeasuredRow in_order(MeasuredRow r) {
  r.in_order = true;
  return r;
}

}  // namespace canarynet
