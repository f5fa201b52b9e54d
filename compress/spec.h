// compress/spec.h -- which codec an operation uses, with its parameters: plain values that are part of its signature.
//
// Text form: NAME[:PARAMETER][+sketch:BITS][,OPTION]... It prints the shortest text that parses to the same spec.
//
//   dense, fp16, bf16, int8, onebit, signsgd      sketch:1 ... sketch:8 (bits)
//   topk:R, lwtopk:R, mstopk:R, randomk:R         R: share of values kept, above 0 and at most 1, in steps of 1e-6
//   power:N, svd:N                                N: rank, 1 to 1024; +sketch:BITS sketches the factors
//   terngrad
//   artopk:star:R, artopk:var:R, agtopk:R         collectives (engine/top_k_chain.h), which encode no segments
//   ,mean       sketch: a bucket stands for the mean of its members, not of its start and end
//   ,seed=N     randomk, terngrad, power, svd, mstopk: where its random numbers begin
//   ,or-dense   a segment with a NaN or an infinity travels dense; without it encoding fails and names the value.
//               artopk, agtopk: the whole operation does
//
// docs/compression.md says what each does. Thread-safe: values only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace canarynet {

enum class CodecKind : std::uint8_t {
  kDense = 0,
  kF16 = 1,
  kBf16 = 2,
  kInt8 = 3,
  kSketch = 4,
  kTopK = 5,
  kLayerTopK = 6,
  kMsTopK = 7,
  kRandomK = 8,
  kOneBit = 9,
  kSignSgd = 10,
  kTernGrad = 11,
  kPower = 12,
  kSvd = 13,
  kArTopK = 14,
};
inline constexpr std::size_t kCodecKindCount = 15;
const char* name_of(CodecKind kind);
// It encodes a matrix, whose shape it must know.
constexpr bool needs_shape(CodecKind kind) { return kind == CodecKind::kPower || kind == CodecKind::kSvd; }
// An operation by it is a chain of others (engine/operation_chain.h), and encodes no pieces.
constexpr bool makes_chain(CodecKind kind) { return kind == CodecKind::kArTopK || needs_shape(kind); }

inline constexpr std::uint16_t kRankMax = 1024;
// CodecSpec::bits of kArTopK: roots in turn, the root of the largest norm, or none (all is gathered).
inline constexpr std::uint8_t kArTopKStar = 1, kArTopKVar = 2, kAgTopK = 3;

struct CodecSpec {
  CodecKind kind = CodecKind::kDense;
  std::uint8_t bits = 0;         // sketch: of an index; artopk: how ranks agree on the indices, as below
  std::uint8_t factor_bits = 0;  // power, svd: factors are sketched with so many bits; 0: they travel as f32
  bool member_mean = false;      // sketch, also of factors
  bool or_dense = false;
  std::uint16_t rank = 0;       // power, svd
  std::uint32_t ratio_ppm = 0;  // top-k family: share of values kept, in millionths
  std::uint64_t seed = 0;

  bool operator==(const CodecSpec&) const = default;
};

// CANARY_INVALID_ARGUMENT with the text and what is wrong with it.
Result<CodecSpec> parse_codec(std::string_view text);
std::string to_text(const CodecSpec& spec);
// A spec as one number, for places that have room for no more; 0 is dense. Numbers of this form never change:
// kind (4 bits) | bits (4) | member_mean (1) | or_dense (1) | zeros (2) | ratio_ppm (20); power and svd have
// factor_bits and rank in the places of bits and ratio_ppm. Seeds have no number: CANARY_INVALID_ARGUMENT.
Result<std::uint32_t> codec_number(const CodecSpec& spec);
// CANARY_INVALID_ARGUMENT unless codec_number() gives the number.
Result<CodecSpec> codec_of_number(std::uint32_t number);
// OK, or the field that is out of range or that this kind does not have. Parsed specs are always good.
Status check(const CodecSpec& spec);

}  // namespace canarynet
