#include "collectives/selector.h"

#include <array>

namespace canarynet {
namespace {

using Order = std::array<PlannerId, kPlannerCount>;

// Below this the number of messages decides, above it the bytes.
constexpr std::uint64_t kSmallBytes = 64 * 1024;
// A ring hides its 2(n-1) message times only behind segments of at least one piece: cells then pipeline from hop to
// hop.
constexpr std::uint64_t kRingSegmentBytes = 128 * 1024;
// Mesh costs 2 message times and posts 2(n-2) more; past about 16 ranks posting them costs more than 2 lg n message
// times (kernel TCP: about 60 us a message time, about 10 us a post), and n-1 flows into one port at once make it drop.
constexpr int kMeshRanksMax = 16;

bool everybody_meets(const Reachability& reach) {
  for (int a = 0; a < reach.ranks(); ++a) {
    for (int b = a + 1; b < reach.ranks(); ++b) {
      if (!reach.meets(a, b)) return false;
    }
  }
  return true;
}

// Best first. Every planner is in each order: which of them can run at all is check()'s to say.
Order preference(const PlanRequest& request) {
  using enum PlannerId;
  const auto n = static_cast<std::uint64_t>(request.ranks);
  const std::uint64_t bytes = request.total() * request.element_bytes;
  const bool small = bytes <= kSmallBytes;
  if (!everybody_meets(*request.reach)) {
    // Only BCube wiring is known here. Halving fits it when r = 2: as many rounds as bcube with fewer messages, but one
    // rail at a time.
    return small ? Order{kHalvingDoubling, kBCube, kMesh, kRing} : Order{kBCube, kRing, kHalvingDoubling, kMesh};
  }
  // Flat wiring. All planners but bcube stripe each flow over the NICs by measured rate, so NICs of unequal speed add
  // up; bcube's fixed parts would wait for the slowest one. Mesh, ring and halving move the same 2(1-1/n)M per rank;
  // the ring gives each NIC one smooth flow in and one out, which kernel TCP and shallow switch buffers like best, so
  // it takes what is large enough to pipeline.
  if (!small && bytes >= n * kRingSegmentBytes) return {kRing, kMesh, kHalvingDoubling, kBCube};
  if (request.collective == Collective::kBroadcast && !small) return {kRing, kMesh, kBCube, kHalvingDoubling};
  return request.ranks <= kMeshRanksMax ? Order{kMesh, kHalvingDoubling, kBCube, kRing}
                                        : Order{kHalvingDoubling, kBCube, kMesh, kRing};
}

}  // namespace

Result<PlannerId> select_planner(const PlanRequest& request, const SelectorOptions& options) {
  if (request.ranks < 1 || request.reach == nullptr || request.reach->ranks() != request.ranks) {
    return Status(CANARY_INVALID_ARGUMENT, "the reachability matrix is not of this group");
  }
  const bool forced = options.forced && planner(options.planner).defines(request.collective, request.ranks);
  if (forced) {
    if (Status status = planner(options.planner).check(request); !status.ok()) {
      return status.wrap("forced planner " + std::string(name_of(options.planner)));
    }
    return options.planner;
  }
  canary_status code = CANARY_INVALID_ARGUMENT;
  std::string reasons;
  for (const PlannerId id : preference(request)) {
    const Status status = planner(id).check(request);
    if (status.ok()) return id;
    if (status.code() == CANARY_UNREACHABLE) code = CANARY_UNREACHABLE;
    reasons += (reasons.empty() ? "" : "; ") + status.text();
  }
  return Status(code, "no planner can run " + std::string(name_of(request.collective)) + " among these " +
                          std::to_string(request.ranks) + " ranks: " + reasons);
}

}  // namespace canarynet
