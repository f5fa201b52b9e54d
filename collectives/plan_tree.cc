// Binomial tree, for small operations: lg n message times up and lg n down. Double binary tree, for large ones: every
// rank is a leaf of one tree and an inner node of the other (but one rank where n is odd), each tree carries half of
// the buffer, and pieces pipeline through both, so that a NIC sends and receives M bytes each way whatever n is
// (Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009). Gather and
// scatter: the binomial tree from the root, each edge with the blocks of the subtree below.
//
// Children are added in the order in which they can be ready, own contribution first: the order is fixed.
#include <algorithm>
#include <span>
#include <vector>

#include "collectives/plan_builder.h"

namespace canarynet {
namespace {

// --- shapes ----------------------------------------------------------------------------------------------------------

// Positions 0 … n-1; the root has parent -1.
using Parents = std::vector<int>;

Parents binomial(int n) {
  Parents parents(n, -1);
  for (int v = 1; v < n; ++v) parents[v] = v & (v - 1);
  return parents;
}

// A binary tree in which odd positions are leaves: position 0 hangs above the highest power of two.
int binary_parent(int n, int v) {
  if (v == 0) return -1;
  const int bit = v & -v;
  const int up = (v ^ bit) | (bit << 1);
  return up < n ? up : v ^ bit;
}

// `second` mirrors the positions (n even) or moves them by one (n odd), so that leaves of the first tree become inner
// nodes.
Parents binary(int n, bool second) {
  const auto there = [n](int v) { return n % 2 == 0 ? n - 1 - v : (v + n - 1) % n; };
  const auto back = [n](int v) { return n % 2 == 0 ? n - 1 - v : (v + 1) % n; };
  Parents parents(n);
  for (int v = 0; v < n; ++v) {
    const int parent = binary_parent(n, second ? there(v) : v);
    parents[v] = second && parent >= 0 ? back(parent) : parent;
  }
  return parents;
}

// A tree with the message times of its edges, one message at a time per rank and direction. Every rank's plan makes its
// own, so it takes a few linear passes and no allocation per position.
struct Tree {
  explicit Tree(Parents given)
      : parent(std::move(given)),
        up_round(parent.size()),
        down_round(parent.size(), -1),
        ready(parent.size()),
        first_child(parent.size() + 1),
        child(parent.size()) {
    const int n = static_cast<int>(parent.size());
    for (int v = 0; v < n; ++v) {
      if (parent[v] < 0) {
        root = v;
      } else {
        ++first_child[parent[v] + 1];
      }
    }
    for (int v = 0; v < n; ++v) first_child[v + 1] += first_child[v];
    std::vector<int> next(first_child.begin(), first_child.end() - 1);
    for (int v = 0; v < n; ++v) {
      if (parent[v] >= 0) child[next[parent[v]]++] = v;
    }
    std::vector<int> order = {root};  // parents before children
    order.reserve(parent.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::span<int> below = children(order[i]);
      order.insert(order.end(), below.begin(), below.end());
    }
    for (auto at = order.rbegin(); at != order.rend(); ++at) {
      const std::span<int> below = children(*at);
      std::sort(below.begin(), below.end(),
                [&](int a, int b) { return ready[a] != ready[b] ? ready[a] < ready[b] : a < b; });
      for (const int v : below) {
        up_round[v] = std::max(ready[*at], ready[v]);
        ready[*at] = up_round[v] + 1;
      }
    }
    for (const int v : order) {
      const std::span<int> below = children(v);
      int round = down_round[v];
      for (auto deepest = below.rbegin(); deepest != below.rend(); ++deepest) down_round[*deepest] = ++round;
    }
  }

  // First ready first; broadcast serves them in reverse: the deepest has most to do.
  std::span<int> children(int v) {
    return std::span(child).subspan(first_child[v], first_child[v + 1] - first_child[v]);
  }
  std::span<const int> children(int v) const {
    return std::span(child).subspan(first_child[v], first_child[v + 1] - first_child[v]);
  }

