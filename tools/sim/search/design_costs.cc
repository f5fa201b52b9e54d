#include "tools/sim/search/design_costs.h"

#include <algorithm>
#include <cmath>

namespace canarynet::sim {
namespace {

constexpr std::uint64_t kSampleSeed = 1;
constexpr double kFloatBytes = sizeof(float);
constexpr double kGainFloor = 1e-12;

}  // namespace

DesignCosts::DesignCosts(const CostedRun& run)
    : run_(run), gradient_(run.sample_elements, kSampleSeed), exchanges_(run.network, sample({}, 128 * 1024).add) {}

const CodecSample& DesignCosts::sample(const CodecSpec& codec, std::uint64_t piece_bytes) {
  // Longer pieces than the sample would be sampled as one.
  piece_bytes = std::min<std::uint64_t>(piece_bytes, run_.sample_elements * sizeof(float));
  if (codec.kind == CodecKind::kArTopK) piece_bytes = 0;
  const auto key = std::pair(to_text(codec), piece_bytes);
  const auto found = samples_.find(key);
  if (found != samples_.end()) return found->second;
  return samples_.emplace(key, sample_codec(codec, piece_bytes, gradient_, run_.codec_speed)).first->second;
}

Space::Planners DesignCosts::planners() const {
  return {exchanges_.planners(Collective::kAllReduce, false), exchanges_.planners(Collective::kAllReduce, true),
          exchanges_.planners(Collective::kAllGather, false)};
}

DesignCost DesignCosts::of(const Design& design) {
  const double bytes = kFloatBytes * run_.parameters, n = run_.network.ranks;
  const CodecSpec& codec = design.codec;
  DesignCost out;
  if (codec.kind == CodecKind::kDense) {
    out.cost.sync_seconds = exchanges_.dense(design.planner, bytes, design.piece_bytes);
  } else if (codec.kind == CodecKind::kArTopK) {
    const CodecSample& s = sample(codec, 0);
    const double kept = std::ceil(codec.ratio_ppm * 1e-6 * run_.parameters) * kFloatBytes;
    // One rank looks at every value and chooses; with agtopk all do, and add everybody's.
    out.cost.compress_seconds = s.encode * bytes;
    if (codec.bits == kAgTopK) {
      out.cost.compress_seconds += n * s.add * bytes;
      out.cost.sync_seconds = exchanges_.all_gather(design.planner, 2 * kept, design.piece_bytes);
      out.gain = s.gain;
    } else {
      out.cost.sync_seconds = exchanges_.ar_top_k(design.planner, kept, design.piece_bytes);
      out.gain = (s.gain + (n - 1) * s.other_gain) / n;
    }
  } else {
    const CodecSample& s = sample(codec, exchanges_.longest_piece(design.planner, bytes, design.piece_bytes));
    const CodedWork& work = exchanges_.work(design.planner, bytes);
    out.cost.compress_seconds = bytes * work.seconds_per_byte(s.encode, s.decode, s.add);
    out.cost.sync_seconds = exchanges_.coded(design.planner, bytes, design.piece_bytes, s.wire_share);
    out.gain = s.gain <= 0 ? 0 : std::pow(s.gain, work.encodings);
  }
  out.cost.inverse_gain = 1 / std::max(out.gain, kGainFloor);
  return out;
}

}  // namespace canarynet::sim
