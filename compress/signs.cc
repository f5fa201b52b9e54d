// One bit per value: onebit and signsgd. Head: what a clear and a set sign bit stand for (f32 each).
//
// onebit (Seide et al., Interspeech 2014) takes the means of the values at or above zero and of those below; theirs are
// per column, ours per segment. signsgd (Bernstein et al., ICML 2018), in the form that goes with error feedback
// (Karimireddy et al., ICML 2019): the sign times the mean of the absolute values.
#include <cmath>

#include "compress/method.h"
#include "kernels/codec.h"

namespace canarynet {
namespace {

struct Levels {
  float if_clear;
  float if_set;
};

template <bool kOneBit>
class Signs final : public Method {
 public:
  CodecTraits traits() const override { return {.has_head = true, .sums = PartialSums::kRecode}; }
  std::size_t head_max(const Coding& /*coding*/) const override { return sizeof(Levels); }
  std::size_t body_max(const Coding& /*coding*/, Piece piece) const override { return (piece.count + 7) / 8; }
  std::size_t workspace(const Coding& /*coding*/) const override {
    Carver carver;
    carver.take<Levels>(1);
    return carver.bytes();
  }

  Result<std::size_t> fit(const Coding& coding, const float* values, std::span<std::byte> /*workspace*/,
                          std::span<float> /*state*/, std::uint8_t* head) const override {
    const std::size_t count = coding.segment.count;
    const SignSums sums = codec_kernels().sum_signs(values, count);
    if (sums.greatest >= kNotFinite32) return refused(coding.spec, values, count);
    const auto mean = [](double sum, std::size_t of) {
      return of == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(of));
    };
    const float size = mean(sums.positive - sums.negative, count);
    const Levels levels =
        kOneBit ? Levels{mean(sums.positive, sums.sign_clear), mean(sums.negative, count - sums.sign_clear)}
                : Levels{size, -size};
    store(head, levels);
    return sizeof(levels);
  }
  Result<std::size_t> encode(const Coding& /*coding*/, Piece piece, const float* values,
                             std::span<std::byte> /*workspace*/, std::uint8_t* body) const override {
    codec_kernels().pack_signs(values, piece.count, body);
    return (piece.count + 7) / 8;
  }
  Status open(const Coding& coding, std::span<const std::uint8_t> head, std::span<std::byte> workspace) const override {
    if (Status status = expect_bytes(coding.spec, "head", head.size(), sizeof(Levels)); !status.ok()) return status;
    const auto levels = load<Levels>(head.data());
    if (!std::isfinite(levels.if_clear) || !std::isfinite(levels.if_set) || levels.if_clear < levels.if_set) {
      return malformed(coding.spec, "head",
                       "it stands for " + std::to_string(levels.if_clear) + " and " + std::to_string(levels.if_set));
    }
    *Carver(workspace).take<Levels>(1) = levels;
    return {};
  }
  Status decode(const Coding& coding, Piece piece, std::span<const std::uint8_t> body, std::span<std::byte> workspace,
                float* out, bool add) const override {
    const std::size_t bytes = (piece.count + 7) / 8;
    if (Status status = expect_bytes(coding.spec, "body", body.size(), bytes); !status.ok()) return status;
    const Levels levels = *Carver(workspace).take<Levels>(1);
    codec_kernels().unpack_signs(body.data(), piece.count, levels.if_clear, levels.if_set, out, add);
    return {};
  }
};

}  // namespace

const Method& one_bit_method() {
  static constexpr Signs<true> kMethod;
  return kMethod;
}
const Method& sign_sgd_method() {
  static constexpr Signs<false> kMethod;
  return kMethod;
}

}  // namespace canarynet
