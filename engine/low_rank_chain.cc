#include "engine/low_rank_chain.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace canarynet {
namespace {

// Ranks must multiply by the same number before they add, so none can choose its own by its greatest element. With this
// one no sum of products overflows, and elements below 2^-94 count as zero when directions are looked for.
constexpr float kScale = 0x1p-32F;
constexpr std::size_t kStretch = 512;  // elements that are computed apart

std::uint32_t factor_codec(const CodecSpec& spec) {
  if (spec.factor_bits == 0) return 0;
  return codec_number({.kind = CodecKind::kSketch, .bits = spec.factor_bits, .member_mean = spec.member_mean}).value();
}

Coding coding_of(const OpRequest& r, const CodecSpec& spec, std::uint32_t number) {
  CodecSpec factors = spec;
  factors.or_dense = false;  // a refusal is told beside them
  return {factors, {.count = r.count, .rows = r.rows, .columns = r.count / r.rows, .round = number}};
}

constexpr std::size_t kRefusalBytes = 3 * sizeof(std::uint32_t);

}  // namespace

void LowRankChain::make_room(const OpRequest& r, const CodecSpec& spec, const Place& place, ErrorFeedback* feedback) {
  const auto n = static_cast<std::size_t>(place.ranks);
  const std::size_t columns = r.count / r.rows, rank = std::min<std::size_t>({spec.rank, r.rows, columns});
  if (spec.kind == CodecKind::kPower) {
    grow(&left_, rank * r.rows);
    grow(&right_, rank * columns);
    grow(&sums_, rank * columns);
    if (spec.factor_bits != 0) grow(&lost_, rank * columns);
    grow(&refusals_, kRefusalWords * n);
    kept_ = feedback != nullptr ? feedback->right_factor(r.tensor, rank * columns) : std::span<float>();
  } else {
    const Coding coding = coding_of(r, spec, place.number);
    const std::size_t bytes = kRefusalBytes + head_bytes_max(coding);
    grow(&space_, workspace_bytes(coding));
    grow(&record_, bytes);
    grow(&records_, bytes * n);
  }
  rows_ = r.rows;
  columns_ = columns;
  factors_ = rank;
  keeps_ = feedback != nullptr;
}

OperationChain::Phase LowRankChain::start(const Place& place) {
  if (by_power()) {
    offer_left(place.number);
    return Phase::kLeft;
  }
  coding_ = coding_of(called().request, spec(), place.number);
  offer_factors();
  return Phase::kFactors;
}

void LowRankChain::shape(CalledOperation* operation) {
  OpRequest& r = operation->request;
  switch (phase()) {
    case Phase::kLeft:
      r.input = r.output = left_.data();
      r.count = factors_ * rows_;
      r.redop = CANARY_SUM;
      r.codec = factor_codec(spec());
      break;
    case Phase::kRight:
      r.input = right_.data();
      r.output = sums_.data();
      r.count = factors_ * columns_;
      r.redop = CANARY_SUM;
      r.codec = factor_codec(spec());
      if (sketched()) operation->left_out = {lost_.data(), r.count};
      break;
    case Phase::kRefusals:
      r.collective = Collective::kAllGather;
      r.input = own_words_;
      r.output = refusals_.data();
      r.count = kRefusalWords;
      r.type = CANARY_I32;
      break;
    default:
      r.collective = Collective::kAllGather;
      r.input = record_.data();
      r.output = records_.data();
      r.count = kRefusalBytes + head_bytes_max(coding_);
      r.type = CANARY_U8;
      break;
  }
}

Status LowRankChain::take(bool refused, int* culprit) {
  switch (phase()) {
    case Phase::kLeft: {
      const std::size_t count = factors_ * rows_;
      if (refused || first_not_finite(left_.data(), count) != count) return next(Phase::kRefusals);
      offer_right();
      return next(Phase::kRight);
    }
    case Phase::kRight:
      if (refused || first_not_finite(sums_.data(), factors_ * columns_) != factors_ * columns_)
        return {CANARY_INVALID_ARGUMENT, "a factor of finite matrices is not finite"};
      return take_right();
    case Phase::kRefusals:
      return take_refusals();
    default:
      return take_factors(culprit);
  }
}

// Ranks begin with the same `right`: what the last call ended with is equal everywhere, as is the number.
void LowRankChain::offer_left(std::uint32_t number) {
  std::fill_n(right_.begin(), factors_ * columns_, 0.0F);
  std::copy(kept_.begin(), kept_.end(), right_.begin());
  warm_start(right_.data(), factors_, columns_, spec().seed, number);
  if (!sketched()) encoded_bytes_ = factors_ * (rows_ + columns_) * sizeof(float);
  tell_refusal(own_words_);
  if (fit()) return power_left(matrix(), kScale, right_.data(), factors_, left_.data());
  std::fill_n(left_.begin(), factors_ * rows_, 0.0F);
  left_[0] = std::numeric_limits<float>::quiet_NaN();
}

