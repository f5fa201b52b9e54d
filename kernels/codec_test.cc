// Compares every variant of the codec kernels with the scalar one, and the scalar one with values computed another way.
#include "kernels/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/reduce.h"
#include "kernels/variant.h"

namespace canarynet {
namespace {

constexpr std::size_t kMargin = 32;
constexpr char kFence = 0x5C;

std::vector<std::size_t> counts_around_vectors() {
  std::vector<std::size_t> counts;
  for (std::size_t count = 0; count <= 70; ++count) counts.push_back(count);
  for (std::size_t count : {127, 128, 129, 255, 256, 257, 1001, 4099}) counts.push_back(count);
  return counts;
}

// Finite values: zeros of both signs, denormals, extremes, numbers of similar size, any finite bits.
std::vector<float> make_values(std::size_t count, std::uint64_t seed) {
  constexpr float kSpecial[] = {0.0F,          -0.0F,          1e-45F,   -1e-45F,  1e-39F,   -3e-40F,
                                3.4028235e38F, -3.4028235e38F, 65504.0F, 65519.0F, 65520.0F, -65536.0F,
                                5.9604645e-8F, 2.98e-8F,       6.1e-5F,  0.5F,     -0.5F,    127.5F};
  Random random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    const std::uint64_t any = random.next();
    switch (any % 4) {
      case 0:
        value = kSpecial[(any >> 8) % std::size(kSpecial)];
        break;
      case 1: {
        const auto bits = static_cast<std::uint32_t>(any >> 16);
        value = std::bit_cast<float>((bits & 0x7F800000U) == 0x7F800000U ? bits ^ 0x40000000U : bits);
        break;
      }
      default:
        value = static_cast<float>(static_cast<std::int64_t>(any >> 8) % 20001 - 10000) * 1e-4F;
    }
  }
  return values;
}

std::vector<float> make_tree(std::size_t cuts, std::uint64_t seed, std::vector<float>* sorted) {
  *sorted = make_values(cuts, seed);
  std::sort(sorted->begin(), sorted->end());
  std::vector<float> all = *sorted;
  all.resize(kSketchBuckets - 1, std::numeric_limits<float>::infinity());
  std::vector<float> tree(kSketchBuckets);
  std::size_t next = 0;
  const auto place = [&](const auto& self, std::size_t entry) -> void {
    if (entry >= kSketchBuckets) return;
    self(self, 2 * entry);
    tree[entry] = all[next++];
    self(self, 2 * entry + 1);
  };
  place(place, 1);
  return tree;
}

std::vector<KernelVariant> all_variants() {
  std::size_t count = 0;
  const KernelVariant* variants = kernel_variants(&count);
  return {variants, variants + count};
}

// Runs `call(kernels, out)` for the scalar and another variant, each with `bytes` bytes of room behind a fence at an
// odd address; both must write the same and nothing else.
template <typename Call>
void expect_same_bytes(const KernelVariant& variant, std::size_t bytes, std::size_t shift, const std::string& what,
                       const std::vector<float>* held, Call call) {
  std::vector<char> rooms[2];
  for (int side = 0; side < 2; ++side) {
    rooms[side].assign(bytes + 2 * kMargin + shift, kFence);
    char* const out = rooms[side].data() + kMargin + shift;
    if (held != nullptr && bytes != 0) std::memcpy(out, held->data(), bytes);
    call(side == 0 ? kernels_scalar::codec() : variant.codec(), out);
    for (std::size_t i = 0; i < kMargin; ++i) {
      ASSERT_EQ(kFence, rooms[side][i + shift]) << what << " before";
      ASSERT_EQ(kFence, rooms[side][kMargin + shift + bytes + i]) << what << " behind";
    }
  }
  for (std::size_t i = 0; i < bytes; ++i) {
    ASSERT_EQ(rooms[0][kMargin + shift + i], rooms[1][kMargin + shift + i]) << what << ", byte " << i;
  }
}

TEST(CodecKernels, EveryVariantEncodesAsScalarForEveryCount) {
  for (const KernelVariant& variant : all_variants()) {
    for (const std::size_t count : counts_around_vectors()) {
      const std::vector<float> values = make_values(count, 3 * count + 1);
      std::vector<float> sorted;
      const std::vector<float> tree = make_tree(count % 256, count + 17, &sorted);
      const std::string what = std::string(variant.name) + " count " + std::to_string(count) + " ";
      const std::size_t shift = count % 4;
      expect_same_bytes(variant, 2 * count, shift, what + "to_f16", nullptr, [&](const CodecKernels& k, char* out) {
        EXPECT_EQ(k.greatest(values.data(), count), k.to_f16(values.data(), count, out));
      });
      expect_same_bytes(variant, 2 * count, shift, what + "to_bf16", nullptr, [&](const CodecKernels& k, char* out) {
        EXPECT_EQ(k.greatest(values.data(), count), k.to_bf16(values.data(), count, out));
      });
      expect_same_bytes(variant, count, shift, what + "to_int8", nullptr,
                        [&](const CodecKernels& k, char* out) { k.to_int8(values.data(), count, 2.0F, 61.7F, out); });
      expect_same_bytes(variant, count, shift, what + "to_buckets", nullptr, [&](const CodecKernels& k, char* out) {
        k.to_buckets(values.data(), count, tree.data(), reinterpret_cast<std::uint8_t*>(out));
        for (std::size_t i = 0; i < count; ++i) {
          const auto bucket = std::upper_bound(sorted.begin(), sorted.end(), values[i]) - sorted.begin();
          ASSERT_EQ(bucket, static_cast<std::uint8_t>(out[i])) << what << values[i];
        }
      });
      expect_same_bytes(variant, (count + 7) / 8, shift, what + "pack_signs", nullptr,
                        [&](const CodecKernels& k, char* out) {
                          k.pack_signs(values.data(), count, reinterpret_cast<std::uint8_t*>(out));
                        });
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(CodecKernels, EveryVariantDecodesAsScalarForEveryCount) {
  for (const KernelVariant& variant : all_variants()) {
    for (const std::size_t count : counts_around_vectors()) {
      const std::vector<float> held = make_values(count, count + 5);
      std::vector<std::uint8_t> room(2 * count + 3);
      Random random(count);
      for (std::uint8_t& byte : room) byte = static_cast<std::uint8_t>(random.next() >> 20);
      const std::uint8_t* const codes = room.data() + count % 2;
      std::vector<std::uint8_t> halves(room);  // finite ones
      for (std::size_t i = 1; i < halves.size(); i += 2) halves[i] &= 0xBB;
      const std::vector<float> book = make_values(kSketchBuckets, 99);
      for (const bool add : {false, true}) {
        const std::string what =
            std::string(variant.name) + " count " + std::to_string(count) + (add ? " add " : " store ");
        const auto compare = [&](const char* name, auto decode) {
          expect_same_bytes(variant, 4 * count, 0, what + name, &held,
                            [&](const CodecKernels& k, char* out) { decode(k, reinterpret_cast<float*>(out)); });
        };
        compare("from_f16", [&](const CodecKernels& k, float* out) {
          EXPECT_GT(kNotFiniteF16, k.from_f16(halves.data(), count, out, add));
        });
        compare("from_bf16", [&](const CodecKernels& k, float* out) {
          EXPECT_GT(kNotFiniteBf16, k.from_bf16(halves.data(), count, out, add));
        });
        compare("from_int8", [&](const CodecKernels& k, float* out) { k.from_int8(codes, count, 0.37F, out, add); });
        compare("from_buckets",
                [&](const CodecKernels& k, float* out) { k.from_buckets(codes, count, book.data(), out, add); });
        compare("unpack_signs",
                [&](const CodecKernels& k, float* out) { k.unpack_signs(codes, count, 1.5F, -0.25F, out, add); });
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(CodecKernels, EveryVariantCountsAndSumsAsScalarForEveryCount) {
  for (const KernelVariant& variant : all_variants()) {
    for (const std::size_t count : counts_around_vectors()) {
      const std::vector<float> values = make_values(count, count + 31);
      const CodecKernels &k = variant.codec(), &spec = kernels_scalar::codec();
      const std::string what = std::string(variant.name) + " count " + std::to_string(count);
      const ValueSurvey a = spec.survey(values.data(), count), b = k.survey(values.data(), count);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(a.min), std::bit_cast<std::uint32_t>(b.min)) << what;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(a.max), std::bit_cast<std::uint32_t>(b.max)) << what;
      ASSERT_EQ(a.zeros, b.zeros) << what;
      ASSERT_EQ(a.negatives, b.negatives) << what;
      ASSERT_EQ(a.greatest, b.greatest) << what;
      ASSERT_EQ(a.greatest, k.greatest(values.data(), count)) << what;
      const SignSums c = spec.sum_signs(values.data(), count), d = k.sum_signs(values.data(), count);
      ASSERT_EQ(c.positive, d.positive) << what;
      ASSERT_EQ(c.negative, d.negative) << what;
      ASSERT_EQ(c.sign_clear, d.sign_clear) << what;
      ASSERT_EQ(c.greatest, d.greatest) << what;
      for (const std::uint32_t magnitude : {0U, 1U, std::bit_cast<std::uint32_t>(0.25F), 0x7F7FFFFFU, 0xFFFFFFFFU}) {
        const std::size_t all = spec.count_from(values.data(), count, magnitude);
        ASSERT_EQ(all, k.count_from(values.data(), count, magnitude)) << what << " from " << magnitude;
        for (const std::size_t room : {count, all / 2}) {
          std::vector<std::uint32_t> indices(room + kSelectSlack), wanted(room + kSelectSlack);
          std::vector<float> chosen(room + kSelectSlack), wanted_values(room + kSelectSlack);
          const std::size_t found =
              k.select(values.data(), count, magnitude, 1000, indices.data(), chosen.data(), room);
          if (all > room) {
            ASSERT_GT(found, room) << what;
            continue;
          }
          ASSERT_EQ(all, found) << what;
          spec.select(values.data(), count, magnitude, 1000, wanted.data(), wanted_values.data(), room);
          for (std::size_t i = 0; i < all; ++i) {
            ASSERT_EQ(wanted[i], indices[i]) << what;
            ASSERT_EQ(values[indices[i] - 1000], chosen[i]) << what;
          }
        }
      }
    }
  }
}

TEST(CodecKernels, EveryVariantNoticesAValueThatIsNotFinite) {
  for (const KernelVariant& variant : all_variants()) {
    const CodecKernels& k = variant.codec();
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::signaling_NaN()}) {
      for (std::size_t where = 0; where < 67; ++where) {
        std::vector<float> values(67, 1.0F);
        values[where] = bad;
        std::vector<std::uint16_t> codes(67, 0x3C00);
        EXPECT_GE(k.greatest(values.data(), 67), kNotFinite32) << variant.name << where;
        EXPECT_GE(k.survey(values.data(), 67).greatest, kNotFinite32) << variant.name << where;
        EXPECT_GE(k.sum_signs(values.data(), 67).greatest, kNotFinite32) << variant.name << where;
        EXPECT_GE(k.to_f16(values.data(), 67, codes.data()), kNotFinite32) << variant.name << where;
        EXPECT_GE(k.to_bf16(values.data(), 67, codes.data()), kNotFinite32) << variant.name << where;
        codes.assign(67, 0x3C00);
        codes[where] = 0xFC01;
        EXPECT_GE(k.from_f16(codes.data(), 67, values.data(), false), kNotFiniteF16) << variant.name << where;
        codes[where] = 0x7F80;
        EXPECT_GE(k.from_bf16(codes.data(), 67, values.data(), true), kNotFiniteBf16) << variant.name << where;
      }
    }
  }
}

TEST(CodecKernels, SixteenBitFloatsAreTheNearestFiniteOnes) {
  const CodecKernels& k = kernels_scalar::codec();
  const std::vector<float> values = make_values(20000, 7);
  std::vector<std::uint16_t> codes(values.size());
  std::vector<float> back(values.size());
  k.to_bf16(values.data(), values.size(), codes.data());
  k.from_bf16(codes.data(), values.size(), back.data(), false);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_TRUE(std::isfinite(back[i])) << values[i];
    if (std::fabs(values[i]) > 1e-30F && std::fabs(values[i]) < 3.38e38F) {
      ASSERT_LE(std::fabs(back[i] - values[i]), std::ldexp(std::fabs(values[i]), -8)) << values[i];
    }
  }
  k.to_f16(values.data(), values.size(), codes.data());
  k.from_f16(codes.data(), values.size(), back.data(), false);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float bounded = std::clamp(values[i], -65504.0F, 65504.0F);
    ASSERT_LE(std::fabs(back[i] - bounded), std::max(std::ldexp(std::fabs(bounded), -11), 0x1p-25F)) << values[i];
  }
}

}  // namespace
}  // namespace canarynet
