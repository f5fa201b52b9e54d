#include "examples/train_fashion_mnist/dataset.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <stdexcept>

#include "examples/train_fashion_mnist/random.h"

namespace train {
namespace {

constexpr std::size_t kBytesLimit = std::size_t{1} << 30;  // of one file, unpacked

struct CloseGzip {
  void operator()(gzFile_s* file) const { gzclose(file); }
};

// An IDX file of bytes: two zeros, type 8 (unsigned byte), number of dimensions, each as big-endian 32 bits; then the
// data.
struct Idx {
  std::vector<std::size_t> dimensions;
  std::vector<std::uint8_t> data;
};

Idx read_idx(const std::string& path, std::size_t dimension_count) {
  const auto fail = [&](const std::string& what) { throw std::runtime_error(path + ": " + what); };
  const std::unique_ptr<gzFile_s, CloseGzip> file(gzopen(path.c_str(), "rb"));
  if (!file) fail("can't be opened (Debian's package dataset-fashion-mnist has it)");
  const auto read = [&](std::uint8_t* to, std::size_t bytes) {
    while (bytes > 0) {
      const int got = gzread(file.get(), to, static_cast<unsigned>(std::min<std::size_t>(bytes, 1u << 24)));
      if (got <= 0) fail("ends early or is damaged");
      to += got;
      bytes -= static_cast<std::size_t>(got);
    }
  };
  std::array<std::uint8_t, 4> head{};
  read(head.data(), head.size());
  if (head[0] != 0 || head[1] != 0 || head[2] != 8 || head[3] != dimension_count) fail("is no IDX file of this kind");
  Idx idx;
  std::size_t bytes = 1;
  for (std::size_t i = 0; i < dimension_count; ++i) {
    std::array<std::uint8_t, 4> word{};
    read(word.data(), word.size());
    const std::size_t extent =
        std::size_t{word[0]} << 24 | std::size_t{word[1]} << 16 | std::size_t{word[2]} << 8 | word[3];
    if (extent == 0 || extent > kBytesLimit / bytes) fail("has impossible dimensions");
    bytes *= extent;
    idx.dimensions.push_back(extent);
  }
  idx.data.resize(bytes);
  read(idx.data.data(), bytes);
  return idx;
}

}  // namespace

Dataset Dataset::load(const std::string& directory, const std::string& prefix) {
  const std::string images_path = directory + "/" + prefix + "-images-idx3-ubyte.gz";
  const std::string labels_path = directory + "/" + prefix + "-labels-idx1-ubyte.gz";
  Idx images = read_idx(images_path, 3), labels = read_idx(labels_path, 1);
  if (images.dimensions[0] != labels.dimensions[0]) {
    throw std::runtime_error(labels_path + ": has not as many labels as there are images");
  }
  if (std::any_of(labels.data.begin(), labels.data.end(), [](std::uint8_t label) { return label >= kClasses; })) {
    throw std::runtime_error(labels_path + ": has a label above 9");
  }
  Dataset dataset;
  dataset.pixels_ = images.dimensions[1] * images.dimensions[2];
  dataset.images_ = std::move(images.data);
  dataset.labels_ = std::move(labels.data);
  return dataset;
}

void Dataset::batch(std::span<const std::uint32_t> indices, std::span<float> images,
                    std::span<std::uint8_t> labels) const {
  constexpr float kMean = 0.2860f * 255, kScale = 1 / (0.3530f * 255);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::uint8_t* from = images_.data() + indices[i] * pixels_;
    float* to = images.data() + i * pixels_;
    for (std::size_t p = 0; p < pixels_; ++p) to[p] = (static_cast<float>(from[p]) - kMean) * kScale;
    labels[i] = labels_[indices[i]];
  }
}

std::vector<std::uint32_t> shuffled(std::size_t count, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  Random random(seed * 1'000'003 + epoch);
  for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace train
