// sync/local_updates.h -- what local training has made of a worker's parameters, on its way to an outer step.
//
// What: a worker trains its parameters x by itself. From time to time the delta of a part of them goes into a mean over
// several workers, an outer step makes new common parameters of that mean, and the worker goes on from there. It may
// have trained on meanwhile, the mean may fail, and others may have taken steps without it. Through all of that each
// change that local training makes counts in one outer step, once:
//
//     anchor  the common parameters, as far as this worker knows them; equal on all that have applied the same steps
//     base    x without what no outer step has had: x - base is what the next delta holds. The anchor, but as below
//     take    delta = x - base;  taken = x
//     apply   anchor += outer step of the mean;  x = anchor + (x - taken);  base = anchor
//     adopt   anchor = that of a worker that is further;  x and base as above
//     fail    nothing, but the next take is told whether others had this delta: then base = taken
//
// So what was trained since take stays in x, and goes with the next delta. With `mix` x becomes mix * x + (1 - mix) *
// anchor instead, as Streaming DiLoCo has it (arXiv:2501.18512): the share 1 - mix of that is dropped, and the share
// mix of what was taken goes once more (docs/sync.md has both in numbers).
// Parts are ranges of nearly equal size, in order, and are independent of one another.
// Memory: three times the parameters, with momentum four times; nothing allocates after construction. One owner thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace canarynet::sync {

// The outer optimizer, equal on all workers: Nesterov momentum over the mean delta. With rate 1 and momentum 0 it is
// plain averaging, and with rate ε alone ESync's aggregation. Owns its momentum, of as many elements as the parameters.
class OuterStep {
 public:
  OuterStep(std::size_t elements, double rate, double momentum)
      : rate_(static_cast<float>(rate)),
        momentum_(static_cast<float>(momentum)),
        elements_(elements),
        velocity_(momentum > 0 ? elements : 0) {}
  // velocity = momentum * velocity + delta; parameters += rate * (delta + momentum * velocity). `parameters` are those
  // from element `first` on.
  void apply(std::span<float> parameters, std::span<const float> mean_delta, std::size_t first = 0);
  // Empty without momentum.
  std::span<float> velocity() { return velocity_; }
  std::span<const float> velocity() const { return velocity_; }

 private:
  float rate_;
  float momentum_;
  std::size_t elements_;
  std::vector<float> velocity_;
};

class LocalUpdates {
 public:
  struct Options {
    double rate = 1;
    double momentum = 0;
    std::optional<double> mix = {};  // from 0 to 1
    int parts = 1;
  };
  // All workers begin with these parameters.
  LocalUpdates(std::span<const float> parameters, const Options& options);

  struct Part {
    std::size_t first = 0, size = 0;
  };
  Part part(int p) const;

  // All functions below: `parameters` are all of the worker's, `p` is a part. One exchange of a part at a time.
  // `counted`: the one before failed here, and its delta was in the others' mean.
  void take(std::span<const float> parameters, int p, bool counted, std::span<float> delta);
  // The mean over all that took part in the exchange. In two steps where the parameters may not change yet: others may
  // be given what step() made, and settle() brings it into the parameters.
  void apply(std::span<float> parameters, int p, std::span<const float> mean) {
    step(p, mean);
    settle(parameters, p);
  }
  void step(int p, std::span<const float> mean);
  void settle(std::span<float> parameters, int p);
  // What step() made on one worker, for those whose own state is an older one.
  std::size_t state_size(int p) const { return part(p).size * (outer_.velocity().empty() ? 1 : 2); }
  void save(int p, std::span<float> state) const;
  void adopt(std::span<float> parameters, int p, std::span<const float> state);

  std::span<const float> anchor() const { return anchor_; }
  std::span<const float> base() const { return base_; }

 private:
  std::optional<float> mix_;
  std::size_t parts_;
  std::vector<float> anchor_;
  std::vector<float> base_;
  std::vector<float> taken_;
  OuterStep outer_;
};

}  // namespace canarynet::sync
