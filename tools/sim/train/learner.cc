#include "tools/sim/train/learner.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace canarynet::sim {
namespace {

constexpr std::size_t kTestBatch = 250;

std::vector<train::LayerSpec> layers_of(const LearnerOptions& options) {
  std::vector<train::LayerSpec> layers;
  for (const std::size_t channels : options.convolutions)
    layers.push_back({.outputs = channels, .kernel = 3, .stride = 2});
  for (const std::size_t width : options.hidden) layers.push_back({.outputs = width});
  layers.push_back({.outputs = train::kClasses});
  return layers;
}

}  // namespace

Images Images::load(const std::string& directory) {
  return {train::Dataset::load(directory, "train"), train::Dataset::load(directory, "t10k")};
}

Learner::Learner(const LearnerOptions& options, const Images& images)
    : options_(options),
      images_(images.training),
      test_(images.test),
      network_(images_.pixels(), layers_of(options), std::max(options.batch, kTestBatch), options.seed),
      start_(network_.parameters().begin(), network_.parameters().end()),
      batch_images_(std::max(options.batch, kTestBatch) * images_.pixels()),
      batch_labels_(std::max(options.batch, kTestBatch)) {
  if (test_.pixels() != images_.pixels()) throw std::runtime_error("the test images are of another size");
  if (images_.size() < options.batch * static_cast<std::size_t>(options.workers)) {
    throw std::runtime_error("there are fewer images than one batch of all workers takes");
  }
  deal();
}

// All shards have one size; a few images may be left over.
void Learner::deal() {
  std::vector<std::uint32_t> order = train::shuffled(images_.size(), options_.seed, 0);
  if (options_.by_class) {
    std::vector<std::uint8_t> label(images_.size());
    std::vector<float> pixels(images_.pixels());
    for (std::uint32_t i = 0; i < images_.size(); ++i) {
      images_.batch(std::span(&i, 1), pixels, std::span(label).subspan(i, 1));
    }
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return label[a] < label[b]; });
  }
  const std::size_t each = order.size() / static_cast<std::size_t>(options_.workers);
  for (std::size_t w = 0; w < static_cast<std::size_t>(options_.workers); ++w) {
    Shard shard;
    shard.images.assign(order.begin() + static_cast<std::ptrdiff_t>(w * each),
                        order.begin() + static_cast<std::ptrdiff_t>((w + 1) * each));
    shard.next = each;  // the first batch begins the first epoch
    shards_.push_back(std::move(shard));
  }
}

double Learner::gradient(int worker, std::span<const float> parameters, std::span<float> gradient) {
  Shard& shard = shards_[static_cast<std::size_t>(worker)];
  if (shard.next + options_.batch > shard.images.size()) {
    shard.order =
        train::shuffled(shard.images.size(), options_.seed + static_cast<std::uint64_t>(worker) + 1, ++shard.epoch);
    shard.next = 0;
  }
  indices_.resize(options_.batch);
  for (std::size_t i = 0; i < options_.batch; ++i) indices_[i] = shard.images[shard.order[shard.next + i]];
  shard.next += options_.batch;
  const auto images = std::span(batch_images_).first(options_.batch * images_.pixels());
  const auto labels = std::span(batch_labels_).first(options_.batch);
  images_.batch(indices_, images, labels);
  std::copy(parameters.begin(), parameters.end(), network_.parameters().begin());
  const double loss = network_.forward(images, labels);
  network_.backward([](train::Range) {});
  std::copy(network_.gradient().begin(), network_.gradient().end(), gradient.begin());
  return loss;
}

double Learner::accuracy(std::span<const float> parameters, std::size_t images) {
  images = std::min(images, test_.size());
  std::copy(parameters.begin(), parameters.end(), network_.parameters().begin());
  std::size_t correct = 0;
  for (std::size_t first = 0; first < images; first += kTestBatch) {
    indices_.resize(std::min(kTestBatch, images - first));
    std::iota(indices_.begin(), indices_.end(), static_cast<std::uint32_t>(first));
    const auto pixels = std::span(batch_images_).first(indices_.size() * test_.pixels());
    const auto labels = std::span(batch_labels_).first(indices_.size());
    test_.batch(indices_, pixels, labels);
    network_.forward(pixels, labels);
    correct += network_.correct();
  }
  return static_cast<double>(correct) / static_cast<double>(images);
}

}  // namespace canarynet::sim
