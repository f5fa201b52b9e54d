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

CostModel Exchanges::model(std::uint64_t piece_bytes, double wire_share) const {
  const double header = static_cast<double>(sizeof(wire::Header)) / static_cast<double>(piece_bytes);
  return {.alpha = network_.alpha,
          .beta = kBitsPerByte / network_.bits_per_second * (wire_share + header),
          .post = network_.post,
          .piece_bytes = piece_bytes};
}

double Exchanges::seconds(PlannerId planner, Collective collective, double bytes, const CostModel& model) const {
  const PlanRequest whole = request(collective, bytes);
  const double messages = messages_of(planner, whole, model);
  const auto most = static_cast<double>(walked_messages_max);
  if (messages <= most) return walk_cost(planner, whole, kRails, model);
  // Both in whole pieces of every rank's part, so that no short last piece bends the line, and far apart: pipelines
  // have a rhythm, by which one piece more may cost as much as a way through all ranks.
  const double unit = static_cast<double>(model.piece_bytes) * (in_blocks(collective) ? 1 : network_.ranks);
  const double far = std::max(2.0, std::floor(bytes * most / messages / unit)) * unit;
  const double near = std::max(1.0, std::floor(far / unit / 4)) * unit;
  if (far >= bytes) return walk_cost(planner, whole, kRails, model);
  const double at_near = walk_cost(planner, request(collective, near), kRails, model);
  const double at_far = walk_cost(planner, request(collective, far), kRails, model);
  return at_far + (at_far - at_near) / (far - near) * (bytes - far);
}

double Exchanges::dense(PlannerId planner, double bytes, std::uint64_t piece_bytes) {
  CostModel model = this->model(piece_bytes, 1);
  model.gamma = add_;
  return seconds(planner, Collective::kAllReduce, bytes, model);
}

double Exchanges::coded(PlannerId planner, double bytes, std::uint64_t piece_bytes, double wire_share) {
  return seconds(planner, Collective::kAllReduce, bytes, model(piece_bytes, wire_share));
}

double Exchanges::ar_top_k(PlannerId planner, double index_bytes, std::uint64_t piece_bytes) {
  double indices = std::numeric_limits<double>::infinity();
  for (const PlannerId id : planners(Collective::kBroadcast, false))
    indices = std::min(indices, seconds(id, Collective::kBroadcast, index_bytes, model(piece_bytes, 1)));
  return indices + dense(planner, index_bytes, piece_bytes);
}

double Exchanges::all_gather(PlannerId planner, double pair_bytes, std::uint64_t piece_bytes) {
  return seconds(planner, Collective::kAllGather, pair_bytes, model(piece_bytes, 1));
}

const CodedWork& Exchanges::work(PlannerId planner, double bytes) {
  const auto found = work_.find(planner);
  if (found != work_.end()) return found->second;
  return work_.emplace(planner, coded_work(planner, request(Collective::kAllReduce, bytes))).first->second;
}

}  // namespace canarynet::sim
