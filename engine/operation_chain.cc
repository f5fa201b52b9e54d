#include "engine/operation_chain.h"

#include <cmath>
#include <limits>

#include "compress/codec.h"

namespace canarynet {
namespace {

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

}  // namespace

void OperationChain::begin(const CalledOperation& called, const CodecSpec& spec, const Choice& choice,
                           const Place& place, ErrorFeedback* feedback, Nanos now) {
  const OpRequest& r = called.request;
  const float* const input = static_cast<const float*>(r.input);
  ErrorFeedback::Exchange exchange;
  if (feedback != nullptr) exchange = feedback->begin(r.tensor, input, r.momentum, part_of_tensor(r));
  make_room(r, spec, place, feedback);

  called_ = called;
  called_.chained = true;
  spec_ = spec;
  choice_ = choice;
  began_ = now;
  number_ = place.number;
  went_dense_ = false;
  rank_ = place.rank;
  ranks_ = place.ranks;
  refusal_ = {};
  energy_ = sent_energy_ = left_energy_ = 0;
  encoded_bytes_ = 0;
  work_ = feedback != nullptr ? exchange.left_out : output();
  for (std::size_t i = 0; i < r.count; ++i) work_[i] = feedback != nullptr ? input[i] + exchange.residual[i] : input[i];
  unfit_ = first_not_finite(work_.data(), r.count);
  if (!fit()) unfit_value_ = work_[unfit_];
  phase_ = start(place);
  due_ = true;
}

CalledOperation OperationChain::take_phase() {
  due_ = false;
  CalledOperation out = called_;
  out.request.codec = 0;
  out.request.rows = 0;
  // Dense is as if no codec had been asked for: what was left out of the tensor goes along.
  if (phase_ != Phase::kDense) {
    out.request.tensor = 0;
    shape(&out);
  }
  return out;
}

void OperationChain::sign(wire::SignaturePayload* out) const {
  const OpRequest& r = called_.request;
  out->collective = static_cast<std::uint32_t>(r.collective);
  out->count = r.count;
  out->type = r.type;
  out->redop = r.redop;
  out->counts[0] = r.codec;
  out->counts[1] = r.tensor;
  out->root = -1;
  out->counts[2] = static_cast<std::uint64_t>(phase_) | static_cast<std::uint64_t>(root()) << 8;
  out->counts[3] = r.rows;
}

Status OperationChain::go_on(bool refused, int* culprit) {
  if (phase_ != Phase::kDense) return take(refused, culprit);
  went_dense_ = true;
  end();
  return {};
}

OperationChain::RefusalWords OperationChain::own_refusal() const {
  if (fit()) return {};
  return {kind_of(unfit_value_), static_cast<std::uint32_t>(unfit_ >> kLowBits),
          static_cast<std::uint32_t>(unfit_ & ((1u << kLowBits) - 1))};
}

void OperationChain::note_refusal(int rank, const RefusalWords& told) {
  const Refusal found{(std::uint64_t{told.high} << kLowBits) + told.low, static_cast<std::uint32_t>(rank),
                      value_of(told.kind)};
  if (!refusal_.there() || found.before(refusal_)) refusal_ = found;
}

Status OperationChain::refuse() {
  if (spec_.or_dense) return next(Phase::kDense);
  end();
  return {CANARY_INVALID_ARGUMENT, ""};
}

void OperationChain::finish_output() {
  if (called_.request.redop != CANARY_AVG) return;
  for (float& value : output()) value /= static_cast<float>(ranks_);
}

}  // namespace canarynet
