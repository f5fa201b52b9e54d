// BCube(r, L) (Canary, fig. 13): rank digits d_0 … d_(L-1) in base r; rail l joins the r ranks that differ in digit l
// only. The buffer is cut in L parts; part e visits the levels e, e+1, …, e+L-1 (mod L), so at every moment each rail
// carries another part and each rail moves (2/L)(1-1/n)M bytes in all. Walking all parts level by level instead would
// put 16/9 M on the busiest rail of (3,2), twice as much.
//
// After reduce-scatter step j a rank holds, of part e, the leaves whose digits at the first j+1 visited levels are its
// own: its *segment* (e, j+1). A step cuts the segment (e, j) in r, one for each mate of that level. All-gather walks
// back. Order of reduction within a level: own, then the mates upward (mod r).
#include <algorithm>
#include <bit>
#include <map>

#include "collectives/plan_builder.h"

namespace canarynet {
namespace {

// In a collective on blocks, a part is a slice of each rank's block, so a segment is many short runs.

// A rank that forwards a block must know its length, which all-to-all-v does not tell it.
bool defines(Collective collective, int) { return collective != Collective::kAllToAllV; }

// The digits of the group's ranks, and their mates.
struct Cube {
  int r = 1, levels = 0, n = 1;
  std::vector<int> stride;  // r^level

  explicit Cube(const BCubeShape& shape) : r(shape.r), levels(shape.levels) {
    for (int l = 0; l < levels; ++l) {
      stride.push_back(n);
      n *= r;
    }
  }
  int digit(int rank, int level) const { return rank / stride[level] % r; }
  // The rank whose digit at `level` is larger by `by` (mod r), the others equal.
  int mate(int rank, int level, int by) const {
    const int from = digit(rank, level);
    const int to = ((from + by) % r + r) % r;
    return rank + (to - from) * stride[level];
  }
};

// The level's own rail if it reaches the peer. Among several other rails the channel chooses.
int rail_between(const Reachability& reach, int rank, int peer, int level) {
  const std::uint32_t rails = reach.rails(rank, peer) & ~(Reachability::kLocalBit | Reachability::kHostBit);
  if ((rails >> level & 1u) != 0) return level;
  return std::has_single_bit(rails) ? std::countr_zero(rails) : -1;
}

Status check(const PlanRequest& request) {
  if (Status status = check_request(kBCubePlanner, request); !status.ok()) return status;
  const int n = request.ranks;
  if (n == 1) return {};
  const std::string ranks = std::to_string(n);
  if (request.bcube.levels <= 0 || request.bcube.r < 2) {
    return {CANARY_INVALID_ARGUMENT,
            "bcube needs n = r^L ranks on BCube wiring; no such shape is known for n = " + ranks};
  }
  std::int64_t product = 1;
  for (int l = 0; l < request.bcube.levels && product <= n; ++l) product *= request.bcube.r;
  if (product != n || request.bcube.levels > kRailsMax) {
    return {CANARY_INVALID_ARGUMENT, "bcube(" + std::to_string(request.bcube.r) + "," +
                                         std::to_string(request.bcube.levels) + ") does not fit n = " + ranks};
  }
  const Cube cube(request.bcube);
  for (int a = 0; a < n; ++a) {
    for (int l = 0; l < cube.levels; ++l) {
      for (int by = 1; by < cube.r; ++by) {
        if (Status status = need_edge(PlannerId::kBCube, *request.reach, a, cube.mate(a, l, by)); !status.ok())
          return status;
      }
    }
  }
  return {};
}

void leaves(const PlanRequest& request, std::vector<std::uint64_t>* out) {
  out->clear();
  const int n = request.ranks;
  if (is_pairwise(request.collective)) {
    return cut_pairs(request, out);
  } else if (n == 1 || request.collective == Collective::kBarrier) {
    out->push_back(0);
  } else if (in_blocks(request.collective)) {
    return cut_blocks(request, out, request.bcube.levels);
  } else {
    std::vector<std::uint64_t> parts;
    cut_evenly(0, request.total(), request.bcube.levels, request.element_bytes, &parts);
    parts.push_back(request.total());
    for (std::size_t e = 0; e + 1 < parts.size(); ++e)
      cut_evenly(parts[e], parts[e + 1] - parts[e], n, request.element_bytes, out);
  }
  out->push_back(request.total());
}

class BCube {
 public:
  BCube(const PlanRequest& request, int rank, std::uint32_t leaf_count, Plan* out)
      : cube_(request.bcube),
        reach_(*request.reach),
        rank_(rank),
        blocks_(in_blocks(request.collective)),
        build_(out, request.ranks, leaf_count) {}

