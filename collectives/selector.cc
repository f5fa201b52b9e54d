#include "collectives/selector.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <vector>

#include "collectives/plan_builder.h"
#include "collectives/wiring.h"
#include "compress/spec.h"

namespace canarynet {
namespace {

using Order = std::array<PlannerId, kPlannerCount>;

// Below this size the number of messages decides, above it the bytes.
constexpr std::uint64_t kSmallBytes = 64 * 1024;
// Where ranks wait for cores, the plan of the fewest messages wins up to here.
constexpr std::uint64_t kCrowdedBytes = 256 * 1024;
// A ring hides its 2(n-1) message times only behind segments of at least one piece: pieces then pipeline from hop to
// hop.
constexpr std::uint64_t kRingSegmentBytes = 128 * 1024;
// Mesh costs 2 message times and posts 2(n-2) more; past about 16 ranks posting them costs more than 2 lg n message
// times (kernel TCP: about 60 us a message time, about 10 us a post), and n-1 flows into one port at once make it drop.
constexpr int kMeshRanksMax = 16;
// A codec that encodes pieces, as any of them do.
constexpr auto kAnyPieces = static_cast<std::uint32_t>(CodecKind::kInt8);
// The costs know nothing of queues and processors, so they overrule the table's first choice only by more than this.
constexpr double kClearlyCheaper = 0.9;

bool everybody_meets(const Reachability& reach) {
  return reach.all_pairs([](std::uint32_t rails) { return rails != 0; });
}

// `best` first, then the others: check() decides which of them can run at all. The star and the ring for disjoint rails
// come last: only a caller that asks for them should get them.
Order order(std::initializer_list<PlannerId> best) {
  using enum PlannerId;
  Order all{};
  std::size_t count = 0;
  const auto add = [&](PlannerId id) {
    if (std::find(all.begin(), all.begin() + count, id) == all.begin() + count) all[count++] = id;
  };
  for (const PlannerId id : best) add(id);
  for (const PlannerId id : {kRing, kMesh, kBCube, kHalvingDoubling, kTree, kDoubleTree, kRingPerRail, kHierarchical,
                             kBCubeX, kParameterServer, kMeshRelay})
    add(id);
  return all;
}

// Ranks of one engine exchange memory to memory: a message costs next to nothing and every pass over the bytes counts.
bool all_local(const Reachability& reach) {
  return reach.ranks() > 1 &&
         reach.all_pairs([](std::uint32_t rails) { return (rails & Reachability::kLocalBit) != 0; });
}

// More ranks than cores, in shared memory: a message waits until its receiver has a core, whatever runs beside it.
bool crowded(const PlanRequest& request) {
  return request.cores != 0 && request.ranks > request.cores && request.reach->all_pairs([](std::uint32_t rails) {
    return (rails & (Reachability::kHostBit | Reachability::kLocalBit)) != 0;
  });
}

Order flat_preference(const PlanRequest& request) {
  using enum PlannerId;
  // The choice goes by the ranks alone: a third rank need not know how much passes between two others.
  if (is_pairwise(request.collective)) return order({kMesh, kBCube});
  const auto n = static_cast<std::uint64_t>(request.ranks);
  const std::uint64_t bytes = request.total() * request.element_bytes;
  const bool small = bytes <= kSmallBytes;
  if (!everybody_meets(*request.reach)) {
    // Only BCube wiring is known here. Halving fits it if r = 2: it takes as many rounds as bcube with fewer messages,
    // but uses one rail at a time.
    return small ? order({kHalvingDoubling, kBCube, kTree, kMesh}) : order({kBCube, kRing, kHalvingDoubling, kMesh});
  }
  if (all_local(*request.reach)) return order({kMesh});
  // The bytes go into or out of the root's NICs once in any case: straight, or by a tree if posting n - 1 small
  // messages takes longer.
  if (request.collective == Collective::kGather || request.collective == Collective::kScatter)
    return small && request.ranks > kMeshRanksMax ? order({kTree, kMesh}) : order({kMesh, kTree});
  // The wiring is flat. All planners but bcube stripe each flow over the NICs by measured rate, so NICs of unequal
  // speed add up; bcube's fixed parts would wait for the slowest one. Mesh, ring and halving move the same 2(1-1/n)M
  // per rank. The ring gives each NIC one smooth flow in and one out, which suits kernel TCP and shallow switch buffers
  // best, so it takes what is large enough to pipeline.
  if (!small && bytes >= n * kRingSegmentBytes) return order({kRing, kMesh, kHalvingDoubling});
  if (request.collective == Collective::kBroadcast && !small) return order({kRing, kMesh});
  if (request.collective == Collective::kReduce && request.ranks > kMeshRanksMax)
    return order({kTree, kHalvingDoubling});
  if (request.collective == Collective::kAllReduce && bytes <= kCrowdedBytes && crowded(request))
    return order({kTree, kMesh});
  // Among two or four ranks no plan takes fewer message times, nor half as many messages.
  if (exchanges_whole(request) && (request.ranks == 2 || (request.ranks == 4 && !rails_differ_by_peer(request))))
    return order({kHalvingDoubling, kMesh});
  return request.ranks <= kMeshRanksMax ? order({kMesh, kHalvingDoubling})
                                        : order({kHalvingDoubling, kTree, kBCube, kMesh});
}

// The bytes that a host sends in a hierarchical plan do not grow with its ranks, so that plan comes before all others.
Order preference(const PlanRequest& request) {
  Order flat = flat_preference(request);
  if (!hosts_share_memory(request)) return flat;
  const auto hierarchical = std::find(flat.begin(), flat.end(), PlannerId::kHierarchical);
  std::rotate(flat.begin(), hierarchical, hierarchical + 1);
  return flat;
}

// Plans that send by other ways than a ring are worth a walk where rings don't stand in the order of ranks.
bool is_costed(PlannerId id, const PlanRequest& request) {
  using enum PlannerId;
  if (id == kTree || id == kMeshRelay) return !request.ring_order.empty();
  return id == kMesh || id == kRing || id == kBCube || id == kHalvingDoubling;
}

// The table's first choice that can run, unless the wiring makes another one clearly cheaper.
PlannerId choose(const std::vector<PlannerId>& runnable, const PlanRequest& request) {
  using enum PlannerId;
  const PlannerId first = runnable.front();
  // Only two ranks know what passes between them; the costs of a hierarchical plan are decided within it.
  if (first == kHierarchical || is_pairwise(request.collective) || request.ranks > kCostedRanksMax) return first;
  if (!rails_differ_by_peer(request) && request.ring_order.empty()) return first;
  const double of_first = wiring_cost(first, request);
  PlannerId best = first;
  double least = of_first;
  for (const PlannerId id : runnable) {
    if (!is_costed(id, request)) continue;
    const double cost = id == first ? of_first : wiring_cost(id, request);
    if (cost < least) {
      best = id;
      least = cost;
    }
  }
  return least < kClearlyCheaper * of_first ? best : first;
}

}  // namespace

bool hosts_share_memory(const PlanRequest& request) {
  if (request.host_of.size() != static_cast<std::size_t>(request.ranks)) return false;
  bool several_hosts = false, neighbours = false;
  for (int a = 0; a < request.ranks; ++a) {
    for (int b = a + 1; b < request.ranks; ++b) {
      if (request.host_of[a] != request.host_of[b]) {
        several_hosts = true;
        continue;
      }
      neighbours = true;
      if ((request.reach->rails(a, b) & (Reachability::kLocalBit | Reachability::kHostBit)) == 0) return false;
    }
  }
  return several_hosts && neighbours;
}

Result<std::optional<Choice>> choice_of_rows(const PlanRequest& request, const DecisionTable& forced,
                                             const MeasuredTable& measured, std::uint32_t codec) {
  const std::uint64_t bytes = operation_bytes(request);
  if (const Decision* row = forced.find(request.collective, bytes); row != nullptr) {
    if (Status status = planner(row->planner).check(request); !status.ok())
      return status.wrap("forced planner " + std::string(name_of(row->planner)));
    if (!takes_codec(row->planner, request, codec)) {
      return Status(CANARY_INVALID_ARGUMENT, "forced planner " + std::string(name_of(row->planner)) +
                                                 " lets several ranks complete one sum, which no codec allows");
    }
    return std::optional(Choice{row->planner, row->piece_bytes, ChosenBy::kForced});
  }
  const MeasuredRow* const row = measured.find(request.collective, bytes, codec);
  if (row == nullptr || row->keeps_static) return std::optional<Choice>();
  PlanRequest in_order = request;
  if (row->in_order) in_order.ring_order = measured.ring_order();
  if (!planner(row->planner).check(in_order).ok() || !takes_codec(row->planner, request, codec))
    return std::optional<Choice>();
  return std::optional(Choice{row->planner, row->piece_bytes, ChosenBy::kMeasured, row->in_order});
}

bool completes_once(PlannerId id, const PlanRequest& request) {
  if (id == PlannerId::kBCubeX) return request.ranks == 1;
  return request.ranks == 1 || id != PlannerId::kHalvingDoubling || !exchanges_whole(request);
}

bool takes_codec(PlannerId id, const PlanRequest& request, std::uint32_t codec) {
  if (codec == 0 || completes_once(id, request)) return true;
  const auto spec = codec_of_number(codec);
  return spec.ok() && makes_chain(spec.value().kind);
}

Result<PlannerId> select_coded_planner(const PlanRequest& request, const DecisionTable& forced) {
  const auto by_row = choice_of_rows(request, forced, {}, kAnyPieces);
  if (!by_row.ok()) return by_row.status();
  if (by_row.value()) return by_row.value()->planner;
  std::string reasons;
  std::vector<PlannerId> runnable;
  for (const PlannerId id : preference(request)) {
    const Status status = planner(id).check(request);
    if (status.ok() && completes_once(id, request)) runnable.push_back(id);
    if (!status.ok()) reasons += (reasons.empty() ? "" : "; ") + status.text();
  }
  if (runnable.empty()) {
    return Status(CANARY_UNREACHABLE, "no planner can run an all_reduce with a codec among these " +
                                          std::to_string(request.ranks) + " ranks: " + reasons);
  }
  const bool mesh = std::find(runnable.begin(), runnable.end(), PlannerId::kMesh) != runnable.end();
  if (mesh && request.ranks <= kMeshRanksMax && runnable.front() != PlannerId::kHierarchical) return PlannerId::kMesh;
  return runnable.front();
}

Result<PlannerId> select_planner(const PlanRequest& request, const DecisionTable& table) {
  if (request.ranks < 1 || request.reach == nullptr || request.reach->ranks() != request.ranks) {
    return Status(CANARY_INVALID_ARGUMENT, "the reachability matrix is not of this group");
  }
  auto by_row = choice_of_rows(request, table, {});
  if (!by_row.ok()) return by_row.status();
  if (by_row.value()) return by_row.value()->planner;
  canary_status code = CANARY_INVALID_ARGUMENT;
  std::string reasons;
  std::vector<PlannerId> runnable;
  for (const PlannerId id : preference(request)) {
    const Status status = planner(id).check(request);
    if (status.ok()) runnable.push_back(id);
    if (status.code() == CANARY_UNREACHABLE) code = CANARY_UNREACHABLE;
    reasons += (reasons.empty() ? "" : "; ") + status.text();
  }
  if (!runnable.empty()) return choose(runnable, request);
  return Status(code, "no planner can run " + std::string(name_of(request.collective)) + " among these " +
                          std::to_string(request.ranks) + " ranks: " + reasons);
}

}  // namespace canarynet
