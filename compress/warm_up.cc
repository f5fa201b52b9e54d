#include "compress/warm_up.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "compress/spec.h"

namespace canarynet {

Result<std::uint32_t> warmed_up(std::uint32_t codec, double first, std::uint64_t step, std::uint64_t steps) {
  const Result<CodecSpec> own = codec_of_number(codec);
  if (!own.ok()) return own.status();
  CodecSpec spec = own.value();
  const double share = spec.ratio_ppm * 1e-6;
  if (spec.ratio_ppm == 0) {
    return Status(CANARY_INVALID_ARGUMENT,
                  "codec " + to_text(spec) + " keeps no share of the values that could change");
  }
  if (!(first >= share && first <= 1)) {
    return Status(CANARY_INVALID_ARGUMENT, "the first share is " + std::to_string(first) + ", codec " + to_text(spec) +
                                               " takes one from its own to 1");
  }
  if (step >= steps) return codec;
  // A little less, so that a ratio of exactly a power of the factor makes no stage of rounding.
  const double stages = std::ceil(std::log(first / share) / std::log(kWarmUpFactor) - 1e-9);
  const double stage = std::floor(static_cast<double>(step) / static_cast<double>(steps) * stages);
  const double kept = std::max(share, first * std::pow(kWarmUpFactor, -stage));
  spec.ratio_ppm = std::max(spec.ratio_ppm, static_cast<std::uint32_t>(std::nearbyint(kept * 1e6)));
  return codec_number(spec);
}

}  // namespace canarynet
