// kernels/codec-inl.h -- the vector codec kernels, written once against Highway and compiled once per instruction set.
//
// See kernels-inl.h for the manner. codec_scalar.cc is the specification. Where an instruction set has nothing to offer
// (gathers and binary16 before AVX2), its table has the scalar function.
#pragma once

#define HWY_COMPILE_ONLY_STATIC
#include <hwy/highway.h>

#include "kernels/variant.h"

HWY_BEFORE_NAMESPACE();
namespace canarynet::CANARY_KERNELS_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using TagF32 = hn::ScalableTag<float>;
using TagU32 = hn::ScalableTag<uint32_t>;
using TagI32 = hn::ScalableTag<int32_t>;
using TagU16 = hn::Rebind<uint16_t, TagF32>;  // as many as f32: half a vector
using TagU8 = hn::Rebind<uint8_t, TagF32>;
using TagI8 = hn::Rebind<int8_t, TagF32>;
using VecF32 = hn::Vec<TagF32>;
using VecU32 = hn::Vec<TagU32>;
using VecI32 = hn::Vec<TagI32>;

constexpr size_t kLanes = hn::MaxLanes(TagF32());
constexpr uint32_t kMagnitudeBits = 0x7FFFFFFF;

HWY_INLINE uint32_t magnitude_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits & kMagnitudeBits;
}
HWY_INLINE VecU32 magnitudes(VecF32 values) {
  return hn::And(hn::BitCast(TagU32(), values), hn::Set(TagU32(), kMagnitudeBits));
}
HWY_INLINE hn::Mask<TagI32> sign_bits(VecF32 values) {
  return hn::Lt(hn::BitCast(TagI32(), values), hn::Zero(TagI32()));
}
HWY_INLINE uint32_t greatest_lane(VecU32 lanes) { return hn::GetLane(hn::MaxOfLanes(TagU32(), lanes)); }

// Calls step(values, codes) for every vector; the last elements go through copies. A step writes kLanes codes of Code.
template <class Code, class Step>
HWY_INLINE void encode_all(const float* values, size_t count, Code* codes, Step step) {
  const TagF32 d;
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) step(hn::LoadU(d, values + i), codes + i);
  if (i == count) return;
  alignas(64) float tail[kLanes];
  alignas(64) Code tail_codes[kLanes];
  __builtin_memset(tail, 0, sizeof(tail));
  __builtin_memcpy(tail, values + i, (count - i) * sizeof(float));
  step(hn::Load(d, tail), tail_codes);
  __builtin_memcpy(codes + i, tail_codes, (count - i) * sizeof(Code));
}

// out = or += step(codes), a vector at a time; the last elements go through copies.
template <bool kAdd, class Code, class Step>
HWY_INLINE void decode_all(const Code* codes, size_t count, float* out, Step step) {
  const TagF32 d;
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    VecF32 values = step(codes + i);
    if constexpr (kAdd) values = hn::Add(hn::LoadU(d, out + i), values);
    hn::StoreU(values, d, out + i);
  }
  if (i == count) return;
  alignas(64) float tail[kLanes];
  alignas(64) Code tail_codes[kLanes];
  __builtin_memset(tail, 0, sizeof(tail));
  __builtin_memset(tail_codes, 0, sizeof(tail_codes));
  __builtin_memcpy(tail, out + i, kAdd ? (count - i) * sizeof(float) : 0);
  __builtin_memcpy(tail_codes, codes + i, (count - i) * sizeof(Code));
  VecF32 values = step(tail_codes);
  if constexpr (kAdd) values = hn::Add(hn::Load(d, tail), values);
  hn::Store(values, d, tail);
  __builtin_memcpy(out + i, tail, (count - i) * sizeof(float));
}

