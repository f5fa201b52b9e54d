// BCube(r, L) (Canary, fig. 13): rank digits d_0 … d_(L-1) in base r; rail l joins the r ranks that differ in digit l
// only. The buffer is cut in L parts; part e visits the levels e, e+1, …, e+L-1 (mod L), so at every moment each rail
// carries another part and each rail moves (2/L)(1-1/n)M bytes in all. Walking all parts level by level instead would
// put 16/9 M on the busiest rail of (3,2), twice as much.
//
// After reduce-scatter step j a rank holds, of part e, the leaves whose digits at the first j+1 visited levels are its
// own: its *segment* (e, j+1). A step cuts the segment (e, j) in r, one for each mate of that level. All-gather walks
// back. Order of reduction within a level: own, then the mates upward (mod r).
//
// bcube_x (the all-reduce of the paper's table 2) does not cut the segment at the last level: mates send each other all
// of it and each of them adds all up, which saves the step back. Each rail moves (2/L)(1-1/r^(L-1)) +
// (r-1)/(L r^(L-1)) M: as much as bcube for r = 2, more for larger r. All mates add in the order of their digits, so
// that they get the same bits.
#include "collectives/cube.h"
#include "collectives/plan_builder.h"

namespace canarynet {
namespace {

// In a collective on blocks, a part is a slice of each rank's block, so a segment is many short runs.

// A rank that forwards a block must know its length, which all-to-all-v does not tell it.
bool defines(Collective collective, int) { return collective != Collective::kAllToAllV; }

Status check(const PlanRequest& request) { return check_cube(kBCubePlanner, request); }

// Only an all-reduce has a step to save.
bool defines_x(Collective collective, int) { return collective == Collective::kAllReduce; }

Status check_x(const PlanRequest& request) { return check_cube(kBCubeXPlanner, request); }

// Cuts each part in `segments`, if there are parts.
void cut(const PlanRequest& request, int segments, std::vector<std::uint64_t>* out) {
  out->clear();
  const int n = request.ranks;
  if (is_pairwise(request.collective)) {
    return cut_pairs(request, out);
  } else if (n == 1 || request.collective == Collective::kBarrier) {
    out->push_back(0);
  } else if (in_blocks(request.collective)) {
    const PartCut parts(request);
    std::uint64_t begin = 0;
    for (int i = 0; i < n; begin += request.block(i++)) parts.cut(begin, request.block(i), out);
    out->push_back(begin);
    return;
  } else {
    std::vector<std::uint64_t> parts;
    PartCut(request).cut(0, request.total(), &parts);
    parts.push_back(request.total());
    for (std::size_t e = 0; e + 1 < parts.size(); ++e)
      cut_evenly(parts[e], parts[e + 1] - parts[e], segments, request.element_bytes, out);
  }
  out->push_back(request.total());
}

void leaves(const PlanRequest& request, std::vector<std::uint64_t>* out) { cut(request, request.ranks, out); }
void leaves_x(const PlanRequest& request, std::vector<std::uint64_t>* out) {
  cut(request, request.ranks == 1 ? 1 : request.ranks / request.bcube.r, out);
}

class BCube {
 public:
  // `cuts`: steps in which a segment is cut: all levels, or all but the last.
  BCube(const PlanRequest& request, int rank, int cuts, std::uint32_t leaf_count, Plan* out)
      : cube_(request.bcube),
        cuts_(cuts),
        reach_(*request.reach),
        rank_(rank),
        blocks_(in_blocks(request.collective)),
        build_(out, request.ranks, leaf_count) {}

