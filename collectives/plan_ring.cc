// Ring: every rank sends to the next one only, so each NIC carries one flow in and one out whatever n is (no incast).
// Segment s starts at rank s+1 and is reduced along the ring, ((x_(s+1) + x_(s+2)) + … + x_s), so rank s finishes it:
// the order is fixed. All-gather carries it on from s. Pieces of a segment travel independently: hop k of one overlaps
// hop k+1 of another.
#include "collectives/plan_builder.h"

namespace canarynet {
namespace {

bool defines(Collective, int) { return true; }

Status check(const PlanRequest& request) {
  if (Status status = check_request(kRingPlanner, request); !status.ok()) return status;
  const int n = request.ranks;
  for (int a = 0; n > 1 && a < n; ++a) {
    // Broadcast is a chain that ends before the root and a barrier one that ends at rank n-1: the edge that closes the
    // ring is not used.
    if (request.collective == Collective::kBroadcast && (a + 1) % n == request.root) continue;
    if (request.collective == Collective::kBarrier && a == n - 1) continue;
    if (Status status = need_edge(PlannerId::kRing, *request.reach, a, (a + 1) % n); !status.ok()) return status;
  }
  return {};
}

void leaves(const PlanRequest& request, std::vector<std::uint64_t>* out) {
  out->clear();
  switch (request.collective) {
    case Collective::kReduceScatter:
    case Collective::kAllGather:
      return cut_blocks(request, out);
    case Collective::kAllReduce:
      cut_evenly(0, request.total(), request.ranks, request.element_bytes, out);
      break;
    case Collective::kBroadcast:  // one leaf: its cells pipeline down the chain
    case Collective::kBarrier:
      out->push_back(0);
      break;
  }
  out->push_back(request.total());
}

class Ring {
 public:
  Ring(const PlanRequest& request, int rank, std::uint32_t leaf_count, Plan* out)
      : n_(request.ranks), rank_(rank), next_(at(rank + 1)), previous_(at(rank - 1)), build_(out, n_, leaf_count) {}

  // n-1 rounds; partial sums live in `partial`, the own segment ends in kOutput.
  void reduce_scatter(Buffer partial) {
    for (int k = 0; k < n_ - 1; ++k) {
      const bool last = k == n_ - 2;
      build_.send({.peer = next_, .round = k, .run = segment(rank_ - 1 - k)}, k == 0 ? Buffer::kInput : partial);
      build_.receive_reduce({.peer = previous_, .round = k, .run = segment(rank_ - 2 - k)}, Buffer::kInput,
                            last ? Buffer::kOutput : partial, last);
    }
  }

  // `own`: where the own segment is read from.
  void all_gather(int first_round, Buffer own) {
    for (int k = 0; k < n_ - 1; ++k) {
      build_.send({.peer = next_, .round = first_round + k, .run = segment(rank_ - k)}, k == 0 ? own : Buffer::kOutput);
      build_.receive({.peer = previous_, .round = first_round + k, .run = segment(rank_ - 1 - k)}, Buffer::kOutput);
    }
  }

  void copy_own() { build_.copy(segment(rank_), Buffer::kInput, Buffer::kOutput, false); }

  void broadcast(int root) {
    const int distance = at(rank_ - root);
    if (distance == 0) {
      build_.copy({0, 1}, Buffer::kInput, Buffer::kOutput, false);
    } else {
      build_.receive({.peer = previous_, .round = distance - 1, .run = {0, 1}}, Buffer::kOutput);
    }
    if (distance < n_ - 1)
      build_.send({.peer = next_, .round = distance, .run = {0, 1}}, distance == 0 ? Buffer::kInput : Buffer::kOutput);
  }

  // Up the chain 0 … n-1 and back down: nothing turns round at n-1 before all have entered.
  void barrier() {
    const Run all = {0, 1};
    const bool top = rank_ == n_ - 1;
    if (rank_ > 0)
      build_.receive_reduce({.peer = previous_, .round = rank_ - 1, .run = all}, Buffer::kScratch, Buffer::kScratch,
                            false);
    if (!top) build_.send({.peer = next_, .round = rank_, .run = all}, Buffer::kScratch);
    if (!top) build_.receive({.peer = next_, .round = 2 * n_ - 3 - rank_, .run = all}, Buffer::kScratch);
    if (rank_ > 0) build_.send({.peer = previous_, .round = 2 * n_ - 2 - rank_, .run = all}, Buffer::kScratch);
  }

 private:
  int at(int i) const { return ((i % n_) + n_) % n_; }
  Run segment(int i) const {
    const auto s = static_cast<std::uint32_t>(at(i));
    return {s, s + 1};
  }

  int n_, rank_, next_, previous_;
  PlanBuilder build_;
};

void plan(const PlanRequest& request, int rank, Plan* out) {
  const int n = request.ranks;
  const bool whole = request.collective == Collective::kBroadcast || request.collective == Collective::kBarrier;
  const std::uint32_t leaf_count = whole ? 1 : static_cast<std::uint32_t>(n);
  if (n == 1) return plan_alone(request, leaf_count, out);
  Ring ring(request, rank, leaf_count, out);
  switch (request.collective) {
    case Collective::kAllReduce:
      ring.reduce_scatter(Buffer::kOutput);
      ring.all_gather(n - 1, Buffer::kOutput);
      break;
    case Collective::kReduceScatter:
      ring.reduce_scatter(Buffer::kScratch);
      break;
    case Collective::kAllGather:
      ring.copy_own();
      ring.all_gather(0, Buffer::kInput);
      break;
    case Collective::kBroadcast:
      ring.broadcast(request.root);
      break;
    case Collective::kBarrier:
      ring.barrier();
      break;
  }
}

}  // namespace

constinit const Planner kRingPlanner = {
    PlannerId::kRing, "segments travel around the ring in rank order: 2(n-1) rounds, one flow per NIC and direction",
    defines,          check,
    leaves,           plan};

}  // namespace canarynet
