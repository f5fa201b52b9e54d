// dataset.h -- labelled grey images in the IDX files of MNIST and Fashion-MNIST, gzipped.
//
// Pixels stay bytes; a batch is turned into floats (mean 0, deviation 1 over Fashion-MNIST's training images) when it
// is asked for. Anything wrong with a file is a std::runtime_error that names it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace train {

class Dataset {
 public:
  // DIRECTORY/PREFIX-images-idx3-ubyte.gz and …-labels-idx1-ubyte.gz; prefix "train" or "t10k".
  static Dataset load(const std::string& directory, const std::string& prefix);

  std::size_t size() const { return labels_.size(); }
  std::size_t pixels() const { return pixels_; }  // per image
  // Writes the images at `indices` to `images` (indices.size() x pixels(), row by row) and their labels to `labels`.
  void batch(std::span<const std::uint32_t> indices, std::span<float> images, std::span<std::uint8_t> labels) const;

 private:
  std::size_t pixels_ = 0;
  std::vector<std::uint8_t> images_;
  std::vector<std::uint8_t> labels_;
};

inline constexpr int kClasses = 10;

// 0 … count - 1 in an order that depends on seed and epoch alone: every rank gets the same.
std::vector<std::uint32_t> shuffled(std::size_t count, std::uint64_t seed, std::uint64_t epoch);

}  // namespace train
