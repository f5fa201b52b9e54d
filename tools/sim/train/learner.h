// tools/sim/train/learner.h -- the model and the data of a simulated training: true gradients, free of any time.
//
// The network and the images are the training example's. Each worker draws batches from a shard of its own: i.i.d., or
// the images sorted by class and cut, so that a worker sees few classes. Everything follows from the seed. One thread.
// Failures of the data come as std::runtime_error, which names the file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "examples/train_fashion_mnist/dataset.h"
#include "examples/train_fashion_mnist/network.h"

namespace canarynet::sim {

struct LearnerOptions {
  std::string directory = "/usr/share/datasets/fashion-mnist";
  std::vector<std::size_t> convolutions;    // channels of 3 x 3 convolutions that halve the image, before all else
  std::vector<std::size_t> hidden = {128};  // widths of the layers between those, or pixels, and classes
  std::size_t batch = 32;                   // images per worker and iteration
  bool by_class = false;
  int workers = 1;
  std::uint64_t seed = 1;
};

struct Images {
  train::Dataset training, test;
  static Images load(const std::string& directory);
};

class Learner {
 public:
  // `images` outlive it, and several may share them.
  Learner(const LearnerOptions& options, const Images& images);

  std::size_t size() const { return start_.size(); }  // parameters
  const std::vector<float>& start() const { return start_; }
  std::size_t images_per_worker() const { return shards_.front().images.size(); }
  // The gradient at `parameters` of the worker's next batch. Returns its mean loss.
  double gradient(int worker, std::span<const float> parameters, std::span<float> gradient);
  // The share of the first `images` test images that is classified rightly; of all of them if there are no more.
  double accuracy(std::span<const float> parameters, std::size_t images);

 private:
  struct Shard {
    std::vector<std::uint32_t> images;
    std::vector<std::uint32_t> order;  // of this epoch
    std::uint64_t epoch = 0;
    std::size_t next = 0;
  };
  void deal();

  LearnerOptions options_;
  const train::Dataset& images_;
  const train::Dataset& test_;
  train::Network network_;
  std::vector<float> start_;
  std::vector<Shard> shards_;
  std::vector<std::uint32_t> indices_;
  std::vector<float> batch_images_;
  std::vector<std::uint8_t> batch_labels_;
};

}  // namespace canarynet::sim
