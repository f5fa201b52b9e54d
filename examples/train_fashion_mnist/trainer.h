// trainer.h -- data-parallel training: every rank computes on its own images, the gradient is averaged, all take the
// same step.
//
// All ranks call the same functions in the same order. Rank 0 prints. One thread. Failures of the library come as
// canarynet::Error, those of the data as std::runtime_error.
#pragma once

#include <cstdint>
#include <vector>

#include "canarynet/canarynet.hpp"
#include "examples/train_fashion_mnist/dataset.h"
#include "examples/train_fashion_mnist/exchange.h"
#include "examples/train_fashion_mnist/network.h"
#include "examples/train_fashion_mnist/options.h"
#include "examples/train_fashion_mnist/replica.h"
#include "examples/train_fashion_mnist/traffic.h"

namespace train {

struct TrainingFigures {
  std::size_t steps = 0;
  double epochs = 0;
  double seconds = 0;
  double loss = 0;  // of the last steps reported, all ranks
  double step_ms_mean = 0, step_ms_median = 0;
  double exchange_ms_mean = 0, exchange_ms_median = 0;  // first bucket submitted to last one there
  double exposed_ms_mean = 0, exposed_ms_median = 0;    // the part that the backward pass did not hide
  std::vector<NicTraffic> traffic;                      // all ranks
  std::size_t undone = 0;                               // steps that tried a ratio and were undone
  double ratio = 0;                                     // that was chosen last; 0: none was
};

class Trainer {
 public:
  Trainer(canarynet::Context& context, const Options& options, const Dataset& images);

  TrainingFigures train();
  Replica& replica() { return replica_; }
  std::size_t gradient_bytes() { return replica_.network().gradient().size_bytes(); }

 private:
  // This rank's progress in some steps.
  struct Progress {
    double loss = 0;
    std::size_t steps = 0, correct = 0;
    double step_ms = 0, exposed_ms = 0;
  };
  // What a step changes, but for the codec's part, which the library keeps.
  struct State {
    std::vector<float> parameters, velocity;
    std::size_t step = 0;
  };
  void checkpoint(canary_checkpoint what);
  void report(std::size_t step, const Traffic& traffic, Progress* progress, TrainingFigures* figures);

  canarynet::Context& context_;
  const Options& options_;
  const Dataset& images_;
  Replica replica_;
  MomentumDescent descent_;
  GradientExchange exchange_;
  std::size_t ranks_, rank_, step_ = 0;
  State saved_;
  std::vector<double> step_ms_, exchange_ms_, exposed_ms_;
};

double mean(const std::vector<double>& values);
double median(std::vector<double> values);

}  // namespace train
