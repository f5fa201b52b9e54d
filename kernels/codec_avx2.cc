// The codec kernels for AVX2 with FMA, BMI2 and F16C; CMakeLists.txt has the flags.
#define CANARY_KERNELS_NAMESPACE kernels_avx2
#include "kernels/codec-inl.h"

static_assert(HWY_TARGET == HWY_AVX2, "this file needs its own compiler flags");
