#include "tools/sim/search/codec_sample.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/random.h"
#include "compress/codec.h"
#include "kernels/reduce.h"

namespace canarynet::sim {
namespace {

constexpr std::size_t kLayer = 16 * 1024;
constexpr int kRuns = 7;  // whatever disturbs one makes it longer, so the shortest counts

double uniform(Random* random) { return static_cast<double>(random->next() >> 11) * 0x1p-53; }
// A sum of uniform numbers is normal enough: mean 0, variance 1.
double normal(Random* random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += uniform(random);
  return sum;
}

double energy_of(std::span<const float> values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * v;
  return sum;
}

// A gradient cut into pieces that are encoded and decoded one by one.
class Pieces {
 public:
  Pieces(const CodecSpec& spec, std::size_t elements, std::size_t in_piece)
      : spec_(spec), elements_(elements), in_piece_(std::min(in_piece, elements)), decoded_(elements) {
    const Coding longest = coding(0);
    workspace_.resize(workspace_bytes(longest));
    for (std::size_t begin = 0; begin < elements_; begin += in_piece_) encoded_.emplace_back(whole_bytes_max(longest));
    bytes_.resize(encoded_.size());
  }

  void encode(std::span<const float> values) {
    for (std::size_t i = 0; i < encoded_.size(); ++i) {
      const auto bytes = encode_whole(coding(i), values.data() + i * in_piece_, workspace_, {}, encoded_[i]);
      CANARY_CHECK(bytes.ok(), "finite values are encoded");
      bytes_[i] = bytes.value();
    }
  }
  void decode(bool add) {
    for (std::size_t i = 0; i < encoded_.size(); ++i) {
      const Status status =
          decode_whole(coding(i), {encoded_[i].data(), bytes_[i]}, workspace_, decoded_.data() + i * in_piece_, add);
      CANARY_CHECK(status.ok(), "what was encoded decodes");
    }
  }
  std::span<const float> decoded() const { return decoded_; }
  double wire_share() const {
    double sum = 0;
    for (const std::size_t bytes : bytes_) sum += static_cast<double>(bytes);
    return sum / static_cast<double>(elements_ * sizeof(float));
  }

 private:
  Coding coding(std::size_t i) const {
    const std::size_t begin = i * in_piece_;
    return {spec_, {.count = std::min(in_piece_, elements_ - begin), .round = begin}};
  }

  CodecSpec spec_;
  std::size_t elements_, in_piece_;
  std::vector<float> decoded_;
  std::vector<std::byte> workspace_;
  std::vector<std::vector<std::uint8_t>> encoded_;
  std::vector<std::size_t> bytes_;
};

}  // namespace

SampleGradient::SampleGradient(std::size_t elements, std::uint64_t seed) : own_(elements), other_(elements) {
  Random random(seed);
  double layer = 1;
  for (std::size_t i = 0; i < elements; ++i) {
    if (i % kLayer == 0) layer = std::pow(10.0, -3 + 2 * uniform(&random));
    const double size = layer * std::exp(normal(&random)) * std::sqrt(0.5);
    const double common = normal(&random);
    own_[i] = static_cast<float>(size * (common + normal(&random)));
    other_[i] = static_cast<float>(size * (common + normal(&random)));
  }
}

CodecSample sample_codec(const CodecSpec& spec, std::uint64_t piece_bytes, const SampleGradient& gradient,
                         double bytes_per_second) {
  CodecSpec sampled = spec;
  std::size_t in_piece = std::max<std::uint64_t>(1, piece_bytes / sizeof(float));
  const std::span<const float> values = gradient.values();
  if (spec.kind == CodecKind::kArTopK) {
    sampled = {.kind = CodecKind::kTopK, .ratio_ppm = spec.ratio_ppm};
    in_piece = values.size();
  }
  Pieces pieces(sampled, values.size(), in_piece);
  const DenormalGuard guard;
  CodecSample sample;
  if (bytes_per_second > 0) {
    sample.encode = sample.decode = sample.add = 1 / bytes_per_second;
    pieces.encode(values);
    pieces.decode(false);
  } else {
    const auto shortest = [&](double* seconds, const auto& run) {
      using Clock = std::chrono::steady_clock;
      double least = std::numeric_limits<double>::infinity();
      for (int i = 0; i < kRuns; ++i) {
        const auto began = Clock::now();
        run();
        least = std::min(least, std::chrono::duration<double>(Clock::now() - began).count());
      }
      *seconds = least / static_cast<double>(values.size_bytes());
    };
    shortest(&sample.encode, [&] { pieces.encode(values); });
    shortest(&sample.add, [&] { pieces.decode(true); });
    shortest(&sample.decode, [&] { pieces.decode(false); });
  }
  sample.wire_share = pieces.wire_share();
  const std::span<const float> decoded = pieces.decoded(), other = gradient.other_values();
  double left = 0, there = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double missed = static_cast<double>(values[i]) - decoded[i];
    left += missed * missed;
    if (decoded[i] != 0) there += static_cast<double>(other[i]) * other[i];
  }
  sample.gain = 1 - left / energy_of(values);
  sample.other_gain = there / energy_of(other);
  return sample;
}

}  // namespace canarynet::sim
