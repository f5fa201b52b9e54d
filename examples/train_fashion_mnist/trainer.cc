#include "examples/train_fashion_mnist/trainer.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <numeric>
#include <stdexcept>

namespace train {

Network make_network(const Options& options, std::size_t pixels, std::uint64_t seed) {
  if (options.network == "dense") return {{pixels, 256, 128, kClasses}, options.batch, seed};
  return {pixels,
          {{.outputs = 16, .kernel = 3, .stride = 2},
           {.outputs = 32, .kernel = 3, .stride = 2},
           {.outputs = 128},
           {.outputs = kClasses}},
          options.batch,
          seed};
}

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
      // Each rank draws other weights; rank 0's count, as they would when it had loaded a checkpoint.
      network_(make_network(options, images.pixels(), options.seed + static_cast<std::uint64_t>(context.rank()))),
      descent_(network_.parameters().size(), options.momentum),
      exchange_(context.world(), network_.gradient(), options),
      ranks_(static_cast<std::size_t>(context.world_size())),
      rank_(static_cast<std::size_t>(context.rank())),
      order_(shuffled(images.size(), options.seed, 0)),
      batch_images_(options.batch * images.pixels()),
      batch_labels_(options.batch) {
  if (images.size() < options.batch * ranks_)
    throw std::runtime_error("fewer images than one batch of all ranks takes");
  for (auto* times : {&step_ms_, &exchange_ms_, &exposed_ms_}) times->reserve(options.steps);
}

// The images in the epoch's order are dealt out batch by batch: rank r gets the r-th batch of each step.
void Trainer::load_batch(std::size_t step) {
  const std::size_t per_epoch = images_.size() / (options_.batch * ranks_);
  if (step / per_epoch != epoch_) {
    epoch_ = step / per_epoch;
    order_ = shuffled(images_.size(), options_.seed, epoch_);
  }
  const std::size_t first = (step % per_epoch * ranks_ + rank_) * options_.batch;
  images_.batch(std::span(order_).subspan(first, options_.batch), batch_images_, batch_labels_);
}

// A short climb (large first steps of a fresh network do harm), then a straight line down to a tenth.
float Trainer::rate_at(std::size_t step) const {
  constexpr float kClimb = 20, kEnd = 0.1f;
  const auto at = static_cast<float>(step);
  return options_.rate * std::min(1.0f, (at + 1) / kClimb) * (1 - (1 - kEnd) * at / static_cast<float>(options_.steps));
}

TrainingFigures Trainer::train() {
  TrainingFigures figures;
  context_.world().broadcast(network_.parameters(), 0);
  const Traffic traffic(context_);
  Progress progress;
  const double start = now_ms();
  for (std::size_t step = 0; step < options_.steps; ++step) {
    const double step_start = now_ms();
    load_batch(step);
    progress.loss += network_.forward(batch_images_, batch_labels_);
    progress.correct += network_.correct();
    exchange_.begin(step);
    network_.backward([this](Range range) { exchange_.submit(range); });
    exchange_.finish();
    descent_.step(network_.parameters(), network_.gradient(), rate_at(step));

    step_ms_.push_back(now_ms() - step_start);
    exchange_ms_.push_back(exchange_.whole_ms());
    exposed_ms_.push_back(exchange_.exposed_ms());
    progress.step_ms += step_ms_.back();
    progress.exposed_ms += exposed_ms_.back();
    ++progress.steps;
    if ((step + 1) % options_.report_every == 0 || step + 1 == options_.steps)
      report(step + 1, traffic, &progress, &figures);
  }
  figures.seconds = (now_ms() - start) / 1e3;
  figures.steps = options_.steps;
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

std::int64_t Trainer::count_correct(const Dataset& test) {
  std::vector<std::uint32_t> indices;
  std::int64_t correct = 0;
  for (std::size_t i = rank_; i < test.size(); i += ranks_) {
    indices.push_back(static_cast<std::uint32_t>(i));
    if (indices.size() < options_.batch && i + ranks_ < test.size()) continue;
    const auto images = std::span(batch_images_).first(indices.size() * test.pixels());
    const auto labels = std::span(batch_labels_).first(indices.size());
    test.batch(indices, images, labels);
    network_.forward(images, labels);
    correct += static_cast<std::int64_t>(network_.correct());
    indices.clear();
  }
  context_.world().all_reduce(std::span(&correct, 1), CANARY_SUM);
  return correct;
}

std::uint64_t Trainer::hash() const {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const float v : const_cast<Network&>(network_).parameters()) {
    hash = (hash ^ std::bit_cast<std::uint32_t>(v)) * 0x100000001b3ull;
    hash ^= hash >> 29;
  }
  return hash;
}

bool Trainer::same_everywhere() {
  std::int64_t low = static_cast<std::int64_t>(hash()), high = low;
  context_.world().all_reduce(std::span(&low, 1), CANARY_MIN);
  context_.world().all_reduce(std::span(&high, 1), CANARY_MAX);
  return low == high;
}

}  // namespace train
