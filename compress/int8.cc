// Linear int8: 255 equal steps from -max to max of the segment. Head: the step (f32). Body: one signed byte per value.
#include <bit>
#include <cmath>
#include <limits>

#include "compress/method.h"
#include "kernels/codec.h"

namespace canarynet {
namespace {

// 128 steps, which only foreign bytes reach, must stay finite too.
constexpr float kStepMax = std::numeric_limits<float>::max() / 128;

struct Step {
  float step;
  float before;   // value * before * inverse = value / step; `before` is a power of two
  float inverse;  // that keeps 1 / step from overflowing
};

Step with_inverse(float step) {
  const float before = step < 0x1p-90F ? 0x1p100F : 1.0F;
  return {step, before, step > 0 ? 1.0F / (step * before) : 0.0F};
}

class Int8 final : public Method {
 public:
  CodecTraits traits() const override { return {.has_head = true, .sums = PartialSums::kRecode}; }
  std::size_t head_max(const Coding& /*coding*/) const override { return sizeof(float); }
  std::size_t body_max(const Coding& /*coding*/, Piece piece) const override { return piece.count; }
  std::size_t workspace(const Coding& /*coding*/) const override {
    Carver carver;
    carver.take<Step>(1);
    return carver.bytes();
  }

  Result<std::size_t> fit(const Coding& coding, const float* values, std::span<std::byte> workspace,
                          std::span<float> /*state*/, std::uint8_t* head) const override {
    const std::uint32_t greatest = codec_kernels().greatest(values, coding.segment.count);
    if (greatest >= kNotFinite32) return refused(coding.spec, values, coding.segment.count);
    const float largest = std::bit_cast<float>(greatest);
    float step = largest / 127;
    // Rounded up, so that the largest value is at most 127 steps away, even where floats are as coarse as the step.
    if (step * 127.0 < largest) step = std::nextafter(step, std::numeric_limits<float>::max());
    step = step < kStepMax ? step : kStepMax;
    *Carver(workspace).take<Step>(1) = with_inverse(step);
    store(head, step);
    return sizeof(float);
  }
  Result<std::size_t> encode(const Coding& /*coding*/, Piece piece, const float* values, std::span<std::byte> workspace,
                             std::uint8_t* body) const override {
    const Step step = *Carver(workspace).take<Step>(1);
    codec_kernels().to_int8(values, piece.count, step.before, step.inverse, body);
    return piece.count;
  }
  Status open(const Coding& coding, std::span<const std::uint8_t> head, std::span<std::byte> workspace) const override {
    if (Status status = expect_bytes(coding.spec, "head", head.size(), sizeof(float)); !status.ok()) return status;
    const auto step = load<float>(head.data());
    if (!(step >= 0 && step <= kStepMax)) return malformed(coding.spec, "head", "the step is " + std::to_string(step));
    *Carver(workspace).take<Step>(1) = with_inverse(step);
    return {};
  }
  Status decode(const Coding& coding, Piece piece, std::span<const std::uint8_t> body, std::span<std::byte> workspace,
                float* out, bool add) const override {
    if (Status status = expect_bytes(coding.spec, "body", body.size(), piece.count); !status.ok()) return status;
    codec_kernels().from_int8(body.data(), piece.count, Carver(workspace).take<Step>(1)->step, out, add);
    return {};
  }
};

}  // namespace

const Method& int8_method() {
  static constexpr Int8 kMethod;
  return kMethod;
}

}  // namespace canarynet
