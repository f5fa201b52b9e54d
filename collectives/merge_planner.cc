#include "collectives/merge_planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace canarynet {
namespace {

// [layer]: τ_b.
std::vector<double> backward_starts_of(const BackwardPass& pass) {
  std::vector<double> starts(pass.layers.size());
  double now = pass.forward_seconds;
  for (std::size_t l = starts.size(); l-- > 0;) {
    starts[l] = now;
    now += pass.layers[l].backward_seconds;
  }
  return starts;
}

// The plan whose groups begin at the layers that `begins` names: [layer] true if it is the first one of its group.
MergePlan timed(const BackwardPass& pass, const TransferTime& time, const std::vector<bool>& begins) {
  MergePlan plan;
  plan.backward_starts = backward_starts_of(pass);
  plan.communication_starts.resize(pass.layers.size());
  MergeGroup group;
  double free = 0;  // when the network is: τ_c(l+1) + t_c(l+1)
  bool opens = true;
  for (std::size_t l = pass.layers.size(); l-- > 0;) {
    if (opens) group.last = l;
    opens = begins[l];
    const double ready = plan.backward_starts[l] + pass.layers[l].backward_seconds;
    const double start = std::max(free, ready);
    plan.communication_starts[l] = start;
    group.bytes += pass.layers[l].bytes;
    free = start;
    if (!opens) continue;
    group.first = l;
    group.ready_seconds = ready;
    group.start_seconds = start;
    free = group.end_seconds = start + time(group.bytes);
    plan.groups.push_back(group);
    group = {};
  }
  plan.iteration_seconds = pass.layers.empty() ? pass.forward_seconds : free;
  return plan;
}

bool is_time(double seconds) { return std::isfinite(seconds) && seconds >= 0; }

double lg(int n) { return std::log2(static_cast<double>(n)); }

}  // namespace

Status check(const BackwardPass& pass) {
  if (!is_time(pass.forward_seconds)) {
    return Status(CANARY_INVALID_ARGUMENT,
                  "forward_seconds " + std::to_string(pass.forward_seconds) + ": takes a time from 0 on");
  }
  for (std::size_t l = 0; l < pass.layers.size(); ++l) {
    if (is_time(pass.layers[l].backward_seconds)) continue;
    return Status(CANARY_INVALID_ARGUMENT, "layer " + std::to_string(l) + ": backward_seconds " +
                                               std::to_string(pass.layers[l].backward_seconds) +
                                               ": takes a time from 0 on");
  }
  return {};
}

MergePlan merge_exactly(const BackwardPass& pass, const TransferTime& time) {
  const std::size_t count = pass.layers.size();
  const std::vector<double> starts = backward_starts_of(pass);
  // [j]: of the first j layers in backward order.
  std::vector<double> end(count + 1);           // E(j)
  std::vector<std::size_t> before(count + 1);   // the i that gives the minimum
  std::vector<std::uint64_t> bytes(count + 1);  // their sum
  for (std::size_t j = 1; j <= count; ++j) {
    const std::size_t layer = count - j;
    const double ready = starts[layer] + pass.layers[layer].backward_seconds;
    bytes[j] = bytes[j - 1] + pass.layers[layer].bytes;
    end[j] = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < j; ++i) {
      const double candidate = std::max(end[i], ready) + time(bytes[j] - bytes[i]);
      if (candidate >= end[j]) continue;
      end[j] = candidate;
      before[j] = i;
    }
  }
  std::vector<bool> begins(count);
  for (std::size_t j = count; j > 0; j = before[j]) begins[count - j] = true;
  return timed(pass, time, begins);
}

MergePlan merge_greedily(const BackwardPass& pass, const AffineTime& time) {
  std::vector<bool> begins(pass.layers.size(), true);
  const std::vector<double> starts = backward_starts_of(pass);
  // The paper computes all τ_c again after each merge. A layer's τ_c depends only on later layers, which are decided by
  // the time it is looked at, so one pass is the same.
  double free = 0;
  std::uint64_t bytes = 0;
  for (std::size_t l = pass.layers.size(); l-- > 1;) {
    bytes += pass.layers[l].bytes;
    const double start = std::max(free, starts[l] + pass.layers[l].backward_seconds);  // τ_c(l)
    const double next_ready = starts[l - 1] + pass.layers[l - 1].backward_seconds;
    if (next_ready - start < time.a) {
      begins[l] = false;
      free = start;
    } else {
      free = start + time(bytes);
      bytes = 0;
    }
  }
  return timed(pass, time, begins);
}

MergePlan merge_nothing(const BackwardPass& pass, const TransferTime& time) {
  return timed(pass, time, std::vector<bool>(pass.layers.size(), true));
}

MergePlan merge_everything(const BackwardPass& pass, const TransferTime& time) {
  std::vector<bool> begins(pass.layers.size());
  if (!begins.empty()) begins.front() = true;
  return timed(pass, time, begins);
}

std::string_view name_of(MergePolicy policy) {
  switch (policy) {
    case MergePolicy::kWfbp:
      return "wfbp";
    case MergePolicy::kSyncEasgd:
      return "synceasgd";
    case MergePolicy::kMgWfbp:
      return "mgwfbp";
    case MergePolicy::kExact:
      return "exact";
  }
  return "";
}

MergePlan plan_merges(MergePolicy policy, const BackwardPass& pass, const AffineTime& time) {
  switch (policy) {
    case MergePolicy::kWfbp:
      return merge_nothing(pass, time);
    case MergePolicy::kSyncEasgd:
      return merge_everything(pass, time);
    case MergePolicy::kMgWfbp:
      return merge_greedily(pass, time);
    case MergePolicy::kExact:
      break;
  }
  return merge_exactly(pass, time);
}

std::string_view name_of(ScalingLaw law) {
  switch (law) {
    case ScalingLaw::kFixed:
      return "fixed";
    case ScalingLaw::kRing:
      return "ring";
    case ScalingLaw::kDoubleTree:
      return "dbtree";
    case ScalingLaw::kDoubleTreeAsPrinted:
      return "dbtree=paper";
  }
  return "";
}

AffineTime scaled(ScalingLaw law, AffineTime of_ring, int fitted_workers, int workers) {
  if (law == ScalingLaw::kFixed) return of_ring;
  CANARY_CHECK(fitted_workers >= 2 && workers >= 1, "constants are fitted on at least two workers");
  if (workers == 1) return {};
  const double fitted = fitted_workers, n = workers;
  const double alpha = of_ring.a / (2 * (fitted - 1));
  const double both = of_ring.b * fitted / (fitted - 1);  // 2β+γ
  switch (law) {
    case ScalingLaw::kFixed:
      break;
    case ScalingLaw::kRing:
      return {2 * (n - 1) * alpha, both * (n - 1) / n};
    case ScalingLaw::kDoubleTree:
      return {2 * lg(workers) * alpha, both};
    case ScalingLaw::kDoubleTreeAsPrinted:
      return {2 * lg(workers) * alpha, both / 2};
  }
  return of_ring;
}

}  // namespace canarynet
