// engine/low_rank_chain.h -- the phases of all-reduces of a matrix by power and svd (engine/operation_chain.h):
//
//   power:N   left = M right of all ranks (all_reduce), orthonormalised by each; right = M' left (all_reduce)
//   svd:N     all ranks' own factors (all_gather)
//
// compress/low_rank.h computes, on the engine's thread. With +sketch:B the all-reduces of power have that codec, and
// svd's factors travel sketched. All ranks compute the result from the same factors, so they get the same bits.
// Power begins with the `right` that the tensor's last call ended with, which error feedback keeps.
// Not finite: a rank with such an element offers NaN for its factor, which all ranks find in the sum; one phase more,
// which there is only then, tells whose element it was. svd's factors take a refusal along.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compress/codec.h"
#include "compress/low_rank.h"
#include "engine/operation_chain.h"

namespace canarynet {

class LowRankChain final : public OperationChain {
 private:
  void make_room(const OpRequest& request, const CodecSpec& spec, const Place& place, ErrorFeedback* feedback) override;
  Phase start(const Place& place) override;
  void shape(CalledOperation* operation) override;
  Status take(bool refused, int* culprit) override;
  bool by_power() const { return spec().kind == CodecKind::kPower; }
  bool sketched() const { return spec().factor_bits != 0; }
  Matrix matrix() const { return {work_.data(), rows_, columns_}; }
  void offer_left(std::uint32_t number);
  void offer_right();
  void offer_factors();
  void tell_refusal(std::uint32_t* words) const;
  Status take_right();
  Status take_refusals();
  Status take_factors(int* culprit);
  // Of work_, by what it was, what of it was sent, and what is left.
  void settle(std::size_t begin, std::span<const float> sent);

  std::size_t rows_ = 0, columns_ = 0, factors_ = 0;  // the rank, cut to the shorter side
  bool keeps_ = false;                                // what is left out: there is a tensor
  // Of power: vectors one behind the other.
  std::vector<float> left_, right_, sums_;
  std::vector<float> lost_;              // of the own `right` in its encodings
  std::span<float> kept_;                // what the tensor's next call begins with; empty without a tensor
  std::vector<std::uint32_t> refusals_;  // of all ranks
  std::uint32_t own_words_[kRefusalWords] = {};
  // Of svd.
  Coding coding_;
  std::vector<std::byte> space_;
  std::vector<std::uint8_t> record_, records_;  // a refusal and factors: the own one, and those of all ranks
};

}  // namespace canarynet
