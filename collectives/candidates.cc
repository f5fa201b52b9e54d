#include "collectives/candidates.h"

#include <algorithm>

namespace canarynet {

std::vector<Candidate> cost_candidates(const PlanRequest& request, int rails, const CostModel& model,
                                       std::span<const std::uint64_t> pieces) {
  const std::uint64_t bytes = request.total() * request.element_bytes;
  std::vector<std::uint64_t> differing;
  for (const std::uint64_t piece : pieces) {
    // All piece sizes that hold the whole operation make the same plan.
    const auto like = [&](std::uint64_t other) { return other == piece || (other >= bytes && piece >= bytes); };
    if (std::none_of(differing.begin(), differing.end(), like)) differing.push_back(piece);
  }
  std::vector<Candidate> all;
  for (const Planner& p : planners()) {
    if (!p.check(request).ok()) continue;
    for (const std::uint64_t piece : differing) {
      CostModel of_piece = model;
      of_piece.piece_bytes = piece;
      all.push_back({p.id, piece, walk_cost(p.id, request, rails, of_piece)});
    }
  }
  std::stable_sort(all.begin(), all.end(), [&](const Candidate& a, const Candidate& b) {
    if (a.seconds != b.seconds) return a.seconds < b.seconds;
    const auto place = [&](std::uint64_t piece) { return std::find(differing.begin(), differing.end(), piece); };
    return place(a.piece_bytes) < place(b.piece_bytes);
  });
  return all;
}

}  // namespace canarynet
