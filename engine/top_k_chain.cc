#include "engine/top_k_chain.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "compress/codec.h"
#include "compress/method.h"
#include "compress/top_k.h"

namespace canarynet {
namespace {

// Of a refusal: what the value is, and the element in two parts, which floats hold exactly; all 0 without one.
constexpr std::size_t kRefusalWords = 3;
constexpr std::uint32_t kNan = 1, kInfinity = 2, kMinusInfinity = 3;
constexpr std::uint32_t kLowBits = 16;

std::uint32_t kind_of(float value) {
  if (std::isnan(value)) return kNan;
  return value > 0 ? kInfinity : kMinusInfinity;
}

float value_of(std::uint32_t kind) {
  if (kind == kNan) return std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  return kind == kInfinity ? infinity : -infinity;
}

// A peer may have sent any float; where that is no part of a refusal, 0 stands for it.
std::uint32_t word_of(float told) {
  constexpr float kMost = 1 << 24;
  return told >= 0 && told <= kMost ? static_cast<std::uint32_t>(told) : 0;
}

template <typename T>
void grow(std::vector<T>* v, std::size_t size) {
  if (v->size() < size) v->resize(size);
}

}  // namespace

void TopKChain::begin(const CalledOperation& called, const CodecSpec& spec, const Choice& choice, int rank, int ranks,
                      const ErrorFeedback::Exchange& feedback, Nanos now) {
  const OpRequest& r = called.request;
  const auto n = static_cast<std::size_t>(ranks);
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
  std::uint64_t& iteration = iterations_[r.tensor];

  called_ = called;
  called_.chained = true;
  spec_ = spec;
  choice_ = choice;
  began_ = now;
  went_dense_ = false;
  rank_ = rank;
  ranks_ = ranks;
  k_ = k;
  refusal_ = {};
  work_ = r.tensor != 0 ? feedback.left_out : std::span(static_cast<float*>(r.output), r.count);
  const float* const input = static_cast<const float*>(r.input);
  for (std::size_t i = 0; i < r.count; ++i) work_[i] = r.tensor != 0 ? input[i] + feedback.residual[i] : input[i];
  unfit_ = first_not_finite(work_.data(), r.count);
  if (unfit_ != r.count) unfit_value_ = work_[unfit_];
  // STAR's roots take turns per tensor: counted over all, each tensor of a model would have the same root for ever.
  root_ = static_cast<int>(star_root(iteration++, n));
  if (gathers || spec.bits == kArTopKVar || rank == root_) choose_own();
  phase_ = gathers ? Phase::kPairs : spec.bits == kArTopKVar ? Phase::kNorms : Phase::kIndices;
  if (gathers) offer_pairs();
  due_ = true;
}

// The rank's own k largest. One with an element that will be refused wants to be root last.
void TopKChain::choose_own() {
  Carver carver(space_);
  const TopKSpace space(&carver, work_.size(), k_);
  choose_top_k(work_.data(), work_.size(), k_, 0, space);
  std::copy_n(space.chosen.indices, k_, indices_.begin());
  own_norm_ = unfit_ == work_.size() ? squared_norm({space.chosen.values, k_}) : -1;
}

CalledOperation TopKChain::take_phase() {
  due_ = false;
  CalledOperation out = called_;
  OpRequest& r = out.request;
  r.codec = 0;
  r.tensor = 0;
  switch (phase_) {
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
      break;
    case Phase::kPairs:
      r.collective = Collective::kAllGather;
      r.input = pairs_.data();
      r.output = all_pairs_.data();
      r.count = kRefusalWords + 2 * k_;
      r.type = CANARY_I32;
      break;
    case Phase::kDense:  // as if no codec had been asked for: what was left out of the tensor goes along
      r.tensor = called_.request.tensor;
      break;
    case Phase::kNone:
      break;
  }
  return out;
}

void TopKChain::sign(wire::SignaturePayload* out) const {
  const OpRequest& r = called_.request;
  out->collective = static_cast<std::uint32_t>(r.collective);
  out->count = r.count;
  out->type = r.type;
  out->redop = r.redop;
  out->counts[0] = r.codec;
  out->counts[1] = r.tensor;
  out->root = -1;
  out->counts[2] = static_cast<std::uint64_t>(phase_) | static_cast<std::uint64_t>(root_) << 8;
}

Status TopKChain::go_on(int* culprit) {
  switch (phase_) {
    case Phase::kNorms: {
      const Result<std::size_t> root = var_root({norms_.data(), static_cast<std::size_t>(ranks_)});
      if (!root.ok()) return root.status();
      root_ = static_cast<int>(root.value());
      phase_ = Phase::kIndices;
      due_ = true;
      return {};
    }
    case Phase::kIndices: {
      *culprit = root_;
      Status taken = take_at({indices_.data(), k_}, work_, {values_.data(), k_});
      if (!taken.ok()) return taken;
      offer_values();
      phase_ = Phase::kValues;
      due_ = true;
      return {};
    }
    case Phase::kValues:
      return take_values();
    case Phase::kPairs:
      return take_pairs(culprit);
    case Phase::kDense:
      went_dense_ = true;
      end();
      return {};
    case Phase::kNone:
      break;
  }
  return {};
}

// What is behind the values tells of refusals; then the values are of no use, and must not turn the sums into NaN.
void TopKChain::offer_values() {
  sent_energy_ = squared_norm({values_.data(), k_});
  encoded_bytes_ = k_ * sizeof(float) + (rank_ == root_ ? k_ * sizeof(std::uint32_t) : 0);
  float* const refusals = values_.data() + k_;
  std::fill_n(refusals, kRefusalWords * static_cast<std::size_t>(ranks_), 0.0F);
  if (unfit_ == work_.size()) return;
  std::fill_n(values_.begin(), k_, 0.0F);
  float* const own = refusals + kRefusalWords * static_cast<std::size_t>(rank_);
  own[0] = static_cast<float>(kind_of(unfit_value_));
  own[1] = static_cast<float>(unfit_ >> kLowBits);
  own[2] = static_cast<float>(unfit_ & ((1u << kLowBits) - 1));
}

void TopKChain::offer_pairs() {
  std::fill_n(pairs_.begin(), kRefusalWords, 0u);
  if (unfit_ != work_.size()) {
    pairs_[0] = kind_of(unfit_value_);
    pairs_[1] = static_cast<std::uint32_t>(unfit_ >> kLowBits);
    pairs_[2] = static_cast<std::uint32_t>(unfit_ & ((1u << kLowBits) - 1));
  }
  std::uint32_t* const indices = pairs_.data() + kRefusalWords;
  sent_energy_ = 0;
  for (std::size_t i = 0; i < k_; ++i) {
    float& value = work_[indices_[i]];
    indices[i] = indices_[i];
    indices[k_ + i] = std::bit_cast<std::uint32_t>(value);
    sent_energy_ += static_cast<double>(value) * value;
    value = 0;
  }
  encoded_bytes_ = 2 * k_ * sizeof(float);
}

void TopKChain::note_refusal(std::uint32_t rank, std::uint32_t kind, std::uint64_t element) {
  const Refusal found{element, rank, value_of(kind)};
  if (!refusal_.there() || found.before(refusal_)) refusal_ = found;
}

Status TopKChain::take_values() {
  for (int rank = 0; rank < ranks_; ++rank) {
    const float* const told = values_.data() + k_ + kRefusalWords * static_cast<std::size_t>(rank);
    if (told[0] == 0) continue;
    note_refusal(static_cast<std::uint32_t>(rank), word_of(told[0]),
                 (std::uint64_t{word_of(told[1])} << kLowBits) + word_of(told[2]));
  }
  if (refusal_.there()) return refuse();
  end();
  roots_.count(static_cast<std::size_t>(root_));
  left_energy_ = squared_norm(work_);
  float* const output = static_cast<float*>(called_.request.output);
  std::fill_n(output, called_.request.count, 0.0F);
  for (std::size_t i = 0; i < k_; ++i) output[indices_[i]] = values_[i];
  finish_output();
  return {};
}

Status TopKChain::take_pairs(int* culprit) {
  const std::size_t record = kRefusalWords + 2 * k_;
  const std::uint64_t count = called_.request.count;
  left_energy_ = squared_norm(work_);
  for (int rank = 0; rank < ranks_; ++rank) {
    *culprit = rank;
    const std::uint32_t* const told = all_pairs_.data() + record * static_cast<std::size_t>(rank);
    if (told[0] != 0) {
      note_refusal(static_cast<std::uint32_t>(rank), told[0], (std::uint64_t{told[1]} << kLowBits) + told[2]);
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
  if (refusal_.there()) return refuse();
  end();
  float* const output = static_cast<float*>(called_.request.output);
  std::fill_n(output, count, 0.0F);
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::uint32_t* const told = all_pairs_.data() + record * static_cast<std::size_t>(rank) + kRefusalWords;
    for (std::size_t i = 0; i < k_; ++i) output[told[i]] += std::bit_cast<float>(told[k_ + i]);
  }
  finish_output();
  return {};
}

// All ranks have found the same element. The input is as it was: with a tensor nothing was written over it.
Status TopKChain::refuse() {
  if (!spec_.or_dense) {
    end();
    return {CANARY_INVALID_ARGUMENT, ""};
  }
  phase_ = Phase::kDense;
  due_ = true;
  return {};
}

void TopKChain::finish_output() {
  if (called_.request.redop != CANARY_AVG) return;
  float* const output = static_cast<float*>(called_.request.output);
  for (std::uint64_t i = 0; i < called_.request.count; ++i) output[i] /= static_cast<float>(ranks_);
}

}  // namespace canarynet