uint32_t greatest(const float* values, size_t count) {
  const TagF32 d;
  VecU32 most0 = hn::Zero(TagU32()), most1 = most0, most2 = most0, most3 = most0;
  size_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    most0 = hn::Max(most0, magnitudes(hn::LoadU(d, values + i)));
    most1 = hn::Max(most1, magnitudes(hn::LoadU(d, values + i + kLanes)));
    most2 = hn::Max(most2, magnitudes(hn::LoadU(d, values + i + 2 * kLanes)));
    most3 = hn::Max(most3, magnitudes(hn::LoadU(d, values + i + 3 * kLanes)));
  }
  uint32_t most = greatest_lane(hn::Max(hn::Max(most0, most1), hn::Max(most2, most3)));
  for (; i < count; ++i) most = magnitude_of(values[i]) > most ? magnitude_of(values[i]) : most;
  return most;
}

ValueSurvey survey(const float* values, size_t count) {
  ValueSurvey found{};
  if (count == 0) return found;
  const TagF32 d;
  const VecF32 zero = hn::Zero(d);
  VecF32 low = hn::Set(d, values[0]), high = low;
  VecU32 most = hn::Zero(TagU32());
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VecF32 value = hn::LoadU(d, values + i);
    low = hn::Min(low, value);
    high = hn::Max(high, value);
    found.zeros += hn::CountTrue(d, hn::Eq(value, zero));
    found.negatives += hn::CountTrue(d, hn::Lt(value, zero));
    most = hn::Max(most, magnitudes(value));
  }
  found.min = hn::GetLane(hn::MinOfLanes(d, low));
  found.max = hn::GetLane(hn::MaxOfLanes(d, high));
  found.greatest = greatest_lane(most);
  for (; i < count; ++i) {
    const float value = values[i];
    found.min = value < found.min ? value : found.min;
    found.max = value > found.max ? value : found.max;
    found.zeros += value == 0 ? 1 : 0;
    found.negatives += value < 0 ? 1 : 0;
    found.greatest = magnitude_of(value) > found.greatest ? magnitude_of(value) : found.greatest;
  }
  found.min += 0.0F;
  found.max += 0.0F;
  return found;
}

SignSums sum_signs(const float* values, size_t count) {
  constexpr size_t kSums = 16;
  const hn::ScalableTag<double> d64;
  const hn::Rebind<float, hn::ScalableTag<double>> d32;
  constexpr size_t kWide = hn::MaxLanes(hn::ScalableTag<double>());
  using Wide = hn::Vec<hn::ScalableTag<double>>;
  Wide positives[kSums / kWide], negatives[kSums / kWide];
  for (size_t j = 0; j < kSums / kWide; ++j) positives[j] = negatives[j] = hn::Zero(d64);
  VecU32 most = hn::Zero(TagU32());
  SignSums sums{};
  size_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (size_t j = 0; j < kSums / kWide; ++j) {
      const auto value = hn::LoadU(d32, values + i + j * kWide);
      const auto zero = hn::Zero(d32);
      positives[j] = hn::Add(positives[j], hn::PromoteTo(d64, hn::Max(value, zero)));
      negatives[j] = hn::Add(negatives[j], hn::PromoteTo(d64, hn::Min(value, zero)));
    }
    for (size_t j = 0; j < kSums; j += kLanes) {
      const VecF32 value = hn::LoadU(TagF32(), values + i + j);
      most = hn::Max(most, magnitudes(value));
      sums.sign_clear += kLanes - hn::CountTrue(TagI32(), sign_bits(value));
    }
  }
  alignas(64) double positive[kSums], negative[kSums];
  for (size_t j = 0; j < kSums / kWide; ++j) {
    hn::Store(positives[j], d64, positive + j * kWide);
    hn::Store(negatives[j], d64, negative + j * kWide);
  }
  sums.greatest = greatest_lane(most);
  for (; i < count; ++i) {
    const float value = values[i];
    positive[i % kSums] += value > 0 ? static_cast<double>(value) : 0.0;
    negative[i % kSums] += value < 0 ? static_cast<double>(value) : 0.0;
    sums.sign_clear += __builtin_signbit(value) ? 0 : 1;
    sums.greatest = magnitude_of(value) > sums.greatest ? magnitude_of(value) : sums.greatest;
  }
  for (size_t apart = kSums / 2; apart != 0; apart /= 2) {
    for (size_t j = 0; j < apart; ++j) {
      positive[j] += positive[j + apart];
      negative[j] += negative[j + apart];
    }
  }
  sums.positive = positive[0];
  sums.negative = negative[0];
  return sums;
}

