// power and svd: a matrix as the product of two factors of `rank` vectors each (low_rank.h), as f32 or sketched.
//
// All of it travels in the head: left factor, then right factor, each as numbers or as the head and body of a sketch
// (their scales differ, so each has a codebook of its own). Bodies are empty. The rank is cut to the shorter side.
#include <algorithm>
#include <cmath>
#include <limits>

#include "compress/low_rank.h"
#include "compress/method.h"
#include "compress/sketch.h"
#include "kernels/codec.h"

namespace canarynet {
namespace {

constexpr float kLeftMax = 2;  // entries of orthonormal vectors, with room for rounding

std::size_t rank_of(const Coding& coding) {
  return std::min({std::size_t{coding.spec.rank}, coding.segment.rows, coding.segment.columns});
}
std::size_t left_count(const Coding& coding) { return rank_of(coding) * coding.segment.rows; }
std::size_t right_count(const Coding& coding) { return rank_of(coding) * coding.segment.columns; }

std::size_t factor_bytes(const CodecSpec& spec, std::size_t count) {
  return spec.factor_bits == 0 ? count * sizeof(float)
                               : sketch_head_bytes(spec.factor_bits) + sketch_body_bytes(count, spec.factor_bits);
}

template <bool kPower>
class Factored final : public Method {
  struct Space {
    Space(Carver* carver, const Coding& coding)
        : left(carver->take<float>(left_count(coding))),
          right(carver->take<float>(right_count(coding))),
          codebook(carver->take<float>(kSketchBuckets)),
          sketch(carver, coding.spec.factor_bits == 0 ? 0 : std::max(left_count(coding), right_count(coding))),
          svd(carver, kPower ? 0 : coding.segment.rows, kPower ? 0 : coding.segment.columns, rank_of(coding)) {}
    float* left;
    float* right;
    float* codebook;
    SketchSpace sketch;
    SvdSpace svd;
  };

 public:
  CodecTraits traits() const override {
    return {.has_head = true, .pieces = false, .sums = kPower ? PartialSums::kFactors : PartialSums::kGather};
  }
  Status check(const Coding& coding) const override {
    const Segment& segment = coding.segment;
    const auto wrong = [&](const std::string& why) {
      return Status(CANARY_INVALID_ARGUMENT, "codec " + to_text(coding.spec) + ": " + why);
    };
    if (segment.count != 0 && segment.rows == 0) return wrong("the segment must be a matrix, with rows and columns");
    if (head_max(coding) > std::numeric_limits<std::uint32_t>::max() / 2) return wrong("the factors are too large");
    return {};
  }
  std::size_t head_max(const Coding& coding) const override {
    return factor_bytes(coding.spec, left_count(coding)) + factor_bytes(coding.spec, right_count(coding));
  }
  std::size_t body_max(const Coding& /*coding*/, Piece /*piece*/) const override { return 0; }
  std::size_t workspace(const Coding& coding) const override {
    Carver carver;
    Space(&carver, coding);
    return carver.bytes();
  }
  std::size_t state_floats(const Coding& coding) const override { return kPower ? right_count(coding) : 0; }

  Result<std::size_t> fit(const Coding& coding, const float* values, std::span<std::byte> workspace,
                          std::span<float> state, std::uint8_t* head) const override {
    const Segment& segment = coding.segment;
    const std::uint32_t greatest = codec_kernels().greatest(values, segment.count);
    if (greatest >= kNotFinite32) return refused(coding.spec, values, segment.count);
    Carver carver(workspace);
    const Space space(&carver, coding);
    const std::size_t rank = rank_of(coding);
    const Matrix matrix{values, segment.rows, segment.columns};
    const float scale = scale_of(greatest);
    if constexpr (kPower) {
      if (state.empty()) {
        std::fill(space.right, space.right + right_count(coding), 0.0F);
      } else {
        std::copy(state.begin(), state.end(), space.right);
      }
      warm_start(space.right, rank, segment.columns, coding.spec.seed, segment.round);
      power_left(matrix, scale, space.right, rank, space.left);
      orthonormalize(space.left, rank, segment.rows);
      power_right(matrix, scale, space.left, rank, space.right);
      if (!state.empty()) std::copy(space.right, space.right + right_count(coding), state.begin());
    } else if (rank != 0) {
      truncated_svd(matrix, scale, rank, coding.spec.seed, space.svd, space.left, space.right);
    }
    std::size_t bytes = write(coding, space, space.left, left_count(coding), head);
    bytes += write(coding, space, space.right, right_count(coding), head + bytes);
    return bytes;
  }
  Result<std::size_t> encode(const Coding& /*coding*/, Piece /*piece*/, const float* /*values*/,
                             std::span<std::byte> /*workspace*/, std::uint8_t* /*body*/) const override {
    return std::size_t{0};
  }

