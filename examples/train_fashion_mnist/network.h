// network.h -- a network of convolutions and fully connected layers, with ReLU between the layers and softmax
// cross-entropy at the end.
//
// Parameters and gradient are one array each with the same layout: per layer the weights (inputs x outputs, row by
// row), then the biases. The gradient is that of the batch's mean loss. backward() tells which range of the gradient
// just became final, from the last layer to the first and a large layer in parts, so that it can be sent while the rest
// is computed. One thread; arrays are sized at construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "examples/train_fashion_mnist/patches.h"

namespace train {

struct LayerSpec {
  std::size_t outputs = 0;  // of a fully connected layer; channels of a convolution
  std::size_t kernel = 0;   // side of a convolution's patch in pixels, odd; 0: fully connected
  std::size_t stride = 1;   // a convolution's
};

struct Range {
  std::size_t begin = 0, end = 0;  // elements
  std::size_t rows = 1;            // of the matrix that they are, row by row; a layer's biases are its last row
  std::size_t size() const { return end - begin; }
};

class Network {
 public:
  // The last layer's outputs are the classes. Convolutions come first and see `inputs` as a square image of one
  // channel. Weights from the seed (He), biases 0. std::invalid_argument where the layers don't fit together.
  Network(std::size_t inputs, const std::vector<LayerSpec>& layers, std::size_t batch_max, std::uint64_t seed);
  // Fully connected. widths: inputs, hidden layers, classes.
  Network(const std::vector<std::size_t>& widths, std::size_t batch_max, std::uint64_t seed);

  std::span<float> parameters() { return parameters_; }
  std::span<float> gradient() { return gradient_; }
  // The ranges that backward() reports, in its order.
  const std::vector<Range>& buckets() const { return buckets_; }

  // images: labels.size() x inputs. Returns the mean loss.
  double forward(std::span<const float> images, std::span<const std::uint8_t> labels);
  // The number of images that the last forward() classified rightly.
  std::size_t correct() const { return correct_; }
  // Goes back through the last forward(), whose images must still be there.
  void backward(const std::function<void(Range)>& ready);

 private:
  // A matrix product of `rows` rows per image: one, or the patches of a convolution.
  struct Layer {
    std::size_t rows = 1, inputs = 0, outputs = 0;
    std::size_t weights = 0, biases = 0;  // where they start
    Patches shape;                        // kernel 0: fully connected
    std::vector<float> patches;           // batch x rows x inputs, of a convolution
    std::vector<float> output;            // batch x rows x outputs; after ReLU, or probabilities
    std::vector<float> error;             // d loss / d (input of the activation)
    bool convolves() const { return shape.kernel != 0; }
  };
  void plan_buckets();
  void activate(std::size_t layer);
  void pass_below(std::size_t layer);
  void softmax(std::span<const std::uint8_t> labels);

  std::vector<Layer> layers_;
  std::vector<float> parameters_, gradient_;
  std::vector<float> transposed_;     // weights of a layer
  std::vector<float> patches_error_;  // of a convolution above another layer
  std::vector<Range> buckets_;
  const float* images_ = nullptr;
  std::size_t batch_ = 0;
  std::size_t correct_ = 0;
  double loss_ = 0;
};

// Stochastic gradient descent with momentum: velocity = momentum * velocity + gradient; parameters -= rate * velocity.
class MomentumDescent {
 public:
  MomentumDescent(std::size_t count, float momentum) : velocity_(count), momentum_(momentum) {}
  void step(std::span<float> parameters, std::span<const float> gradient, float rate);
  std::span<float> velocity() { return velocity_; }

 private:
  std::vector<float> velocity_;
  float momentum_;
};

}  // namespace train
