// Mesh (Canary, fig. 14): piece k of every rank goes straight to rank k, which reduces; rank k sends the result to all.
// The owner r reduces own, then r+1, r+2, … (mod n); rank q therefore sends to q-1 first, then q-2, …: in each round
// every rank sends to one rank and receives from one, and an owner receives first the piece that it must add first.
#include "collectives/plan_builder.h"

namespace canarynet {
namespace {

bool defines(Collective, int) { return true; }

// The centre of the star if the mesh is one, else -1.
int centre_of(const PlanRequest& request) {
  switch (request.collective) {
    case Collective::kBarrier:
      return 0;
    case Collective::kGather:
    case Collective::kScatter:
      return request.root;
    default:
      return -1;
  }
}

Status check(const PlanRequest& request) {
  if (Status status = check_request(kMeshPlanner, request); !status.ok()) return status;
  for (int a = 0; a < request.ranks; ++a) {
    for (int b = a + 1; b < request.ranks; ++b) {
      if (const int centre = centre_of(request); centre >= 0 && a != centre && b != centre) continue;
      if (Status status = need_edge(PlannerId::kMesh, *request.reach, a, b); !status.ok()) return status;
    }
  }
  return {};
}

std::uint32_t leaf_count_of(const PlanRequest& request) {
  if (request.ranks == 1 || request.collective == Collective::kBarrier) return 1;
  const auto n = static_cast<std::uint32_t>(request.ranks);
  return request.collective == Collective::kBroadcast ? n - 1 : n;
}

void leaves(const PlanRequest& request, std::vector<std::uint64_t>* out) {
  out->clear();
  if (is_pairwise(request.collective)) return cut_pairs(request, out);
  if (in_blocks(request.collective)) return cut_blocks(request, out);
  cut_evenly(0, request.total(), static_cast<int>(leaf_count_of(request)), request.element_bytes, out);
  out->push_back(request.total());
}

class Mesh {
 public:
  Mesh(const PlanRequest& request, int rank, Plan* out)
      : n_(request.ranks), rank_(rank), build_(out, n_, leaf_count_of(request)) {}

  // `sums` is kOutput if the owner has one; only the owner writes there, so partial sums can live in it at once.
  void reduce_scatter(Buffer sums) {
    for (int j = 1; j < n_; ++j)
      build_.send({.peer = at(rank_ - j), .round = j - 1, .run = leaf(at(rank_ - j))}, Buffer::kInput);
    for (int j = 1; j < n_; ++j) {
      build_.receive_reduce({.peer = at(rank_ + j), .round = j - 1, .run = leaf(rank_)}, j == 1 ? Buffer::kInput : sums,
                            sums, j == n_ - 1);
    }
  }

  void all_gather(int first_round, Buffer own) {
    for (int j = 1; j < n_; ++j)
      build_.send({.peer = at(rank_ - j), .round = first_round + j - 1, .run = leaf(rank_)}, own);
    for (int j = 1; j < n_; ++j) {
      build_.receive({.peer = at(rank_ + j), .round = first_round + j - 1, .run = leaf(at(rank_ + j))},
                     Buffer::kOutput);
    }
  }

  void copy_own() { build_.copy(leaf(rank_), Buffer::kInput, Buffer::kOutput, false); }

  // The root deals the n-1 leaves to the others, who pass theirs to each other. So the root sends M bytes once, where a
  // star from the root would send (n-1)M. Rank root+1+i holds leaf i.
  void broadcast(int root) {
    if (rank_ == root) {
      build_.copy({0, static_cast<std::uint32_t>(n_ - 1)}, Buffer::kInput, Buffer::kOutput, false);
      for (int i = 0; i < n_ - 1; ++i)
        build_.send({.peer = at(root + 1 + i), .round = i, .run = leaf(i)}, Buffer::kInput);
      return;
    }
    const int m = n_ - 1;  // ranks in the all-gather
    const int me = at(rank_ - root - 1);
    build_.receive({.peer = root, .round = me, .run = leaf(me)}, Buffer::kOutput);
    for (int j = 1; j < m; ++j) {
      const int to = (me + m - j) % m;
      build_.send({.peer = at(root + 1 + to), .round = m + j - 1, .run = leaf(me)}, Buffer::kOutput);
    }
    for (int j = 1; j < m; ++j) {
      const int from = (me + j) % m;
      build_.receive({.peer = at(root + 1 + from), .round = m + j - 1, .run = leaf(from)}, Buffer::kOutput);
    }
  }

  // Owners add as in all-reduce and send their sums to the root, which thus receives 2(1-1/n)M where a star would bring
  // it (n-1)M.
  void reduce(int root) {
    const Buffer sums = rank_ == root ? Buffer::kOutput : Buffer::kScratch;
    reduce_scatter(sums);
    gather(root, n_ - 1, sums);
  }

