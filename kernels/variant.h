// kernels/variant.h -- the functions that each instruction set's files give to dispatch.cc; internal to kernels/.
//
// This header uses only C headers: the files of an instruction set are compiled with its flags, so an inline function
// of the standard library emitted there could be the copy that the linker keeps, and old CPUs would run into AVX code.
// symbols_test.sh checks it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "canarynet/types.h"
#include "kernels/codec.h"

namespace canarynet {

using VariantReduceFn = void (*)(void* dst, const void* a, const void* b, size_t elements);
using VariantDivideFn = void (*)(void* data, size_t elements, uint32_t divisor);

// reduce() and divide() return nullptr for a value outside the enums, divide() also for types that it leaves to the
// scalar variant.
namespace kernels_scalar {
VariantReduceFn reduce(canary_type type, canary_redop op);
VariantDivideFn divide(canary_type type);
const CodecKernels& codec();
uint32_t crc32c(uint32_t crc, const void* data, size_t bytes);
}  // namespace kernels_scalar

namespace kernels_sse4 {
VariantReduceFn reduce(canary_type type, canary_redop op);
VariantDivideFn divide(canary_type type);
const CodecKernels& codec();
uint32_t crc32c(uint32_t crc, const void* data, size_t bytes);
}  // namespace kernels_sse4

namespace kernels_avx2 {
VariantReduceFn reduce(canary_type type, canary_redop op);
VariantDivideFn divide(canary_type type);
const CodecKernels& codec();
}  // namespace kernels_avx2

namespace kernels_avx512 {
VariantReduceFn reduce(canary_type type, canary_redop op);
VariantDivideFn divide(canary_type type);
const CodecKernels& codec();
uint32_t crc32c(uint32_t crc, const void* data, size_t bytes);  // needs VPCLMULQDQ
}  // namespace kernels_avx512

}  // namespace canarynet
