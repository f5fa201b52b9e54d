#include "collectives/codec_pick.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "collectives/piece_coder.h"
#include "collectives/topk_cost.h"

namespace canarynet {
namespace {

constexpr double kSlowdownMin = 0.5, kSlowdownMax = 32;
// Of an operation's time, what its bytes take at least.
constexpr double kWireMin = 0.02;

// What all bytes of f32 take. By dense operations, else by those of the present codec.
double dense_seconds(std::span<const CodecTrial> trials, std::size_t present) {
  if (trials[0].took > 0) return trials[0].took;
  const CodecTrial& p = trials[present];
  const double wire = p.took - (p.slowdown > 0 ? p.slowdown : 1) * p.work;
  return std::max(wire, kWireMin * p.took) / p.share;
}

}  // namespace

double wire_share(const CodecSpec& spec, std::uint64_t bytes, int ranks, std::uint32_t piece_bytes) {
  if (spec.kind == CodecKind::kDense) return 1;
  const std::uint64_t part = std::max<std::uint64_t>(4, bytes / static_cast<std::uint64_t>(std::max(1, ranks)));
  const std::uint64_t piece = std::min<std::uint64_t>(part, coded_piece_bytes(spec, piece_bytes, part));
  CodecSpec usual = spec;
  usual.or_dense = false;  // values that are not finite are rare
  return static_cast<double>(encoded_bytes_max(usual, piece / sizeof(float))) / static_cast<double>(piece);
}

double top_k_share(const CodecSpec& spec, std::uint64_t bytes, int ranks, LinkCost link) {
  if (ranks <= 1) return 1;
  if (link.beta <= 0) link = {0, 1};
  const double n = ranks, lg = std::log2(n), all = static_cast<double>(bytes) * link.beta;
  const double dense = std::min(2 * (n - 1) * link.alpha + 2 * (n - 1) / n * all, 2 * lg * link.alpha + 2 * lg * all);
  const TopkRequest request{.ranks = ranks,
                            .bytes = static_cast<double>(bytes),
                            .ratio = spec.ratio_ppm * 1e-6,
                            .link = link,
                            .root = spec.bits == kArTopKVar ? TopkRoot::kVariance : TopkRoot::kStaleness};
  if (spec.bits == kAgTopK) return topk_cost(TopkExchange::kAllGather, request) / dense;
  return std::min(topk_cost(TopkExchange::kRing, request), topk_cost(TopkExchange::kTree, request)) / dense;
}

double codec_work(const CodecSpeed& speed, std::uint64_t bytes, int ranks, bool feedback) {
  const double all = static_cast<double>(bytes), n = std::max(1, ranks);
  // Each rank encodes its input but for its own part, and the sum of that part. Of what the others send it decodes its
  // own part from each, and all other parts as sums. Feedback decodes all that is encoded, else the sum alone.
  return speed.encode * all + speed.decode * (2 * all * (n - 1) / n + (feedback ? all : all / n));
}

// As assign_slots() of collectives/program.cc has it: what was complete when it was written is handed on as it is, and
// every other send encodes what it finds.
double codec_work(const CodecSpeed& speed, PlannerId id, const PlanRequest& request, bool feedback) {
  std::vector<std::uint64_t> leaves;
  planner(id).leaves(request, &leaves);
  double most = 0;
  for (int rank = 0; rank < request.ranks; ++rank) {
    Plan plan;
    planner(id).plan(request, rank, &plan);
    std::array<std::vector<bool>, 3> whole;  // [Buffer][leaf]
    for (auto& of_buffer : whole) of_buffer.assign(leaves.size(), false);
    double encoded = 0, decoded = 0;
    for (const Step& s : plan.steps) {
      const bool receives = s.kind == StepKind::kReceive || s.kind == StepKind::kReceiveReduce;
      for (std::uint32_t leaf = s.leaf_begin; leaf < s.leaf_end; ++leaf) {
        const auto bytes = static_cast<double>((leaves[leaf + 1] - leaves[leaf]) * sizeof(float));
        const bool of_source = whole[static_cast<std::size_t>(s.src)][leaf];
        if (receives) decoded += bytes;
        if (s.kind == StepKind::kSend) {
          if (of_source) continue;
          encoded += bytes;
          if (feedback) decoded += bytes;
          continue;
        }
        if (s.finish) encoded += bytes, decoded += bytes;  // and keeps what everybody else will decode
        whole[static_cast<std::size_t>(s.dst)][leaf] =
            s.finish || s.kind == StepKind::kReceive || (s.kind == StepKind::kCopy && of_source);
      }
    }
    most = std::max(most, speed.encode * encoded + speed.decode * decoded);
  }
  return most;
}

CodecPick pick_codec(std::span<CodecTrial> trials, std::size_t present) {
  CodecPick pick{present, present, 0, 0};
  if (trials[present].took <= 0) return pick;
  const double dense = dense_seconds(trials, present);
  double least = 0;  // slowdown
  for (CodecTrial& t : trials.subspan(1)) {
    if (t.took > 0 && trials[0].took > 0 && t.work > 0)
      t.slowdown = std::clamp((t.took - t.share * dense) / t.work, kSlowdownMin, kSlowdownMax);
    if (t.slowdown > 0) least = least > 0 ? std::min(least, t.slowdown) : t.slowdown;
  }
  const auto expected = [&](const CodecTrial& t) {
    if (t.took > 0) return t.took;
    return t.share * dense + (t.slowdown > 0 ? t.slowdown : least > 0 ? least : 1) * t.work;
  };
  pick.expected = trials[present].took;
  double least_wanted = pick.expected;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    if (i == present) continue;
    // Scaled so that what clears its bar is below the present one's time.
    const double wanted = expected(trials[i]) / (trials[i].took > 0 ? kFaster : kWorthATrial);
    if (wanted >= least_wanted) continue;
    least_wanted = wanted;
    pick.best = i;
    pick.expected = expected(trials[i]);
  }
  pick.runner_up = pick.best;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    if (i == pick.best) continue;
    const double seconds = expected(trials[i]);
    if (pick.runner_up != pick.best && seconds >= pick.runner_up_expected) continue;
    pick.runner_up = i;
    pick.runner_up_expected = seconds;
  }
  return pick;
}

}  // namespace canarynet
