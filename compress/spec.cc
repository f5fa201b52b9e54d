#include "compress/spec.h"

#include <array>
#include <charconv>
#include <cmath>

namespace canarynet {
namespace {

// What a kind takes, for parsing, printing and checking alike.
struct KindInfo {
  CodecKind kind;
  const char* name;
  enum Parameter : std::uint8_t { kNone, kBits, kRatio, kRank, kRootAndRatio } parameter;
  bool seeded;
};
constexpr std::array<KindInfo, kCodecKindCount> kKinds = {{
    {CodecKind::kDense, "dense", KindInfo::kNone, false},
    {CodecKind::kF16, "fp16", KindInfo::kNone, false},
    {CodecKind::kBf16, "bf16", KindInfo::kNone, false},
    {CodecKind::kInt8, "int8", KindInfo::kNone, false},
    {CodecKind::kSketch, "sketch", KindInfo::kBits, false},
    {CodecKind::kTopK, "topk", KindInfo::kRatio, false},
    {CodecKind::kLayerTopK, "lwtopk", KindInfo::kRatio, false},
    {CodecKind::kMsTopK, "mstopk", KindInfo::kRatio, true},
    {CodecKind::kRandomK, "randomk", KindInfo::kRatio, true},
    {CodecKind::kOneBit, "onebit", KindInfo::kNone, false},
    {CodecKind::kSignSgd, "signsgd", KindInfo::kNone, false},
    {CodecKind::kTernGrad, "terngrad", KindInfo::kNone, true},
    {CodecKind::kPower, "power", KindInfo::kRank, true},
    {CodecKind::kSvd, "svd", KindInfo::kRank, true},
    {CodecKind::kArTopK, "artopk", KindInfo::kRootAndRatio, false},
}};

const KindInfo* info_of(CodecKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  return index < kKinds.size() ? &kKinds[index] : nullptr;
}

constexpr std::string_view kGathered = "gather";  // in the place of a root

Status wrong(std::string_view text, const std::string& why) {
  return {CANARY_INVALID_ARGUMENT, "codec \"" + std::string(text) + "\": " + why};
}

template <typename T>
bool parse_whole(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// Takes the part before `separator` off the front of `text`.
std::string_view take_until(std::string_view* text, char separator) {
  const std::size_t end = text->find(separator);
  const std::string_view part = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  return part;
}

std::string ratio_text(std::uint32_t ppm) {
  if (ppm == 1'000'000) return "1";
  std::string digits = std::to_string(1'000'000 + ppm).substr(1);
  while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
  return "0." + digits;
}

std::string names_of_all() {
  std::string names;
  for (const KindInfo& info : kKinds) names += (names.empty() ? "" : ", ") + std::string(info.name);
  return names;
}

// "" or what is wrong.
std::string parse_parameter(const KindInfo& info, std::string_view text, bool given, CodecSpec* spec) {
  switch (info.parameter) {
    case KindInfo::kNone:
      return given ? std::string(info.name) + " takes no parameter" : "";
    case KindInfo::kBits: {
      unsigned bits = 0;
      if (!parse_whole(text, &bits) || bits < 1 || bits > 8) return "takes its bits, 1 to 8, as in sketch:8";
      spec->bits = static_cast<std::uint8_t>(bits);
      return "";
    }
    case KindInfo::kRank: {
      unsigned rank = 0;
      if (!parse_whole(text, &rank) || rank < 1 || rank > kRankMax) {
        return "takes its rank, 1 to " + std::to_string(kRankMax) + ", as in " + info.name + ":4";
      }
      spec->rank = static_cast<std::uint16_t>(rank);
      return "";
    }
    case KindInfo::kRootAndRatio: {
      const std::string_view root = take_until(&text, ':');
      spec->bits = root == "star" ? kArTopKStar : root == "var" ? kArTopKVar : root == kGathered ? kAgTopK : 0;
      if (spec->bits == 0) return "takes how its root is chosen, star or var, as in artopk:star:0.01";
      [[fallthrough]];
    }
    case KindInfo::kRatio: {
      double ratio = 0;
      const bool number = parse_whole(text, &ratio) && ratio > 0 && ratio <= 1;
      const double ppm = number ? std::nearbyint(ratio * 1e6) : 0;
      if (!number || ppm < 1 || std::fabs(ratio * 1e6 - ppm) > 1e-4) {
        return "takes the share of values it keeps, above 0 and at most 1, in steps of 0.000001, as in " +
               std::string(info.name) + (info.parameter == KindInfo::kRootAndRatio ? ":star:0.01" : ":0.01");
      }
      spec->ratio_ppm = static_cast<std::uint32_t>(ppm);
      return "";
    }
  }
  return "";
}

}  // namespace

const char* name_of(CodecKind kind) {
  const KindInfo* info = info_of(kind);
  return info != nullptr ? info->name : "?";
}

Result<CodecSpec> parse_codec(std::string_view text) {
  CodecSpec spec;
  std::string_view rest = text;
  std::string_view head = take_until(&rest, ',');
  const bool sketched = head.find('+') != std::string_view::npos;
  std::string_view parameter = take_until(&head, '+');
  const std::string_view factors = head;
  const bool given = parameter.find(':') != std::string_view::npos;
  std::string_view name = take_until(&parameter, ':');
  std::string gathered;
  if (name == "agtopk") {
    gathered = std::string(kGathered) + ":" + std::string(parameter);
    parameter = gathered;
    name = "artopk";
  }

  const KindInfo* info = nullptr;
  for (const KindInfo& each : kKinds) {
    if (name == each.name) info = &each;
  }
  if (info == nullptr) return wrong(text, "there is no codec of this name; there are " + names_of_all());
  spec.kind = info->kind;
  if (const std::string why = parse_parameter(*info, parameter, given, &spec); !why.empty()) return wrong(text, why);
  if (sketched) {
    if (info->parameter != KindInfo::kRank) return wrong(text, "only power and svd have factors to sketch");
    unsigned bits = 0;
    if (factors.substr(0, 7) != "sketch:" || !parse_whole(factors.substr(7), &bits) || bits < 1 || bits > 8) {
      return wrong(text, "behind + comes sketch:BITS, 1 to 8");
    }
    spec.factor_bits = static_cast<std::uint8_t>(bits);
  }
  const bool takes_mean = info->parameter == KindInfo::kBits || spec.factor_bits != 0;
  bool options = text.find(',') != std::string_view::npos;
  while (options) {
    options = rest.find(',') != std::string_view::npos;
    const std::string_view option = take_until(&rest, ',');
    if (option == "mean" && takes_mean) {
      spec.member_mean = true;
    } else if (option == "or-dense") {
      spec.or_dense = true;
    } else if (option.substr(0, 5) == "seed=" && info->seeded) {
      if (!parse_whole(option.substr(5), &spec.seed)) return wrong(text, "seed= takes a number below 2^64");
    } else {
      return wrong(text, "\"" + std::string(option) + "\" is no option of " + info->name + " (it takes " +
                             (takes_mean ? "mean, " : "") + (info->seeded ? "seed=N, " : "") + "or-dense)");
    }
  }
  return spec;
}

std::string to_text(const CodecSpec& spec) {
  const KindInfo* info = info_of(spec.kind);
  if (info == nullptr) return "?";
  std::string text = info->name;
  if (info->parameter == KindInfo::kBits) text += ":" + std::to_string(spec.bits);
  if (info->parameter == KindInfo::kRank) text += ":" + std::to_string(spec.rank);
  if (info->parameter == KindInfo::kRootAndRatio) {
    text = spec.bits == kAgTopK ? "agtopk" : spec.bits == kArTopKVar ? "artopk:var" : "artopk:star";
    text += ":" + ratio_text(spec.ratio_ppm);
  }
  if (info->parameter == KindInfo::kRatio) text += ":" + ratio_text(spec.ratio_ppm);
  if (spec.factor_bits != 0) text += "+sketch:" + std::to_string(spec.factor_bits);
  if (spec.member_mean) text += ",mean";
  if (spec.seed != 0) text += ",seed=" + std::to_string(spec.seed);
  if (spec.or_dense) text += ",or-dense";
  return text;
}

Result<std::uint32_t> codec_number(const CodecSpec& spec) {
  if (Status status = check(spec); !status.ok()) return status;
  const char* const without = spec.seed != 0                                    ? "there is no room for its seed"
                              : spec.kind == CodecKind::kDense && spec.or_dense ? "dense is no codec to fall back from"
                                                                                : nullptr;
  if (without != nullptr)
    return Status(CANARY_INVALID_ARGUMENT, "codec " + to_text(spec) + " has no number: " + without);
  const std::uint32_t bits = spec.rank != 0 ? spec.factor_bits : spec.bits;
  const std::uint32_t share = spec.rank != 0 ? spec.rank : spec.ratio_ppm;
  return static_cast<std::uint32_t>(spec.kind) | bits << 4 | std::uint32_t{spec.member_mean} << 8 |
         std::uint32_t{spec.or_dense} << 9 | share << 12;
}

Result<CodecSpec> codec_of_number(std::uint32_t number) {
  CodecSpec spec;
  spec.kind = static_cast<CodecKind>(number & 15);
  const auto bits = static_cast<std::uint8_t>(number >> 4 & 15);
  (needs_shape(spec.kind) ? spec.factor_bits : spec.bits) = bits;
  spec.member_mean = (number >> 8 & 1) != 0;
  spec.or_dense = (number >> 9 & 1) != 0;
  if (needs_shape(spec.kind)) {
    spec.rank = static_cast<std::uint16_t>(number >> 12);
  } else {
    spec.ratio_ppm = number >> 12;
  }
  const Result<std::uint32_t> again = codec_number(spec);
  if (again.ok() && again.value() == number) return spec;
  return Status(CANARY_INVALID_ARGUMENT, std::to_string(number) + " is the number of no codec" +
                                             (again.ok() ? "" : " (" + again.status().text() + ")"));
}

Status check(const CodecSpec& spec) {
  const KindInfo* info = info_of(spec.kind);
  const auto bad = [&](const std::string& why) {
    return Status(CANARY_INVALID_ARGUMENT, "codec " + std::string(name_of(spec.kind)) + ": " + why);
  };
  if (info == nullptr) return bad("kind " + std::to_string(static_cast<unsigned>(spec.kind)) + " does not exist");
  const bool bits = info->parameter == KindInfo::kBits;
  const bool rank = info->parameter == KindInfo::kRank;
  const bool chain = info->parameter == KindInfo::kRootAndRatio;
  const bool ratio = info->parameter == KindInfo::kRatio || chain;
  if (chain && (spec.bits < kArTopKStar || spec.bits > kAgTopK))
    return bad("roots are chosen in ways 1 to 3, not " + std::to_string(spec.bits));
  if (!chain && (bits ? spec.bits < 1 || spec.bits > 8 : spec.bits != 0)) {
    return bad("bits = " + std::to_string(spec.bits) + (bits ? ", 1 to 8 are possible" : ", which it does not have"));
  }
  if (rank ? spec.rank < 1 || spec.rank > kRankMax : spec.rank != 0) {
    return bad("rank = " + std::to_string(spec.rank) +
               (rank ? ", 1 to " + std::to_string(kRankMax) + " are possible" : ", which it does not have"));
  }
  if (ratio ? spec.ratio_ppm < 1 || spec.ratio_ppm > 1'000'000 : spec.ratio_ppm != 0) {
    return bad("ratio_ppm = " + std::to_string(spec.ratio_ppm) +
               (ratio ? ", 1 to 1000000 are possible" : ", which it does not have"));
  }
  if (spec.factor_bits > (rank ? 8 : 0)) return bad("factor_bits = " + std::to_string(spec.factor_bits));
  if (spec.member_mean && !bits && spec.factor_bits == 0) return bad("member_mean is an option of sketches");
  if (spec.seed != 0 && !info->seeded) return bad("it has no seed");
  return {};
}

}  // namespace canarynet