  // `result` is where the rank's own segment ends.
  void reduce_scatter(Buffer partial, Buffer result) {
    for (int j = 0; j < cube_.levels; ++j) {
      const bool last = j == cube_.levels - 1;
      for (int e = 0; e < cube_.levels; ++e) {
        const int level = level_of(e, j);
        for (int by = 1; by < cube_.r; ++by) {  // downward: the mate that adds ours first gets it first
          const int to = cube_.mate(rank_, level, -by);
          for (const Run run : segment(e, j + 1, to))
            build_.send(hop(to, j, run, level), j == 0 ? Buffer::kInput : partial);
        }
        for (int by = 1; by < cube_.r; ++by) {
          const int from = cube_.mate(rank_, level, by);
          const Buffer dst = last ? result : partial;
          const Buffer src = by > 1 ? dst : j == 0 ? Buffer::kInput : partial;
          for (const Run run : segment(e, j + 1, rank_)) {
            build_.receive_reduce(hop(from, j, run, level), src, dst, last && by == cube_.r - 1);
          }
        }
      }
    }
  }

  // Step j brings `rank` what it lacks of part e iff j <= lacks_up_to(rank, e): all steps, except after the scatter of
  // a broadcast.
  template <typename LacksUpTo>
  void all_gather(int first_round, LacksUpTo lacks_up_to, Buffer src) {
    for (int j = cube_.levels - 1; j >= 0; --j) {
      const int round = first_round + cube_.levels - 1 - j;
      for (int e = 0; e < cube_.levels; ++e) {
        const int level = level_of(e, j);
        for (int by = 1; by < cube_.r; ++by) {
          const int to = cube_.mate(rank_, level, -by);
          if (lacks_up_to(to, e) < j) continue;
          for (const Run run : segment(e, j + 1, rank_)) build_.send(hop(to, round, run, level), src);
        }
        if (lacks_up_to(rank_, e) < j) continue;
        for (int by = 1; by < cube_.r; ++by) {
          const int from = cube_.mate(rank_, level, by);
          for (const Run run : segment(e, j + 1, from)) build_.receive(hop(from, round, run, level), Buffer::kOutput);
        }
      }
    }
  }
  void all_gather(int first_round) {
    all_gather(
        first_round, [this](int, int) { return cube_.levels; }, Buffer::kOutput);
  }

  void copy_own_block() {
    const auto first = static_cast<std::uint32_t>(rank_ * cube_.levels);
    build_.copy({first, first + static_cast<std::uint32_t>(cube_.levels)}, Buffer::kInput, Buffer::kOutput, false);
  }

