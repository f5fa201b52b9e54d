// The codec kernels for SSE4.2; CMakeLists.txt has the flags.
#define CANARY_KERNELS_NAMESPACE kernels_sse4
#include "kernels/codec-inl.h"

static_assert(HWY_TARGET == HWY_SSE4, "this file needs its own compiler flags");
