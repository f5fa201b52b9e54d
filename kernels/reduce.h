// kernels/reduce.h -- dst = a (+) b for every type and reduction, compiled per CPU and chosen once at run time.
//
// Scalar is the specification; every variant gives the same bits (but for NaN payloads). Integers wrap. f16/bf16: both
// operands are widened to f32, combined there and rounded to nearest even. MIN/MAX: NaN when either operand is NaN;
// min(-0,+0) = -0, max(-0,+0) = +0. No FMA across operands. Floating-point environment: round to nearest, no flush to
// zero (the caller's MXCSR is saved, set and restored by DenormalGuard, once per poll, not per call).
// Memory: dst may equal a or b exactly; partial overlap is not allowed. Any alignment down to one element. Thread-safe.
// CANARY_KERNELS=scalar|sse4|avx2|avx512 overrides the choice (an unsupported one is an error from kernels_status()).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "base/types.h"
#include "kernels/codec.h"

namespace canarynet {

// AVG reduces as SUM; divide() divides once at the end.
using ReduceFn = void (*)(void* dst, const void* a, const void* b, std::size_t elements);
ReduceFn reduce_kernel(DataType type, ReduceOp op);

// data[i] = data[i] / divisor ends an AVG. Floats divide (f16/bf16 through f32, rounded once), integers truncate toward
// zero. divisor > 0.
using DivideFn = void (*)(void* data, std::size_t elements, std::uint32_t divisor);
void divide(DataType type, void* data, std::size_t elements, std::uint32_t divisor);

// to[i] = from[i] * factor, multiplied as f64 and rounded to the type (f16/bf16 through f32); floats only. One variant:
// it is a pass over memory.
void scale(DataType type, void* to, const void* from, std::size_t elements, double factor);

// The variant in use: "scalar", "sse4", "avx2", "avx512".
const char* kernels_name();
// All variants this machine can run, best first; for tests and benchmarks.
struct KernelVariant {
  const char* name;
  ReduceFn (*reduce)(DataType type, ReduceOp op);
  std::uint32_t (*crc32c)(std::uint32_t crc, const void* data, std::size_t bytes);
  DivideFn (*divide)(DataType type);  // nullptr for types that the scalar variant divides
  const CodecKernels& (*codec)();
};
const KernelVariant* kernel_variants(std::size_t* count);
// OK, or CANARY_INVALID_SETTING if CANARY_KERNELS names a variant that this machine lacks (the best one is used then).
Status kernels_status();

// Sets MXCSR to its default (round to nearest, denormals kept) for its lifetime.
class DenormalGuard {
 public:
  DenormalGuard();
  ~DenormalGuard();
  DenormalGuard(const DenormalGuard&) = delete;
  DenormalGuard& operator=(const DenormalGuard&) = delete;

 private:
  unsigned saved_;
};

}  // namespace canarynet