uint32_t to_bf16(const float* values, size_t count, void* codes) {
  const TagU32 du;
  VecU32 most = hn::Zero(du);
  encode_all(values, count, static_cast<uint16_t*>(codes), [&](VecF32 value, uint16_t* out) HWY_ATTR {
    const VecU32 magnitude = magnitudes(value);
    most = hn::Max(most, magnitude);
    const VecU32 odd_bit = hn::And(hn::ShiftRight<16>(magnitude), hn::Set(du, 1));
    const VecU32 rounded = hn::ShiftRight<16>(hn::Add(magnitude, hn::Add(odd_bit, hn::Set(du, 0x7FFF))));
    const VecU32 sign = hn::AndNot(hn::Set(du, 0x7FFF), hn::ShiftRight<16>(hn::BitCast(du, value)));
    const VecU32 code = hn::Or(hn::Min(rounded, hn::Set(du, kNotFiniteBf16 - 1)), sign);
    hn::StoreU(hn::DemoteTo(TagU16(), hn::BitCast(TagI32(), code)), TagU16(), out);
  });
  return greatest_lane(most);
}

template <bool kAdd>
HWY_INLINE uint32_t widen_bf16(const void* codes, size_t count, float* out) {
  const TagU32 du;
  VecU32 most = hn::Zero(du);
  decode_all<kAdd>(static_cast<const uint16_t*>(codes), count, out, [&](const uint16_t* code) HWY_ATTR {
    const VecU32 bits = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(TagU16(), code)));
    const VecF32 value = hn::BitCast(TagF32(), bits);
    most = hn::Max(most, magnitudes(value));
    return value;
  });
  return greatest_lane(most) >> 16;
}
uint32_t from_bf16(const void* codes, size_t count, float* out, bool add) {
  return add ? widen_bf16<true>(codes, count, out) : widen_bf16<false>(codes, count, out);
}

#if HWY_TARGET == HWY_SSE4

uint32_t to_f16(const float* values, size_t count, void* codes) {
  return kernels_scalar::codec().to_f16(values, count, codes);
}
uint32_t from_f16(const void* codes, size_t count, float* out, bool add) {
  return kernels_scalar::codec().from_f16(codes, count, out, add);
}

#else

uint32_t to_f16(const float* values, size_t count, void* codes) {
  const TagF32 d;
  const hn::Rebind<hwy::float16_t, TagF32> dh;
  const VecF32 limit = hn::Set(d, 65504.0F), negative_limit = hn::Set(d, -65504.0F);
  VecU32 most = hn::Zero(TagU32());
  encode_all(values, count, static_cast<uint16_t*>(codes), [&](VecF32 value, uint16_t* out) HWY_ATTR {
    most = hn::Max(most, magnitudes(value));
    const VecF32 bounded = hn::Max(hn::Min(value, limit), negative_limit);
    hn::StoreU(hn::BitCast(TagU16(), hn::DemoteTo(dh, bounded)), TagU16(), out);
  });
  return greatest_lane(most);
}

