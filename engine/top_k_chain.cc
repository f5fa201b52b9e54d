#include "engine/top_k_chain.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "compress/method.h"
#include "compress/top_k.h"

namespace canarynet {
namespace {

// A peer may have sent any float; where that is no part of a refusal, 0 stands for it.
std::uint32_t word_of(float told) {
  constexpr float kMost = 1 << 24;
  return told >= 0 && told <= kMost ? static_cast<std::uint32_t>(told) : 0;
}

}  // namespace

void TopKChain::make_room(const OpRequest& r, const CodecSpec& spec, const Place& place, ErrorFeedback* /*feedback*/) {
  const auto n = static_cast<std::size_t>(place.ranks);
  const bool gathers = spec.bits == kAgTopK;
  const std::size_t k = kept_of(r.count, spec.ratio_ppm);
  Carver room;
  TopKSpace(&room, r.count, k);
  grow(&space_, room.bytes());
  grow(&norms_, n);
  if (roots_.counts().size() < n) roots_ = RootHistogram(n);
  grow(&indices_, k);
  if (!gathers) grow(&values_, k + kRefusalWords * n);
  const std::size_t record = kRefusalWords + 2 * k;
  if (gathers) grow(&pairs_, record);
  if (gathers) grow(&all_pairs_, record * n);
  iterations_.try_emplace({r.tensor, r.part_begin});
}

OperationChain::Phase TopKChain::start(const Place& place) {
  k_ = kept_of(work_.size(), spec().ratio_ppm);
  // STAR's roots take turns per tensor and part: counted over all, each would have the same root for ever.
  std::uint64_t& iteration = iterations_[{called().request.tensor, called().request.part_begin}];
  root_ = static_cast<int>(star_root(iteration++, static_cast<std::size_t>(place.ranks)));
  const bool gathers = spec().bits == kAgTopK, by_norms = spec().bits == kArTopKVar;
  if (gathers || by_norms || rank_ == root_) choose_own();
  if (gathers) offer_pairs();
  return gathers ? Phase::kPairs : by_norms ? Phase::kNorms : Phase::kIndices;
}

// The rank's own k largest. One with an element that will be refused wants to be root last.
void TopKChain::choose_own() {
  Carver carver(space_);
  const TopKSpace space(&carver, work_.size(), k_);
  choose_top_k(work_.data(), work_.size(), k_, 0, space);
  std::copy_n(space.chosen.indices, k_, indices_.begin());
  own_norm_ = fit() ? squared_norm({space.chosen.values, k_}) : -1;
}

void TopKChain::shape(CalledOperation* operation) {
  OpRequest& r = operation->request;
  switch (phase()) {
    case Phase::kNorms:
      r.collective = Collective::kAllGather;
      r.input = &own_norm_;
      r.output = norms_.data();
      r.count = 1;
      r.type = CANARY_F64;
      break;
    case Phase::kIndices:
      r.collective = Collective::kBroadcast;
      r.input = r.output = indices_.data();
      r.count = k_;
      r.type = CANARY_I32;
      r.root = root_;
      break;
    case Phase::kValues:
      r.input = r.output = values_.data();
      r.count = k_ + kRefusalWords * static_cast<std::size_t>(ranks_);
      r.redop = CANARY_SUM;
      r.carries = codec_number(spec()).value();
      break;
    default:
      r.collective = Collective::kAllGather;
      r.input = pairs_.data();
      r.output = all_pairs_.data();
      r.count = kRefusalWords + 2 * k_;
      r.type = CANARY_I32;
      break;
  }
}

Status TopKChain::take(bool /*refused*/, int* culprit) {
  switch (phase()) {
    case Phase::kNorms: {
      const Result<std::size_t> root = var_root({norms_.data(), static_cast<std::size_t>(ranks_)});
      if (!root.ok()) return root.status();
      root_ = static_cast<int>(root.value());
      return next(Phase::kIndices);
    }
    case Phase::kIndices: {
      *culprit = root_;
      Status taken = take_at({indices_.data(), k_}, work_, {values_.data(), k_});
      if (!taken.ok()) return taken;
      offer_values();
      return next(Phase::kValues);
    }
    case Phase::kValues:
      return take_values();
    default:
      return take_pairs(culprit);
  }
}

// What is behind the values tells of refusals; then the values are of no use, and must not turn the sums into NaN.
void TopKChain::offer_values() {
  sent_energy_ = squared_norm({values_.data(), k_});
  encoded_bytes_ = k_ * sizeof(float) + (rank_ == root_ ? k_ * sizeof(std::uint32_t) : 0);
  float* const refusals = values_.data() + k_;
  std::fill_n(refusals, kRefusalWords * static_cast<std::size_t>(ranks_), 0.0F);
  if (fit()) return;
  std::fill_n(values_.begin(), k_, 0.0F);
  float* const own = refusals + kRefusalWords * static_cast<std::size_t>(rank_);
  const RefusalWords words = own_refusal();
  own[0] = static_cast<float>(words.kind);
  own[1] = static_cast<float>(words.high);
  own[2] = static_cast<float>(words.low);
}

void TopKChain::offer_pairs() {
  const RefusalWords words = own_refusal();
  pairs_[0] = words.kind;
  pairs_[1] = words.high;
  pairs_[2] = words.low;
  std::uint32_t* const indices = pairs_.data() + kRefusalWords;
  for (std::size_t i = 0; i < k_; ++i) {
    float& value = work_[indices_[i]];
    indices[i] = indices_[i];
    indices[k_ + i] = std::bit_cast<std::uint32_t>(value);
    sent_energy_ += static_cast<double>(value) * value;
    value = 0;
  }
  encoded_bytes_ = 2 * k_ * sizeof(float);
}

Status TopKChain::take_values() {
  for (int rank = 0; rank < ranks_; ++rank) {
    const float* const told = values_.data() + k_ + kRefusalWords * static_cast<std::size_t>(rank);
    if (told[0] != 0) note_refusal(rank, {word_of(told[0]), word_of(told[1]), word_of(told[2])});
  }
  if (refusal().there()) return refuse();
  end();
  roots_.count(static_cast<std::size_t>(root_));
  left_energy_ = squared_norm(work_);
  energy_ = sent_energy_ + left_energy_;
  const std::span<float> sums = output();
  std::fill(sums.begin(), sums.end(), 0.0F);
  for (std::size_t i = 0; i < k_; ++i) sums[indices_[i]] = values_[i];
  finish_output();
  return {};
}

Status TopKChain::take_pairs(int* culprit) {
  const std::size_t record = kRefusalWords + 2 * k_;
  const std::uint64_t count = called().request.count;
  left_energy_ = squared_norm(work_);
  energy_ = sent_energy_ + left_energy_;
  for (int rank = 0; rank < ranks_; ++rank) {
    *culprit = rank;
    const std::uint32_t* const told = all_pairs_.data() + record * static_cast<std::size_t>(rank);
    if (told[0] != 0) {
      note_refusal(rank, {told[0], told[1], told[2]});
      continue;
    }
    std::uint64_t least = 0;
    for (std::size_t i = 0; i < k_; ++i) {
      const std::uint32_t index = told[kRefusalWords + i];
      if (index < least || index >= count || !std::isfinite(std::bit_cast<float>(told[kRefusalWords + k_ + i]))) {
        return {CANARY_MISMATCH, "pair " + std::to_string(i) + " does not ascend, lies beyond the tensor's " +
                                     std::to_string(count) + " elements, or is not finite"};
      }
      least = std::uint64_t{index} + 1;
    }
  }
  if (refusal().there()) return refuse();
  end();
  const std::span<float> sums = output();
  std::fill(sums.begin(), sums.end(), 0.0F);
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::uint32_t* const told = all_pairs_.data() + record * static_cast<std::size_t>(rank) + kRefusalWords;
    for (std::size_t i = 0; i < k_; ++i) sums[told[i]] += std::bit_cast<float>(told[k_ + i]);
  }
  finish_output();
  return {};
}

}  // namespace canarynet
