// compress/sketch.h -- the quantile sketch: 2^b buckets with equally many values, each standing for one number.
//
// Source: Canary (Zhou et al., TPDS 2021) 4.3.1, after SketchML (Jiang et al., SIGMOD 2018). A value's code is the
// number of cuts at or below it. Cuts are quantiles: exact, by sorting, up to kSketchSample values; of more values a
// stratified sample of that size is sorted (one value drawn from each of as many equal stretches). By the
// Dvoretzky-Kiefer-Wolfowitz bound its quantiles are within 0.45 % in rank of the true ones, all at once, with 99 %
// confidence; the least and the greatest value are exact.
//
// - Zeros (bits >= 2): where values are exactly zero, one bucket holds zero alone, and the others are shared out
//   between the negative and the positive values by their numbers.
// - A value that fills two buckets or more (equal cuts) gets one for itself and is exact.
// - A bucket [start, end) stands for the mean of start and end, or (member_mean) of the sampled values in it.
// So codes and decoded values are monotone, and a decoded value is in the bucket of its original.
//
// Memory and threads: the caller's arrays; nothing allocates.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compress/method.h"
#include "kernels/codec.h"

namespace canarynet {

inline constexpr std::size_t kSketchSample = std::size_t{1} << 17;

struct SketchTables {
  float tree[kSketchBuckets];      // cuts for CodecKernels::to_buckets
  float codebook[kSketchBuckets];  // what a code stands for; 0 behind 2^bits
  float cuts[kSketchBuckets];      // cuts[i] is where bucket i begins; cuts[0] is the least value
  float end;                       // the greatest value
};

// Parts of a workspace.
struct SketchSpace {
  SketchSpace(Carver* carver, std::size_t count)
      : tables(carver->take<SketchTables>(1)),
        keys(carver->take<std::uint32_t>(sample_of(count))),
        spare(carver->take<std::uint32_t>(sample_of(count))) {}
  static std::size_t sample_of(std::size_t count) { return count < kSketchSample ? count : kSketchSample; }

  SketchTables* tables;
  std::uint32_t* keys;
  std::uint32_t* spare;
};

// Fills the tables. False if a value is not finite. `seed` chooses the sample.
bool fit_sketch(const float* values, std::size_t count, unsigned bits, bool member_mean, std::uint64_t seed,
                const SketchSpace& space);

constexpr std::size_t sketch_head_bytes(unsigned bits) { return sizeof(float) << bits; }
constexpr std::size_t sketch_body_bytes(std::size_t count, unsigned bits) { return (count * bits + 7) / 8; }

void encode_sketch(const float* values, std::size_t count, unsigned bits, const SketchTables& tables,
                   std::uint8_t* body);
// `codebook` has kSketchBuckets entries.
void decode_sketch(const std::uint8_t* body, std::size_t count, unsigned bits, const float* codebook, float* out,
                   bool add);
// Copies a head's codebook; "" or why it is none. `head` has sketch_head_bytes.
const char* open_sketch(const std::uint8_t* head, unsigned bits, float* codebook);

}  // namespace canarynet
