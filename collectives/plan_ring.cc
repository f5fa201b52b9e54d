// Ring: every rank sends to the next one only, so each NIC carries one flow in and one out whatever n is (no incast).
// Segment s starts at rank s+1 and is reduced along the ring, ((x_(s+1) + x_(s+2)) + … + x_s), so rank s finishes it:
// the order is fixed. All-gather carries it on from s. Pieces of a segment travel independently: hop k of one overlaps
// hop k+1 of another. Operations with a root use it as a chain that begins or ends there. Ranks stand around the ring
// as PlanRequest::ring_order says; s, s+1, … above are places then, and a rank's block stays its own.
//
// ring_per_rail uses as many rings as there are rails that all neighbours share, each with an equal part and a rail of
// its own. It is meant for rails that are disjoint networks of similar speed; elsewhere one ring, whose pieces the
// channel stripes by measured rate, does better.
#include <algorithm>
#include <bit>

#include "collectives/plan_builder.h"

namespace canarynet {
namespace {

// Where ranks stand around the ring.
class Places {
 public:
  explicit Places(const PlanRequest& request) : n_(request.ranks), order_(request.ring_order) {
    if (order_.empty()) return;
    place_.resize(order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) place_[order_[i]] = static_cast<int>(i);
  }
  // The rank at a place (mod n).
  int rank(int place) const {
    const int at = ((place % n_) + n_) % n_;
    return order_.empty() ? at : order_[static_cast<std::size_t>(at)];
  }
  int of(int rank) const { return order_.empty() ? rank : place_[static_cast<std::size_t>(rank)]; }

 private:
  int n_;
  std::span<const std::uint16_t> order_;
  std::vector<int> place_;
};

Status check_order(const PlanRequest& request) {
  const auto wrong = [](const std::string& text) {
    return Status(CANARY_INVALID_ARGUMENT, "the ring's order " + text);
  };
  if (request.ring_order.empty()) return {};
  if (request.ring_order.size() != static_cast<std::size_t>(request.ranks)) {
    return wrong("has " + std::to_string(request.ring_order.size()) + " ranks of " + std::to_string(request.ranks));
  }
  std::vector<bool> seen(request.ring_order.size());
  for (const std::uint16_t rank : request.ring_order) {
    if (rank >= seen.size())
      return wrong("names rank " + std::to_string(rank) + " of " + std::to_string(request.ranks));
    if (seen[rank]) return wrong("has rank " + std::to_string(rank) + " twice");
    seen[rank] = true;
  }
  return {};
}

bool defines(Collective collective, int) { return !is_pairwise(collective); }

// A chain does not use the edge that closes the ring, from the chain's end (the root of a reduce or gather, rank n-1 of
// a barrier) to its start (the root of a broadcast or scatter). `a` and `root` are places.
bool uses_edge_from(const PlanRequest& request, int a, int root) {
  if (request.ranks == 1) return false;
  switch (request.collective) {
    case Collective::kBroadcast:
    case Collective::kScatter:
      return (a + 1) % request.ranks != root;
    case Collective::kReduce:
    case Collective::kGather:
      return a != root;
    case Collective::kBarrier:
      return a != request.ranks - 1;
    default:
      return true;
  }
}

Status check_edges(PlannerId id, const PlanRequest& request) {
  if (Status status = check_order(request); !status.ok()) return status;
  const Places places(request);
  for (int a = 0; a < request.ranks; ++a) {
    if (!uses_edge_from(request, a, places.of(request.root))) continue;
    if (Status status = need_edge(id, *request.reach, places.rank(a), places.rank(a + 1)); !status.ok()) return status;
  }
  return {};
}

Status check(const PlanRequest& request) {
  if (Status status = check_request(kRingPlanner, request); !status.ok()) return status;
  return check_edges(PlannerId::kRing, request);
}

// Ranks that meet in one engine or through shared memory need no rail of their own for each ring.
constexpr std::uint32_t kOneHost = Reachability::kLocalBit | Reachability::kHostBit;

// A bit for each rail over which every neighbour is reached; 0 if there is none. Ranks of one host need none.
std::uint32_t shared_rails(const PlanRequest& request) {
  std::uint32_t shared = ~std::uint32_t{0};
  const Places places(request);
  for (int a = 0; a < request.ranks; ++a) {
    const std::uint32_t rails = request.reach->rails(places.rank(a), places.rank(a + 1));
    if (uses_edge_from(request, a, places.of(request.root)) && (rails & kOneHost) == 0) shared &= rails;
  }
  return shared == ~std::uint32_t{0} ? 1 : shared;
}

Status check_per_rail(const PlanRequest& request) {
  if (Status status = check_request(kRingPerRailPlanner, request); !status.ok()) return status;
  if (Status status = check_edges(PlannerId::kRingPerRail, request); !status.ok()) return status;
  const auto messages = static_cast<std::int64_t>(std::popcount(shared_rails(request))) * 2 * (request.ranks - 1);
  if (messages > kTagsMax) {
    return {CANARY_LIMIT, "ring_per_rail sends " + std::to_string(messages) +
                              " messages to a neighbour here; the limit is " + std::to_string(kTagsMax)};
  }
  if (shared_rails(request) != 0) return {};
  return {CANARY_UNREACHABLE,
          "ring_per_rail needs a rail that joins every rank with the next one; these ranks share none"};
}

int rings_of(const PlanRequest& request) {
  return request.collective == Collective::kBarrier ? 1 : std::popcount(shared_rails(request));
}

// Leaf s * rings + k is the part of segment s that travels on ring k.
void cut(const PlanRequest& request, int rings, std::vector<std::uint64_t>* out) {
  out->clear();
  if (in_blocks(request.collective)) return cut_blocks(request, out, rings);
  // A chain that does not carry blocks has one segment: its pieces pipeline from hop to hop.
  const int segments = request.collective == Collective::kAllReduce ? request.ranks : 1;
  cut_evenly(0, request.total(), segments * rings, request.element_bytes, out);
  out->push_back(request.total());
}

void leaves(const PlanRequest& request, std::vector<std::uint64_t>* out) { cut(request, 1, out); }
void leaves_per_rail(const PlanRequest& request, std::vector<std::uint64_t>* out) {
  cut(request, rings_of(request), out);
}

// Ring `ring` of `rings`, sending over `rail` (-1: any).
class Ring {
 public:
  Ring(PlanBuilder& build, const Places& places, int n, int rank, int ring, int rings, int rail)
      : places_(places),
        n_(n),
        place_(places.of(rank)),
        ring_(ring),
        rings_(rings),
        rail_(rail),
        next_(places.rank(place_ + 1)),
        previous_(places.rank(place_ - 1)),
        build_(build) {}

