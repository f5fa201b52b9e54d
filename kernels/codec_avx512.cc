// The codec kernels for AVX-512 F, CD, BW, DQ, VL; CMakeLists.txt has the flags.
#define CANARY_KERNELS_NAMESPACE kernels_avx512
#include "kernels/codec-inl.h"

static_assert(HWY_TARGET == HWY_AVX3, "this file needs its own compiler flags");
