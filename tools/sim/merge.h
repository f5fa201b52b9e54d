// tools/sim/merge.h -- what merging of gradients gives on more and more workers: `canary-sim merge`.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "collectives/merge_planner.h"

namespace canarynet::sim {

struct MergeStudy {
  std::string source;      // the model or the file
  std::string assumption;  // how the times were made; "" for a recorded trace
  BackwardPass pass;
  ScalingLaw law = ScalingLaw::kRing;
  AffineTime fitted;        // a and b as given
  int fitted_workers = 16;  // on a ring of so many
  std::vector<int> workers;

  double backward_seconds() const;
  std::uint64_t bytes() const;
};

struct MergeRow {
  int workers = 1;
  AffineTime time;
  std::array<MergePlan, kMergePolicyCount> plans;  // by MergePolicy
};
std::vector<MergeRow> rows_of(const MergeStudy& study);

// Speed-up of `workers` over one: S(n) = n / (1 + r), r the communication that the backward pass does not hide, per t_f
// + t_b.
double speed_up(const MergeStudy& study, const MergeRow& row, MergePolicy policy);

std::string text_of(const MergeStudy& study, const std::vector<MergeRow>& rows);
std::string json_of(const MergeStudy& study, const std::vector<MergeRow>& rows);

}  // namespace canarynet::sim
