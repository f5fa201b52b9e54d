// TernGrad (Wen et al., NeurIPS 2017): each value becomes -s, 0 or s with s = max |x| and P(not 0) = |x| / s, so that
// its expectation is the value. Head: s (f32). Body: two bits per value, four values a byte: 0 zero, 1 plus, 2 minus.
// Theirs also clips outliers at 2.5 standard deviations; error feedback takes that part here.
#include <bit>
#include <cmath>
#include <limits>

#include "compress/method.h"
#include "kernels/codec.h"

namespace canarynet {
namespace {

class TernGrad final : public Method {
 public:
  CodecTraits traits() const override { return {.has_head = true, .sums = PartialSums::kRecode}; }
  std::size_t head_max(const Coding& /*coding*/) const override { return sizeof(float); }
  std::size_t body_max(const Coding& /*coding*/, Piece piece) const override { return (piece.count + 3) / 4; }
  std::size_t workspace(const Coding& /*coding*/) const override {
    Carver carver;
    carver.take<float>(1);
    return carver.bytes();
  }

  Result<std::size_t> fit(const Coding& coding, const float* values, std::span<std::byte> workspace,
                          std::span<float> /*state*/, std::uint8_t* head) const override {
    const std::uint32_t greatest = codec_kernels().greatest(values, coding.segment.count);
    if (greatest >= kNotFinite32) return refused(coding.spec, values, coding.segment.count);
    const auto scale = std::bit_cast<float>(greatest);
    *Carver(workspace).take<float>(1) = scale;
    store(head, scale);
    return sizeof(scale);
  }
  Result<std::size_t> encode(const Coding& coding, Piece piece, const float* values, std::span<std::byte> workspace,
                             std::uint8_t* body) const override {
    const double scale = *Carver(workspace).take<float>(1);
    const double chance = scale > 0 ? 0x1p32 / scale : 0;  // per unit of |x|, in 2^-32
    const RandomNumbers numbers(coding.spec.seed, coding.segment.round);
    for (std::size_t i = 0; i < piece.count; ++i) {
      const std::uint64_t random = numbers.at(piece.begin + i) >> 32;
      const bool sent = static_cast<double>(random) < std::fabs(static_cast<double>(values[i])) * chance;
      const unsigned code = sent ? (std::signbit(values[i]) ? 2U : 1U) : 0U;
      body[i / 4] = static_cast<std::uint8_t>((i % 4 == 0 ? 0U : body[i / 4]) | code << 2 * (i % 4));
    }
    return (piece.count + 3) / 4;
  }
  Status open(const Coding& coding, std::span<const std::uint8_t> head, std::span<std::byte> workspace) const override {
    if (Status status = expect_bytes(coding.spec, "head", head.size(), sizeof(float)); !status.ok()) return status;
    const auto scale = load<float>(head.data());
    if (!(scale >= 0 && std::isfinite(scale))) {
      return malformed(coding.spec, "head", "the scale is " + std::to_string(scale));
    }
    *Carver(workspace).take<float>(1) = scale;
    return {};
  }
  Status decode(const Coding& coding, Piece piece, std::span<const std::uint8_t> body, std::span<std::byte> workspace,
                float* out, bool add) const override {
    const std::size_t bytes = (piece.count + 3) / 4;
    if (Status status = expect_bytes(coding.spec, "body", body.size(), bytes); !status.ok()) return status;
    const float scale = *Carver(workspace).take<float>(1);
    const float levels[4] = {0, scale, -scale, 0};
    for (std::size_t i = 0; i < piece.count; ++i) {
      const unsigned code = body[i / 4] >> 2 * (i % 4) & 3U;
      if (code == 3) return malformed(coding.spec, "body", "value " + std::to_string(i) + " has the code 3");
      out[i] = add ? out[i] + levels[code] : levels[code];
    }
    return {};
  }
};

}  // namespace

const Method& tern_grad_method() {
  static constexpr TernGrad kMethod;
  return kMethod;
}

}  // namespace canarynet
