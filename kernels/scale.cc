#include "base/check.h"
#include "kernels/half.h"
#include "kernels/reduce.h"

namespace canarynet {
namespace {

template <typename T>
void scale_half(void* to, const void* from, std::size_t elements, double factor) {
  auto* const out = static_cast<T*>(to);
  const auto* const in = static_cast<const T*>(from);
  for (std::size_t i = 0; i < elements; ++i)
    kernels_scalar::narrow(static_cast<float>(static_cast<double>(kernels_scalar::widen(in[i])) * factor), &out[i]);
}

}  // namespace

void scale(DataType type, void* to, const void* from, std::size_t elements, double factor) {
  switch (type) {
    case CANARY_F32:
      for (std::size_t i = 0; i < elements; ++i)
        static_cast<float*>(to)[i] = static_cast<float>(static_cast<const float*>(from)[i] * factor);
      return;
    case CANARY_F64:
      for (std::size_t i = 0; i < elements; ++i)
        static_cast<double*>(to)[i] = static_cast<const double*>(from)[i] * factor;
      return;
    case CANARY_F16:
      return scale_half<kernels_scalar::Half>(to, from, elements, factor);
    case CANARY_BF16:
      return scale_half<kernels_scalar::Brain>(to, from, elements, factor);
    default:
      CANARY_CHECK(false, "only floats are scaled");
  }
}

}  // namespace canarynet
