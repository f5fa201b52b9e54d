// kernels/codec.h -- the inner loops of gradient codecs (compress/): one table of functions per instruction set.
//
// Scalar is the specification: for finite input every variant gives the same bytes. NaN and infinity never lead outside
// the buffers; the loops that must notice them return the greatest magnitude they saw, which is kNotFinite32 (or
// kNotFiniteF16, kNotFiniteBf16) or more then. "Magnitude" is the bits of a float without its sign: it orders absolute
// values. Buffers of values are aligned to their element, those of codes are not; input and output don't overlap.
// `add` adds to what `out` holds instead of replacing it. Denormals are kept (DenormalGuard). Thread-safe; nothing
// allocates. The choice is that of kernels/reduce.h (CANARY_KERNELS).
//
// This header uses only C headers, since the files of an instruction set include it (see variant.h).
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace canarynet {

inline constexpr uint32_t kNotFinite32 = 0x7F800000;
inline constexpr uint32_t kNotFiniteF16 = 0x7C00;
inline constexpr uint32_t kNotFiniteBf16 = 0x7F80;

inline constexpr size_t kSketchBuckets = 256;  // entries of a tree of cuts (the first is unused) and of a codebook
inline constexpr size_t kSelectSlack = 16;     // elements that select() may write beyond what it counts

// What a codec wants to know of all values before it encodes the first.
struct ValueSurvey {
  float min;  // -0 counts as +0; unspecified when a value is not finite
  float max;
  size_t zeros;       // of either sign
  size_t negatives;   // below zero
  uint32_t greatest;  // magnitude
};

// Sums by sign, in double. Element i goes to accumulator i mod 16; the sixteen are added pairwise at the end (8 apart,
// then 4, 2, 1), so that every variant rounds alike.
struct SignSums {
  double positive;    // of the values above zero
  double negative;    // of the values below zero
  size_t sign_clear;  // values whose sign bit is clear
  uint32_t greatest;  // magnitude
};

struct CodecKernels {
  // The greatest magnitude; 0 for none.
  uint32_t (*greatest)(const float* values, size_t count);
  ValueSurvey (*survey)(const float* values, size_t count);  // min = max = 0 for none
  SignSums (*sum_signs)(const float* values, size_t count);

  // Rounded to nearest even; what is too large for the format becomes its greatest finite number. Returns the greatest
  // magnitude of the input.
  uint32_t (*to_f16)(const float* values, size_t count, void* codes);
  uint32_t (*to_bf16)(const float* values, size_t count, void* codes);
  // Returns the greatest code without its sign.
  uint32_t (*from_f16)(const void* codes, size_t count, float* out, bool add);
  uint32_t (*from_bf16)(const void* codes, size_t count, float* out, bool add);

  // Code = (value * before) * inverse, to the nearest integer (ties to even), at most 127 either way.
  void (*to_int8)(const float* values, size_t count, float before, float inverse, void* codes);
  void (*from_int8)(const void* codes, size_t count, float scale, float* out, bool add);

  // Code = the number of cuts <= value. `tree` holds 255 ascending cuts as a binary tree from entry 1 on: those of
  // entry k's left half lie under 2k, of its right half under 2k + 1. Unused cuts are +infinity.
  void (*to_buckets)(const float* values, size_t count, const float* tree, uint8_t* codes);
  void (*from_buckets)(const uint8_t* codes, size_t count, const float* codebook, float* out, bool add);

  // How many values have at least this magnitude.
  size_t (*count_from)(const float* values, size_t count, uint32_t magnitude);
  // Lists them in order: `first_index` + position, and the value. Returns how many there are, or any number above
  // `room` if that is less. Both lists have room for `room` + kSelectSlack elements.
  size_t (*select)(const float* values, size_t count, uint32_t magnitude, uint32_t first_index, uint32_t* indices,
                   float* selected, size_t room);

  // Bit i % 8 of byte i / 8 is the sign bit of value i; the last byte is filled up with zeros.
  void (*pack_signs)(const float* values, size_t count, uint8_t* bits);
  void (*unpack_signs)(const uint8_t* bits, size_t count, float if_clear, float if_set, float* out, bool add);
};

// The variant in use; kernel_variants() has all of them.
const CodecKernels& codec_kernels();

}  // namespace canarynet
