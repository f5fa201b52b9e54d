// Recursive halving and doubling (Thakur, Rabenseifner, Gropp 2005): lg n exchanges in which the segment halves, then
// lg n in which it doubles. The *core* is the first p = 2^k ranks; surplus rank p+i folds onto core rank i: it hands
// its input over before and gets its result after. Order of reduction: own (with the folded one), then the partner at
// distance p/2, p/4, … 1.
//
// A small all-reduce (exchanges_whole()) takes lg n exchanges of everything instead: partners at distance 1, 2, … p/2
// add the same two sums, each its own one first, which gives both the same bits.
//
// In a collective on blocks (reduce-scatter, all-gather) core rank i stands for its own block and for that of p+i, so a
// segment of core ranks [lo, hi) is up to two runs of leaves. Reduce is halving, then a binomial gather of the
// segments. There is no broadcast, since mesh and bcube do it with as few bytes, and no gather or scatter, since the
// tree's are the same.
#include <algorithm>
#include <bit>

#include "collectives/plan_builder.h"

namespace canarynet {
namespace {

bool defines(Collective collective, int) {
  return (!has_root(collective) && !is_pairwise(collective)) || collective == Collective::kReduce;
}

int core_of(int ranks) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks))); }

Status check(const PlanRequest& request) {
  if (Status status = check_request(kHalvingDoublingPlanner, request); !status.ok()) return status;
  const int p = core_of(request.ranks);
  for (int a = 0; a < p; ++a) {
    for (int distance = 1; distance < p; distance *= 2) {
      if (Status status = need_edge(PlannerId::kHalvingDoubling, *request.reach, a, a ^ distance); !status.ok())
        return status;
    }
  }
  for (int a = p; a < request.ranks; ++a) {
    if (Status status = need_edge(PlannerId::kHalvingDoubling, *request.reach, a, a - p); !status.ok()) return status;
  }
  return {};
}

std::uint32_t leaf_count_of(const PlanRequest& request) {
  if (request.collective == Collective::kBarrier || exchanges_whole(request)) return 1;
  return static_cast<std::uint32_t>(in_blocks(request.collective) ? request.ranks : core_of(request.ranks));
}

void leaves(const PlanRequest& request, std::vector<std::uint64_t>* out) {
  out->clear();
  if (in_blocks(request.collective)) return cut_blocks(request, out);
  cut_evenly(0, request.total(), static_cast<int>(leaf_count_of(request)), request.element_bytes, out);
  out->push_back(request.total());
}

class HalvingDoubling {
 public:
  HalvingDoubling(const PlanRequest& request, int rank, Plan* out)
      : rank_(rank),
        core_(core_of(request.ranks)),
        surplus_(request.ranks - core_),
        blocks_(in_blocks(request.collective)),
        leaf_count_(leaf_count_of(request)),
        build_(out, request.ranks, leaf_count_) {}

  bool folded() const { return rank_ >= core_; }     // this rank only hands over and gets back
  bool carries() const { return rank_ < surplus_; }  // this core rank stands for rank_ + core_ as well
  int partner() const { return folded() ? rank_ - core_ : rank_ + core_; }

  // A folded rank hands its whole input over, a rank that carries adds it. Returns where the core's sums so far are.
  Buffer fold(Buffer partial) {
    if (folded()) build_.send({.peer = partner(), .round = 0, .run = all()}, Buffer::kInput);
    if (!carries()) return Buffer::kInput;
    build_.receive_reduce({.peer = partner(), .round = 0, .run = all()}, Buffer::kInput, partial, false);
    return partial;
  }

  // `result` is where the rank's own segment ends.
  void reduce_scatter(Buffer partial, Buffer result) {
    const Buffer begin = fold(partial);
    if (folded()) return;
    Buffer src = begin;
    for (int distance = core_ / 2, round = 1; distance >= 1; distance /= 2, ++round) {
      const int mate = rank_ ^ distance;
      for (const Run run : segment(mate, distance)) build_.send({.peer = mate, .round = round, .run = run}, src);
      for (const Run run : segment(rank_, distance)) {
        const bool last = distance == 1;
        // On blocks the partner's block is finished here and sent from scratch: kOutput holds only the own block.
        const bool own = !blocks_ || run.begin == static_cast<std::uint32_t>(rank_);
        build_.receive_reduce({.peer = mate, .round = round, .run = run}, src, last && own ? result : partial, last);
      }
      src = partial;
    }
  }

