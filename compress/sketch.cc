#include "compress/sketch.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace canarynet {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLeast = std::numeric_limits<float>::denorm_min();

// Unsigned integers that order as the floats do. -0 must have become +0.
std::uint32_t key_of(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  return bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFU : 0x80000000U);
}
float value_of(std::uint32_t key) { return std::bit_cast<float>(key ^ ((key >> 31) != 0 ? 0x80000000U : 0xFFFFFFFFU)); }

float next_up(float value) { return std::nextafter(value, kInfinity); }

// Radix sort by 11, 11 and 10 bits. Returns which of the two arrays holds the result.
std::uint32_t* sort_keys(std::uint32_t* keys, std::uint32_t* spare, std::size_t count) {
  constexpr unsigned kDigitBits = 11, kDigits = 3;
  constexpr std::size_t kRadix = std::size_t{1} << kDigitBits;
  constexpr std::uint32_t kMask = kRadix - 1;
  if (count < 512) {  // clearing the counters would take longer
    std::sort(keys, keys + count);
    return keys;
  }
  std::uint32_t counters[kDigits][kRadix] = {};
  for (std::size_t i = 0; i < count; ++i) {
    for (unsigned digit = 0; digit < kDigits; ++digit) ++counters[digit][keys[i] >> digit * kDigitBits & kMask];
  }
  for (unsigned digit = 0; digit < kDigits; ++digit) {
    std::uint32_t* const counter = counters[digit];
    if (counter[keys[0] >> digit * kDigitBits & kMask] == count) continue;  // all have the same digit
    std::uint32_t before = 0;
    for (std::size_t i = 0; i < kRadix; ++i) before += std::exchange(counter[i], before);
    for (std::size_t i = 0; i < count; ++i) spare[counter[keys[i] >> digit * kDigitBits & kMask]++] = keys[i];
    std::swap(keys, spare);
  }
  return keys;
}

// Fills `keys` with all values, or with one from each of kSketchSample stretches.
std::size_t take_sample(const float* values, std::size_t count, std::uint64_t seed, std::uint32_t* keys) {
  if (count <= kSketchSample) {
    for (std::size_t i = 0; i < count; ++i) keys[i] = key_of(values[i] + 0.0F);
    return count;
  }
  // Stretches are 2^-17 of the values: begin(j) = j * count / 2^17, without a division.
  static_assert(kSketchSample == std::size_t{1} << 17);
  const RandomNumbers numbers(seed, 0);
  for (std::size_t j = 0, begin = 0; j < kSketchSample; ++j) {
    const std::size_t end = ((j + 1) * count) >> 17;
    keys[j] = key_of(values[begin + random_below(numbers.at(j), end - begin)] + 0.0F);
    begin = end;
  }
  return kSketchSample;
}

// `buckets` - 1 cuts that divide sorted[0 .. count) in equal parts. Without values in the sample: `otherwise`.
void cut_evenly(const std::uint32_t* sorted, std::size_t count, std::size_t buckets, float otherwise, float** next) {
  for (std::size_t i = 1; i < buckets; ++i) {
    *(*next)++ = count == 0 ? otherwise : value_of(sorted[i * count / buckets]);
  }
}

// Writes 2^bits - 1 cuts behind `next`.
void place_cuts(const std::uint32_t* sorted, std::size_t sampled, const ValueSurvey& survey, std::size_t count,
                std::size_t buckets, float* next) {
  if (survey.zeros == 0 || buckets < 4) {
    cut_evenly(sorted, sampled, buckets, 0, &next);
    return;
  }
  const std::size_t positives = count - survey.zeros - survey.negatives;
  const std::size_t nonzero = count - survey.zeros;
  std::size_t below = 0;  // buckets of negative values
  if (survey.negatives != 0) {
    below = ((buckets - 1) * survey.negatives + nonzero / 2) / nonzero;
    below = std::clamp<std::size_t>(below, 1, buckets - 1 - (positives != 0 ? 1 : 0));
  }
  const std::size_t above = buckets - 1 - below;
  const std::uint32_t* const sample_end = sorted + sampled;
  const std::uint32_t* const zero = std::lower_bound(sorted, sample_end, key_of(0));
  const std::uint32_t* const positive = std::upper_bound(zero, sample_end, key_of(0));
  cut_evenly(sorted, static_cast<std::size_t>(zero - sorted), below, survey.min, &next);
  if (below != 0) *next++ = 0;
  if (positives != 0) {
    *next++ = kLeast;
    cut_evenly(positive, static_cast<std::size_t>(sample_end - positive), above, survey.max, &next);
  } else {
    for (std::size_t i = 0; i < above; ++i) *next++ = kInfinity;
  }
}

