#include "collectives/layout.h"

namespace canarynet {

Layout::Layout(PlannerId id, const PlanRequest& request, int rank) : request_(request) {
  planner(id).leaves(request, &leaves_);
  if (!in_blocks(request.collective)) return;
  for (int i = 0; i < rank; ++i) own_begin_ += request.block(i);
}

Layout::Place Layout::of(std::uint32_t leaf) const {
  const std::uint64_t begin = leaves_[leaf];
  const bool blocks = in_blocks(request_.collective);
  return {leaves_[leaf + 1] - begin, blocks && !input_in_blocks(request_.collective) ? begin - own_begin_ : begin,
          blocks && !output_in_blocks(request_.collective) ? begin - own_begin_ : begin};
}

}  // namespace canarynet