template <bool kAdd>
HWY_INLINE uint32_t widen_f16(const void* codes, size_t count, float* out) {
  const TagF32 d;
  const hn::Rebind<hwy::float16_t, TagF32> dh;
  const auto magnitude_mask = hn::Set(TagU16(), 0x7FFF);
  auto most = hn::Zero(TagU16());
  decode_all<kAdd>(static_cast<const uint16_t*>(codes), count, out, [&](const uint16_t* code) HWY_ATTR {
    const auto bits = hn::LoadU(TagU16(), code);
    most = hn::Max(most, hn::And(bits, magnitude_mask));
    return hn::PromoteTo(d, hn::BitCast(dh, bits));
  });
  return greatest_lane(hn::PromoteTo(TagU32(), most));
}
uint32_t from_f16(const void* codes, size_t count, float* out, bool add) {
  return add ? widen_f16<true>(codes, count, out) : widen_f16<false>(codes, count, out);
}

#endif

void to_int8(const float* values, size_t count, float before, float inverse, void* codes) {
  const TagF32 d;
  const VecF32 factor0 = hn::Set(d, before), factor1 = hn::Set(d, inverse);
  const VecF32 low = hn::Set(d, -127.0F), high = hn::Set(d, 127.0F);
  encode_all(values, count, static_cast<int8_t*>(codes), [&](VecF32 value, int8_t* out) HWY_ATTR {
    // x86's MAXPS gives the second operand for a NaN, as the scalar comparison does.
    const VecF32 scaled = hn::Min(hn::Max(hn::Mul(hn::Mul(value, factor0), factor1), low), high);
    hn::StoreU(hn::DemoteTo(TagI8(), hn::NearestInt(scaled)), TagI8(), out);
  });
}

template <bool kAdd>
HWY_INLINE void widen_int8(const void* codes, size_t count, float scale, float* out) {
  const TagF32 d;
  const VecF32 factor = hn::Set(d, scale);
  decode_all<kAdd>(static_cast<const int8_t*>(codes), count, out, [&](const int8_t* code) HWY_ATTR {
    return hn::Mul(hn::ConvertTo(d, hn::PromoteTo(TagI32(), hn::LoadU(TagI8(), code))), factor);
  });
}
void from_int8(const void* codes, size_t count, float scale, float* out, bool add) {
  add ? widen_int8<true>(codes, count, scale, out) : widen_int8<false>(codes, count, scale, out);
}

#if HWY_TARGET == HWY_SSE4

void to_buckets(const float* values, size_t count, const float* tree, uint8_t* codes) {
  kernels_scalar::codec().to_buckets(values, count, tree, codes);
}
void from_buckets(const uint8_t* codes, size_t count, const float* codebook, float* out, bool add) {
  kernels_scalar::codec().from_buckets(codes, count, codebook, out, add);
}

#elif HWY_TARGET == HWY_AVX2

// The first six levels of the tree lie in registers, where a lookup takes few instructions; the last two are gathered
// (walking those one element at a time was half as fast).
void to_buckets(const float* values, size_t count, const float* tree, uint8_t* codes) {
  const TagF32 d;
  const TagI32 di;
  VecF32 part[8];
  for (size_t i = 0; i < 8; ++i) part[i] = hn::LoadU(d, tree + i * kLanes);
  // Indices are made by hand: with sanitizers IndicesFromVec checks them by a function of libhwy.
  const VecI32 one = hn::Set(di, 1), low_bits = hn::Set(di, 7);
  const auto descend = [&](VecI32 entry, VecF32 value, VecF32 cut) HWY_ATTR {
    // An all-ones mask is -1: 2k + 1 = 2k - mask.
    return hn::Sub(hn::Add(entry, entry), hn::BitCast(di, hn::VecFromMask(d, hn::Ge(value, cut))));
  };
  encode_all(values, count, codes, [&](VecF32 value, uint8_t* out) HWY_ATTR {
    VecI32 entry = one;
    for (int level = 0; level < 3; ++level) {
      entry = descend(entry, value, hn::TableLookupLanes(part[0], hn::Indices256<float>{entry.raw}));
    }
    const auto low = [&] { return hn::Indices256<float>{hn::And(entry, low_bits).raw}; };
    entry = descend(entry, value, hn::TableLookupLanes(part[1], low()));
    {
      const auto index = low();
      const auto upper = hn::RebindMask(d, hn::TestBit(entry, hn::Set(di, 8)));
      entry =
          descend(entry, value,
                  hn::IfThenElse(upper, hn::TableLookupLanes(part[3], index), hn::TableLookupLanes(part[2], index)));
    }
    {
      const auto index = low();
      const auto odd = hn::RebindMask(d, hn::TestBit(entry, hn::Set(di, 8)));
      const auto upper = hn::RebindMask(d, hn::TestBit(entry, hn::Set(di, 16)));
      const VecF32 first =
          hn::IfThenElse(odd, hn::TableLookupLanes(part[5], index), hn::TableLookupLanes(part[4], index));
      const VecF32 second =
          hn::IfThenElse(odd, hn::TableLookupLanes(part[7], index), hn::TableLookupLanes(part[6], index));
      entry = descend(entry, value, hn::IfThenElse(upper, second, first));
    }
    entry = descend(entry, value, hn::GatherIndex(d, tree, entry));
    entry = descend(entry, value, hn::GatherIndex(d, tree, entry));
    hn::StoreU(hn::DemoteTo(TagU8(), hn::And(entry, hn::Set(di, 0xFF))), TagU8(), out);
  });
}

