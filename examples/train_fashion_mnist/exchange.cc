#include "examples/train_fashion_mnist/exchange.h"

#include <chrono>
#include <utility>

namespace train {

namespace {
constexpr std::uint64_t kWhole = 1;  // the tensor that begins at the gradient's first element
}

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

GradientExchange::GradientExchange(canarynet::Group& group, std::span<float> gradient, const std::vector<Range>& ranges,
                                   const Options& options, canarynet::Ratio::Checkpoint checkpoint)
    : group_(group),
      gradient_(gradient),
      codec_(options.codec.empty() || options.ratio_high != 0 ? 0 : canarynet::codec(options.codec.c_str())),
      step_codec_(codec_),
      feedback_(options.feedback),
      momentum_(options.codec_momentum),
      warm_up_(options.warm_up),
      one_bucket_(options.one_bucket),
      of_matrices_(options.of_matrices()) {
  if (options.ratio_high != 0) {
    const canarynet::RatioCandidates candidates{.high = options.ratio_high, .low = options.ratio_low};
    ratio_.emplace(group, options.codec, kWhole, gradient.size(), std::move(checkpoint), candidates);
  }
  if (codec_ != 0 || one_bucket_) return;
  std::vector<std::span<float>> tensors;
  for (const Range range : ranges) tensors.push_back(gradient.subspan(range.begin, range.size()));
  const canary_merge policy = options.merge == "mgwfbp"      ? CANARY_MERGE_MGWFBP
                              : options.merge == "wfbp"      ? CANARY_MERGE_WFBP
                              : options.merge == "synceasgd" ? CANARY_MERGE_SYNCEASGD
                                                             : CANARY_MERGE_EXACT;
  bundle_.emplace(group, tensors, CANARY_AVG, canarynet::Merging{.policy = policy});
}

void GradientExchange::submit(Range range) {
  if (one_bucket_) return;
  if (!bundle_) return send(range);
  if (submitted_ == 0) first_ms_ = now_ms();
  bundle_->submit(submitted_++);
}

void GradientExchange::send(Range range) {
  if (pending_.empty()) first_ms_ = now_ms();
  canarynet::OpOptions options;
  options.codec = step_codec_;
  if (step_codec_ != 0 && feedback_) options.tensor = range.begin + kWhole;
  if (of_matrices_) options.rows = range.rows;
  options.momentum = momentum_;
  pending_.push_back(group_.all_reduce_async(gradient_.subspan(range.begin, range.size()), CANARY_AVG, options));
}

void GradientExchange::finish() {
  const double start = now_ms();
  if (one_bucket_) send({.begin = 0, .end = gradient_.size()});
  if (bundle_) bundle_->wait();
  submitted_ = 0;
  for (auto& operation : pending_) operation.wait();
  pending_.clear();
  if (ratio_) ratio_->report();
  const double end = now_ms();
  exposed_ms_ = end - start;
  whole_ms_ = end - first_ms_;
}

}  // namespace train
