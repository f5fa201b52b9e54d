// exchange.h -- averages a gradient over all ranks, range by range, while the rest of it is still being computed.
//
// All ranks submit the same ranges in the same order. A submitted range is borrowed until finish(). The ranges are
// tensors of a bundle (canarynet/bundle.hpp), which finds out which of them had better travel together. With a codec
// each is an operation of its own, as a matrix where the codec takes one, and what the codec leaves out of a range
// joins that range's next gradient, unless --feedback is off. As one bucket, all of the gradient travels in finish(),
// and a sparse codec chooses among all of it. How much it keeps may be chosen meanwhile (canarynet/ratio.hpp), for
// which begin() now and then brings back what training had learnt before. Times are this rank's. Failures come as
// canarynet::Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "canarynet/canarynet.hpp"
#include "canarynet/ratio.hpp"
#include "examples/train_fashion_mnist/network.h"
#include "examples/train_fashion_mnist/options.h"

namespace train {

double now_ms();

class GradientExchange {
 public:
  // `ranges`: all of the gradient, as they will be submitted. `checkpoint` saves the training's state, or brings it
  // back.
  GradientExchange(canarynet::Group& group, std::span<float> gradient, const std::vector<Range>& ranges,
                   const Options& options, canarynet::Ratio::Checkpoint checkpoint);
  // Before a step: how much its codec keeps. May call the checkpoint.
  void begin(std::size_t step) {
    constexpr double kFirstShare = 0.25;  // of the warm-up
    if (warm_up_ != 0) step_codec_ = canarynet::warm_up(codec_, kFirstShare, step, warm_up_);
    if (ratio_) step_codec_ = ratio_->next();
  }
  void submit(Range range);
  // Waits until every submitted range holds the average.
  void finish();

  // Times of the last step: from the first submission to the end, and the part of it in finish() with nothing else to
  // do.
  double whole_ms() const { return whole_ms_; }
  double exposed_ms() const { return exposed_ms_; }
  // nullptr: no ratio is chosen.
  const canarynet::Ratio* ratio() const { return ratio_ ? &*ratio_ : nullptr; }

 private:
  void send(Range range);

  canarynet::Group& group_;
  std::span<float> gradient_;
  std::uint32_t codec_, step_codec_;  // in the end, and in this step
  bool feedback_;
  float momentum_;
  std::size_t warm_up_;
  bool one_bucket_, of_matrices_;
  std::optional<canarynet::Bundle> bundle_;  // without a codec
  std::optional<canarynet::Ratio> ratio_;
  std::size_t submitted_ = 0;  // of its tensors
  std::vector<canarynet::Operation> pending_;
  double first_ms_ = 0, whole_ms_ = 0, exposed_ms_ = 0;
};

}  // namespace train
