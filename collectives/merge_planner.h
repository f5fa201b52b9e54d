// collectives/merge_planner.h -- which gradients of a backward pass travel in one message.
//
// A message costs a start-up time whatever its size, so small tensors are cheaper together; but the merged message can
// leave only when the last of its tensors is ready. Source: Shi, Chu, Li, "MG-WFBP: Merging gradients wisely for
// efficient communication in distributed deep learning" (TPDS 2021), for the model, algorithm 1 and the two extremes.
// The paper calls algorithm 1 optimal; it is not (merge_planner_test.cc has the smallest case), so the default is
// merge_exactly(). Merging two messages *saves* T(p1) + T(p2) - T(p1 + p2) = a; the paper's equations 17, 19 and 21
// print the sign the other way round.
//
// Layers l = 1..L are numbered in forward order, and the backward pass runs L to 1, after the forward pass:
//   τ_b(L) = t_f, τ_b(l) = τ_b(l+1) + t_b(l+1)                    when the backward step of l starts
//   τ_c(L) = τ_b(L) + t_b(L), τ_c(l) = max(τ_c(l+1) + t_c(l+1), τ_b(l) + t_b(l))     when its communication starts
//   t_iter = τ_c(1) + t_c(1)
// A layer that is merged into the one in front of it has t_c(l) = 0; the group's message belongs to its first layer.
// Messages leave one after the other. Here layers count from 0. Units: seconds, bytes. Pure; allocates, so it stays off
// the data path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace canarynet {

// One layer, or one tensor of it.
struct LayerTiming {
  double backward_seconds = 0;  // t_b
  std::uint64_t bytes = 0;      // p, of its gradient
};

struct BackwardPass {
  double forward_seconds = 0;       // t_f
  std::vector<LayerTiming> layers;  // in forward order
};

// T: the seconds of one all-reduce of so many bytes.
using TransferTime = std::function<double(std::uint64_t)>;

// T(p) = a + b·p.
struct AffineTime {
  double a = 0;  // seconds
  double b = 0;  // seconds per byte
  double operator()(std::uint64_t bytes) const { return a + b * static_cast<double>(bytes); }
};

// The consecutive layers first..last, which travel in one message.
struct MergeGroup {
  std::size_t first = 0, last = 0;  // both belong to it
  std::uint64_t bytes = 0;
  double ready_seconds = 0;  // the gradient of `first` is there, and so are all the others
  double start_seconds = 0;  // the message before it is through as well
  double end_seconds = 0;
};

struct MergePlan {
  std::vector<MergeGroup> groups;            // as they leave: the first one holds the last layers
  std::vector<double> backward_starts;       // [layer]: τ_b
  std::vector<double> communication_starts;  // [layer]: τ_c
  double iteration_seconds = 0;              // t_iter; t_f if there is no layer
};

// Names the first time that is negative or not finite. The functions below take only a pass that has none.
Status check(const BackwardPass& pass);

// The fastest grouping, by dynamic programming over the ready times: with layers renumbered 1..L as their gradients
// become ready, E(0) = 0 and E(j) = min over i < j of max(E(i), ready(j)) + T(bytes of i+1..j). O(L²) calls of T, which
// may be any function that is not negative. Of equally fast groupings one with larger last groups is taken.
MergePlan merge_exactly(const BackwardPass& pass, const TransferTime& time);

// Algorithm 1 of the paper. From the last layer on, a layer is merged into the one in front of it if the gradient of
// that one is ready less than `a` after the layer's own message could start: τ_b(l-1) + t_b(l-1) - τ_c(l) < a.
MergePlan merge_greedily(const BackwardPass& pass, const AffineTime& time);

// WFBP (wait-free backpropagation): a message per layer.
MergePlan merge_nothing(const BackwardPass& pass, const TransferTime& time);

// SyncEASGD: one message when all gradients are there.
MergePlan merge_everything(const BackwardPass& pass, const TransferTime& time);

enum class MergePolicy : std::uint8_t { kWfbp, kSyncEasgd, kMgWfbp, kExact };
constexpr int kMergePolicyCount = 4;
// "wfbp", "synceasgd", "mgwfbp", "exact".
std::string_view name_of(MergePolicy policy);
MergePlan plan_merges(MergePolicy policy, const BackwardPass& pass, const AffineTime& time);

// The all-reduce whose a and b grow with the number of workers n; lg is the logarithm to base 2, α the start-up time of
// a message, β and γ the seconds to send and to add a byte.
enum class ScalingLaw : std::uint8_t {
  kFixed,               // a and b hold for any n
  kRing,                // a = 2(n-1)α, b = (n-1)/n·(2β+γ)
  kDoubleTree,          // a = 2·lg n·α, b = 2β+γ: pipelined, large messages
  kDoubleTreeAsPrinted  // as the paper's table II, which sends in one direction: b = β+γ. γ = 0 is assumed, since a fit
                        // can't tell β from γ. The table's lost α is put back.
};
// "fixed", "ring", "dbtree", "dbtree=paper".
std::string_view name_of(ScalingLaw law);

// The constants on `workers` of them, from those that were fitted to a ring of `fitted_workers`. Both at least 2 unless
// the law is kFixed. One worker needs no all-reduce: then a and b are 0.
AffineTime scaled(ScalingLaw law, AffineTime of_ring, int fitted_workers, int workers);

}  // namespace canarynet
