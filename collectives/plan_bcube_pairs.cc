// All-to-all on BCube wiring: a block takes a hop at each level at which its source's and its target's digits differ.
#include <algorithm>
#include <map>

#include "collectives/cube.h"

namespace canarynet {
namespace {

// The difference of the digits alone decides which level comes first, so all ranks do the same at any time, and each
// rail of each rank carries (1-1/r)M in all.
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

}  // namespace

void plan_pairs_on_cube(const PlanRequest& request, int rank, Plan* out) { Exchange(request, rank, out).run(); }

}  // namespace canarynet