  // Data walks from the root along the levels: at each step the ranks that have a segment send each mate of the level
  // its share. `place` tells where a run is held.
  template <typename Place>
  void deal(int root, Place place) {
    for (int j = 0; j < cube_.levels; ++j) {
      for (int e = 0; e < cube_.levels; ++e) {
        const int level = level_of(e, j);
        const int reached = reached_at(rank_, root, e);
        if (reached < j) {
          for (int by = 1; by < cube_.r; ++by) {
            const int to = cube_.mate(rank_, level, -by);
            for (const Run run : segment(e, j + 1, to)) build_.send(hop(to, j, run, level), place(run));
          }
        } else if (reached == j) {
          const int from = cube_.mate(rank_, level, cube_.digit(root, level) - cube_.digit(rank_, level));
          for (const Run run : segment(e, j + 1, rank_)) build_.receive(hop(from, j, run, level), place(run));
        }
      }
    }
  }
  // Data walks back to the root.
  template <typename Place>
  void collect(int root, int first_round, Place place) {
    for (int j = cube_.levels - 1; j >= 0; --j) {
      const int round = first_round + cube_.levels - 1 - j;
      for (int e = 0; e < cube_.levels; ++e) {
        const int level = level_of(e, j);
        const int reached = reached_at(rank_, root, e);
        if (reached < j) {
          for (int by = 1; by < cube_.r; ++by) {
            const int from = cube_.mate(rank_, level, by);
            for (const Run run : segment(e, j + 1, from)) build_.receive(hop(from, round, run, level), place(run));
          }
        } else if (reached == j) {
          const int to = cube_.mate(rank_, level, cube_.digit(root, level) - cube_.digit(rank_, level));
          for (const Run run : segment(e, j + 1, rank_)) build_.send(hop(to, round, run, level), place(run));
        }
      }
    }
  }

  void reduce(int root) {
    const Buffer sums = rank_ == root ? Buffer::kOutput : Buffer::kScratch;
    reduce_scatter(sums, sums);
    collect(root, cube_.levels, [sums](Run) { return sums; });
  }
  void gather(int root) {
    if (rank_ == root) copy_own_block();
    collect(root, 0, [&](Run run) {
      return rank_ == root ? Buffer::kOutput : is_own(run) ? Buffer::kInput : Buffer::kScratch;
    });
  }
  void scatter(int root) {
    if (rank_ == root) copy_own_block();
    deal(root, [&](Run run) {
      return rank_ == root ? Buffer::kInput : is_own(run) ? Buffer::kOutput : Buffer::kScratch;
    });
  }

  // Scatter along the levels, then all-gather back, skipping what a rank holds from the scatter: (2/L)(1-1/n)M on the
  // root's rails, where forwarding whole parts from mate to mate would put (r-1)M on each.
  void broadcast(int root) {
    const Buffer src = rank_ == root ? Buffer::kInput : Buffer::kOutput;
    const auto n = static_cast<std::uint32_t>(cube_.n);
    if (rank_ == root)
      build_.copy({0, n * static_cast<std::uint32_t>(cube_.levels)}, Buffer::kInput, Buffer::kOutput, false);
    deal(root, [src](Run) { return src; });
    all_gather(
        cube_.levels, [this, root](int rank, int e) { return reached_at(rank, root, e); }, src);
  }

  // Each cube reports to its mate of digit 0, level by level, up to rank 0; the answer walks back.
  void barrier() {
    const Run all = {0, 1};
    int top = 0;  // levels below: this rank collects; at `top` it reports
    for (; top < cube_.levels && cube_.digit(rank_, top) == 0; ++top) {
      for (int by = 1; by < cube_.r; ++by) {
        build_.receive_reduce(hop(cube_.mate(rank_, top, by), top, all, top), Buffer::kScratch, Buffer::kScratch,
                              false);
      }
    }
    if (top < cube_.levels) {
      const int head = cube_.mate(rank_, top, -cube_.digit(rank_, top));
      build_.send(hop(head, top, all, top), Buffer::kScratch);
      build_.receive(hop(head, 2 * cube_.levels - 1 - top, all, top), Buffer::kScratch);
    }
    for (int l = top - 1; l >= 0; --l) {
      for (int by = 1; by < cube_.r; ++by) {
        build_.send(hop(cube_.mate(rank_, l, by), 2 * cube_.levels - 1 - l, all, l), Buffer::kScratch);
      }
    }
  }

 private:
  // In a collective on blocks, a run is a slice of one block.
  bool is_own(Run run) const {
    return run.begin / static_cast<std::uint32_t>(cube_.levels) == static_cast<std::uint32_t>(rank_);
  }
  int level_of(int part, int step) const { return (part + step) % cube_.levels; }

