#include "examples/train_fashion_mnist/trainer.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <stdexcept>

namespace train {

double mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Trainer::Trainer(canarynet::Context& context, const Options& options, const Dataset& images)
    : context_(context),
      options_(options),
      images_(images),
      replica_(options, images, context.rank()),
      descent_(replica_.network().parameters().size(), options.momentum),
      exchange_(context.world(), replica_.network().gradient(), replica_.network().buckets(), options,
                [this](canary_checkpoint what) { checkpoint(what); }),
      ranks_(static_cast<std::size_t>(context.world_size())),
      rank_(static_cast<std::size_t>(context.rank())) {
  if (images.size() < options.batch * ranks_)
    throw std::runtime_error("fewer images than one batch of all ranks takes");
  for (auto* times : {&step_ms_, &exchange_ms_, &exposed_ms_}) times->reserve(options.steps);
}

void Trainer::checkpoint(canary_checkpoint what) {
  const std::span<float> parameters = replica_.network().parameters(), velocity = descent_.velocity();
  if (what == CANARY_CHECKPOINT_SAVE) {
    saved_.parameters.assign(parameters.begin(), parameters.end());
    saved_.velocity.assign(velocity.begin(), velocity.end());
    saved_.step = step_;
  } else {
    std::copy(saved_.parameters.begin(), saved_.parameters.end(), parameters.begin());
    std::copy(saved_.velocity.begin(), saved_.velocity.end(), velocity.begin());
    step_ = saved_.step;
  }
}

TrainingFigures Trainer::train() {
  TrainingFigures figures;
  Network& network = replica_.network();
  // Rank 0's weights count, as they would when it had loaded a checkpoint.
  context_.world().broadcast(network.parameters(), 0);
  const Traffic traffic(context_);
  Progress progress;
  const double start = now_ms();
  for (step_ = 0; step_ < options_.steps; ++step_) {
    const double step_start = now_ms();
    exchange_.begin(step_);
    progress.loss += replica_.forward(step_, context_.rank(), context_.world_size());
    progress.correct += network.correct();
    network.backward([this](Range range) { exchange_.submit(range); });
    exchange_.finish();
    descent_.step(network.parameters(), network.gradient(),
                  rate_at(options_, step_, static_cast<float>(step_), static_cast<float>(options_.steps)));

    step_ms_.push_back(now_ms() - step_start);
    exchange_ms_.push_back(exchange_.whole_ms());
    exposed_ms_.push_back(exchange_.exposed_ms());
    progress.step_ms += step_ms_.back();
    progress.exposed_ms += exposed_ms_.back();
    ++progress.steps;
    if ((step_ + 1) % options_.report_every == 0 || step_ + 1 == options_.steps)
      report(step_ + 1, traffic, &progress, &figures);
  }
  figures.seconds = (now_ms() - start) / 1e3;
  figures.steps = options_.steps;
  figures.undone = step_ms_.size() - options_.steps;
  if (exchange_.ratio() != nullptr) figures.ratio = exchange_.ratio()->state().ratio;
  figures.epochs = static_cast<double>(options_.steps * options_.batch * ranks_) / static_cast<double>(images_.size());
  figures.step_ms_mean = mean(step_ms_);
  figures.step_ms_median = median(step_ms_);
  figures.exchange_ms_mean = mean(exchange_ms_);
  figures.exchange_ms_median = median(exchange_ms_);
  figures.exposed_ms_mean = mean(exposed_ms_);
  figures.exposed_ms_median = median(exposed_ms_);
  figures.traffic = traffic.everybodys();
  return figures;
}

void Trainer::report(std::size_t step, const Traffic& traffic, Progress* progress, TrainingFigures* figures) {
  double sums[3] = {progress->loss, static_cast<double>(progress->correct), static_cast<double>(progress->steps)};
  context_.world().all_reduce(std::span(sums), CANARY_SUM);
  figures->loss = sums[0] / sums[2];
  const auto nics = traffic.own();
  if (rank_ == 0) {
    const auto steps = static_cast<double>(progress->steps);
    std::string text =
        format("epoch %5.2f  step %5zu  loss %.4f  train %5.2f %%  step %6.1f ms  exchange %6.1f ms exposed ",
               static_cast<double>(step * options_.batch * ranks_) / static_cast<double>(images_.size()), step,
               figures->loss, 100 * sums[1] / (sums[2] * static_cast<double>(options_.batch)),
               progress->step_ms / steps, progress->exposed_ms / steps);
    for (const auto& nic : nics) text += format(" %s %.1f MB", nic.device.c_str(), static_cast<double>(nic.sent) / 1e6);
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }
  *progress = {};
}

}  // namespace train