void LowRankChain::offer_right() {
  const std::size_t count = factors_ * columns_;
  orthonormalize(left_.data(), factors_, rows_);
  power_right(matrix(), kScale, left_.data(), factors_, right_.data());
  // The sum over all ranks must stay finite, and what it is multiplied with.
  const float most =
      std::numeric_limits<float>::max() / (2 * static_cast<float>(factors_) * static_cast<float>(ranks_));
  for (std::size_t i = 0; i < count; ++i) right_[i] = std::clamp(right_[i], -most, most);
  if (sketched()) std::fill_n(lost_.begin(), count, 0.0F);
}

Status LowRankChain::take_right() {
  end();
  const std::size_t count = factors_ * columns_;
  std::copy_n(sums_.begin(), kept_.size(), kept_.begin());
  for (std::size_t i = 0; sketched() && i < count; ++i) right_[i] -= lost_[i];
  const Factors own{left_.data(), right_.data(), rows_, columns_, factors_};
  const Factors all{left_.data(), sums_.data(), rows_, columns_, factors_};
  float sent[kStretch];
  for (std::size_t row = 0; row < rows_; ++row) {
    for (std::size_t column = 0; column < columns_; column += kStretch) {
      const std::size_t stretch = std::min(kStretch, columns_ - column), at = row * columns_ + column;
      if (keeps_) {
        product_at(own, row, column, {sent, stretch});
        settle(at, {sent, stretch});
      }
      product_at(all, row, column, output().subspan(at, stretch));
    }
  }
  finish_output();
  return {};
}

Status LowRankChain::take_refusals() {
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::uint32_t* const told = refusals_.data() + kRefusalWords * static_cast<std::size_t>(rank);
    if (told[0] != 0) note_refusal(rank, {told[0], told[1], told[2]});
  }
  if (refusal().there()) return refuse();
  return {CANARY_INVALID_ARGUMENT, "the sum of the factors is not finite, though no rank tells of such an element"};
}

void LowRankChain::tell_refusal(std::uint32_t* words) const {
  const RefusalWords own = own_refusal();
  words[0] = own.kind;
  words[1] = own.high;
  words[2] = own.low;
}

void LowRankChain::offer_factors() {
  std::uint32_t words[kRefusalWords];
  tell_refusal(words);
  std::memcpy(record_.data(), words, kRefusalBytes);
  const std::size_t bytes = head_bytes_max(coding_);
  encoded_bytes_ = bytes;
  std::fill_n(record_.begin() + kRefusalBytes, bytes, std::uint8_t{0});
  if (!fit()) return;
  const auto made = SegmentEncoder(coding_, space_).fit(work_.data(), {record_.data() + kRefusalBytes, bytes});
  CANARY_CHECK(made.ok() && made.value() == bytes, "finite factors have one length");
}

Status LowRankChain::take_factors(int* culprit) {
  const std::size_t bytes = head_bytes_max(coding_), record = kRefusalBytes + bytes;
  const auto record_of = [&](int rank) { return records_.data() + record * static_cast<std::size_t>(rank); };
  for (int rank = 0; rank < ranks_; ++rank) {
    std::uint32_t told[kRefusalWords];
    std::memcpy(told, record_of(rank), kRefusalBytes);
    if (told[0] != 0) note_refusal(rank, {told[0], told[1], told[2]});
  }
  if (refusal().there()) return refuse();
  end();
  const std::span<float> sums = output();
  std::fill(sums.begin(), sums.end(), 0.0F);
  for (int rank = 0; rank < ranks_; ++rank) {
    *culprit = rank;
    SegmentDecoder decoder(coding_, space_);
    if (Status opened = decoder.open({record_of(rank) + kRefusalBytes, bytes}); !opened.ok()) return opened;
    float part[kStretch];
    for (std::size_t at = 0; at < sums.size(); at += kStretch) {
      const std::size_t stretch = std::min(kStretch, sums.size() - at);
      if (Status decoded = decoder.decode({at, stretch}, {}, part); !decoded.ok()) return decoded;
      if (keeps_ && rank == rank_) settle(at, {part, stretch});
      for (std::size_t i = 0; i < stretch; ++i) sums[at + i] += part[i];
    }
  }
  finish_output();
  return {};
}

void LowRankChain::settle(std::size_t begin, std::span<const float> sent) {
  for (std::size_t i = 0; i < sent.size(); ++i) {
    float& left = work_[begin + i];
    energy_ += static_cast<double>(left) * left;
    sent_energy_ += static_cast<double>(sent[i]) * sent[i];
    left -= sent[i];
    left_energy_ += static_cast<double>(left) * left;
  }
}

}  // namespace canarynet