  // The step at which a broadcast from `root` first reaches the rank with part e: the last one at whose level their
  // digits differ. -1 for the root.
  int reached_at(int rank, int root, int e) const {
    int last = -1;
    for (int j = 0; j < cube_.levels; ++j) {
      const int level = level_of(e, j);
      if (cube_.digit(rank, level) != cube_.digit(root, level)) last = j;
    }
    return last;
  }

  // Leaves of part e whose digits at its first `steps` levels are those of `rank`. Valid until the next call.
  const std::vector<Run>& segment(int e, int steps, int rank) {
    segment_.clear();
    if (!blocks_) {
      // Leaf order within a part: the digit of the level visited first is the most significant.
      int first = e * cube_.n, length = cube_.n;
      for (int j = 0; j < steps; ++j) {
        length /= cube_.r;
        first += cube_.digit(rank, level_of(e, j)) * length;
      }
      segment_.push_back({static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(first + length)});
      return segment_;
    }
    segment_blocks_.assign(1, 0);
    for (int l = cube_.levels - 1; l >= 0; --l) {
      const bool fixed = (l - e + cube_.levels) % cube_.levels < steps;
      const int from = fixed ? cube_.digit(rank, l) : 0;
      const int to = fixed ? from : cube_.r - 1;
      next_blocks_.clear();
      for (const int block : segment_blocks_) {
        for (int d = from; d <= to; ++d) next_blocks_.push_back(block + d * cube_.stride[l]);
      }
      segment_blocks_.swap(next_blocks_);
    }
    for (const int block : segment_blocks_) {
      const auto leaf = static_cast<std::uint32_t>(block * cube_.levels + e);
      segment_.push_back({leaf, leaf + 1});
    }
    return segment_;
  }

  Hop hop(int peer, int round, Run run, int level) const {
    return {.peer = peer, .round = round, .run = run, .rail = rail_to(peer, level)};
  }

  int rail_to(int peer, int level) const { return rail_between(reach_, rank_, peer, level); }

  const Cube cube_;
  const Reachability& reach_;
  const int rank_;
  const bool blocks_;
  PlanBuilder build_;
  std::vector<Run> segment_;
  std::vector<int> segment_blocks_, next_blocks_;
};

// All-to-all: a block takes a hop at each level at which its source's and its target's digits differ. The difference
// alone decides which level comes first, so all ranks do the same at any time, and each rail of each rank carries
// (1-1/r)M in all.
class Exchange {
 public:
  Exchange(const PlanRequest& request, int rank, Plan* out)
      : cube_(request.bcube), reach_(*request.reach), rank_(rank), plan_(out) {}

  void run() {
    for (int difference = 0; difference < cube_.n; ++difference) find_hops(difference);
    // Both ends sort alike, so that they see a message at the same place among those between the two.
    std::sort(hops_.begin(), hops_.end(), [](const Visit& a, const Visit& b) {
      return a.round != b.round ? a.round < b.round : a.leaf != b.leaf ? a.leaf < b.leaf : a.arrives > b.arrives;
    });
    const auto own = static_cast<std::uint32_t>(rank_ * cube_.n + rank_);
    plan_->add({.kind = StepKind::kCopy, .leaf_begin = own, .leaf_end = own + 1});
    std::vector<std::uint16_t> send_tag(static_cast<std::size_t>(cube_.n)), receive_tag(send_tag);
    std::map<std::uint32_t, std::uint32_t> arrival;  // leaf → step
    for (const Visit& v : hops_) {
      Step step{.kind = v.arrives ? StepKind::kReceive : StepKind::kSend};
      step.dst = v.ends ? Buffer::kOutput : Buffer::kScratch;
      step.src = v.ends ? Buffer::kInput : Buffer::kScratch;
      step.peer = v.peer;
      step.tag = (v.arrives ? receive_tag : send_tag)[static_cast<std::size_t>(v.peer)]++;
      step.round = static_cast<std::uint16_t>(v.round);
      step.rail = static_cast<std::int16_t>(rail_between(reach_, rank_, v.peer, v.level));
      step.leaf_begin = v.leaf;
      step.leaf_end = v.leaf + 1;
      if (v.arrives) {
        arrival[v.leaf] = plan_->add(step);
      } else if (v.ends) {
        plan_->add(step);
      } else {
        const std::uint32_t before = arrival.at(v.leaf);
        plan_->add(step, std::span(&before, 1));
      }
    }
  }

