// Mesh on any connected wiring: where two ranks don't meet, the message between them goes over the ranks of a shortest
// way, each of which keeps it in scratch until the next one has it. Pairs that meet do as in the mesh, and sums have
// the mesh's order.
//
// All ranks walk the same list of messages and do their part of each: send, pass on, or take. So both ends of a link
// see its messages in one order, and the whole plan would be right if each message ended before the next one began,
// which is why it has no deadlock. Among shortest ways each pair takes the one whose ranks relay least so far.
#include <algorithm>
#include <vector>

#include "collectives/plan_builder.h"

namespace canarynet {
namespace {

// Every rank plans the ways of all pairs.
constexpr int kRelayedRanksMax = 256;

// A rank that passes on a block must know its length, which all-to-all-v does not tell it.
bool defines(Collective collective, int) { return collective != Collective::kAllToAllV; }

class Ways {
 public:
  explicit Ways(const Reachability& reach)
      : n_(reach.ranks()), ways_(static_cast<std::size_t>(n_) * static_cast<std::size_t>(n_)), load_(size(n_)) {
    neighbours_.resize(size(n_));
    for (int a = 0; a < n_; ++a) {
      for (int b = 0; b < n_; ++b) {
        if (a != b && reach.meets(a, b)) neighbours_[size(a)].push_back(b);
      }
    }
    for (int target = 0; target < n_; ++target) find_hops(target);
    // Near pairs first would let the same relay win again and again; in this order targets alternate.
    for (int by = 1; by < n_; ++by) {
      for (int source = 0; source < n_; ++source) choose(source, (source + by) % n_);
    }
  }

  // From source to target, both included; empty if there is no way.
  const std::vector<int>& of(int source, int target) const { return ways_[index(source, target)]; }

 private:
  static std::size_t size(int i) { return static_cast<std::size_t>(i); }
  std::size_t index(int a, int b) const { return size(a) * size(n_) + size(b); }

  // Hops from every rank to the target.
  void find_hops(int target) {
    std::vector<int> hops(size(n_), -1), reached = {target};
    hops[size(target)] = 0;
    for (std::size_t i = 0; i < reached.size(); ++i) {
      for (const int b : neighbours_[size(reached[i])]) {
        if (hops[size(b)] >= 0) continue;
        hops[size(b)] = hops[size(reached[i])] + 1;
        reached.push_back(b);
      }
    }
    hops_.push_back(std::move(hops));
  }

  void choose(int source, int target) {
    const std::vector<int>& hops = hops_[size(target)];
    if (hops[size(source)] < 0) return;
    std::vector<int>& way = ways_[index(source, target)];
    for (int at = source; at != target;) {
      way.push_back(at);
      int best = -1;
      for (const int b : neighbours_[size(at)]) {
        if (hops[size(b)] == hops[size(at)] - 1 && (best < 0 || load_[size(b)] < load_[size(best)])) best = b;
      }
      at = best;
      if (at != target) ++load_[size(at)];
    }
    way.push_back(target);
  }

  int n_;
  std::vector<std::vector<int>> neighbours_, hops_;  // hops_: [target][rank], -1: no way
  std::vector<std::vector<int>> ways_;
  std::vector<int> load_;  // messages that each rank relays
};

Status check(const PlanRequest& request) {
  if (Status status = check_request(kMeshRelayPlanner, request); !status.ok()) return status;
  if (request.ranks > kRelayedRanksMax) {
    return {CANARY_LIMIT, "mesh_relay takes at most " + std::to_string(kRelayedRanksMax) + " ranks, not " +
                              std::to_string(request.ranks)};
  }
  const Ways ways(*request.reach);
  for (int a = 1; a < request.ranks; ++a) {
    if (!ways.of(0, a).empty()) continue;
    return {CANARY_UNREACHABLE,
            "mesh_relay needs a way from rank 0 to rank " + std::to_string(a) + ", but no ranks between join them"};
  }
  return {};
}

std::uint32_t leaf_count_of(const PlanRequest& request) {
  if (request.ranks == 1 || request.collective == Collective::kBarrier) return 1;
  const auto n = static_cast<std::uint32_t>(request.ranks);
  return is_pairwise(request.collective) ? n * n : request.collective == Collective::kBroadcast ? n - 1 : n;
}

void leaves(const PlanRequest& request, std::vector<std::uint64_t>* out) { kMeshPlanner.leaves(request, out); }

class MeshRelay {
 public:
  MeshRelay(const PlanRequest& request, int rank, Plan* out)
      : n_(request.ranks), rank_(rank), ways_(*request.reach), build_(out, n_, leaf_count_of(request)) {}