  void all_gather(int first_round) {
    if (folded()) return;
    for (int distance = 1, round = first_round; distance < core_; distance *= 2, ++round) {
      const int mate = rank_ ^ distance;
      for (const Run run : segment(rank_, distance))
        build_.send({.peer = mate, .round = round, .run = run}, Buffer::kOutput);
      for (const Run run : segment(mate, distance))
        build_.receive({.peer = mate, .round = round, .run = run}, Buffer::kOutput);
    }
  }

  // Data sent in one round is overwritten only two rounds later, when the partner has long had it: sums alternate
  // between scratch and output, and the first ones go to scratch, since input and output may be one memory.
  void exchange_whole() {
    const bool odd = rounds() % 2 != 0;
    Buffer sums = fold(odd ? Buffer::kScratch : Buffer::kOutput);
    if (folded()) return;
    for (int distance = 1, round = 1; distance < core_; distance *= 2, ++round) {
      const Hop hop = {.peer = rank_ ^ distance, .round = round, .run = all()};
      const Buffer next = sums == Buffer::kScratch ? Buffer::kOutput : Buffer::kScratch;
      build_.send(hop, sums);
      build_.receive_reduce(hop, sums, next, next == Buffer::kOutput && 2 * distance == core_);
      sums = next;
    }
    if (sums == Buffer::kScratch) build_.copy(all(), Buffer::kScratch, Buffer::kOutput, true);
  }

  // Sends all segments of `sums` to the core rank that is the root or stands for it.
  void gather(int root, Buffer sums) {
    const int head = root % core_;
    for (int distance = 1, round = rounds() + 1; !folded() && distance < core_; distance *= 2, ++round) {
      const int mate = rank_ ^ distance;
      if (((rank_ ^ head) & distance) != 0) {
        for (const Run run : segment(rank_, distance)) build_.send({.peer = mate, .round = round, .run = run}, sums);
        return;  // this rank has handed its segments over
      }
      for (const Run run : segment(mate, distance)) build_.receive({.peer = mate, .round = round, .run = run}, sums);
    }
  }

  // The result, leaves [begin, end), goes back to the folded rank.
  void unfold(int round, Run run, Buffer src) {
    if (run.begin == run.end) return;
    if (carries()) build_.send({.peer = partner(), .round = round, .run = run}, src);
    if (folded()) build_.receive({.peer = partner(), .round = round, .run = run}, Buffer::kOutput);
  }

  Run all() const { return {0, leaf_count_}; }
  // The folded rank's own block, seen from either side.
  Run folded_block() const {
    const auto block = static_cast<std::uint32_t>(folded() ? rank_ : rank_ + core_);
    return {block, block + 1};
  }

  void gather_blocks() {
    const auto own = static_cast<std::uint32_t>(rank_);
    build_.copy({own, own + 1}, Buffer::kInput, Buffer::kOutput, false);
    if (folded()) build_.send({.peer = partner(), .round = 0, .run = folded_block()}, Buffer::kInput);
    if (carries()) build_.receive({.peer = partner(), .round = 0, .run = folded_block()}, Buffer::kOutput);
    all_gather(1);
    if (!folded() && !carries()) return;
    unfold(rounds() + 1, {0, folded_block().begin}, Buffer::kOutput);
    unfold(rounds() + 1, {folded_block().end, leaf_count_}, Buffer::kOutput);
  }

