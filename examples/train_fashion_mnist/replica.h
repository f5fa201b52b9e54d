// replica.h -- one rank's copy of the network, and the images that it trains and is tested on.
//
// One thread. Calls that take a group are made by all of its members. Failures of the library come as canarynet::Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "canarynet/canarynet.hpp"
#include "examples/train_fashion_mnist/dataset.h"
#include "examples/train_fashion_mnist/network.h"
#include "examples/train_fashion_mnist/options.h"

namespace train {

// The network that the options name.
Network make_network(const Options& options, std::size_t pixels, std::uint64_t seed);

// A short climb (large first steps of a fresh network do harm), then a straight line down to a tenth. `at` of `of` is
// how far training has come.
float rate_at(const Options& options, std::size_t step, float at, float of);

class Replica {
 public:
  // Options and images must outlive it. Every rank draws other weights: they have yet to agree on some.
  Replica(const Options& options, const Dataset& images, int rank);

  Network& network() { return network_; }
  // The batch that the member `rank` of `ranks` takes in this step goes forward; returns its mean loss.
  double forward(std::size_t step, int rank, int ranks);

  // How many of the test images all members together classify rightly, each its share.
  std::int64_t count_correct(canarynet::Group& group, const Dataset& test);
  // A hash of the parameters, bit by bit.
  std::uint64_t hash();
  // Whether all members have the same.
  bool same_everywhere(canarynet::Group& group);

 private:
  void load_batch(std::size_t step, std::size_t rank, std::size_t ranks);

  const Options& options_;
  const Dataset& images_;
  Network network_;
  std::vector<std::uint32_t> order_;
  std::size_t epoch_ = 0;
  std::vector<float> batch_images_;
  std::vector<std::uint8_t> batch_labels_;
};

}  // namespace train