  void copy(Run run) { build_.copy(run, Buffer::kInput, Buffer::kOutput, false); }

  // Rank r adds its own, r+1's, r+2's, … (mod n) to leaf r.
  void reduce_scatter(Buffer sums) {
    for (int j = 1; j < n_; ++j, next_round()) {
      for (int source = 0; source < n_; ++source) {
        const int target = at(source - j);
        each_hop(source, target, leaf(target), Buffer::kInput, [&](const Hop& last) {
          build_.receive_reduce(last, j == 1 ? Buffer::kInput : sums, sums, j == n_ - 1);
        });
      }
    }
  }

  // The ranks first, first + 1, … (m of them, mod n) hand around leaves 0, 1, …; all of them is rank r's leaf r.
  void all_gather(int first, int m, Buffer own) {
    for (int j = 1; j < m; ++j, next_round()) {
      for (int i = 0; i < m; ++i) {
        const int target = at(first + (i + m - j) % m);
        each_hop(at(first + i), target, leaf(i), own, [&](const Hop& last) { build_.receive(last, Buffer::kOutput); });
      }
    }
  }

  void broadcast(int root) {
    if (rank_ == root) copy({0, static_cast<std::uint32_t>(n_ - 1)});
    for (int i = 0; i < n_ - 1; ++i, next_round()) {
      each_hop(root, at(root + 1 + i), leaf(i), Buffer::kInput,
               [&](const Hop& last) { build_.receive(last, Buffer::kOutput); });
    }
    all_gather(root + 1, n_ - 1, Buffer::kOutput);
  }

  void gather(int root, Buffer own) {
    for (int j = 1; j < n_; ++j, next_round()) {
      const int source = at(root + j);
      each_hop(source, root, leaf(source), own, [&](const Hop& last) { build_.receive(last, Buffer::kOutput); });
    }
  }

  void scatter(int root) {
    for (int j = 1; j < n_; ++j, next_round()) {
      const int target = at(root + j);
      each_hop(root, target, leaf(target), Buffer::kInput,
               [&](const Hop& last) { build_.receive(last, Buffer::kOutput); });
    }
  }

  void all_to_all() {
    copy(leaf(rank_ * n_ + rank_));
    for (int j = 1; j < n_; ++j, next_round()) {
      for (int source = 0; source < n_; ++source) {
        const int target = at(source + j);
        each_hop(source, target, leaf(source * n_ + target), Buffer::kInput,
                 [&](const Hop& last) { build_.receive(last, Buffer::kOutput); });
      }
    }
  }

