#include "examples/train_fashion_mnist/network.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "examples/train_fashion_mnist/matrix.h"
#include "examples/train_fashion_mnist/random.h"

namespace train {
namespace {

// A bucket that is too small pays for its round trips, one that is too large leaves nothing to hide behind.
constexpr std::size_t kBucketElements = 64 * 1024;

std::vector<LayerSpec> fully_connected(const std::vector<std::size_t>& widths) {
  std::vector<LayerSpec> layers;
  for (std::size_t i = 1; i < widths.size(); ++i) layers.push_back({.outputs = widths[i]});
  return layers;
}

}  // namespace

Network::Network(const std::vector<std::size_t>& widths, std::size_t batch_max, std::uint64_t seed)
    : Network(widths.empty() ? 0 : widths.front(), fully_connected(widths), batch_max, seed) {}

Network::Network(std::size_t inputs, const std::vector<LayerSpec>& layers, std::size_t batch_max, std::uint64_t seed) {
  if (inputs == 0 || layers.empty() || batch_max == 0)
    throw std::invalid_argument("a network needs inputs, layers and a batch");
  Patches image{.side = static_cast<std::size_t>(std::lround(std::sqrt(static_cast<double>(inputs)))), .channels = 1};
  std::size_t total = 0, largest = 0, largest_patches = 0;
  for (const LayerSpec& spec : layers) {
    Layer layer;
    layer.inputs = inputs;
    layer.outputs = spec.outputs;
    if (spec.kernel != 0) {
      image.kernel = spec.kernel;
      image.stride = spec.stride;
      if (image.image_size() != inputs || spec.kernel % 2 == 0 || spec.stride == 0 || image.kernel > image.side)
        throw std::invalid_argument("a convolution needs a square image, a kernel with a middle and a stride");
      layer.shape = image;
      layer.rows = image.count();
      layer.inputs = image.size();
      layer.patches.resize(batch_max * layer.rows * layer.inputs);
      if (!layers_.empty()) largest_patches = std::max(largest_patches, layer.patches.size());
      image = {.side = image.out_side(), .channels = spec.outputs};
    }
    layer.weights = total;
    layer.biases = total + layer.inputs * layer.outputs;
    total = layer.biases + layer.outputs;
    largest = std::max(largest, layer.inputs * layer.outputs);
    inputs = layer.rows * layer.outputs;
    layer.output.resize(batch_max * inputs);
    layer.error.resize(batch_max * inputs);
    layers_.push_back(std::move(layer));
  }
  if (layers_.back().convolves()) throw std::invalid_argument("the last layer must be fully connected");
  parameters_.resize(total);
  gradient_.resize(total);
  transposed_.resize(largest);
  patches_error_.resize(largest_patches);
  Random random(seed);
  for (const Layer& layer : layers_) {
    // Uniform with He's variance 2 / inputs.
    const float limit = std::sqrt(6.0f / static_cast<float>(layer.inputs));
    for (std::size_t i = layer.weights; i < layer.biases; ++i) parameters_[i] = limit * random.symmetric();
  }
  plan_buckets();
}

void Network::plan_buckets() {
  for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
    const std::size_t rows = std::max<std::size_t>(1, kBucketElements / layer->outputs);
    // Downwards in memory, as the layers come: what is ready one after the other lies together.
    for (std::size_t row = (layer->inputs - 1) / rows * rows;; row -= rows) {
      const std::size_t end = std::min(layer->inputs, row + rows);
      // The biases go with the last rows.
      const std::size_t height = end - row + (end == layer->inputs ? 1 : 0);
      const std::size_t begin = layer->weights + row * layer->outputs;
      buckets_.push_back({begin, begin + height * layer->outputs, height});
      if (row == 0) break;
    }
  }
}

double Network::forward(std::span<const float> images, std::span<const std::uint8_t> labels) {
  images_ = images.data();
  batch_ = labels.size();
  const Layer& first = layers_[0];
  if (images.size() != batch_ * (first.convolves() ? first.shape.image_size() : first.inputs) ||
      batch_ * first.rows * first.outputs > first.output.size()) {
    throw std::invalid_argument("a batch of another shape than the network's");
  }
  const float* input = images_;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    if (layer.convolves()) {
      take_patches(layer.shape, batch_, input, layer.patches.data());
      input = layer.patches.data();
    }
    multiply({.m = batch_ * layer.rows, .n = layer.outputs, .k = layer.inputs, .a_row = layer.inputs}, input,
             parameters_.data() + layer.weights, layer.output.data());
    activate(i);
    input = layer.output.data();
  }
  softmax(labels);
  return loss_;
}