  Status open(const Coding& coding, std::span<const std::uint8_t> head, std::span<std::byte> workspace) const override {
    if (Status status = expect_bytes(coding.spec, "head", head.size(), head_max(coding)); !status.ok()) return status;
    Carver carver(workspace);
    const Space space(&carver, coding);
    const std::size_t left_bytes = factor_bytes(coding.spec, left_count(coding));
    // Products of foreign numbers must stay finite, too: each factor has the bound that fit keeps to.
    const float right_max =
        std::numeric_limits<float>::max() / (2 * static_cast<float>(std::max<std::size_t>(1, rank_of(coding))));
    if (Status status = read(coding, "left factor", space, head.data(), left_count(coding), kLeftMax, space.left);
        !status.ok()) {
      return status;
    }
    return read(coding, "right factor", space, head.data() + left_bytes, right_count(coding), right_max, space.right);
  }
  Status decode(const Coding& coding, Piece piece, std::span<const std::uint8_t> body, std::span<std::byte> workspace,
                float* out, bool add) const override {
    if (Status status = expect_bytes(coding.spec, "body", body.size(), 0); !status.ok()) return status;
    Carver carver(workspace);
    const Space space(&carver, coding);
    const std::size_t columns = coding.segment.columns;
    const Factors factors{space.left, space.right, coding.segment.rows, columns, rank_of(coding)};
    constexpr std::size_t kStretch = 512;  // summed apart, so that decode_add adds what decode gives
    for (std::size_t at = piece.begin, end = piece.begin + piece.count; at < end;) {
      const std::size_t row = at / columns, column = at % columns;
      const std::size_t stretch = std::min({columns - column, end - at, kStretch});
      float sums[kStretch];
      product_at(factors, row, column, {sums, stretch});
      for (std::size_t j = 0; j < stretch; ++j) out[j] = add ? out[j] + sums[j] : sums[j];
      out += stretch;
      at += stretch;
    }
    return {};
  }

 private:
  static std::size_t write(const Coding& coding, const Space& space, const float* factor, std::size_t count,
                           std::uint8_t* out) {
    const CodecSpec& spec = coding.spec;
    if (spec.factor_bits == 0) {
      if (count != 0) std::memcpy(out, factor, count * sizeof(float));
    } else {
      fit_sketch(factor, count, spec.factor_bits, spec.member_mean, coding.segment.round, space.sketch);
      const std::size_t head = sketch_head_bytes(spec.factor_bits);
      std::memcpy(out, space.sketch.tables->codebook, head);
      encode_sketch(factor, count, spec.factor_bits, *space.sketch.tables, out + head);
    }
    return factor_bytes(spec, count);
  }
  static Status read(const Coding& coding, const char* name, const Space& space, const std::uint8_t* bytes,
                     std::size_t count, float most, float* factor) {
    const CodecSpec& spec = coding.spec;
    if (spec.factor_bits == 0) {
      if (count != 0) std::memcpy(factor, bytes, count * sizeof(float));
    } else {
      const char* why = open_sketch(bytes, spec.factor_bits, space.codebook);
      if (*why != '\0') return malformed(spec, name, why);
      decode_sketch(bytes + sketch_head_bytes(spec.factor_bits), count, spec.factor_bits, space.codebook, factor,
                    false);
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (!(std::fabs(factor[i]) <= most)) {
        return malformed(spec, name, "number " + std::to_string(i) + " is " + std::to_string(factor[i]));
      }
    }
    return {};
  }
};

}  // namespace

const Method& power_method() {
  static constexpr Factored<true> kMethod;
  return kMethod;
}
const Method& svd_method() {
  static constexpr Factored<false> kMethod;
  return kMethod;
}

}  // namespace canarynet