void build_tree(const float* cuts, std::size_t entry, std::size_t* next, float* tree) {
  if (entry >= kSketchBuckets) return;
  build_tree(cuts, 2 * entry, next, tree);
  tree[entry] = cuts[(*next)++];
  build_tree(cuts, 2 * entry + 1, next, tree);
}

void fill_codebook(const std::uint32_t* sorted, std::size_t sampled, std::size_t buckets, bool member_mean,
                   SketchTables* tables) {
  std::size_t member = 0;
  for (std::size_t i = 0; i < buckets; ++i) {
    const float start = std::min(tables->cuts[i], tables->end);
    const float end = i + 1 < buckets ? std::min(tables->cuts[i + 1], tables->end) : tables->end;
    const float cut = i + 1 < buckets ? tables->cuts[i + 1] : kInfinity;
    double sum = 0;
    std::size_t members = 0;
    for (; member_mean && member < sampled && value_of(sorted[member]) < cut; ++member, ++members) {
      sum += value_of(sorted[member]);
    }
    float middle = static_cast<float>((static_cast<double>(start) + static_cast<double>(end)) / 2);
    if (members != 0) {
      middle = std::clamp(static_cast<float>(sum / static_cast<double>(members)), start, end);
    }
    tables->codebook[i] = end <= next_up(start) ? start : middle;
  }
}

}  // namespace

bool fit_sketch(const float* values, std::size_t count, unsigned bits, bool member_mean, std::uint64_t seed,
                const SketchSpace& space) {
  const std::size_t buckets = std::size_t{1} << bits;
  SketchTables* const tables = space.tables;
  for (std::size_t i = 0; i < kSketchBuckets; ++i) {
    tables->codebook[i] = 0;
    tables->cuts[i] = kInfinity;
  }
  const ValueSurvey survey = codec_kernels().survey(values, count);
  if (survey.greatest >= kNotFinite32) return false;
  tables->cuts[0] = survey.min;
  tables->end = survey.max;
  if (count != 0) {
    const std::size_t sampled = take_sample(values, count, seed, space.keys);
    const std::uint32_t* const sorted = sort_keys(space.keys, space.spare, sampled);
    place_cuts(sorted, sampled, survey, count, buckets, tables->cuts + 1);
    // The last one of equal cuts moves up by as little as possible: the bucket between them holds that value alone.
    for (std::size_t i = 2; i < buckets; ++i) {
      const bool last = i + 1 == buckets || tables->cuts[i + 1] != tables->cuts[i];
      if (last && tables->cuts[i] == tables->cuts[i - 1]) tables->cuts[i] = next_up(tables->cuts[i]);
    }
    fill_codebook(sorted, sampled, buckets, member_mean, tables);
  }
  std::size_t next = 1;
  tables->tree[0] = 0;
  build_tree(tables->cuts, 1, &next, tables->tree);
  return true;
}

void encode_sketch(const float* values, std::size_t count, unsigned bits, const SketchTables& tables,
                   std::uint8_t* body) {
  const CodecKernels& kernels = codec_kernels();
  if (bits == 8) {
    kernels.to_buckets(values, count, tables.tree, body);
    return;
  }
  constexpr std::size_t kStretch = 2048;  // a multiple of 8, so that each begins at a byte
  std::uint8_t codes[kStretch];
  for (std::size_t begin = 0; begin < count; begin += kStretch) {
    const std::size_t stretch = std::min(count - begin, kStretch);
    kernels.to_buckets(values + begin, stretch, tables.tree, codes);
    std::fill(codes + stretch, codes + (stretch + 7) / 8 * 8, std::uint8_t{0});
    for (std::size_t i = 0; i < stretch; i += 8) {
      std::uint64_t packed = 0;
      for (unsigned j = 0; j < 8; ++j) packed |= std::uint64_t{codes[i + j]} << j * bits;
      const std::size_t bytes = std::min<std::size_t>(bits, sketch_body_bytes(stretch - i, bits));
      for (std::size_t j = 0; j < bytes; ++j) *body++ = static_cast<std::uint8_t>(packed >> 8 * j);
    }
  }
}

