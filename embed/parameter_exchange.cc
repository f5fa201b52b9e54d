#include "embed/parameter_exchange.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace canarynet {

ParameterExchange::ParameterExchange(canary_context& context, port::MemberId member, std::span<float> parameters,
                                     const OptionsRead& options,
                                     const std::optional<sync::LocalUpdates::Options>& deltas)
    : context_(context), member_(member), parameters_(parameters), options_(options), time_limit_(options.time_limit) {
  if (!deltas) {
    buffer_.resize(parameters.size());
    return;
  }
  updates_.emplace(parameters, *deltas);
  std::size_t most = 0;
  for (int p = 0; p < deltas->parts; ++p) most = std::max(most, updates_->state_size(p));
  buffer_.resize(most);
}

Status ParameterExchange::start(std::span<const int> ranks, std::uint64_t number, std::span<float> values,
                                canary_redop redop, const OptionsRead& coding) {
  OpRequest request{Collective::kAllReduce, values.data(), values.data(), values.size(), CANARY_F32, redop};
  request.priority = options_.priority;
  request.time_limit = time_limit_;
  canary_op* const op = context_.take_op(member_, false);
  op->counts = {number, std::bit_cast<std::uint64_t>(1.0), coding.codec, coding.tensor,
                std::bit_cast<std::uint32_t>(coding.momentum)};
  for (const int rank : ranks) op->counts.push_back(static_cast<std::uint64_t>(rank));
  Status wrong =
      context_.impl->submit(port::partial(member_, request, op->counts, /*weighted=*/false, op->ticket.id()));
  if (!wrong.ok()) {
    context_.give_op(op);
    return wrong;
  }
  op_ = op;
  return {};
}

void ParameterExchange::limit(Nanos time) {
  time_limit_ = time > Nanos{} ? time : options_.time_limit;
  if (time > Nanos{} && op_ != nullptr)
    (void)context_.impl->submit(port::deadline(op_->member, op_->ticket.id(), time));
}

Status ParameterExchange::begin(const Task& task) {
  number_ = task.number;
  part_ = task.part;
  rank_ = task.rank;
  source_ = task.source;
  behind_ = std::binary_search(task.behind.begin(), task.behind.end(), task.rank);
  handing_over_ = false;
  receivers_.assign(task.behind.begin(), task.behind.end());
  if (source_ >= 0) receivers_.insert(std::upper_bound(receivers_.begin(), receivers_.end(), source_), source_);
  std::span<float> values = buffer_;
  OptionsRead coding = options_;
  if (updates_) {
    values = values.first(updates_->part(part_).size);
    updates_->take(parameters_, part_, task.counted, values);
    // A tensor keeps its length, and parts may have two.
    if (coding.tensor != 0) coding.tensor += static_cast<std::uint64_t>(part_);
  } else {
    std::copy(parameters_.begin(), parameters_.end(), values.begin());
  }
  return start(task.ranks, number_, values, CANARY_AVG, coding);
}

bool ParameterExchange::ended() {
  if (op_ == nullptr) return false;
  if (!op_->ticket.done()) context_.impl->nudge();
  return op_->ticket.done() || context_.impl->over();
}

Status ParameterExchange::go_on(bool* applied) {
  context_.impl->wait(op_->ticket);
  Status came = result_of(*context_.impl, op_->ticket);
  context_.give_op(std::exchange(op_, nullptr));
  *applied = false;
  const bool gives = source_ == rank_ && handing_over_;
  if (!came.ok() && !gives) return came;
  if (!updates_) {
    std::copy(buffer_.begin(), buffer_.end(), parameters_.begin());
  } else if (!handing_over_) {
    if (!behind_) updates_->step(part_, std::span(buffer_).first(updates_->part(part_).size));
    Status handed = hands_over() ? hand_over() : Status();
    if (running() || behind_) return handed;
    updates_->settle(parameters_, part_);
  } else if (behind_) {
    updates_->adopt(parameters_, part_, std::span(buffer_).first(updates_->state_size(part_)));
  } else {
    updates_->settle(parameters_, part_);  // whether those behind have got it or not
  }
  *applied = true;
  return {};
}

// One gives its state, and the others zeros, so that the sum is that state to the bit.
Status ParameterExchange::hand_over() {
  handing_over_ = true;
  const std::span<float> state = std::span(buffer_).first(updates_->state_size(part_));
  if (source_ == rank_) {
    updates_->save(part_, state);
  } else {
    std::fill(state.begin(), state.end(), 0.0f);
  }
  return start(receivers_, number_ + 1, state, CANARY_SUM, OptionsRead());
}

void ParameterExchange::drop() {
  if (op_ == nullptr) return;
  (void)context_.impl->submit(port::deadline(op_->member, op_->ticket.id(), Nanos{1}));
  context_.impl->wait(op_->ticket);
  context_.give_op(std::exchange(op_, nullptr));
}

}  // namespace canarynet