template <bool kAdd>
HWY_INLINE void look_up(const uint8_t* codes, size_t count, const float* codebook, float* out) {
  const TagF32 d;
  decode_all<kAdd>(codes, count, out, [&](const uint8_t* code) HWY_ATTR {
    return hn::GatherIndex(d, codebook, hn::PromoteTo(TagI32(), hn::LoadU(TagU8(), code)));
  });
}
void from_buckets(const uint8_t* codes, size_t count, const float* codebook, float* out, bool add) {
  add ? look_up<true>(codes, count, codebook, out) : look_up<false>(codes, count, codebook, out);
}

#else

// A table of 32 * kTables floats in registers, looked up without touching memory: VPERMI2PS takes the low five bits of
// an index, and each bit above halves what is left by a blend.
template <size_t kTables>
struct RegisterTable {
  VecF32 half[2 * kTables];

  explicit HWY_INLINE RegisterTable(const float* table) {
    for (size_t i = 0; i < 2 * kTables; ++i) half[i] = hn::LoadU(TagF32(), table + i * kLanes);
  }
  template <size_t kFirst, size_t kCount>
  HWY_INLINE VecF32 part(VecI32 index) const {
    if constexpr (kCount == 1) {
      return VecF32{_mm512_permutex2var_ps(half[2 * kFirst].raw, index.raw, half[2 * kFirst + 1].raw)};
    } else {
      const auto upper = hn::RebindMask(TagF32(), hn::TestBit(index, hn::Set(TagI32(), 16 * kCount)));
      return hn::IfThenElse(upper, part<kFirst + kCount / 2, kCount / 2>(index), part<kFirst, kCount / 2>(index));
    }
  }
  HWY_INLINE VecF32 look_up(VecI32 index) const { return part<0, kTables>(index); }
};

