// Codecs that change each value by itself: dense (f32), fp16 and bf16. No head; encode finds what is not finite.
#include "compress/method.h"
#include "kernels/codec.h"
#include "kernels/reduce.h"

namespace canarynet {
namespace {

class Dense final : public Method {
 public:
  CodecTraits traits() const override {
    return {.lossless = true, .fitted = false, .sums = PartialSums::kAddBodies, .element = CANARY_F32};
  }
  std::size_t body_max(const Coding& /*coding*/, Piece piece) const override { return piece.count * sizeof(float); }
  Result<std::size_t> encode(const Coding& coding, Piece piece, const float* values, std::span<std::byte> /*workspace*/,
                             std::uint8_t* body) const override {
    if (codec_kernels().greatest(values, piece.count) >= kNotFinite32) {
      return refused(coding.spec, values, piece.count, piece.begin);
    }
    if (piece.count != 0) std::memcpy(body, values, piece.count * sizeof(float));
    return piece.count * sizeof(float);
  }
  Status decode(const Coding& coding, Piece piece, std::span<const std::uint8_t> body,
                std::span<std::byte> /*workspace*/, float* out, bool add) const override {
    if (Status status = expect_bytes(coding.spec, "body", body.size(), piece.count * sizeof(float)); !status.ok()) {
      return status;
    }
    // Through a copy, since bodies lie at any address.
    constexpr std::size_t kStretch = 1024;
    float stretch[kStretch];
    std::uint32_t greatest = 0;
    for (std::size_t begin = 0; begin < piece.count; begin += kStretch) {
      const std::size_t count = piece.count - begin < kStretch ? piece.count - begin : kStretch;
      float* const target = add ? stretch : out + begin;
      std::memcpy(target, body.data() + begin * sizeof(float), count * sizeof(float));
      const std::uint32_t magnitude = codec_kernels().greatest(target, count);
      greatest = magnitude > greatest ? magnitude : greatest;
      if (add) reduce_kernel(CANARY_F32, CANARY_SUM)(out + begin, out + begin, stretch, count);
    }
    return greatest < kNotFinite32 ? Status() : malformed(coding.spec, "body", "a value is not finite");
  }
};

template <bool kBrain>
class Cast final : public Method {
 public:
  CodecTraits traits() const override {
    return {.fitted = false, .sums = PartialSums::kAddBodies, .element = kBrain ? CANARY_BF16 : CANARY_F16};
  }
  std::size_t body_max(const Coding& /*coding*/, Piece piece) const override { return 2 * piece.count; }
  Result<std::size_t> encode(const Coding& coding, Piece piece, const float* values, std::span<std::byte> /*workspace*/,
                             std::uint8_t* body) const override {
    const auto cast = kBrain ? codec_kernels().to_bf16 : codec_kernels().to_f16;
    if (cast(values, piece.count, body) >= kNotFinite32) {
      return refused(coding.spec, values, piece.count, piece.begin);
    }
    return 2 * piece.count;
  }
  Status decode(const Coding& coding, Piece piece, std::span<const std::uint8_t> body,
                std::span<std::byte> /*workspace*/, float* out, bool add) const override {
    if (Status status = expect_bytes(coding.spec, "body", body.size(), 2 * piece.count); !status.ok()) return status;
    const auto cast = kBrain ? codec_kernels().from_bf16 : codec_kernels().from_f16;
    if (cast(body.data(), piece.count, out, add) < (kBrain ? kNotFiniteBf16 : kNotFiniteF16)) return {};
    return malformed(coding.spec, "body", "a value is not finite");
  }
};

}  // namespace

const Method& dense_method() {
  static constexpr Dense kMethod;
  return kMethod;
}
const Method& f16_method() {
  static constexpr Cast<false> kMethod;
  return kMethod;
}
const Method& bf16_method() {
  static constexpr Cast<true> kMethod;
  return kMethod;
}

}  // namespace canarynet
