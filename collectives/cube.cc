#include "collectives/cube.h"

#include <bit>

#include "collectives/plan_builder.h"

namespace canarynet {

Cube::Cube(const BCubeShape& shape) : r(shape.r), levels(shape.levels) {
  for (int l = 0; l < levels; ++l) {
    stride.push_back(n);
    n *= r;
  }
}

int rail_between(const Reachability& reach, int rank, int peer, int level) {
  const std::uint32_t rails = reach.rails(rank, peer) & ~(Reachability::kLocalBit | Reachability::kHostBit);
  if ((rails >> level & 1u) != 0) return level;
  return std::has_single_bit(rails) ? std::countr_zero(rails) : -1;
}

Status check_cube(const Planner& planner, const PlanRequest& request) {
  if (Status status = check_request(planner, request); !status.ok()) return status;
  const int n = request.ranks;
  if (n == 1) return {};
  const std::string ranks = std::to_string(n);
  if (request.bcube.levels <= 0 || request.bcube.r < 2) {
    return {CANARY_INVALID_ARGUMENT,
            std::string(name_of(planner.id)) +
                " needs n = r^L ranks on BCube wiring; no such shape is known for n = " + ranks};
  }
  std::int64_t product = 1;
  for (int l = 0; l < request.bcube.levels && product <= n; ++l) product *= request.bcube.r;
  if (product != n || request.bcube.levels > kRailsMax) {
    return {CANARY_INVALID_ARGUMENT, std::string(name_of(planner.id)) + "(" + std::to_string(request.bcube.r) + "," +
                                         std::to_string(request.bcube.levels) + ") does not fit n = " + ranks};
  }
  const Cube cube(request.bcube);
  for (int a = 0; a < n; ++a) {
    for (int l = 0; l < cube.levels; ++l) {
      for (int by = 1; by < cube.r; ++by) {
        if (Status status = need_edge(planner.id, *request.reach, a, cube.mate(a, l, by)); !status.ok()) return status;
      }
    }
  }
  return {};
}

}  // namespace canarynet
