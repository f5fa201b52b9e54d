// Sparsifiers: topk, lwtopk, mstopk and randomk. What they send is exact; what they don't send is zero.
//
// Body of the top-k family: number of pairs (u32), their indices in the piece (u32 each, ascending), their values (f32
// each). Body of randomk: the values alone, since both ends know the positions.
#include <algorithm>
#include <cmath>

#include "compress/method.h"
#include "compress/top_k.h"
#include "kernels/codec.h"

namespace canarynet {
namespace {

constexpr std::size_t kCountBytes = 4;
constexpr std::size_t kPairBytes = 8;

// Number and lists of what fit chose, in the workspace.
struct Selection {
  std::size_t count;
};

Status not_finite(const CodecSpec& spec, std::size_t index) {
  return malformed(spec, "body", "value " + std::to_string(index) + " is not finite");
}

class Pairs : public Method {
 public:
  CodecTraits traits() const override { return {.sparsifier = true, .sums = PartialSums::kGather}; }
  std::size_t body_max(const Coding& coding, Piece piece) const override {
    return kCountBytes + kPairBytes * std::min(kept(coding), piece.count);
  }
  Result<std::size_t> encode(const Coding& coding, Piece piece, const float* /*values*/, std::span<std::byte> workspace,
                             std::uint8_t* body) const override {
    const Chosen chosen = lists(coding, workspace);
    const std::size_t total = Carver(workspace).take<Selection>(1)->count;
    const std::uint32_t* const begin = chosen.indices;
    const std::uint32_t* const end = begin + total;
    const std::uint32_t* const from = std::lower_bound(begin, end, piece.begin);
    const std::uint32_t* const to = std::lower_bound(from, end, piece.begin + piece.count);
    const auto pairs = static_cast<std::size_t>(to - from);
    store(body, static_cast<std::uint32_t>(pairs));
    for (std::size_t i = 0; i < pairs; ++i) {
      store(body + kCountBytes, static_cast<std::uint32_t>(from[i] - piece.begin), i);
    }
    if (pairs != 0) {
      std::memcpy(body + kCountBytes + pairs * sizeof(std::uint32_t), chosen.values + (from - begin),
                  pairs * sizeof(float));
    }
    return kCountBytes + kPairBytes * pairs;
  }
  Status decode(const Coding& coding, Piece piece, std::span<const std::uint8_t> body,
                std::span<std::byte> /*workspace*/, float* out, bool add) const override {
    const CodecSpec& spec = coding.spec;
    if (body.size() < kCountBytes) return malformed(spec, "body", "it ends within the number of pairs");
    const std::size_t pairs = load<std::uint32_t>(body.data());
    if (pairs > std::min(kept(coding), piece.count)) {
      return malformed(spec, "body",
                       std::to_string(pairs) + " pairs, where " + std::to_string(piece.count) + " elements and " +
                           std::to_string(kept(coding)) + " kept values are possible");
    }
    const std::size_t bytes = kCountBytes + kPairBytes * pairs;
    if (Status status = expect_bytes(spec, "body", body.size(), bytes); !status.ok()) return status;
    const std::uint8_t* const indices = body.data() + kCountBytes;
    const std::uint8_t* const values = indices + pairs * sizeof(std::uint32_t);
    // All is checked before the first write, so that a scattered index never meets a half-checked list.
    std::size_t least = 0;
    for (std::size_t i = 0; i < pairs; ++i) {
      const auto index = load<std::uint32_t>(indices, i);
      if (index < least || index >= piece.count) {
        return malformed(spec, "body",
                         "index " + std::to_string(index) + " of pair " + std::to_string(i) +
                             (index < least ? " does not ascend" : " lies beyond the piece"));
      }
      if (!std::isfinite(load<float>(values, i))) return not_finite(spec, i);
      least = std::size_t{index} + 1;
    }
    if (!add) std::fill(out, out + piece.count, 0.0F);
    for (std::size_t i = 0; i < pairs; ++i) {
      const auto index = load<std::uint32_t>(indices, i);
      const auto value = load<float>(values, i);
      out[index] = add ? out[index] + value : value;
    }
    return {};
  }