  // n-1 rounds; partial sums live in `partial`, the own segment ends in kOutput.
  void reduce_scatter(Buffer partial) {
    for (int k = 0; k < n_ - 1; ++k) {
      const bool last = k == n_ - 2;
      build_.send({.peer = next_, .round = k, .run = segment(place_ - 1 - k), .rail = rail_},
                  k == 0 ? Buffer::kInput : partial);
      build_.receive_reduce({.peer = previous_, .round = k, .run = segment(place_ - 2 - k)}, Buffer::kInput,
                            last ? Buffer::kOutput : partial, last);
    }
  }

  // `own` is where the rank reads its own segment from.
  void all_gather(int first_round, Buffer own) {
    for (int k = 0; k < n_ - 1; ++k) {
      build_.send({.peer = next_, .round = first_round + k, .run = segment(place_ - k), .rail = rail_},
                  k == 0 ? own : Buffer::kOutput);
      build_.receive({.peer = previous_, .round = first_round + k, .run = segment(place_ - 1 - k)}, Buffer::kOutput);
    }
  }

  void copy_own() { build_.copy(segment(place_), Buffer::kInput, Buffer::kOutput, false); }

  void broadcast(int root_rank) {
    const int root = places_.of(root_rank);
    const int distance = at(place_ - root);
    if (distance == 0) {
      build_.copy(whole(), Buffer::kInput, Buffer::kOutput, false);
    } else {
      build_.receive({.peer = previous_, .round = distance - 1, .run = whole()}, Buffer::kOutput);
    }
    if (distance < n_ - 1) {
      build_.send({.peer = next_, .round = distance, .run = whole(), .rail = rail_},
                  distance == 0 ? Buffer::kInput : Buffer::kOutput);
    }
  }

  // Rank root + 1 begins; every rank adds what it receives to its own, the root last.
  void reduce(int root_rank) {
    const int root = places_.of(root_rank);
    const int position = at(place_ - root - 1);
    Buffer held = Buffer::kInput;
    if (position > 0) {
      const bool last = position == n_ - 1;
      held = last ? Buffer::kOutput : Buffer::kScratch;
      build_.receive_reduce({.peer = previous_, .round = position - 1, .run = whole()}, Buffer::kInput, held, last);
    }
    if (position < n_ - 1) build_.send({.peer = next_, .round = position, .run = whole(), .rail = rail_}, held);
  }

  // Every rank sends its own block towards the root, then those of the ranks before it, nearest first.
  void gather(int root_rank) {
    const int root = places_.of(root_rank);
    const int position = at(place_ - root - 1);
    const bool ends = position == n_ - 1;
    if (ends) {
      copy_own();
    } else {
      build_.send({.peer = next_, .round = 0, .run = segment(place_), .rail = rail_}, Buffer::kInput);
    }
    for (int k = 1; k <= position; ++k) {
      const Buffer held = ends ? Buffer::kOutput : Buffer::kScratch;
      build_.receive({.peer = previous_, .round = k - 1, .run = segment(place_ - k)}, held);
      if (!ends) build_.send({.peer = next_, .round = k, .run = segment(place_ - k), .rail = rail_}, held);
    }
  }

