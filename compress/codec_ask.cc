#include "compress/codec_ask.h"

#include "base/check.h"

namespace canarynet {
namespace {

constexpr std::uint32_t kAnyCodec = 15;      // in the place of a kind
constexpr std::uint32_t kOrNone = 1u << 10;  // with a codec's number
constexpr std::uint32_t kRatioShift = 12;    // as in a codec's number
constexpr std::string_view kAuto = "auto", kOption = ",auto";

bool is_any(std::uint32_t number) { return (number & 15) == kAnyCodec; }

// Removes the option from the text wherever it stands. False: it is not there.
bool take_option(std::string* text) {
  for (std::size_t at = text->find(kOption); at != std::string::npos; at = text->find(kOption, at + 1)) {
    const std::size_t end = at + kOption.size();
    if (end != text->size() && (*text)[end] != ',') continue;
    text->erase(at, kOption.size());
    return true;
  }
  return false;
}

}  // namespace

bool asks_for_choice(std::uint32_t number) { return is_any(number) || (number & kOrNone) != 0; }

Result<std::uint32_t> number_asked(std::string_view text) {
  std::string codec(text);
  const bool any = text == kAuto || text.substr(0, kAuto.size() + 1) == "auto:";
  if (!any && !take_option(&codec)) {
    const auto spec = parse_codec(text);
    return spec.ok() ? codec_number(spec.value()) : spec.status();
  }
  const auto wrong = [&](const std::string& why) {
    return Status(CANARY_INVALID_ARGUMENT, "codec \"" + std::string(text) + "\": " + why);
  };
  if (text == kAuto) return kAnyCodec;
  if (any) {
    const auto sparse = parse_codec("topk:" + codec.substr(kAuto.size() + 1));
    if (!sparse.ok() || sparse.value().or_dense) {
      return wrong(
          "auto takes nothing, or the share of values that top-k may keep, above 0 and at most 1, in steps of "
          "0.000001, as in auto:0.01");
    }
    return kAnyCodec | sparse.value().ratio_ppm << kRatioShift;
  }
  auto spec = parse_codec(codec);
  if (!spec.ok()) return wrong(spec.status().text());
  if (spec.value().kind == CodecKind::kDense) return wrong("dense is what auto chooses the codec against");
  if (needs_shape(spec.value().kind))
    return wrong("auto chooses by the number of elements alone, and it needs the shape of a matrix");
  CodecSpec candidate = spec.value();
  candidate.or_dense = true;
  const auto number = codec_number(candidate);
  if (!number.ok()) return wrong(number.status().text());
  return number.value() | kOrNone;
}

Result<CodecSpec> codec_named(std::uint32_t number) { return codec_of_number(number & ~kOrNone); }

Status check_asked(std::uint32_t number) {
  if (!asks_for_choice(number)) return codec_of_number(number).status();
  const std::string text = text_asked(number);
  const auto again = number_asked(text);
  if (again.ok() && again.value() == number) return {};
  return {CANARY_INVALID_ARGUMENT, std::to_string(number) + " is the number of no codec"};
}

std::string text_asked(std::uint32_t number) {
  if (is_any(number)) {
    CodecSpec sparse;
    sparse.kind = CodecKind::kTopK;
    sparse.ratio_ppm = number >> kRatioShift;
    return sparse.ratio_ppm == 0 ? std::string(kAuto) : "auto:" + to_text(sparse).substr(5);
  }
  const auto spec = codec_of_number(number & ~kOrNone);
  if (!spec.ok()) return std::to_string(number);
  if ((number & kOrNone) == 0) return to_text(spec.value());
  CodecSpec shown = spec.value();
  shown.or_dense = false;  // it goes without saying
  return to_text(shown) + std::string(kOption);
}

CodecCandidates candidates_of(std::uint32_t number) {
  CodecCandidates out;
  const auto add = [&](CodecSpec spec) {
    spec.or_dense = true;
    out.specs[out.count++] = spec;
  };
  if (is_any(number)) {
    add({.kind = CodecKind::kBf16});
    add({.kind = CodecKind::kInt8});
    if (number >> kRatioShift != 0) add({.kind = CodecKind::kTopK, .ratio_ppm = number >> kRatioShift});
    return out;
  }
  const auto spec = codec_of_number(number & ~kOrNone);
  CANARY_CHECK(spec.ok(), "candidates of a number that is no codec's");
  if (spec.value().kind != CodecKind::kDense) add(spec.value());
  if (spec.value().kind == CodecKind::kArTopK && spec.value().bits != kAgTopK) {
    add({.kind = CodecKind::kArTopK, .bits = kAgTopK, .ratio_ppm = spec.value().ratio_ppm});
  }
  return out;
}

}  // namespace canarynet