  // `result` is where the rank's own segment ends.
  void reduce_scatter(Buffer partial, Buffer result) {
    for (int j = 0; j < cuts_; ++j) {
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
    for (int j = cuts_ - 1; j >= 0; --j) {
      const int round = first_round + cuts_ - 1 - j;
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

  // After all cuts but the last: sums of the own segment in kScratch become whole ones in kOutput, at all mates of the
  // last level alike. Sums are not written where they are sent from, so no step waits for an ack.
  void exchange_last() {
    if (cuts_ == 0) build_.copy({0, 1}, Buffer::kInput, Buffer::kScratch, false);
    for (int e = 0; e < cube_.levels; ++e) {
      const int level = level_of(e, cuts_), own = cube_.digit(rank_, level);
      const Run run = segment(e, cuts_, rank_).front();
      for (int by = 1; by < cube_.r; ++by) {
        const int to = cube_.mate(rank_, level, -by);
        build_.send(hop(to, cuts_, run, level), Buffer::kScratch);
      }
      // Sums of digits 0, 1, … in this order. The first two may change places.
      bool any = own <= 1;
      for (int digit = 0; digit < cube_.r; ++digit) {
        const bool finish = digit == cube_.r - 1 || (own == 1 && cube_.r == 2);
        if (digit == own) {
          if (own > 1) build_.reduce(run, Buffer::kScratch, Buffer::kOutput, finish);
          continue;
        }
        const Hop from = hop(cube_.mate(rank_, level, digit - own), cuts_, run, level);
        if (!any) {
          build_.receive(from, Buffer::kOutput);
        } else {
          const bool first = own <= 1 && digit == 1 - own;
          build_.receive_reduce(from, first ? Buffer::kScratch : Buffer::kOutput, Buffer::kOutput, finish);
        }
        any = true;
      }
    }
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
      int length = 1;
      for (int j = 0; j < cuts_; ++j) length *= cube_.r;
      int first = e * length;
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
  const int cuts_;
  const Reachability& reach_;
  const int rank_;
  const bool blocks_;
  PlanBuilder build_;
  std::vector<Run> segment_;
  std::vector<int> segment_blocks_, next_blocks_;
};

void plan(const PlanRequest& request, int rank, Plan* out) {
  if (request.ranks == 1) return plan_alone(request, 1, out);
  if (is_pairwise(request.collective)) return plan_pairs_on_cube(request, rank, out);
  const int levels = request.bcube.levels;
  const int leaf_count = request.collective == Collective::kBarrier ? 1 : request.ranks * levels;
  BCube bcube(request, rank, levels, static_cast<std::uint32_t>(leaf_count), out);
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

void plan_x(const PlanRequest& request, int rank, Plan* out) {
  if (request.ranks == 1) return plan_alone(request, 1, out);
  const int levels = request.bcube.levels;
  const auto leaf_count = static_cast<std::uint32_t>(request.ranks / request.bcube.r * levels);
  BCube bcube(request, rank, levels - 1, leaf_count, out);
  bcube.reduce_scatter(Buffer::kScratch, Buffer::kScratch);
  bcube.exchange_last();
  bcube.all_gather(levels);
}

Symmetry symmetry(const PlanRequest& request) {
  const bool alike = !has_root(request.collective) && request.collective != Collective::kBarrier;
  return {.cell = alike ? 1 : 0, .radix = request.bcube.r, .in_order = false};
}
// The order of additions goes by the digit; with two there is one order.
Symmetry symmetry_x(const PlanRequest& request) {
  return {.cell = request.bcube.r == 2 ? 1 : 0, .radix = 2, .in_order = false};
}

}  // namespace

constinit const Planner kBCubePlanner = {
    PlannerId::kBCube,
    "BCube(r, L): L parts walk the levels in rotated order, so all L rails are busy at once",
    defines,
    check,
    leaves,
    plan,
    symmetry};

constinit const Planner kBCubeXPlanner = {
    PlannerId::kBCubeX,
    "bcube with one direct exchange at the last level: 2L-1 steps; r = 2 moves the same bytes, larger r more",
    defines_x,
    check_x,
    leaves_x,
    plan_x,
    symmetry_x};

}  // namespace canarynet