  // The block with the longest way leaves first.
  void scatter(int root_rank) {
    const int root = places_.of(root_rank);
    const int position = at(place_ - root);
    if (position == 0) copy_own();
    for (int to = n_ - 1; to >= std::max(position, 1); --to) {
      const Run block = segment(root + to);
      const int round = n_ - 1 - to + position;
      const Buffer held = position == 0 ? Buffer::kInput : to == position ? Buffer::kOutput : Buffer::kScratch;
      if (position > 0) build_.receive({.peer = previous_, .round = round - 1, .run = block}, held);
      if (to > position) build_.send({.peer = next_, .round = round, .run = block, .rail = rail_}, held);
    }
  }

  // Messages go up the chain 0 … n-1 and back down: rank n-1 turns them round only after all ranks have entered.
  void barrier() {
    const Run all = {0, 1};
    const bool top = place_ == n_ - 1;
    if (place_ > 0)
      build_.receive_reduce({.peer = previous_, .round = place_ - 1, .run = all}, Buffer::kScratch, Buffer::kScratch,
                            false);
    if (!top) build_.send({.peer = next_, .round = place_, .run = all}, Buffer::kScratch);
    if (!top) build_.receive({.peer = next_, .round = 2 * n_ - 3 - place_, .run = all}, Buffer::kScratch);
    if (place_ > 0) build_.send({.peer = previous_, .round = 2 * n_ - 2 - place_, .run = all}, Buffer::kScratch);
  }

 private:
  int at(int i) const { return ((i % n_) + n_) % n_; }
  // The segment of the rank at a place. A rank's block is its own wherever it stands.
  Run segment(int place) const {
    const auto leaf = static_cast<std::uint32_t>(places_.rank(place) * rings_ + ring_);
    return {leaf, leaf + 1};
  }
  // A chain's only segment.
  Run whole() const { return {static_cast<std::uint32_t>(ring_), static_cast<std::uint32_t>(ring_) + 1}; }

  const Places& places_;
  const int n_, place_, ring_, rings_, rail_, next_, previous_;
  PlanBuilder& build_;
};

void run(const PlanRequest& request, Ring ring) {
  switch (request.collective) {
    case Collective::kAllReduce:
      ring.reduce_scatter(Buffer::kOutput);
      ring.all_gather(request.ranks - 1, Buffer::kOutput);
      break;
    case Collective::kReduceScatter:
      ring.reduce_scatter(Buffer::kScratch);
      break;
    case Collective::kAllGather:
    case Collective::kAllGatherV:
      ring.copy_own();
      ring.all_gather(0, Buffer::kInput);
      break;
    case Collective::kBroadcast:
      ring.broadcast(request.root);
      break;
    case Collective::kBarrier:
      ring.barrier();
      break;
    case Collective::kReduce:
      ring.reduce(request.root);
      break;
    case Collective::kGather:
      ring.gather(request.root);
      break;
    case Collective::kScatter:
      ring.scatter(request.root);
      break;
    case Collective::kAllToAll:
    case Collective::kAllToAllV:
      break;  // check() refuses them
  }
}

std::uint32_t leaf_count_of(const PlanRequest& request, int rings) {
  const bool all = in_blocks(request.collective) || request.collective == Collective::kAllReduce;
  return static_cast<std::uint32_t>(all ? request.ranks * rings : rings);
}

void plan(const PlanRequest& request, int rank, Plan* out) {
  const std::uint32_t leaf_count = leaf_count_of(request, 1);
  if (request.ranks == 1) return plan_alone(request, leaf_count, out);
  PlanBuilder build(out, request.ranks, leaf_count);
  const Places places(request);
  run(request, Ring(build, places, request.ranks, rank, 0, 1, -1));
}

void plan_per_rail(const PlanRequest& request, int rank, Plan* out) {
  const int rings = rings_of(request);
  const std::uint32_t leaf_count = leaf_count_of(request, rings);
  if (request.ranks == 1) return plan_alone(request, leaf_count, out);
  PlanBuilder build(out, request.ranks, leaf_count);
  std::uint32_t rails = shared_rails(request);
  const Places places(request);
  const int next = places.rank(places.of(rank) + 1);
  for (int k = 0; k < rings; ++k, rails &= rails - 1) {
    // Ranks that the same engine serves need no rail.
    const bool local = (request.reach->rails(rank, next) & kOneHost) != 0;
    run(request, Ring(build, places, request.ranks, rank, k, rings, local ? -1 : std::countr_zero(rails)));
  }
}

// Every rank does what the rank before it does, one further.
Symmetry symmetry(const PlanRequest& request) {
  const bool around =
      request.ring_order.empty() && !has_root(request.collective) && request.collective != Collective::kBarrier;
  return {.cell = around ? 1 : 0};
}

}  // namespace

constinit const Planner kRingPlanner = {
    PlannerId::kRing, "segments travel around the ring in rank order: 2(n-1) rounds, one flow per NIC and direction",
    defines,          check,
    leaves,           plan,
    symmetry};

constinit const Planner kRingPerRailPlanner = {
    PlannerId::kRingPerRail,
    "a ring on each rail with an equal part: for rails that are disjoint networks of like speed",
    defines,
    check_per_rail,
    leaves_per_rail,
    plan_per_rail,
    symmetry};

}  // namespace canarynet
