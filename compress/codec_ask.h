// compress/codec_ask.h -- what an operation asks for in the place of a codec: one codec, or the fastest of a few.
//
//   int8, sketch:8, ...   that codec (compress/spec.h)
//   auto                  dense, bf16 or int8
//   auto:R                these, or topk:R
//   CODEC,auto            dense, or that codec; artopk:star:R,auto and artopk:var:R,auto also agtopk:R
//
// A choice is a number like a codec's: kind 15 (with its ratio), or the codec's number with bit 10. A value that is not
// finite must not decide whether an operation fails, so every candidate has or_dense. This names the candidates;
// collectives/codec_pick.h chooses. Thread-safe: values only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "compress/spec.h"

namespace canarynet {

inline constexpr std::size_t kCodecCandidatesMax = 4;

struct CodecCandidates {
  std::array<CodecSpec, kCodecCandidatesMax> specs{};  // the first one is dense
  std::size_t count = 1;
  std::span<const CodecSpec> all() const& { return {specs.data(), count}; }
  std::span<const CodecSpec> all() && = delete;  // it would outlive what it points to
};

// Whether the number asks for a choice.
bool asks_for_choice(std::uint32_t number);
// CANARY_INVALID_ARGUMENT with the text and what is wrong with it.
Result<std::uint32_t> number_asked(std::string_view text);
// The text that gives the number, or the number itself where no text does.
std::string text_asked(std::uint32_t number);
// The codec that the number names, with or without a choice. CANARY_INVALID_ARGUMENT for auto, which names none.
Result<CodecSpec> codec_named(std::uint32_t number);
// OK if some text gives the number.
Status check_asked(std::uint32_t number);
// Of a number that is good: dense, then what it asks for.
CodecCandidates candidates_of(std::uint32_t number);

}  // namespace canarynet
