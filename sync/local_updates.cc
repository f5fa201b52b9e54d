#include "sync/local_updates.h"

#include <algorithm>

#include "base/check.h"

namespace canarynet::sync {

void OuterStep::apply(std::span<float> parameters, std::span<const float> mean_delta, std::size_t first) {
  CANARY_CHECK(parameters.size() == mean_delta.size() && first + parameters.size() <= elements_,
               "an outer step over other parameters");
  if (velocity_.empty()) {
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] += rate_ * mean_delta[i];
    return;
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    float& velocity = velocity_[first + i];
    velocity = momentum_ * velocity + mean_delta[i];
    parameters[i] += rate_ * (mean_delta[i] + momentum_ * velocity);
  }
}

LocalUpdates::LocalUpdates(std::span<const float> parameters, const Options& options)
    : mix_(options.mix ? std::optional(static_cast<float>(*options.mix)) : std::nullopt),
      parts_(static_cast<std::size_t>(options.parts)),
      anchor_(parameters.begin(), parameters.end()),
      base_(anchor_),
      taken_(anchor_),
      outer_(parameters.size(), options.rate, options.momentum) {
  CANARY_CHECK(options.parts > 0, "parameters in no parts");
}

LocalUpdates::Part LocalUpdates::part(int p) const {
  CANARY_CHECK(p >= 0 && static_cast<std::size_t>(p) < parts_, "a part that does not exist");
  const auto place = static_cast<std::size_t>(p);
  const std::size_t begin = anchor_.size() * place / parts_, end = anchor_.size() * (place + 1) / parts_;
  return {begin, end - begin};
}

void LocalUpdates::take(std::span<const float> parameters, int p, bool counted, std::span<float> delta) {
  const Part of = part(p);
  CANARY_CHECK(parameters.size() == anchor_.size() && delta.size() == of.size, "a delta of other parameters");
  for (std::size_t i = 0; i < of.size; ++i) {
    const std::size_t at = of.first + i;
    if (counted) base_[at] = taken_[at];
    delta[i] = parameters[at] - base_[at];
    taken_[at] = parameters[at];
  }
}

void LocalUpdates::step(int p, std::span<const float> mean) {
  const Part of = part(p);
  outer_.apply(std::span(anchor_).subspan(of.first, of.size), mean, of.first);
}

void LocalUpdates::save(int p, std::span<float> state) const {
  const Part of = part(p);
  CANARY_CHECK(state.size() == state_size(p), "a state of other parameters");
  std::copy_n(anchor_.data() + of.first, of.size, state.data());
  if (!outer_.velocity().empty()) std::copy_n(outer_.velocity().data() + of.first, of.size, state.data() + of.size);
}

void LocalUpdates::adopt(std::span<float> parameters, int p, std::span<const float> state) {
  const Part of = part(p);
  CANARY_CHECK(state.size() == state_size(p), "a state of other parameters");
  std::copy_n(state.data(), of.size, anchor_.data() + of.first);
  if (!outer_.velocity().empty()) std::copy_n(state.data() + of.size, of.size, outer_.velocity().data() + of.first);
  settle(parameters, p);
}

// Where nothing was trained since, x = anchor to the bit.
void LocalUpdates::settle(std::span<float> parameters, int p) {
  const Part of = part(p);
  CANARY_CHECK(parameters.size() == anchor_.size(), "an outer step over other parameters");
  for (std::size_t at = of.first; at < of.first + of.size; ++at) {
    base_[at] = anchor_[at];
    parameters[at] =
        mix_ ? *mix_ * parameters[at] + (1 - *mix_) * anchor_[at] : anchor_[at] + (parameters[at] - taken_[at]);
  }
}

}  // namespace canarynet::sync
