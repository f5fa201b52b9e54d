#include "collectives/wiring.h"

#include <algorithm>
#include <vector>

#include "collectives/cost.h"

namespace canarynet {
namespace {

// The times of kernel TCP.
constexpr double kMessageSeconds = 60e-6, kPostSeconds = 10e-6;
constexpr double kUnknownRate = 1.25e9;  // bytes a second
// Pieces per rank: enough to show how its steps overlap, few enough for a walk that takes milliseconds.
constexpr std::uint64_t kPieceBytes = 128 * 1024;
constexpr std::uint64_t kPiecesPerRank = 8;

std::uint32_t rails_of(std::uint32_t reach) { return reach & ~(Reachability::kLocalBit | Reachability::kHostBit); }

bool same_host(const PlanRequest& request, int a, int b) {
  if ((request.reach->rails(a, b) & (Reachability::kLocalBit | Reachability::kHostBit)) != 0) return true;
  return !request.host_of.empty() &&
         request.host_of[static_cast<std::size_t>(a)] == request.host_of[static_cast<std::size_t>(b)];
}

}  // namespace

bool rails_differ_by_peer(const PlanRequest& request) {
  for (int a = 0; a < request.ranks; ++a) {
    std::uint32_t first = 0;
    for (int b = 0; b < request.ranks; ++b) {
      if (a == b || same_host(request, a, b)) continue;
      const std::uint32_t rails = rails_of(request.reach->rails(a, b));
      if (first == 0) first = rails;
      if (rails != 0 && rails != first) return true;
    }
  }
  return false;
}

double wiring_cost(PlannerId id, const PlanRequest& request) {
  const std::uint64_t bytes = request.total() * request.element_bytes;
  const auto pieces = kPiecesPerRank * static_cast<std::uint64_t>(request.ranks);
  return walk_cost(id, request, kRailsMax,
                   {.alpha = kMessageSeconds,
                    .beta = 1 / kUnknownRate,
                    .post = kPostSeconds,
                    .piece_bytes = std::max(kPieceBytes, bytes / pieces)});
}

bool straight_beats_ring_between_hosts(const PlanRequest& request) {
  if (request.host_of.empty() || !rails_differ_by_peer(request)) return false;
  std::vector<int> speakers;
  for (int r = 0; r < request.ranks; ++r) {
    const auto speaks = [&](int other) { return same_host(request, other, r); };
    if (std::none_of(speakers.begin(), speakers.end(), speaks)) speakers.push_back(r);
  }
  const Reachability reach = request.reach->subset(speakers);
  std::vector<double> rates;
  for (const int r : speakers) {
    if (request.rail_rates.empty()) break;
    const auto of = request.rail_rates.subspan(static_cast<std::size_t>(r) * kRailsMax, kRailsMax);
    rates.insert(rates.end(), of.begin(), of.end());
  }
  const PlanRequest between{.ranks = static_cast<int>(speakers.size()),
                            .count = request.total(),
                            .element_bytes = request.element_bytes,
                            .reach = &reach,
                            .rail_rates = rates};
  const auto runs = [&](PlannerId id) { return planner(id).check(between).ok(); };
  if (!runs(PlannerId::kMesh)) return false;
  return !runs(PlannerId::kRing) || wiring_cost(PlannerId::kMesh, between) < wiring_cost(PlannerId::kRing, between);
}

}  // namespace canarynet
