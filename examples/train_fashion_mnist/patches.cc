#include "examples/train_fashion_mnist/patches.h"

#include <algorithm>

namespace train {
namespace {

// Calls row(patch_at, image_at, length) for each run of a patch's row that lies inside of the image: offsets into one
// image's patches and into that image.
template <typename Row>
void for_each_row(const Patches& s, const Row& row) {
  const std::size_t edge = s.kernel / 2, out = s.out_side();
  for (std::size_t y = 0; y < out; ++y) {
    for (std::size_t x = 0; x < out; ++x) {
      const std::size_t patch = (y * out + x) * s.size();
      const std::size_t left = x * s.stride;  // of the patch, `edge` pixels beyond the image's edge at 0
      const std::size_t from = left < edge ? edge - left : 0, to = std::min(s.kernel, s.side + edge - left);
      for (std::size_t dy = 0; dy < s.kernel; ++dy) {
        const std::size_t line = y * s.stride + dy;
        if (line < edge || line >= s.side + edge) continue;
        row(patch + (dy * s.kernel + from) * s.channels, ((line - edge) * s.side + left + from - edge) * s.channels,
            (to - from) * s.channels);
      }
    }
  }
}

}  // namespace

void take_patches(const Patches& shape, std::size_t images, const float* from, float* patches) {
  const std::size_t all = shape.count() * shape.size();
  std::fill(patches, patches + images * all, 0.0f);
  for (std::size_t i = 0; i < images; ++i) {
    for_each_row(shape, [&](std::size_t patch_at, std::size_t image_at, std::size_t length) {
      std::copy_n(from + i * shape.image_size() + image_at, length, patches + i * all + patch_at);
    });
  }
}

void add_patches(const Patches& shape, std::size_t images, const float* patches, float* to) {
  const std::size_t all = shape.count() * shape.size();
  std::fill(to, to + images * shape.image_size(), 0.0f);
  for (std::size_t i = 0; i < images; ++i) {
    for_each_row(shape, [&](std::size_t patch_at, std::size_t image_at, std::size_t length) {
      const float* part = patches + i * all + patch_at;
      float* pixel = to + i * shape.image_size() + image_at;
      for (std::size_t k = 0; k < length; ++k) pixel[k] += part[k];
    });
  }
}

}  // namespace train
