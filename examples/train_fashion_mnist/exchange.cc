#include "examples/train_fashion_mnist/exchange.h"

#include <chrono>

namespace train {

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void GradientExchange::send(Range range) {
  if (pending_.empty()) first_ms_ = now_ms();
  canarynet::OpOptions options;
  options.codec = step_codec_;
  if (step_codec_ != 0) options.tensor = range.begin + 1;
  options.momentum = momentum_;
  pending_.push_back(group_.all_reduce_async(gradient_.subspan(range.begin, range.size()), CANARY_AVG, options));
}

void GradientExchange::finish() {
  const double start = now_ms();
  if (one_bucket_) send({0, gradient_.size()});
  for (auto& operation : pending_) operation.wait();
  pending_.clear();
  const double end = now_ms();
  exposed_ms_ = end - start;
  whole_ms_ = end - first_ms_;
}

}  // namespace train
