#include "collectives/layout.h"

namespace canarynet {

Layout::Layout(PlannerId id, const PlanRequest& request, int rank) : request_(request), rank_(rank) {
  if (is_pairwise(request.collective)) return;  // ranks^2 leaves, of which this rank has 2 * ranks - 1
  planner(id).leaves(request, &leaves_);
  if (!in_blocks(request.collective)) return;
  for (int i = 0; i < rank; ++i) own_begin_ += request.block(i);
}

Layout::Place Layout::of_pair(int source, int target) const {
  const auto n = static_cast<std::size_t>(request_.ranks);
  const auto to = static_cast<std::size_t>(target), from = static_cast<std::size_t>(source);
  if (request_.counts.empty()) return {request_.count, to * request_.count, from * request_.count};
  const auto& c = request_.counts;
  return {source == rank_ ? c[to] : c[2 * n + from], c[n + to], c[3 * n + from]};
}

Layout::Place Layout::of(std::uint32_t leaf) const {
  if (is_pairwise(request_.collective)) {
    const auto n = static_cast<std::uint32_t>(request_.ranks);
    return of_pair(static_cast<int>(leaf / n), static_cast<int>(leaf % n));
  }
  const std::uint64_t begin = leaves_[leaf];
  const bool blocks = in_blocks(request_.collective);
  return {leaves_[leaf + 1] - begin, blocks && !input_in_blocks(request_.collective) ? begin - own_begin_ : begin,
          blocks && !output_in_blocks(request_.collective) ? begin - own_begin_ : begin};
}

}  // namespace canarynet
