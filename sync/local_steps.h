// sync/local_steps.h -- DiLoCo: many local steps, then one exchange of what they changed, applied by an outer step.
//
// Sources: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (arXiv:2311.08105):
// about 500 inner steps, outer Nesterov momentum 0.9 with learning rate 0.7. Liu et al., "Asynchronous Local-SGD
// Training for Language Modeling" (arXiv:2401.09135): every worker does as many steps as its speed allows, so that all
// arrive together. Douillard et al., "Streaming DiLoCo with overlapping communication" (arXiv:2501.18512): the
// parameters are cut into fragments that are exchanged in turn, so each exchange is a fraction of the whole.
#pragma once

#include <span>
#include <vector>

#include "sync/policy.h"
#include "sync/quorum.h"

namespace canarynet::sync {

struct LocalSteps {
  int steps = 50;            // h, of the fastest worker
  int fragments = 1;         // streaming: every h / fragments steps one of them is exchanged
  int quorum_percent = 100;  // of the workers; see quorum.h
  double outer_rate = 0.7;
  double outer_momentum = 0.9;
};

// Closes rounds, and tells each worker how many steps the next one takes: h for the fastest, fewer for the others in
// proportion to their speed, at least one.
class LocalStepsCoordinator final : public Coordinator {
 public:
  LocalStepsCoordinator(const LocalSteps& options, int workers);

  void asked(Nanos now, const Question& question, Answers* answers) override;
  void died(Nanos now, int worker, Answers* answers) override;
  Nanos next_deadline() const override { return quorum_.next_deadline(); }
  void expire(Nanos now, Answers* answers) override { settle(now, answers); }

 private:
  int steps_of(int worker) const;
  void settle(Nanos now, Answers* answers);
  LocalSteps options_;
  Quorum quorum_;
  std::vector<Nanos> capability_;  // time of a step, per worker; 0: not known
};

class LocalStepsWorker final : public WorkerPolicy {
 public:
  LocalStepsWorker(const LocalSteps& options, int worker);

  Task next(Nanos now) override;
  void trained(Nanos now, Nanos took) override;
  void exchanged(Nanos now) override;
  Reaction answered(Nanos now, const Answer& answer) override;

 private:
  enum class State { kTraining, kArrived, kAsked, kReady, kLate };
  LocalSteps options_;
  int worker_;
  State state_ = State::kTraining;
  std::int64_t round_ = 0;
  Iteration done_ = 0;
  Iteration planned_;
  Nanos spent_;  // on this round's steps
  Answer answer_;
};

// The outer optimizer, equal on all workers: Nesterov momentum over the mean delta. With rate 1 and momentum 0 it is
// plain averaging, and with rate ε alone ESync's aggregation. Owns its momentum, of as many elements as the parameters.
class OuterStep {
 public:
  OuterStep(std::size_t elements, double rate, double momentum)
      : rate_(static_cast<float>(rate)), momentum_(static_cast<float>(momentum)), velocity_(elements) {}
  // velocity = momentum * velocity + delta; parameters += rate * (delta + momentum * velocity). `parameters` are those
  // from element `first` on.
  void apply(std::span<float> parameters, std::span<const float> mean_delta, std::size_t first = 0);

 private:
  float rate_;
  float momentum_;
  std::vector<float> velocity_;
};

}  // namespace canarynet::sync