  // `own` is where the rank reads its own leaf from. The root has its own in place already.
  void gather(int root, int first_round, Buffer own) {
    if (rank_ != root) {
      build_.send({.peer = root, .round = first_round + at(rank_ - root) - 1, .run = leaf(rank_)}, own);
      return;
    }
    for (int j = 1; j < n_; ++j)
      build_.receive({.peer = at(root + j), .round = first_round + j - 1, .run = leaf(at(root + j))}, Buffer::kOutput);
  }

  void scatter(int root) {
    if (rank_ != root)
      return build_.receive({.peer = root, .round = at(rank_ - root) - 1, .run = leaf(rank_)}, Buffer::kOutput);
    copy_own();
    for (int j = 1; j < n_; ++j)
      build_.send({.peer = at(root + j), .round = j - 1, .run = leaf(at(root + j))}, Buffer::kInput);
  }

  // A star around rank 0: 2(n-1) messages; telling every rank directly would take n(n-1).
  void barrier() {
    if (rank_ != 0) {
      build_.send({.peer = 0, .round = 0, .run = {0, 1}}, Buffer::kScratch);
      build_.receive({.peer = 0, .round = 1, .run = {0, 1}}, Buffer::kScratch);
      return;
    }
    for (int a = 1; a < n_; ++a)
      build_.receive_reduce({.peer = a, .round = 0, .run = {0, 1}}, Buffer::kScratch, Buffer::kScratch, false);
    for (int a = 1; a < n_; ++a) build_.send({.peer = a, .round = 1, .run = {0, 1}}, Buffer::kScratch);
  }

 private:
  int at(int i) const { return ((i % n_) + n_) % n_; }
  static Run leaf(int i) { return {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i) + 1}; }

  int n_, rank_;
  PlanBuilder build_;
};

// Every block goes straight to its target; in each round every rank sends to one rank and receives from one. Nothing is
// read that was written, so no step waits for another. The leaves are those of all pairs: no table of them is made.
void plan_pairs(int n, int rank, Plan* out) {
  const auto message = [&](StepKind kind, int source, int target, int round) {
    Step step{.kind = kind, .src = Buffer::kInput, .dst = Buffer::kOutput};
    step.round = static_cast<std::uint16_t>(round);
    step.peer = kind == StepKind::kCopy ? -1 : kind == StepKind::kSend ? target : source;
    step.leaf_begin =
        static_cast<std::uint32_t>(source) * static_cast<std::uint32_t>(n) + static_cast<std::uint32_t>(target);
    step.leaf_end = step.leaf_begin + 1;
    out->add(step);
  };
  message(StepKind::kCopy, rank, rank, 0);
  for (int j = 1; j < n; ++j) {
    message(StepKind::kSend, rank, (rank + j) % n, j - 1);
    message(StepKind::kReceive, (rank + n - j) % n, rank, j - 1);
  }
}

void plan(const PlanRequest& request, int rank, Plan* out) {
  const int n = request.ranks;
  if (is_pairwise(request.collective)) return plan_pairs(n, rank, out);
  if (n == 1) return plan_alone(request, leaf_count_of(request), out);
  Mesh mesh(request, rank, out);
  switch (request.collective) {
    case Collective::kAllReduce:
      mesh.reduce_scatter(Buffer::kOutput);
      mesh.all_gather(n - 1, Buffer::kOutput);
      break;
    case Collective::kReduceScatter:
      mesh.reduce_scatter(Buffer::kOutput);
      break;
    case Collective::kAllGather:
    case Collective::kAllGatherV:
      mesh.copy_own();
      mesh.all_gather(0, Buffer::kInput);
      break;
    case Collective::kBroadcast:
      mesh.broadcast(request.root);
      break;
    case Collective::kBarrier:
      mesh.barrier();
      break;
    case Collective::kReduce:
      mesh.reduce(request.root);
      break;
    case Collective::kGather:
      if (rank == request.root) mesh.copy_own();
      mesh.gather(request.root, 0, Buffer::kInput);
      break;
    case Collective::kScatter:
      mesh.scatter(request.root);
      break;
    case Collective::kAllToAll:
    case Collective::kAllToAllV:
      break;  // handled above
  }
}

Symmetry symmetry(const PlanRequest& request) {
  const bool around = !has_root(request.collective) && request.collective != Collective::kBarrier;
  return {.cell = around ? 1 : 0};
}

}  // namespace

constinit const Planner kMeshPlanner = {
    PlannerId::kMesh, "each piece goes straight to its owner and from there to all: 2 message times, needs every pair",
    defines,          check,
    leaves,           plan,
    symmetry};

}  // namespace canarynet
