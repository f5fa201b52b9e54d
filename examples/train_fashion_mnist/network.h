// network.h -- a fully connected network with ReLU between the layers and softmax cross-entropy at the end.
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

namespace train {

struct Range {
  std::size_t begin = 0, end = 0;  // elements
  std::size_t size() const { return end - begin; }
};

class Network {
 public:
  // widths: inputs, hidden layers, classes. Weights from the seed (He), biases 0.
  Network(std::vector<std::size_t> widths, std::size_t batch_max, std::uint64_t seed);

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
  struct Layer {
    std::size_t inputs = 0, outputs = 0;
    std::size_t weights = 0, biases = 0;  // where they start
    std::vector<float> output;            // batch x outputs; after ReLU, or probabilities
    std::vector<float> error;             // d loss / d (input of the activation)
  };
  void plan_buckets();
  void activate(std::size_t layer);
  void softmax(std::span<const std::uint8_t> labels);

  std::vector<Layer> layers_;
  std::vector<float> parameters_, gradient_;
  std::vector<float> transposed_;  // weights of a layer
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

 private:
  std::vector<float> velocity_;
  float momentum_;
};

}  // namespace train
