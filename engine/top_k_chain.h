// engine/top_k_chain.h -- the phases of all-reduces by artopk and agtopk (engine/operation_chain.h):
//
//   artopk:star:R   the root's indices (broadcast), everybody's values there (all_reduce)
//   artopk:var:R    the norms of all ranks' own top-k (all_gather), then as above
//   agtopk:R        all ranks' own indices and values (all_gather)
//
// compress/ar_topk.h chooses the root. What is not finite goes along in the last phase, so that all ranks refuse the
// same element: no phase more, and nobody waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "compress/ar_topk.h"
#include "engine/operation_chain.h"

namespace canarynet {

class TopKChain final : public OperationChain {
 public:
  // How often each rank was root, in calls that have ended well by artopk.
  const RootHistogram& roots() const { return roots_; }

 private:
  void make_room(const OpRequest& request, const CodecSpec& spec, const Place& place, ErrorFeedback* feedback) override;
  Phase start(const Place& place) override;
  void shape(CalledOperation* operation) override;
  Status take(bool refused, int* culprit) override;
  int root() const override { return root_; }
  void choose_own();
  void offer_values();
  void offer_pairs();
  Status take_values();
  Status take_pairs(int* culprit);

  int root_ = 0;
  std::size_t k_ = 0;
  RootHistogram roots_{0};
  // Of each tensor in this group, and of each part of it, by its first element: for STAR.
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> iterations_;
  std::vector<std::byte> space_;  // of the choice
  std::vector<double> norms_;     // of all ranks
  double own_norm_ = 0;
  std::vector<std::uint32_t> indices_;
  std::vector<float> values_;                     // k, then three per rank for refusals
  std::vector<std::uint32_t> pairs_, all_pairs_;  // a refusal, k indices, the bits of k values
};

}  // namespace canarynet
