#include "compress/ratio_controller.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"

namespace canarynet {
namespace {

constexpr double kGainFloor = 1e-12;

bool dominates(const RatioCost& a, const RatioCost& b) {
  const bool no_worse =
      a.compress_seconds <= b.compress_seconds && a.sync_seconds <= b.sync_seconds && a.inverse_gain <= b.inverse_gain;
  const bool better =
      a.compress_seconds < b.compress_seconds || a.sync_seconds < b.sync_seconds || a.inverse_gain < b.inverse_gain;
  return no_worse && better;
}

}  // namespace

std::vector<double> ratio_candidates(const RatioOptions& options) {
  CANARY_CHECK(options.low > 0 && options.low <= options.high && options.high <= 1 && options.factor > 1,
               "ratios are 0 < low <= high <= 1, each a part of the one before");
  std::vector<double> ratios;
  // The rounding may bring the last one up to `low` or above: 0.1 / 81 is 0.00123, which is 0.001.
  double ratio = options.high;
  while (ratio >= options.low * (1 - 1e-9)) {
    const double rounded = std::max(1.0, std::nearbyint(ratio / options.low)) * options.low;
    if (ratios.empty() || rounded < ratios.back()) ratios.push_back(std::min(rounded, options.high));
    ratio /= options.factor;
  }
  return ratios;
}

std::vector<std::size_t> pareto_front(std::span<const RatioCost> costs) {
  std::vector<std::size_t> front;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const bool dominated =
        std::any_of(costs.begin(), costs.end(), [&](const RatioCost& other) { return dominates(other, costs[i]); });
    if (!dominated) front.push_back(i);
  }
  return front;
}

std::size_t knee_of(std::span<const RatioCost> costs) {
  CANARY_CHECK(!costs.empty(), "there is something to choose from");
  const std::vector<std::size_t> front = pareto_front(costs);
  using Objective = double RatioCost::*;
  constexpr Objective kObjectives[] = {&RatioCost::compress_seconds, &RatioCost::sync_seconds,
                                       &RatioCost::inverse_gain};
  std::size_t knee = front.front();
  double nearest = std::numeric_limits<double>::infinity();
  for (const std::size_t i : front) {
    double distance = 0;
    for (const Objective objective : kObjectives) {
      double low = std::numeric_limits<double>::infinity(), high = -low;
      for (const std::size_t j : front) {
        low = std::min(low, costs[j].*objective);
        high = std::max(high, costs[j].*objective);
      }
      const double scaled = high > low ? (costs[i].*objective - low) / (high - low) : 0;
      distance += scaled * scaled;
    }
    if (distance < nearest) {
      nearest = distance;
      knee = i;
    }
  }
  return knee;
}

RatioController::RatioController(const RatioOptions& options, SyncTime sync_time)
    : options_(options), sync_time_(std::move(sync_time)) {
  CANARY_CHECK(options.explore_iterations > 0 && options.gain_change > 0, "an exploration takes iterations");
  for (const double ratio : ratio_candidates(options)) candidates_.push_back({.ratio = ratio});
  costs_.resize(candidates_.size());
  begin_exploration();
}

void RatioController::begin_exploration() {
  explored_ = 0;
  iterations_ = 0;
  gain_sum_ = compress_sum_ = 0;
  save_ = true;
  ++explorations_;
}

RatioController::Step RatioController::next() {
  const std::size_t at = exploring() ? explored_ : current_;
  return {.ratio = candidates_[at].ratio,
          .exploring = exploring(),
          .save = std::exchange(save_, false),
          .restore = std::exchange(restore_, false)};
}

void RatioController::report(double gain, double compress_seconds) {
  if (exploring()) {
    gain_sum_ += gain;
    compress_sum_ += compress_seconds;
    if (++iterations_ < options_.explore_iterations) return;
    Candidate& candidate = candidates_[explored_];
    candidate.gain = gain_sum_ / options_.explore_iterations;
    candidate.compress_seconds = compress_sum_ / options_.explore_iterations;
    gain_sum_ = compress_sum_ = 0;
    iterations_ = 0;
    restore_ = true;  // every candidate begins at the checkpoint, and so does training afterwards
    if (++explored_ == candidates_.size()) choose();
    return;
  }
  recent_gain_ += options_.gain_weight * (gain - recent_gain_);
  const double before = candidates_[current_].gain;
  const double moved = std::fabs(recent_gain_ - before);
  if (moved > 0 && moved >= options_.gain_change * before) begin_exploration();
}

void RatioController::network_changed() {
  if (!exploring()) choose();
}

void RatioController::choose() {
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    const Candidate& candidate = candidates_[i];
    costs_[i] = {.compress_seconds = candidate.compress_seconds,
                 .sync_seconds = sync_time_(candidate.ratio),
                 .inverse_gain = 1 / std::max(candidate.gain, kGainFloor)};
  }
  current_ = knee_of(costs_);
  recent_gain_ = candidates_[current_].gain;
  ++choices_;
}

}  // namespace canarynet
