// tools/sim/search/codec_sample.h -- what a codec does to a made-up gradient, piece by piece: how fast it is on this
// machine, what it sends and how much of the gradient that holds.
//
// The gradient is a stand-in: layers of 16,384 values each, whose sizes differ by up to a factor of 100; in a layer,
// values are normal times a factor that varies from value to value, so that tails are heavier than a normal
// distribution's. Half of the energy of a rank's gradient is the same on all ranks, the other half its own. It depends
// on its seed alone, and so do bytes and gain; seconds are measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compress/spec.h"

namespace canarynet::sim {

class SampleGradient {
 public:
  SampleGradient(std::size_t elements, std::uint64_t seed);

  // Of one rank, and of another.
  std::span<const float> values() const { return own_; }
  std::span<const float> other_values() const { return other_; }

 private:
  std::vector<float> own_, other_;
};

struct CodecSample {
  // Seconds per byte of f32, on one core: to encode with the fit, to decode, to decode and add.
  double encode = 0, decode = 0, add = 0;
  double wire_share = 1;  // bytes encoded per byte of f32
  // 1 - what is left out / the gradient, as sums of squares; of a sparsifier the share of the energy that is sent.
  double gain = 1;
  // Of a sparsifier: the share of another rank's energy that lies at the same places.
  double other_gain = 0;
};

// Pieces of `piece_bytes`, or one as long as the gradient. artopk and agtopk, which choose from all of a gradient, are
// sampled as topk. `bytes_per_second`: the codec's speed, for encoding as for decoding; 0: it is measured.
CodecSample sample_codec(const CodecSpec& spec, std::uint64_t piece_bytes, const SampleGradient& gradient,
                         double bytes_per_second);

}  // namespace canarynet::sim
