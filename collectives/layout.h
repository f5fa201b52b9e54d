// collectives/layout.h -- where the leaves of a schedule lie in one rank's buffers.
//
// Leaves have the same numbers on all ranks, but their places differ: a buffer that holds only the rank's own block
// begins with it. Units: elements. Pure; made once per program, off the data path.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/schedule.h"

namespace canarynet {

class Layout {
 public:
  // `request` has passed the planner's check; it must outlive the layout.
  Layout(PlannerId id, const PlanRequest& request, int rank);

  struct Place {
    std::uint64_t elements = 0;
    std::uint64_t input = 0;  // from the start of the caller's buffer; meaningless if the buffer lacks the leaf
    std::uint64_t output = 0;
  };
  Place of(std::uint32_t leaf) const;

 private:
  Place of_pair(int source, int target) const;

  const PlanRequest& request_;
  const int rank_;
  std::uint64_t own_begin_ = 0;  // of the rank's own block in the space
  std::vector<std::uint64_t> leaves_;
};

}  // namespace canarynet