void decode_sketch(const std::uint8_t* body, std::size_t count, unsigned bits, const float* codebook, float* out,
                   bool add) {
  const CodecKernels& kernels = codec_kernels();
  if (bits == 8) {
    kernels.from_buckets(body, count, codebook, out, add);
    return;
  }
  constexpr std::size_t kStretch = 2048;
  std::uint8_t codes[kStretch];
  const std::uint64_t mask = (1U << bits) - 1;
  for (std::size_t begin = 0; begin < count; begin += kStretch) {
    const std::size_t stretch = std::min(count - begin, kStretch);
    for (std::size_t i = 0; i < stretch; i += 8) {
      const std::size_t bytes = std::min<std::size_t>(bits, sketch_body_bytes(stretch - i, bits));
      std::uint64_t packed = 0;
      for (std::size_t j = 0; j < bytes; ++j) packed |= std::uint64_t{*body++} << 8 * j;
      for (unsigned j = 0; j < 8; ++j) codes[i + j] = static_cast<std::uint8_t>(packed >> j * bits & mask);
    }
    kernels.from_buckets(codes, stretch, codebook, out + begin, add);
  }
}

const char* open_sketch(const std::uint8_t* head, unsigned bits, float* codebook) {
  const std::size_t buckets = std::size_t{1} << bits;
  for (std::size_t i = 0; i < kSketchBuckets; ++i) codebook[i] = i < buckets ? load<float>(head, i) : 0;
  for (std::size_t i = 0; i < buckets; ++i) {
    if (!std::isfinite(codebook[i])) return "a bucket stands for no finite number";
    if (i != 0 && codebook[i] < codebook[i - 1]) return "the buckets do not ascend";
  }
  return "";
}

namespace {

class Sketch final : public Method {
 public:
  CodecTraits traits() const override { return {.has_head = true, .sums = PartialSums::kRecode}; }
  std::size_t head_max(const Coding& coding) const override { return sketch_head_bytes(coding.spec.bits); }
  std::size_t body_max(const Coding& coding, Piece piece) const override {
    return sketch_body_bytes(piece.count, coding.spec.bits);
  }
  std::size_t workspace(const Coding& coding) const override {
    Carver carver;
    SketchSpace(&carver, coding.segment.count);
    return carver.bytes();
  }

  Result<std::size_t> fit(const Coding& coding, const float* values, std::span<std::byte> workspace,
                          std::span<float> /*state*/, std::uint8_t* head) const override {
    Carver carver(workspace);
    const SketchSpace space(&carver, coding.segment.count);
    const CodecSpec& spec = coding.spec;
    if (!fit_sketch(values, coding.segment.count, spec.bits, spec.member_mean, coding.segment.round, space)) {
      return refused(spec, values, coding.segment.count);
    }
    std::memcpy(head, space.tables->codebook, sketch_head_bytes(spec.bits));
    return sketch_head_bytes(spec.bits);
  }
  Result<std::size_t> encode(const Coding& coding, Piece piece, const float* values, std::span<std::byte> workspace,
                             std::uint8_t* body) const override {
    const auto* tables = Carver(workspace).take<SketchTables>(1);
    encode_sketch(values, piece.count, coding.spec.bits, *tables, body);
    return sketch_body_bytes(piece.count, coding.spec.bits);
  }
  Status open(const Coding& coding, std::span<const std::uint8_t> head, std::span<std::byte> workspace) const override {
    const std::size_t bytes = sketch_head_bytes(coding.spec.bits);
    if (Status status = expect_bytes(coding.spec, "head", head.size(), bytes); !status.ok()) return status;
    auto* tables = Carver(workspace).take<SketchTables>(1);
    const char* why = open_sketch(head.data(), coding.spec.bits, tables->codebook);
    return *why == '\0' ? Status() : malformed(coding.spec, "head", why);
  }
  Status decode(const Coding& coding, Piece piece, std::span<const std::uint8_t> body, std::span<std::byte> workspace,
                float* out, bool add) const override {
    const std::size_t bytes = sketch_body_bytes(piece.count, coding.spec.bits);
    if (Status status = expect_bytes(coding.spec, "body", body.size(), bytes); !status.ok()) return status;
    const auto* tables = Carver(workspace).take<SketchTables>(1);
    decode_sketch(body.data(), piece.count, coding.spec.bits, tables->codebook, out, add);
    return {};
  }
};

}  // namespace

const Method& sketch_method() {
  static constexpr Sketch kMethod;
  return kMethod;
}

}  // namespace canarynet