  // Up the tree of shortest ways to rank 0 and back down; a relay's byte would be lost among its neighbours' otherwise.
  void barrier() {
    std::vector<int> by_depth;
    for (int r = 1; r < n_; ++r) by_depth.push_back(r);
    const auto depth = [&](int r) { return ways_.of(r, 0).size(); };
    std::stable_sort(by_depth.begin(), by_depth.end(), [&](int a, int b) { return depth(a) < depth(b); });
    const auto deepest = static_cast<int>(depth(by_depth.back()));
    for (auto r = by_depth.rbegin(); r != by_depth.rend(); ++r) {
      const int parent = ways_.of(*r, 0)[1], round = deepest - static_cast<int>(depth(*r));
      if (rank_ == *r) build_.send({.peer = parent, .round = round, .run = {0, 1}}, Buffer::kScratch);
      if (rank_ == parent)
        build_.receive_reduce({.peer = *r, .round = round, .run = {0, 1}}, Buffer::kScratch, Buffer::kScratch, false);
    }
    for (const int r : by_depth) {
      const int parent = ways_.of(r, 0)[1], round = deepest - 3 + static_cast<int>(depth(r));
      if (rank_ == parent) build_.send({.peer = r, .round = round, .run = {0, 1}}, Buffer::kScratch);
      if (rank_ == r) build_.receive({.peer = parent, .round = round, .run = {0, 1}}, Buffer::kScratch);
    }
  }

 private:
  int at(int i) const { return ((i % n_) + n_) % n_; }
  static Run leaf(int i) { return {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i) + 1}; }

  // This rank's part of one message: `take` is called at the target.
  template <typename Take>
  void each_hop(int source, int target, Run run, Buffer src, Take take) {
    const std::vector<int>& way = ways_.of(source, target);
    longest_ = std::max(longest_, static_cast<int>(way.size()) - 1);
    for (std::size_t i = 0; i < way.size(); ++i) {
      if (way[i] != rank_) continue;
      const int round = round_ + static_cast<int>(i);
      if (i > 0) {
        const Hop from = {.peer = way[i - 1], .round = round - 1, .run = run};
        if (rank_ == target) {
          take(from);
        } else {
          build_.receive(from, Buffer::kScratch);
        }
      }
      if (rank_ != target)
        build_.send({.peer = way[i + 1], .round = round, .run = run}, i == 0 ? src : Buffer::kScratch);
    }
  }
  // Messages of one round take as many hops as the longest of them.
  void next_round() {
    round_ += longest_;
    longest_ = 1;
  }

  const int n_, rank_;
  const Ways ways_;
  PlanBuilder build_;
  int round_ = 0, longest_ = 1;
};

void plan(const PlanRequest& request, int rank, Plan* out) {
  const int n = request.ranks, root = request.root;
  if (n == 1) return plan_alone(request, 1, out);
  MeshRelay mesh(request, rank, out);
  const auto own = static_cast<std::uint32_t>(rank);
  switch (request.collective) {
    case Collective::kAllReduce:
      mesh.reduce_scatter(Buffer::kOutput);
      mesh.all_gather(0, n, Buffer::kOutput);
      break;
    case Collective::kReduceScatter:
      mesh.reduce_scatter(Buffer::kOutput);
      break;
    case Collective::kAllGather:
    case Collective::kAllGatherV:
      mesh.copy({own, own + 1});
      mesh.all_gather(0, n, Buffer::kInput);
      break;
    case Collective::kBroadcast:
      mesh.broadcast(root);
      break;
    case Collective::kBarrier:
      mesh.barrier();
      break;
    case Collective::kReduce:
      mesh.reduce_scatter(rank == root ? Buffer::kOutput : Buffer::kScratch);
      mesh.gather(root, Buffer::kScratch);
      break;
    case Collective::kGather:
      if (rank == root) mesh.copy({own, own + 1});
      mesh.gather(root, Buffer::kInput);
      break;
    case Collective::kScatter:
      if (rank == root) mesh.copy({own, own + 1});
      mesh.scatter(root);
      break;
    case Collective::kAllToAll:
      mesh.all_to_all();
      break;
    case Collective::kAllToAllV:
      break;  // check() refuses it
  }
}

}  // namespace

constinit const Planner kMeshRelayPlanner = {
    PlannerId::kMeshRelay,
    "the mesh on any connected wiring: pairs that do not meet exchange over ranks between them",
    defines,
    check,
    leaves,
    plan};

}  // namespace canarynet
