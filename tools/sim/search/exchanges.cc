#include "tools/sim/search/exchanges.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "collectives/selector.h"
#include "collectives/walk.h"
#include "transport/wire.h"

namespace canarynet::sim {
namespace {

constexpr int kRails = 1;
constexpr double kBitsPerByte = 8;

// Messages of a walk, about.
double messages_of(PlannerId id, const PlanRequest& request, const CostModel& model) {
  std::vector<std::uint64_t> leaves;
  planner(id).leaves(request, &leaves);
  const int cell = walked_ranks(id, request, model, true).cell;
  const int walked = cell == 0 ? request.ranks : cell;
  double messages = 0;
  for (int rank = 0; rank < walked; ++rank) {
    Plan plan;
    planner(id).plan(request, rank, &plan);
    for (const Step& step : plan.steps) {
      for (std::uint32_t leaf = step.leaf_begin; leaf < step.leaf_end; ++leaf) {
        const double bytes = static_cast<double>((leaves[leaf + 1] - leaves[leaf]) * request.element_bytes);
        messages += std::ceil(bytes / static_cast<double>(model.piece_bytes));
      }
    }
  }
  return messages;
}

// Bytes of values in the longest piece of a plan.
std::uint64_t longest_of(PlannerId id, const PlanRequest& request, std::uint64_t piece_bytes) {
  std::vector<std::uint64_t> leaves;
  planner(id).leaves(request, &leaves);
  std::uint64_t longest = 1;
  for (std::size_t i = 0; i + 1 < leaves.size(); ++i) longest = std::max(longest, leaves[i + 1] - leaves[i]);
  return std::min(piece_bytes, longest * request.element_bytes);
}

}  // namespace

Exchanges::Exchanges(const Network& network, double add)
    : network_(network), add_(add), reach_(Reachability::full(network.ranks, kRails)) {}

PlanRequest Exchanges::request(Collective collective, double bytes) const {
  PlanRequest request{.collective = collective, .ranks = network_.ranks, .reach = &reach_};
  const double elements = std::max(1.0, std::ceil(bytes / request.element_bytes));
  request.count = static_cast<std::uint64_t>(elements);
  return request;
}

std::vector<PlannerId> Exchanges::planners(Collective collective, bool coded) const {
  const PlanRequest any = request(collective, 1 << 20);
  std::vector<PlannerId> out;
  for (const Planner& p : canarynet::planners()) {
    if (p.id == PlannerId::kRingPerRail || p.id == PlannerId::kMeshRelay || p.id == PlannerId::kHierarchical) continue;
    if (p.check(any).ok() && (!coded || completes_once(p.id, any))) out.push_back(p.id);
  }
  return out;
}

std::uint64_t Exchanges::longest_piece(PlannerId planner, double bytes, std::uint64_t piece_bytes) const {
  return longest_of(planner, request(Collective::kAllReduce, bytes), piece_bytes);
}

double Exchanges::seconds(PlannerId planner, const PlanRequest& whole, std::uint64_t piece_bytes, double wire_share,
                          double add) const {
  const auto longest = static_cast<double>(longest_of(planner, whole, piece_bytes));
  const CostModel model{.alpha = network_.alpha,
                        .beta = kBitsPerByte / network_.bits_per_second * (wire_share + sizeof(wire::Header) / longest),
                        .gamma = add,
                        .post = network_.post,
                        .piece_bytes = piece_bytes};
  const auto of_bytes = [&](double bytes) {
    return walk_cost(planner, request(whole.collective, bytes), kRails, model);
  };
  const auto bytes = static_cast<double>(whole.count * whole.element_bytes);
  const double messages = messages_of(planner, whole, model);
  const auto most = static_cast<double>(walked_messages_max);
  if (messages <= most) return of_bytes(bytes);
  // Both in whole pieces of every rank's part, so that no short last piece bends the line, and far apart: pipelines
  // have a rhythm, by which one piece more may cost as much as a way through all ranks.
  const double unit = static_cast<double>(piece_bytes) * (in_blocks(whole.collective) ? 1 : network_.ranks);
  const double far = std::max(2.0, std::floor(bytes * most / messages / unit)) * unit;
  const double near = std::max(1.0, std::floor(far / unit / 4)) * unit;
  if (far >= bytes) return of_bytes(bytes);
  const double at_near = of_bytes(near), at_far = of_bytes(far);
  return at_far + (at_far - at_near) / (far - near) * (bytes - far);
}

double Exchanges::dense(PlannerId planner, double bytes, std::uint64_t piece_bytes) const {
  return seconds(planner, request(Collective::kAllReduce, bytes), piece_bytes, 1, add_);
}

double Exchanges::coded(PlannerId planner, double bytes, std::uint64_t piece_bytes, double wire_share) const {
  return seconds(planner, request(Collective::kAllReduce, bytes), piece_bytes, wire_share, 0);
}

double Exchanges::ar_top_k(PlannerId planner, double index_bytes, std::uint64_t piece_bytes) const {
  double indices = std::numeric_limits<double>::infinity();
  for (const PlannerId id : planners(Collective::kBroadcast, false))
    indices = std::min(indices, seconds(id, request(Collective::kBroadcast, index_bytes), piece_bytes, 1, 0));
  return indices + dense(planner, index_bytes, piece_bytes);
}

double Exchanges::all_gather(PlannerId planner, double pair_bytes, std::uint64_t piece_bytes) const {
  return seconds(planner, request(Collective::kAllGather, pair_bytes), piece_bytes, 1, 0);
}

const CodedWork& Exchanges::work(PlannerId planner, double bytes) {
  const auto found = work_.find(planner);
  if (found != work_.end()) return found->second;
  return work_.emplace(planner, coded_work(planner, request(Collective::kAllReduce, bytes))).first->second;
}

}  // namespace canarynet::sim