// The whole tree lies in 16 registers.
void to_buckets(const float* values, size_t count, const float* tree, uint8_t* codes) {
  const TagF32 d;
  const TagI32 di;
  const VecF32 top = hn::LoadU(d, tree), fifth = hn::LoadU(d, tree + 16);
  const RegisterTable<1> sixth(tree + 32);
  const RegisterTable<2> seventh(tree + 64);
  const RegisterTable<4> eighth(tree + 128);
  const VecI32 one = hn::Set(di, 1);
  const auto descend = [&](VecI32 entry, VecF32 value, VecF32 cut) HWY_ATTR {
    const VecI32 twice = hn::Add(entry, entry);
    return VecI32{_mm512_mask_add_epi32(twice.raw, hn::Ge(value, cut).raw, twice.raw, one.raw)};
  };
  encode_all(values, count, codes, [&](VecF32 value, uint8_t* out) HWY_ATTR {
    VecI32 entry = one;
    // VPERMPS and VPERMI2PS look at the low bits of the entry only, so no level has to subtract its first entry.
    for (int level = 0; level < 4; ++level) {
      entry = descend(entry, value, VecF32{_mm512_permutexvar_ps(entry.raw, top.raw)});
    }
    entry = descend(entry, value, VecF32{_mm512_permutexvar_ps(entry.raw, fifth.raw)});
    entry = descend(entry, value, sixth.look_up(entry));
    entry = descend(entry, value, seventh.look_up(entry));
    entry = descend(entry, value, eighth.look_up(entry));
    hn::StoreU(hn::TruncateTo(TagU8(), hn::BitCast(TagU32(), entry)), TagU8(), out);
  });
}

template <bool kAdd>
HWY_INLINE void look_up(const uint8_t* codes, size_t count, const float* codebook, float* out) {
  const RegisterTable<8> table(codebook);
  decode_all<kAdd>(codes, count, out, [&](const uint8_t* code) HWY_ATTR {
    return table.look_up(hn::PromoteTo(TagI32(), hn::LoadU(TagU8(), code)));
  });
}
void from_buckets(const uint8_t* codes, size_t count, const float* codebook, float* out, bool add) {
  add ? look_up<true>(codes, count, codebook, out) : look_up<false>(codes, count, codebook, out);
}

#endif

size_t count_from(const float* values, size_t count, uint32_t magnitude) {
  const TagF32 d;
  const TagI32 di;  // magnitudes are below 2^31, and signed comparison is one instruction everywhere
  const VecI32 below = hn::Set(di, static_cast<int32_t>(magnitude) - 1);
  if (magnitude == 0) return count;
  if (magnitude > kMagnitudeBits) return 0;
  size_t found = 0, i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    found += hn::CountTrue(di, hn::Gt(hn::BitCast(di, magnitudes(hn::LoadU(d, values + i))), below));
  }
  for (; i < count; ++i) found += magnitude_of(values[i]) >= magnitude ? 1 : 0;
  return found;
}

size_t select(const float* values, size_t count, uint32_t magnitude, uint32_t first_index, uint32_t* indices,
              float* selected, size_t room) {
  static_assert(kLanes <= kSelectSlack);
  const TagF32 d;
  const TagI32 di;
  size_t found = 0, i = 0;
  if (magnitude != 0 && magnitude <= kMagnitudeBits) {
    const VecI32 below = hn::Set(di, static_cast<int32_t>(magnitude) - 1);
#if HWY_TARGET == HWY_AVX3
    const TagU32 du;
    VecU32 index = hn::Iota(du, first_index);
    const VecU32 step = hn::Set(du, static_cast<uint32_t>(kLanes));
    for (; i + kLanes <= count && found <= room; i += kLanes) {
      const VecF32 value = hn::LoadU(d, values + i);
      const auto chosen = hn::Gt(hn::BitCast(di, magnitudes(value)), below);
      // Whole vectors are stored, hence the slack: on some CPUs compaction into memory is far slower.
      hn::StoreU(hn::Compress(index, hn::RebindMask(du, chosen)), du, indices + found);
      hn::StoreU(hn::Compress(value, hn::RebindMask(d, chosen)), d, selected + found);
      found += hn::CountTrue(di, chosen);
      index = hn::Add(index, step);
    }
#else
    // Few values are chosen where this is used, so most turns end at the test. (Highway's Compress for AVX2 copies its
    // table to the stack for every vector here and takes ten times as long.)
    constexpr size_t kAtATime = 16;
    for (; i + kAtATime <= count && found <= room; i += kAtATime) {
      uint32_t chosen = 0;
      for (size_t j = 0; j < kAtATime; j += kLanes) {
        uint8_t mask[8] = {};
        hn::StoreMaskBits(di, hn::Gt(hn::BitCast(di, magnitudes(hn::LoadU(d, values + i + j))), below), mask);
        chosen |= static_cast<uint32_t>(mask[0]) << j;
      }
      for (; chosen != 0; chosen &= chosen - 1) {
        const size_t at = i + static_cast<size_t>(__builtin_ctz(chosen));
        indices[found] = first_index + static_cast<uint32_t>(at);
        selected[found] = values[at];
        ++found;
      }
    }
#endif
  }
  for (; i < count && found <= room; ++i) {
    indices[found] = first_index + static_cast<uint32_t>(i);
    selected[found] = values[i];
    found += magnitude_of(values[i]) >= magnitude ? 1 : 0;
  }
  return found;
}