void Network::activate(std::size_t index) {
  Layer& layer = layers_[index];
  const bool last = index + 1 == layers_.size();
  const float* bias = parameters_.data() + layer.biases;
  for (std::size_t i = 0; i < batch_ * layer.rows; ++i) {
    float* row = layer.output.data() + i * layer.outputs;
    for (std::size_t j = 0; j < layer.outputs; ++j) {
      const float v = row[j] + bias[j];
      row[j] = last || v > 0 ? v : 0;
    }
  }
}

// Turns the last layer's outputs into probabilities; loss and its derivative on the way.
void Network::softmax(std::span<const std::uint8_t> labels) {
  Layer& layer = layers_.back();
  const std::size_t classes = layer.outputs;
  const float share = 1 / static_cast<float>(batch_);
  loss_ = 0;
  correct_ = 0;
  for (std::size_t i = 0; i < batch_; ++i) {
    float* row = layer.output.data() + i * classes;
    float* error = layer.error.data() + i * classes;
    const std::size_t label = labels[i];
    const float* top = std::max_element(row, row + classes);
    const float highest = *top;  // taken off, so that no exponential overflows
    correct_ += static_cast<std::size_t>(top - row) == label;
    double sum = 0;
    for (std::size_t j = 0; j < classes; ++j) sum += std::exp(static_cast<double>(row[j] - highest));
    loss_ += std::log(sum) - static_cast<double>(row[label] - highest);
    for (std::size_t j = 0; j < classes; ++j) {
      row[j] = static_cast<float>(std::exp(static_cast<double>(row[j] - highest)) / sum);
      error[j] = (row[j] - (j == label ? 1.0f : 0.0f)) * share;
    }
  }
  loss_ /= static_cast<double>(batch_);
}

// What the layer below waits for: its error. Where ReLU cut off, nothing passes.
void Network::pass_below(std::size_t index) {
  const Layer& layer = layers_[index];
  Layer& below = layers_[index - 1];
  float* const to = layer.convolves() ? patches_error_.data() : below.error.data();
  transpose(layer.inputs, layer.outputs, parameters_.data() + layer.weights, transposed_.data());
  multiply({.m = batch_ * layer.rows, .n = layer.inputs, .k = layer.outputs, .a_row = layer.outputs},
           layer.error.data(), transposed_.data(), to);
  if (layer.convolves()) add_patches(layer.shape, batch_, to, below.error.data());
  for (std::size_t i = 0; i < batch_ * below.rows * below.outputs; ++i)
    below.error[i] = below.output[i] > 0 ? below.error[i] : 0;
}

void Network::backward(const std::function<void(Range)>& ready) {
  std::size_t bucket = 0;
  for (std::size_t index = layers_.size(); index-- > 0;) {
    Layer& layer = layers_[index];
    if (index > 0) pass_below(index);
    const std::size_t rows = batch_ * layer.rows;
    float* bias = gradient_.data() + layer.biases;
    std::fill(bias, bias + layer.outputs, 0.0f);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < layer.outputs; ++j) bias[j] += layer.error[i * layer.outputs + j];
    }
    const float* const input = layer.convolves() ? layer.patches.data()
                               : index == 0      ? images_
                                                 : layers_[index - 1].output.data();
    for (; bucket < buckets_.size() && buckets_[bucket].begin >= layer.weights; ++bucket) {
      const Range range = buckets_[bucket];
      const std::size_t first = (range.begin - layer.weights) / layer.outputs;
      const std::size_t height = (std::min(range.end, layer.biases) - range.begin) / layer.outputs;
      // Rows `first` … of (input transposed) x error.
      multiply({.m = height, .n = layer.outputs, .k = rows, .a_row = 1, .a_column = layer.inputs}, input + first,
               layer.error.data(), gradient_.data() + range.begin);
      ready(range);
    }
  }
}

void MomentumDescent::step(std::span<float> parameters, std::span<const float> gradient, float rate) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    velocity_[i] = momentum_ * velocity_[i] + gradient[i];
    parameters[i] -= rate * velocity_[i];
  }
}

}  // namespace train