  int root = 0;
  Parents parent;
  std::vector<int> up_round;            // of the message to the parent
  std::vector<int> down_round;          // of the message from it, from 0
  std::vector<int> ready;               // when a subtree's sum is complete: rounds
  std::vector<int> first_child, child;  // those of a position follow each other in `child`
};

// The steps that rank `first + position` (mod n) of a group makes in a tree.
class Walk {
 public:
  Walk(PlanBuilder& build, Tree tree, int n, int first, int rank)
      : build_(build), tree_(std::move(tree)), n_(n), first_(first), me_((rank - first + n) % n) {}

  bool is_root() const { return me_ == tree_.root; }
  int rank_of_root() const { return rank_of(tree_.root); }
  int rounds_up() const { return tree_.ready[tree_.root]; }

  // Sums live in `partial`, where the root's ends too. `finish`: the root's last sum is the result.
  void reduce(Run run, Buffer own, Buffer partial, bool finish) {
    Buffer held = own;
    const std::span<const int> children = tree_.children(me_);
    for (std::size_t i = 0; i < children.size(); ++i) {
      const bool last = is_root() && i + 1 == children.size();
      build_.receive_reduce({.peer = rank_of(children[i]), .round = tree_.up_round[children[i]], .run = run}, held,
                            partial, finish && last);
      held = partial;
    }
    if (!is_root()) build_.send({.peer = rank_of(tree_.parent[me_]), .round = tree_.up_round[me_], .run = run}, held);
  }

  // Leaf i is rank i's block. A rank sends its own up at once, those of the subtree as they come.
  void gather() {
    if (is_root()) build_.copy(block(me_), Buffer::kInput, Buffer::kOutput, false);
    const Buffer held = is_root() ? Buffer::kOutput : Buffer::kScratch;
    const int parent = is_root() ? -1 : rank_of(tree_.parent[me_]);
    if (parent >= 0) build_.send({.peer = parent, .round = tree_.up_round[me_], .run = block(me_)}, Buffer::kInput);
    for (const int child : tree_.children(me_)) {
      const Hop hop = {.peer = rank_of(child), .round = tree_.up_round[child], .run = block(child)};
      build_.receive(hop, held);
      each_run(child + 1, child + size_of(child),
               [&](Run run) { build_.receive({.peer = hop.peer, .round = hop.round, .run = run}, held); });
    }
    if (parent < 0) return;
    each_run(me_ + 1, me_ + size_of(me_),
             [&](Run run) { build_.send({.peer = parent, .round = tree_.up_round[me_], .run = run}, held); });
  }

  void scatter() {
    const Buffer held = is_root() ? Buffer::kInput : Buffer::kScratch;
    if (is_root()) {
      build_.copy(block(me_), Buffer::kInput, Buffer::kOutput, false);
    } else {
      const Hop hop = {.peer = rank_of(tree_.parent[me_]), .round = tree_.down_round[me_], .run = block(me_)};
      each_run(me_ + 1, me_ + size_of(me_),
               [&](Run run) { build_.receive({.peer = hop.peer, .round = hop.round, .run = run}, held); });
      build_.receive(hop, Buffer::kOutput);
    }
    const std::span<const int> children = tree_.children(me_);
    for (auto child = children.rbegin(); child != children.rend(); ++child) {
      const Hop hop = {.peer = rank_of(*child), .round = tree_.down_round[*child], .run = block(*child)};
      each_run(*child + 1, *child + size_of(*child),
               [&](Run run) { build_.send({.peer = hop.peer, .round = hop.round, .run = run}, held); });
      build_.send(hop, held);
    }
  }

  // `source` is what the root sends.
  void broadcast(Run run, Buffer source, Buffer result, int first_round) {
    if (!is_root()) {
      build_.receive({.peer = rank_of(tree_.parent[me_]), .round = first_round + tree_.down_round[me_], .run = run},
                     result);
    }
    const std::span<const int> children = tree_.children(me_);
    for (auto child = children.rbegin(); child != children.rend(); ++child) {
      build_.send({.peer = rank_of(*child), .round = first_round + tree_.down_round[*child], .run = run},
                  is_root() ? source : result);
    }
  }

