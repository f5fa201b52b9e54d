#include "examples/train_fashion_mnist/patches.h"

#include <gtest/gtest.h>

#include <vector>

#include "examples/train_fashion_mnist/random.h"

namespace train {
namespace {

std::vector<float> random_values(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& v : values) v = random.symmetric();
  return values;
}

TEST(Patches, OfASmallImageAreThoseDrawnByHand) {
  const Patches shape{.side = 3, .channels = 1, .kernel = 3, .stride = 2};
  const std::vector<float> image = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::vector<float> patches(shape.count() * shape.size(), -1);
  take_patches(shape, 1, image.data(), patches.data());
  ASSERT_EQ(shape.out_side(), 2u);
  EXPECT_EQ(patches, (std::vector<float>{0, 0, 0, 0, 1, 2, 0, 4, 5,     // around 1
                                         0, 0, 0, 2, 3, 0, 5, 6, 0,     // around 3
                                         0, 4, 5, 0, 7, 8, 0, 0, 0,     // around 7
                                         5, 6, 0, 8, 9, 0, 0, 0, 0}));  // around 9
}

// Taking and adding are transposes of each other: <take(x), y> = <x, add(y)> for all x and y.
TEST(Patches, AddingIsTheTransposeOfTaking) {
  for (const Patches shape : {Patches{.side = 5, .channels = 3, .kernel = 3, .stride = 1},
                              Patches{.side = 6, .channels = 2, .kernel = 5, .stride = 3},
                              Patches{.side = 7, .channels = 1, .kernel = 1, .stride = 2}}) {
    constexpr std::size_t kImages = 2;
    const auto x = random_values(kImages * shape.image_size(), 1);
    const auto y = random_values(kImages * shape.count() * shape.size(), 2);
    std::vector<float> taken(y.size()), added(x.size());
    take_patches(shape, kImages, x.data(), taken.data());
    add_patches(shape, kImages, y.data(), added.data());
    double left = 0, right = 0;
    for (std::size_t i = 0; i < y.size(); ++i) left += static_cast<double>(taken[i]) * static_cast<double>(y[i]);
    for (std::size_t i = 0; i < x.size(); ++i) right += static_cast<double>(x[i]) * static_cast<double>(added[i]);
    EXPECT_NEAR(left, right, 1e-4) << shape.side;
    EXPECT_GT(std::abs(left), 1e-3);
  }
}

}  // namespace
}  // namespace train
