// patches.h -- the patches of a square image that a convolution looks at, so that it becomes a matrix product.
//
// An image lies row by row, the channels of a pixel together. A patch is as many numbers: kernel x kernel pixels with
// their channels, zeros beyond the image's edge. Patches are centred on every `stride`-th pixel.
#pragma once

#include <cstddef>

namespace train {

struct Patches {
  std::size_t side = 0, channels = 0;  // of the image
  std::size_t kernel = 0, stride = 1;  // an odd kernel has a middle
  std::size_t out_side() const { return (side + 2 * (kernel / 2) - kernel) / stride + 1; }
  std::size_t count() const { return out_side() * out_side(); }
  std::size_t size() const { return kernel * kernel * channels; }
  std::size_t image_size() const { return side * side * channels; }
};

// patches (images x count x size) of `images` images.
void take_patches(const Patches& shape, std::size_t images, const float* from, float* patches);

// The way back, for derivatives: each pixel of `to` is the sum of what its copies in patches hold.
void add_patches(const Patches& shape, std::size_t images, const float* patches, float* to);

}  // namespace train