 protected:
  ~Pairs() = default;
  // Values kept of the whole segment.
  virtual std::size_t kept(const Coding& coding) const { return kept_of(coding.segment.count, coding.spec.ratio_ppm); }
  // The lists of the choice, behind the Selection.
  virtual Chosen lists(const Coding& coding, std::span<std::byte> workspace) const {
    Carver carver(workspace);
    carver.take<Selection>(1);
    return TopKSpace(&carver, coding.segment.count, kept(coding)).chosen;
  }
  std::size_t workspace(const Coding& coding) const override {
    Carver carver;
    carver.take<Selection>(1);
    TopKSpace(&carver, coding.segment.count, kept(coding));
    return carver.bytes();
  }
};

class TopK final : public Pairs {
  Result<std::size_t> fit(const Coding& coding, const float* values, std::span<std::byte> workspace,
                          std::span<float> /*state*/, std::uint8_t* /*head*/) const override {
    Carver carver(workspace);
    auto* selection = carver.take<Selection>(1);
    selection->count = kept(coding);
    if (selection->count == 0) return std::size_t{0};
    const TopKSpace space(&carver, coding.segment.count, selection->count);
    choose_top_k(values, coding.segment.count, selection->count, 0, space);
    if (codec_kernels().greatest(space.chosen.values, selection->count) >= kNotFinite32) {
      return refused(coding.spec, values, coding.segment.count);
    }
    return std::size_t{0};
  }
};

class MsTopK final : public Pairs {
  Result<std::size_t> fit(const Coding& coding, const float* values, std::span<std::byte> workspace,
                          std::span<float> /*state*/, std::uint8_t* /*head*/) const override {
    const std::size_t count = coding.segment.count;
    if (codec_kernels().greatest(values, count) >= kNotFinite32) return refused(coding.spec, values, count);
    Carver carver(workspace);
    auto* selection = carver.take<Selection>(1);
    selection->count = kept(coding);
    if (selection->count == 0) return std::size_t{0};
    choose_ms_top_k(values, count, selection->count, RandomNumbers(coding.spec.seed, coding.segment.round).at(0),
                    TopKSpace(&carver, count, selection->count));
    return std::size_t{0};
  }
};

// The k largest of each layer by itself.
class LayerTopK final : public Pairs {
  static std::span<const std::size_t> layers_of(const Segment& segment) {
    if (!segment.layers.empty()) return segment.layers;
    return {&segment.count, segment.count == 0 ? 0U : 1U};
  }
  // Lists of all layers, then a space that each layer uses in turn.
  struct Space {
    Space(Carver* carver, std::size_t kept)
        : selection(carver->take<Selection>(1)),
          chosen{carver->take<std::uint32_t>(kept), carver->take<float>(kept)},
          layer(*carver) {}
    Selection* selection;
    Chosen chosen;
    Carver layer;
  };

