// collectives/ring_order.h -- in which order ranks should stand around a ring. Pure: equal results for equal arguments
// on every machine (whole numbers only; its random numbers have a fixed seed). Allocates; stays off the data path.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collectives/link_costs.h"
#include "collectives/schedule.h"

namespace canarynet {

// Whether PlanRequest::ring_order says where the planner's ranks stand.
constexpr bool takes_order(PlannerId id) { return id == PlannerId::kRing || id == PlannerId::kRingPerRail; }

// What a ring would use: [from * n + to]. level 0: no such edge; the higher, the faster. alpha: message time in ns.
struct RingEdges {
  int n = 0;
  std::vector<std::uint32_t> level;
  std::vector<std::int64_t> alpha;
};

// The order whose slowest edge is fastest and, among those, whose message times add up to the least, as far as the
// search finds it: exact up to 10 nodes, above that a search by thresholds with 2-opt and Or-opt moves. Empty if no
// cycle was found. The first node is 0; if 0, 1, 2, … is as good, it is that.
std::vector<std::uint16_t> best_cycle(const RingEdges& edges);
// The search alone, whatever the size.
std::vector<std::uint16_t> search_cycle(const RingEdges& edges);

// PlanRequest::ring_order for the request's reach, rail_rates and host_of. Ranks of one host stand together, in
// ascending order; the edge to the next host is that from its last rank to the next one's first. With `links` an edge
// is as fast as its rails' links together, else as the slower of what both ends' rails carry. Empty if no cycle was
// found.
std::vector<std::uint16_t> best_ring_order(const PlanRequest& request, const LinkCosts* links = nullptr);

// Returns `present`, or another order if that is clearly better: links are measured with some error, and what
// operations took in the present one is worth nothing in another. In both, empty means request.ring_order. It searches,
// in groups of 64 hosts for some ten milliseconds, only where an order may be clearly better.
std::vector<std::uint16_t> order_by_links(const PlanRequest& request, const LinkCosts& links,
                                          std::span<const std::uint16_t> present);
// Whether ranks 0, 1, 2, … can't stand around a ring, or go from host to host and back more often than they have to.
bool needs_order(const PlanRequest& request);

}  // namespace canarynet