 private:
  struct Visit {
    int round, level, peer;
    std::uint32_t leaf;
    bool arrives;  // else leaves
    bool ends;     // at its target, or begins at its source
  };

  // Finds the hops into and out of this rank of all blocks whose target's digits are their source's plus those of
  // `difference`.
  void find_hops(int difference) {
    int digits = 0;
    for (int l = 0; l < cube_.levels; ++l) digits += cube_.digit(difference, l);
    const int first = digits % cube_.levels;
    int source = rank_;  // of the block that is here before the hop of round j
    for (int j = 0; j < cube_.levels; ++j) {
      const int level = (first + j) % cube_.levels, by = cube_.digit(difference, level);
      if (by == 0) continue;
      add({j, level, cube_.mate(rank_, level, by), leaf_of(source, difference), false, source == rank_});
      source = cube_.mate(source, level, -by);
      const std::uint32_t leaf = leaf_of(source, difference);
      const bool ends = leaf % static_cast<std::uint32_t>(cube_.n) == static_cast<std::uint32_t>(rank_);
      add({j, level, cube_.mate(rank_, level, -by), leaf, true, ends});
    }
  }
  void add(const Visit& visit) { hops_.push_back(visit); }
  std::uint32_t leaf_of(int source, int difference) const {
    int target = source;
    for (int l = 0; l < cube_.levels; ++l) target = cube_.mate(target, l, cube_.digit(difference, l));
    return static_cast<std::uint32_t>(source) * static_cast<std::uint32_t>(cube_.n) +
           static_cast<std::uint32_t>(target);
  }

  const Cube cube_;
  const Reachability& reach_;
  const int rank_;
  Plan* plan_;
  std::vector<Visit> hops_;
};

void plan(const PlanRequest& request, int rank, Plan* out) {
  if (request.ranks == 1) return plan_alone(request, 1, out);
  if (is_pairwise(request.collective)) return Exchange(request, rank, out).run();
  const int levels = request.bcube.levels;
  const int leaf_count = request.collective == Collective::kBarrier ? 1 : request.ranks * levels;
  BCube bcube(request, rank, static_cast<std::uint32_t>(leaf_count), out);
  switch (request.collective) {
    case Collective::kAllReduce:
      bcube.reduce_scatter(Buffer::kOutput, Buffer::kOutput);
      bcube.all_gather(levels);
      break;
    case Collective::kReduceScatter:
      bcube.reduce_scatter(Buffer::kScratch, Buffer::kOutput);
      break;
    case Collective::kAllGather:
    case Collective::kAllGatherV:
      bcube.copy_own_block();
      bcube.all_gather(0);
      break;
    case Collective::kBroadcast:
      bcube.broadcast(request.root);
      break;
    case Collective::kBarrier:
      bcube.barrier();
      break;
    case Collective::kReduce:
      bcube.reduce(request.root);
      break;
    case Collective::kGather:
      bcube.gather(request.root);
      break;
    case Collective::kScatter:
      bcube.scatter(request.root);
      break;
    case Collective::kAllToAll:
    case Collective::kAllToAllV:
      break;  // handled above, or refused
  }
}

}  // namespace

constinit const Planner kBCubePlanner = {
    PlannerId::kBCube,
    "BCube(r, L): L parts walk the levels in rotated order, so all L rails are busy at once",
    defines,
    check,
    leaves,
    plan};

}  // namespace canarynet