void pack_signs(const float* values, size_t count, uint8_t* bits) {
  const TagF32 d;
  constexpr size_t kAtATime = 16;
  size_t i = 0;
  for (; i + kAtATime <= count; i += kAtATime) {
    uint32_t packed = 0;
    for (size_t j = 0; j < kAtATime; j += kLanes) {
      uint8_t mask[8] = {};
      hn::StoreMaskBits(TagI32(), sign_bits(hn::LoadU(d, values + i + j)), mask);
      packed |= (static_cast<uint32_t>(mask[0]) | static_cast<uint32_t>(mask[1]) << 8) << j;
    }
    bits[i / 8] = static_cast<uint8_t>(packed);
    bits[i / 8 + 1] = static_cast<uint8_t>(packed >> 8);
  }
  for (size_t first = i; i < count; ++i) {
    if (i == first || i % 8 == 0) bits[i / 8] = 0;
    if (__builtin_signbit(values[i])) bits[i / 8] = static_cast<uint8_t>(bits[i / 8] | 1U << i % 8);
  }
}

template <bool kAdd>
HWY_INLINE void spread_signs(const uint8_t* bits, size_t count, float if_clear, float if_set, float* out) {
  const TagF32 d;
  const VecF32 clear = hn::Set(d, if_clear), set = hn::Set(d, if_set);
  const TagU32 du;
  constexpr size_t kAtATime = 16;
  size_t i = 0;
  for (; i + kAtATime <= count; i += kAtATime) {
    const uint32_t packed = static_cast<uint32_t>(bits[i / 8]) | static_cast<uint32_t>(bits[i / 8 + 1]) << 8;
    for (size_t j = 0; j < kAtATime; j += kLanes) {
      const VecU32 lane_bit = hn::Shl(hn::Set(du, 1U << j), hn::Iota(du, 0));
      const auto chosen = hn::RebindMask(d, hn::TestBit(hn::Set(du, packed), lane_bit));
      VecF32 value = hn::IfThenElse(chosen, set, clear);
      if constexpr (kAdd) value = hn::Add(hn::LoadU(d, out + i + j), value);
      hn::StoreU(value, d, out + i + j);
    }
  }
  for (; i < count; ++i) {
    const float value = (bits[i / 8] >> i % 8 & 1) != 0 ? if_set : if_clear;
    out[i] = kAdd ? out[i] + value : value;
  }
}
void unpack_signs(const uint8_t* bits, size_t count, float if_clear, float if_set, float* out, bool add) {
  add ? spread_signs<true>(bits, count, if_clear, if_set, out)
      : spread_signs<false>(bits, count, if_clear, if_set, out);
}

}  // namespace

const CodecKernels& codec() {
  static constexpr CodecKernels kTable = {greatest,     survey,     sum_signs, to_f16,     to_bf16,
                                          from_f16,     from_bf16,  to_int8,   from_int8,  to_buckets,
                                          from_buckets, count_from, select,    pack_signs, unpack_signs};
  return kTable;
}

}  // namespace canarynet::CANARY_KERNELS_NAMESPACE
HWY_AFTER_NAMESPACE();
