// compress/codec_test_util.h -- what tests of codecs share: data of every kind, specs, one whole trip of a segment.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "compress/codec.h"

namespace canarynet::codec_test {

inline double uniform(Random* random) { return static_cast<double>(random->next() >> 11) * 0x1p-53; }
inline double gaussian(Random* random) {
  return std::sqrt(-2 * std::log(1 - uniform(random))) * std::cos(6.283185307179586 * uniform(random));
}

enum class Data { kGaussian, kHeavyTail, kConstant, kZero, kDenormal, kOneHuge, kAlternating, kSparse };
inline constexpr Data kAllData[] = {Data::kGaussian, Data::kHeavyTail, Data::kConstant,    Data::kZero,
                                    Data::kDenormal, Data::kOneHuge,   Data::kAlternating, Data::kSparse};
inline const char* name_of(Data data) {
  constexpr const char* kNames[] = {"gaussian", "heavy tail", "constant",    "zero",
                                    "denormal", "one huge",   "alternating", "sparse"};
  return kNames[static_cast<int>(data)];
}

inline std::vector<float> make(Data data, std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    switch (data) {
      case Data::kGaussian:
        values[i] = static_cast<float>(gaussian(&random) * 1e-3);
        break;
      case Data::kHeavyTail:
        values[i] = static_cast<float>(gaussian(&random) / std::pow(1 - uniform(&random), 2.0));
        break;
      case Data::kConstant:
        values[i] = -0.37F;
        break;
      case Data::kZero:
        values[i] = i % 3 == 0 ? -0.0F : 0.0F;
        break;
      case Data::kDenormal:
        values[i] = static_cast<float>(gaussian(&random) * 3e-41);
        break;
      case Data::kOneHuge:
        values[i] = i == count / 2 ? 3e38F : static_cast<float>(gaussian(&random));
        break;
      case Data::kAlternating:
        values[i] = (i % 2 == 0 ? 1.0F : -1.0F) * (1.0F + static_cast<float>(i % 7) / 8);
        break;
      case Data::kSparse:
        values[i] = uniform(&random) < 0.9 ? 0.0F : static_cast<float>(gaussian(&random));
        break;
    }
  }
  return values;
}

inline CodecSpec spec_of(const std::string& text) {
  const Result<CodecSpec> spec = parse_codec(text);
  CANARY_CHECK(spec.ok(), spec.status().text().c_str());
  return spec.value();
}

// A segment as a matrix of about equal sides, whose last elements that fill no row make it rows x 1 instead.
inline Segment segment_of(std::size_t count) {
  Segment segment{.count = count, .rows = count, .columns = count == 0 ? 0U : 1U};
  for (std::size_t side = 2; side * side <= count; ++side) {
    if (count % side == 0) segment.rows = count / side, segment.columns = side;
  }
  return segment;
}

// Encodes and decodes a segment whole.
struct Trip {
  explicit Trip(const Coding& coding_in)
      : coding(coding_in), workspace(workspace_bytes(coding)), state(state_floats(coding)) {}
  Status encode(const std::vector<float>& values) {
    bytes.assign(whole_bytes_max(coding), 0xA5);
    const Result<std::size_t> written = encode_whole(coding, values.data(), workspace, state, bytes);
    if (!written.ok()) return written.status();
    bytes.resize(written.value());
    return {};
  }
  Status decode(std::vector<float>* out, bool add = false) {
    out->resize(coding.segment.count);
    return decode_whole(coding, bytes, workspace, out->data(), add);
  }
  Coding coding;
  std::vector<std::byte> workspace;
  std::vector<float> state;
  std::vector<std::uint8_t> bytes;
};

}  // namespace canarynet::codec_test