 private:
  int rank_of(int position) const { return (position + first_) % n_; }
  // The positions of a binomial subtree are consecutive.
  int size_of(int position) const { return std::min(position & -position, n_ - position); }
  Run block(int position) const {
    const auto leaf = static_cast<std::uint32_t>(rank_of(position));
    return {leaf, leaf + 1};
  }
  // Visits the blocks of the positions [begin, end) as runs of leaves: two if the ranks wrap around.
  template <typename Visit>
  void each_run(int begin, int end, Visit visit) const {
    const int wrap = std::clamp(n_ - first_, begin, end);
    const auto run = [this](int from, int to) {
      return Run{static_cast<std::uint32_t>(rank_of(from)), static_cast<std::uint32_t>(rank_of(to - 1)) + 1};
    };
    if (begin < wrap) visit(run(begin, wrap));
    if (wrap < end) visit(run(wrap, end));
  }

  PlanBuilder& build_;
  const Tree tree_;
  const int n_, first_, me_;
};

// --- binomial --------------------------------------------------------------------------------------------------------

bool tree_defines(Collective collective, int) {
  return has_root(collective) || collective == Collective::kAllReduce || collective == Collective::kBarrier;
}

Status need_edges(PlannerId id, const PlanRequest& request, const Parents& parents, int first) {
  for (int v = 0; v < static_cast<int>(parents.size()); ++v) {
    if (parents[v] < 0) continue;
    const int a = (v + first) % request.ranks, b = (parents[v] + first) % request.ranks;
    if (Status status = need_edge(id, *request.reach, a, b); !status.ok()) return status;
  }
  return {};
}

int first_of(const PlanRequest& request) { return has_root(request.collective) ? request.root : 0; }

Status check_tree(const PlanRequest& request) {
  if (Status status = check_request(kTreePlanner, request); !status.ok()) return status;
  return need_edges(PlannerId::kTree, request, binomial(request.ranks), first_of(request));
}

// Makes one leaf, or one per block: pieces pipeline through the tree.
void tree_leaves(const PlanRequest& request, std::vector<std::uint64_t>* out) {
  if (in_blocks(request.collective)) return cut_blocks(request, out);
  *out = {0, request.total()};
}

void plan_tree(const PlanRequest& request, int rank, Plan* out) {
  const int n = request.ranks;
  const auto leaf_count = static_cast<std::uint32_t>(in_blocks(request.collective) ? n : 1);
  if (n == 1) return plan_alone(request, 1, out);
  PlanBuilder build(out, n, leaf_count);
  Walk walk(build, Tree(binomial(n)), n, first_of(request), rank);
  const Run all = {0, 1};
  switch (request.collective) {
    case Collective::kBroadcast:
      if (walk.is_root()) build.copy(all, Buffer::kInput, Buffer::kOutput, false);
      walk.broadcast(all, Buffer::kInput, Buffer::kOutput, 0);
      break;
    case Collective::kBarrier:
      walk.reduce(all, Buffer::kScratch, Buffer::kScratch, false);
      walk.broadcast(all, Buffer::kScratch, Buffer::kScratch, walk.rounds_up());
      break;
    case Collective::kReduce:
      walk.reduce(all, Buffer::kInput, walk.is_root() ? Buffer::kOutput : Buffer::kScratch, true);
      break;
    case Collective::kGather:
      walk.gather();
      break;
    case Collective::kScatter:
      walk.scatter();
      break;
    default:
      walk.reduce(all, Buffer::kInput, Buffer::kOutput, true);
      walk.broadcast(all, Buffer::kOutput, Buffer::kOutput, walk.rounds_up());
      break;
  }
}

// --- double binary tree ----------------------------------------------------------------------------------------------

bool double_tree_defines(Collective collective, int) {
  return collective == Collective::kAllReduce || collective == Collective::kBroadcast ||
         collective == Collective::kReduce;
}

// A root stands beside both trees and deals each its half, or takes it: m = n - 1 positions follow from root + 1 on.
int positions_of(const PlanRequest& request) {
  return has_root(request.collective) ? request.ranks - 1 : request.ranks;
}
int offset_of(const PlanRequest& request) { return has_root(request.collective) ? request.root + 1 : 0; }

Status check_double_tree(const PlanRequest& request) {
  if (Status status = check_request(kDoubleTreePlanner, request); !status.ok()) return status;
  if (request.ranks == 1) return {};
  for (const bool second : {false, true}) {
    const Parents parents = binary(positions_of(request), second);
    if (Status status = need_edges(PlannerId::kDoubleTree, request, parents, offset_of(request)); !status.ok())
      return status;
    if (!has_root(request.collective)) continue;
    const auto root = std::find(parents.begin(), parents.end(), -1) - parents.begin();
    const int below = (static_cast<int>(root) + offset_of(request)) % request.ranks;
    if (Status status = need_edge(PlannerId::kDoubleTree, *request.reach, request.root, below); !status.ok())
      return status;
  }
  return {};
}

void double_tree_leaves(const PlanRequest& request, std::vector<std::uint64_t>* out) {
  out->clear();
  cut_evenly(0, request.total(), 2, request.element_bytes, out);
  out->push_back(request.total());
}

void plan_double_tree(const PlanRequest& request, int rank, Plan* out) {
  const int n = request.ranks;
  if (n == 1) return plan_alone(request, 2, out);
  PlanBuilder build(out, n, 2);
  const bool broadcast = request.collective == Collective::kBroadcast;
  const bool reduce = request.collective == Collective::kReduce;
  if (broadcast && rank == request.root) build.copy({0, 2}, Buffer::kInput, Buffer::kOutput, false);
  for (const bool second : {false, true}) {
    const Run half = {second ? 1u : 0u, second ? 2u : 1u};
    Walk walk(build, Tree(binary(positions_of(request), second)), n, offset_of(request), rank);
    if (reduce && rank == request.root) {
      build.receive_reduce({.peer = walk.rank_of_root(), .round = walk.rounds_up(), .run = half}, Buffer::kInput,
                           Buffer::kOutput, true);
    } else if (reduce) {
      walk.reduce(half, Buffer::kInput, Buffer::kScratch, false);
      if (walk.is_root()) {
        // n = 2: a tree of one rank has nothing to add.
        const Buffer sums = n == 2 ? Buffer::kInput : Buffer::kScratch;
        build.send({.peer = request.root, .round = walk.rounds_up(), .run = half}, sums);
      }
    } else if (!broadcast) {
      walk.reduce(half, Buffer::kInput, Buffer::kOutput, true);
      walk.broadcast(half, Buffer::kOutput, Buffer::kOutput, walk.rounds_up());
    } else if (rank == request.root) {
      build.send({.peer = walk.rank_of_root(), .round = 0, .run = half}, Buffer::kInput);
    } else {
      if (walk.is_root()) build.receive({.peer = request.root, .round = 0, .run = half}, Buffer::kOutput);
      walk.broadcast(half, Buffer::kOutput, Buffer::kOutput, 1);
    }
  }
}

}  // namespace

constinit const Planner kTreePlanner = {
    PlannerId::kTree, "binomial tree: up to a root and back, 2 lg n message times; every edge carries the whole buffer",
    tree_defines,     check_tree,
    tree_leaves,      plan_tree};

constinit const Planner kDoubleTreePlanner = {
    PlannerId::kDoubleTree,
    "double binary tree: two trees of half the buffer each, leaf of one is inner node of the other; pipelined",
    double_tree_defines,
    check_double_tree,
    double_tree_leaves,
    plan_double_tree};

}  // namespace canarynet
