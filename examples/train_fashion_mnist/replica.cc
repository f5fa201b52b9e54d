#include "examples/train_fashion_mnist/replica.h"

#include <algorithm>
#include <bit>
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

float rate_at(const Options& options, std::size_t step, float at, float of) {
  constexpr float kClimb = 20, kEnd = 0.1f;
  return options.rate * std::min(1.0f, (static_cast<float>(step) + 1) / kClimb) * (1 - (1 - kEnd) * at / of);
}

Replica::Replica(const Options& options, const Dataset& images, int rank)
    : options_(options),
      images_(images),
      network_(make_network(options, images.pixels(), options.seed + static_cast<std::uint64_t>(rank))),
      order_(shuffled(images.size(), options.seed, 0)),
      batch_images_(options.batch * images.pixels()),
      batch_labels_(options.batch) {}

double Replica::forward(std::size_t step, int rank, int ranks) {
  load_batch(step, static_cast<std::size_t>(rank), static_cast<std::size_t>(ranks));
  return network_.forward(batch_images_, batch_labels_);
}

// The images in the epoch's order are dealt out batch by batch: rank r gets the r-th batch of each step.
void Replica::load_batch(std::size_t step, std::size_t rank, std::size_t ranks) {
  const std::size_t per_epoch = images_.size() / (options_.batch * ranks);
  if (per_epoch == 0) throw std::runtime_error("fewer images than one batch of all ranks takes");
  if (step / per_epoch != epoch_) {
    epoch_ = step / per_epoch;
    order_ = shuffled(images_.size(), options_.seed, epoch_);
  }
  const std::size_t first = (step % per_epoch * ranks + rank) * options_.batch;
  images_.batch(std::span(order_).subspan(first, options_.batch), batch_images_, batch_labels_);
}

std::int64_t Replica::count_correct(canarynet::Group& group, const Dataset& test) {
  const auto rank = static_cast<std::size_t>(group.rank()), ranks = static_cast<std::size_t>(group.size());
  std::vector<std::uint32_t> indices;
  std::int64_t correct = 0;
  for (std::size_t i = rank; i < test.size(); i += ranks) {
    indices.push_back(static_cast<std::uint32_t>(i));
    if (indices.size() < options_.batch && i + ranks < test.size()) continue;
    const auto images = std::span(batch_images_).first(indices.size() * test.pixels());
    const auto labels = std::span(batch_labels_).first(indices.size());
    test.batch(indices, images, labels);
    network_.forward(images, labels);
    correct += static_cast<std::int64_t>(network_.correct());
    indices.clear();
  }
  group.all_reduce(std::span(&correct, 1), CANARY_SUM);
  return correct;
}

std::uint64_t Replica::hash() {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const float v : network_.parameters()) {
    hash = (hash ^ std::bit_cast<std::uint32_t>(v)) * 0x100000001b3ull;
    hash ^= hash >> 29;
  }
  return hash;
}

bool Replica::same_everywhere(canarynet::Group& group) {
  std::int64_t low = static_cast<std::int64_t>(hash()), high = low;
  group.all_reduce(std::span(&low, 1), CANARY_MIN);
  group.all_reduce(std::span(&high, 1), CANARY_MAX);
  return low == high;
}

}  // namespace train
