#include "examples/train_fashion_mnist/network.h"

#include <gtest/gtest.h>

#include <cmath>

#include "examples/train_fashion_mnist/random.h"

namespace train {
namespace {

struct Batch {
  std::vector<float> images;
  std::vector<std::uint8_t> labels;
};

Batch make_batch(std::size_t count, std::size_t inputs, int classes) {
  Random random(5);
  Batch batch{std::vector<float>(count * inputs), std::vector<std::uint8_t>(count)};
  for (auto& v : batch.images) v = random.symmetric();
  for (auto& label : batch.labels) label = static_cast<std::uint8_t>(random.below(static_cast<std::uint64_t>(classes)));
  return batch;
}

// The derivative of the loss by each parameter, against what the loss does when the parameter moves a little.
void expect_true_gradient(Network& network, const Batch& batch) {
  network.forward(batch.images, batch.labels);
  network.backward([](Range) {});
  const std::vector<float> gradient(network.gradient().begin(), network.gradient().end());
  const auto parameters = network.parameters();
  constexpr float kStep = 2e-3f;
  double magnitude = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const float before = parameters[i];
    parameters[i] = before + kStep;
    const double up = network.forward(batch.images, batch.labels);
    parameters[i] = before - kStep;
    const double down = network.forward(batch.images, batch.labels);
    parameters[i] = before;
    ASSERT_NEAR(gradient[i], (up - down) / (2.0 * kStep), 1e-3) << "parameter " << i;
    magnitude = std::max(magnitude, static_cast<double>(std::fabs(gradient[i])));
  }
  EXPECT_GT(magnitude, 0.05);  // the tolerance above means something
}

TEST(Gradient, AgreesWithFiniteDifferences) {
  Network network({9, 7, 6, 4}, 5, 3);
  expect_true_gradient(network, make_batch(5, 9, 4));
}

// Two convolutions over each other, the second one with a stride that does not divide the side.
TEST(Gradient, OfConvolutionsAgreesWithFiniteDifferences) {
  Network network(36,
                  {{.outputs = 3, .kernel = 3, .stride = 1},
                   {.outputs = 4, .kernel = 3, .stride = 4},
                   {.outputs = 5},
                   {.outputs = 4}},
                  5, 3);
  EXPECT_EQ(network.parameters().size(), 9u * 3 + 3 + 27 * 4 + 4 + 4 * 4 * 5 + 5 + 5 * 4 + 4);
  expect_true_gradient(network, make_batch(5, 36, 4));
}

TEST(Gradient, OfHalvesAveragesToThatOfTheWhole) {
  const auto batch = make_batch(8, 9, 4);
  const auto gradient_of = [&](std::size_t first, std::size_t count) {
    Network network({9, 7, 4}, 8, 3);
    network.forward(std::span(batch.images).subspan(first * 9, count * 9),
                    std::span(batch.labels).subspan(first, count));
    network.backward([](Range) {});
    return std::vector<float>(network.gradient().begin(), network.gradient().end());
  };
  const auto whole = gradient_of(0, 8), left = gradient_of(0, 4), right = gradient_of(4, 4);
  for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(whole[i], (left[i] + right[i]) / 2, 1e-6);
}

// Reported elements are final: values do not change afterwards, and every element is reported once.
TEST(Buckets, CoverTheGradientOnceAndAreFinalWhenReported) {
  Network network({784, 256, 128, 10}, 4, 1);
  const auto batch = make_batch(4, 784, 10);
  network.forward(batch.images, batch.labels);
  std::vector<int> reported(network.gradient().size());
  std::vector<float> seen(network.gradient().size());
  std::vector<Range> order;
  network.backward([&](Range range) {
    order.push_back(range);
    for (std::size_t i = range.begin; i < range.end; ++i) {
      ++reported[i];
      seen[i] = network.gradient()[i];
    }
  });
  for (std::size_t i = 0; i < reported.size(); ++i) {
    ASSERT_EQ(reported[i], 1) << i;
    ASSERT_EQ(seen[i], network.gradient()[i]) << i;
  }
  ASSERT_EQ(order.size(), network.buckets().size());
  for (const Range range : order) {
    const std::size_t columns = range.size() / range.rows;
    EXPECT_TRUE(columns == 256 || columns == 128 || columns == 10) << "no rows of a layer at " << range.begin;
    EXPECT_EQ(columns * range.rows, range.size());
  }
  EXPECT_GT(order.size(), 4u);                              // the first layer goes in parts
  EXPECT_EQ(order.front().end, network.gradient().size());  // the last layer first
  for (std::size_t i = 1; i < order.size(); ++i) EXPECT_EQ(order[i].end, order[i - 1].begin) << "no range of " << i;
}

TEST(Training, LearnsASeparableProblem) {
  Network network({2, 16, 2}, 64, 1);
  MomentumDescent descent(network.parameters().size(), 0.9f);
  Random random(9);
  std::vector<float> images(128);
  std::vector<std::uint8_t> labels(64);
  std::size_t correct = 0;
  double first = 0, last = 0;
  for (int step = 0; step < 200; ++step) {
    for (std::size_t i = 0; i < 64; ++i) {
      images[2 * i] = random.symmetric();
      images[2 * i + 1] = random.symmetric();
      labels[i] = images[2 * i] * images[2 * i + 1] > 0;  // exclusive or: no single layer can tell
    }
    last = network.forward(images, labels);
    if (step == 0) first = last;
    correct = network.correct();
    network.backward([](Range) {});
    descent.step(network.parameters(), network.gradient(), 0.1f);
  }
  EXPECT_GT(correct, 58u);
  EXPECT_LT(last, first / 2);
}

TEST(Network, RefusesConvolutionsThatDoNotFit) {
  const std::vector<LayerSpec> last = {{.outputs = 2}};
  const auto with = [&](std::size_t inputs, std::vector<LayerSpec> layers) {
    layers.insert(layers.end(), last.begin(), last.end());
    return Network(inputs, layers, 1, 1);
  };
  EXPECT_NO_THROW(with(16, {{.outputs = 2, .kernel = 3}}));
  EXPECT_THROW(with(15, {{.outputs = 2, .kernel = 3}}), std::invalid_argument);  // not square
  EXPECT_THROW(with(16, {{.outputs = 2, .kernel = 2}}), std::invalid_argument);  // no middle
  EXPECT_THROW(with(16, {{.outputs = 2, .kernel = 5}}), std::invalid_argument);  // beyond both edges
  EXPECT_THROW(with(16, {{.outputs = 2, .kernel = 3, .stride = 0}}), std::invalid_argument);
  EXPECT_THROW(with(16, {{.outputs = 8}, {.outputs = 2, .kernel = 3}}), std::invalid_argument);  // no image any more
  EXPECT_THROW(Network(16, {{.outputs = 2, .kernel = 3}}, 1, 1), std::invalid_argument);
}

TEST(Network, RefusesAnotherShape) {
  Network network({4, 3, 2}, 2, 1);
  const auto batch = make_batch(3, 4, 2);
  EXPECT_THROW(network.forward(batch.images, batch.labels), std::invalid_argument);
  EXPECT_THROW(network.forward(std::span(batch.images).first(7), std::span(batch.labels).first(2)),
               std::invalid_argument);
}

}  // namespace
}  // namespace train