  // A binomial tree over the same pairs, up to rank 0 and back. Doubling would take half the rounds but would write
  // what is being sent.
  void barrier() {
    const Run one = {0, 1};
    const int last_round = 2 * rounds() + 1;
    const auto meet = [&](int peer, int round, bool reports) {
      if (reports) {
        build_.send({.peer = peer, .round = round, .run = one}, Buffer::kScratch);
        build_.receive({.peer = peer, .round = last_round - round, .run = one}, Buffer::kScratch);
      } else {
        build_.receive_reduce({.peer = peer, .round = round, .run = one}, Buffer::kScratch, Buffer::kScratch, false);
      }
    };
    if (folded()) return meet(partner(), 0, true);
    if (carries()) meet(partner(), 0, false);
    int distance = 1, round = 1;
    for (; distance < core_ && (rank_ & distance) == 0; distance *= 2, ++round) meet(rank_ | distance, round, false);
    if (distance < core_) meet(rank_ ^ distance, round, true);
    for (distance /= 2, --round; distance >= 1; distance /= 2, --round) {
      build_.send({.peer = rank_ | distance, .round = last_round - round, .run = one}, Buffer::kScratch);
    }
    if (carries()) build_.send({.peer = partner(), .round = last_round, .run = one}, Buffer::kScratch);
  }

  int rounds() const { return std::countr_zero(static_cast<unsigned>(core_)); }

 private:
  // The segment that `core_rank` holds in the exchange at `distance`: the leaves of the `distance` aligned core ranks
  // around it.
  std::vector<Run> segment(int core_rank, int distance) const {
    const int lo = core_rank / distance * distance;
    const int hi = lo + distance;
    const auto run = [](int begin, int end) {
      return Run{static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)};
    };
    std::vector<Run> runs = {run(lo, hi)};
    if (blocks_ && lo < surplus_) runs.push_back(run(core_ + lo, core_ + std::min(hi, surplus_)));
    return runs;
  }

  const int rank_, core_, surplus_;
  const bool blocks_;
  const std::uint32_t leaf_count_;
  PlanBuilder build_;
};

void plan(const PlanRequest& request, int rank, Plan* out) {
  if (request.ranks == 1) return plan_alone(request, 1, out);
  HalvingDoubling hd(request, rank, out);
  switch (request.collective) {
    case Collective::kAllReduce:
      if (exchanges_whole(request)) {
        hd.exchange_whole();
        hd.unfold(hd.rounds() + 1, hd.all(), Buffer::kOutput);
        break;
      }
      hd.reduce_scatter(Buffer::kOutput, Buffer::kOutput);
      hd.all_gather(hd.rounds() + 1);
      hd.unfold(2 * hd.rounds() + 1, hd.all(), Buffer::kOutput);
      break;
    case Collective::kReduceScatter:
      hd.reduce_scatter(Buffer::kScratch, Buffer::kOutput);
      if (hd.folded() || hd.carries()) hd.unfold(hd.rounds() + 1, hd.folded_block(), Buffer::kScratch);
      break;
    case Collective::kAllGather:
    case Collective::kAllGatherV:
      hd.gather_blocks();
      break;
    case Collective::kBarrier:
      hd.barrier();
      break;
    case Collective::kReduce: {
      const Buffer sums = rank == request.root ? Buffer::kOutput : Buffer::kScratch;
      hd.reduce_scatter(sums, sums);
      hd.gather(request.root, sums);
      const bool hands_out = hd.folded() ? rank == request.root : hd.partner() == request.root;
      if (hands_out) hd.unfold(2 * hd.rounds() + 1, hd.all(), sums);
      break;
    }
    case Collective::kBroadcast:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll:
    case Collective::kAllToAllV:
      break;  // check() refuses them
  }
}

// Without surplus ranks all do alike towards the partner of each distance.
Symmetry symmetry(const PlanRequest& request) {
  const bool alike = request.collective == Collective::kAllReduce || request.collective == Collective::kReduceScatter ||
                     request.collective == Collective::kAllGather || request.collective == Collective::kAllGatherV;
  return {.cell = alike && core_of(request.ranks) == request.ranks ? 1 : 0, .radix = 2, .in_order = false};
}

}  // namespace

constinit const Planner kHalvingDoublingPlanner = {
    PlannerId::kHalvingDoubling,
    "segments halve, then double between ranks 2^k apart: 2 lg n rounds, or lg n of everything where that is little; "
    "surplus ranks fold onto the core",
    defines,
    check,
    leaves,
    plan,
    symmetry};

}  // namespace canarynet