  std::size_t kept(const Coding& coding) const override {
    std::size_t sum = 0;
    for (const std::size_t layer : layers_of(coding.segment)) sum += kept_of(layer, coding.spec.ratio_ppm);
    return sum;
  }
  Chosen lists(const Coding& coding, std::span<std::byte> workspace) const override {
    Carver carver(workspace);
    return Space(&carver, kept(coding)).chosen;
  }
  std::size_t workspace(const Coding& coding) const override {
    Carver carver;
    const Space space(&carver, kept(coding));
    std::size_t bytes = space.layer.bytes();
    for (const std::size_t layer : layers_of(coding.segment)) {
      Carver own = space.layer;
      TopKSpace(&own, layer, kept_of(layer, coding.spec.ratio_ppm));
      bytes = std::max(bytes, own.bytes());
    }
    return bytes;
  }
  Result<std::size_t> fit(const Coding& coding, const float* values, std::span<std::byte> workspace,
                          std::span<float> /*state*/, std::uint8_t* /*head*/) const override {
    Carver carver(workspace);
    const Space space(&carver, kept(coding));
    std::size_t begin = 0, total = 0;
    for (const std::size_t layer : layers_of(coding.segment)) {
      const std::size_t k = kept_of(layer, coding.spec.ratio_ppm);
      Carver own = space.layer;
      const TopKSpace top(&own, layer, k);
      choose_top_k(values + begin, layer, k, static_cast<std::uint32_t>(begin), top);
      if (codec_kernels().greatest(top.chosen.values, k) >= kNotFinite32) {
        return refused(coding.spec, values, coding.segment.count);
      }
      std::memcpy(space.chosen.indices + total, top.chosen.indices, k * sizeof(std::uint32_t));
      std::memcpy(space.chosen.values + total, top.chosen.values, k * sizeof(float));
      begin += layer;
      total += k;
    }
    space.selection->count = total;
    return std::size_t{0};
  }
};

class RandomK final : public Method {
 public:
  CodecTraits traits() const override {
    return {.sparsifier = true, .sums = PartialSums::kAddBodies, .element = CANARY_F32};
  }
  std::size_t body_max(const Coding& coding, Piece piece) const override {
    return sizeof(float) * chosen_in(coding, piece).count;
  }
  Result<std::size_t> fit(const Coding& coding, const float* values, std::span<std::byte> /*workspace*/,
                          std::span<float> /*state*/, std::uint8_t* /*head*/) const override {
    if (codec_kernels().greatest(values, coding.segment.count) >= kNotFinite32) {
      return refused(coding.spec, values, coding.segment.count);
    }
    return std::size_t{0};
  }
  Result<std::size_t> encode(const Coding& coding, Piece piece, const float* values, std::span<std::byte> /*workspace*/,
                             std::uint8_t* body) const override {
    const Piece chosen = chosen_in(coding, piece);
    for (std::size_t i = 0; i < chosen.count; ++i) {
      store(body, values[position(coding, chosen.begin + i) - piece.begin], i);
    }
    return sizeof(float) * chosen.count;
  }
  Status decode(const Coding& coding, Piece piece, std::span<const std::uint8_t> body,
                std::span<std::byte> /*workspace*/, float* out, bool add) const override {
    const Piece chosen = chosen_in(coding, piece);
    const std::size_t bytes = sizeof(float) * chosen.count;
    if (Status status = expect_bytes(coding.spec, "body", body.size(), bytes); !status.ok()) return status;
    if (!add) std::fill(out, out + piece.count, 0.0F);
    for (std::size_t i = 0; i < chosen.count; ++i) {
      const auto value = load<float>(body.data(), i);
      if (!std::isfinite(value)) return not_finite(coding.spec, i);
      float& element = out[position(coding, chosen.begin + i) - piece.begin];
      element = add ? element + value : value;
    }
    return {};
  }

 private:
  static std::size_t position(const Coding& coding, std::size_t j) {
    const std::size_t count = coding.segment.count;
    return random_position(j, kept_of(count, coding.spec.ratio_ppm), count, coding.spec.seed, coding.segment.round);
  }
  // The first chosen position at or behind `element`.
  static std::size_t first_from(const Coding& coding, std::size_t element) {
    const std::size_t count = coding.segment.count, k = kept_of(count, coding.spec.ratio_ppm);
    if (element >= count) return k;
    std::size_t j = element * k / count;  // the stretch of `element`, or the one before
    while (j < k && position(coding, j) < element) ++j;
    return j;
  }
  static Piece chosen_in(const Coding& coding, Piece piece) {
    if (piece.count == 0) return {};
    const std::size_t first = first_from(coding, piece.begin);
    return {first, first_from(coding, piece.begin + piece.count) - first};
  }
};

}  // namespace

const Method& top_k_method() {
  static constexpr TopK kMethod;
  return kMethod;
}
const Method& layer_top_k_method() {
  static constexpr LayerTopK kMethod;
  return kMethod;
}
const Method& ms_top_k_method() {
  static constexpr MsTopK kMethod;
  return kMethod;
}
const Method& random_k_method() {
  static constexpr RandomK kMethod;
  return kMethod;
}

}  // namespace canarynet
