// exchange.h -- averages a gradient over all ranks, bucket by bucket, while the rest of it is still being computed.
//
// All ranks submit the same ranges in the same order. A submitted range is borrowed until finish(). With a codec, what
// it leaves out of a range joins that range's next gradient. Times are this rank's. Failures come as canarynet::Error.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "canarynet/canarynet.hpp"
#include "examples/train_fashion_mnist/network.h"

namespace train {

double now_ms();

class GradientExchange {
 public:
  // `codec`: its text, or empty.
  GradientExchange(canarynet::Group& group, std::span<float> gradient, const std::string& codec)
      : group_(group), gradient_(gradient), codec_(codec.empty() ? 0 : canarynet::codec(codec.c_str())) {}
  void submit(Range range);
  // Waits until every submitted range holds the average.
  void finish();

  // Times of the last step: from the first submission to the end, and the part of it in finish() with nothing else to
  // do.
  double whole_ms() const { return whole_ms_; }
  double exposed_ms() const { return exposed_ms_; }

 private:
  canarynet::Group& group_;
  std::span<float> gradient_;
  std::uint32_t codec_;
  std::vector<canarynet::Operation> pending_;
  double first_ms_ = 0, whole_ms_ = 0, exposed_ms_ = 0;
};

}  // namespace train
