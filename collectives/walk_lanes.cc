#include "collectives/walk_lanes.h"

#include "transport/channel_limits.h"

namespace canarynet {

std::uint32_t WalkLanes::add_pair() {
  begins_.push_back(static_cast<std::uint32_t>(lanes_.size()));
  return static_cast<std::uint32_t>(begins_.size() - 1);
}

std::uint32_t WalkLanes::choose(std::uint32_t pair, std::uint64_t bytes, int rail) {
  std::uint32_t best = begins_[pair];
  const std::uint32_t end = end_of(pair);
  if (best + 1 < end) {
    double best_eta = 0;
    for (std::uint32_t i = best; i < end; ++i) {
      const Lane& lane = lanes_[i];
      const auto ahead = static_cast<double>(lane.held + limits::kStrangerBytes + bytes);
      double eta = lane.way.alpha + ahead * lane.way.link_beta;
      if (lane.rail == rail) eta -= eta / limits::kPlannedRail;
      if (i == begins_[pair] || eta < best_eta) best = i, best_eta = eta;
    }
  }
  lanes_[best].held += bytes;
  return best;
}

}  // namespace canarynet
