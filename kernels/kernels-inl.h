// kernels/kernels-inl.h -- the vector kernels, written once against Highway and compiled once per instruction set.
//
// The including file defines CANARY_KERNELS_NAMESPACE and is compiled with the flags of its instruction set; Highway's
// static dispatch then takes that set, so its headers suffice (no libhwy). A *format* says how the elements of a type
// are loaded and combined (Native, Brain, Half); an *operation* combines vectors of the arithmetic type.
// kernels_scalar.cc is the specification. Nothing here may emit a weak symbol (see variant.h).
#pragma once

#define HWY_COMPILE_ONLY_STATIC
#include <hwy/highway.h>

#include "kernels/variant.h"

HWY_BEFORE_NAMESPACE();
namespace canarynet::CANARY_KERNELS_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// x86's MINPS gives the second operand when either is NaN or both are zeros. So both orders are taken: they differ only
// in those cases, where OR keeps a sign (the lesser zero), AND drops it, and NaNs are replaced by a + b, which is a
// quiet NaN.
template <class D, class V>
HWY_INLINE V replace_nans(D, V result, V a, V b) {
  return hn::IfThenElse(hn::And(hn::Eq(a, a), hn::Eq(b, b)), result, hn::Add(a, b));
}

struct Sum {
  template <class D, class V>
  static HWY_INLINE V combine(D, V a, V b) {
    return hn::Add(a, b);
  }
};

struct Min {
  template <class D, class V>
  static HWY_INLINE V combine(D d, V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      return replace_nans(d, hn::Or(hn::Min(a, b), hn::Min(b, a)), a, b);
    } else {
      return hn::Min(a, b);
    }
  }
};

struct Max {
  template <class D, class V>
  static HWY_INLINE V combine(D d, V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      return replace_nans(d, hn::And(hn::Max(a, b), hn::Max(b, a)), a, b);
    } else {
      return hn::Max(a, b);
    }
  }
};

struct Prod {
  template <class D, class V>
  static HWY_INLINE V combine(D d, V a, V b) {
    if constexpr (sizeof(hn::TFromD<D>) == 1) {  // no 8-bit multiply: each 16-bit lane does low, then high byte
      const hn::Repartition<uint16_t, D> d16;
      const auto high_mask = hn::Set(d16, 0xFF00);
      const auto a16 = hn::BitCast(d16, a);
      const auto b16 = hn::BitCast(d16, b);
      const auto low = hn::AndNot(high_mask, hn::Mul(a16, b16));
      const auto high = hn::Mul(hn::ShiftRight<8>(a16), hn::And(high_mask, b16));
      return hn::BitCast(d, hn::Or(low, high));
    } else {
      return a * b;  // the operator has 64-bit lanes everywhere
    }
  }
};

struct Quotient {
  template <class D, class V>
  static HWY_INLINE V combine(D, V a, V b) {
    return hn::Div(a, b);
  }
};

// Types in which the CPU computes directly.
template <typename T>
struct Native {
  using Tag = hn::ScalableTag<T>;
  using Element = T;
  using Arithmetic = T;
  template <class Op, class V>
  static HWY_INLINE V combine(Tag d, V a, V b) {
    return Op::combine(d, a, b);
  }
  template <class V>
  static HWY_INLINE V divide(Tag d, V a, hn::Vec<Tag> divisor) {
    return Quotient::combine(d, a, divisor);
  }
};

using TagU16 = hn::ScalableTag<uint16_t>;
using TagU32 = hn::ScalableTag<uint32_t>;
using TagF32 = hn::ScalableTag<float>;
using VecU16 = hn::Vec<TagU16>;
using VecU32 = hn::Vec<TagU32>;
using VecF32 = hn::Vec<TagF32>;

// 16-bit floats handled as pairs in 32-bit lanes: the even elements of a vector are the low halves, the odd ones the
// high halves. No element crosses lanes, so there is nothing to pack afterwards.
template <class Codec>
struct Paired {
  using Tag = TagU16;
  using Element = uint16_t;
  using Arithmetic = float;
  template <class Op>
  static HWY_INLINE VecU16 combine(Tag d, VecU16 a, VecU16 b) {
    const VecU32 a32 = hn::BitCast(TagU32(), a);
    const VecU32 b32 = hn::BitCast(TagU32(), b);
    const VecF32 even = Op::combine(TagF32(), Codec::widen_even(a32), Codec::widen_even(b32));
    const VecF32 odd = Op::combine(TagF32(), Codec::widen_odd(a32), Codec::widen_odd(b32));
    return hn::BitCast(d, Codec::narrow(even, odd));
  }
  static HWY_INLINE VecU16 divide(Tag d, VecU16 a, VecF32 divisor) {
    const VecU32 a32 = hn::BitCast(TagU32(), a);
    const VecF32 even = hn::Div(Codec::widen_even(a32), divisor);
    const VecF32 odd = hn::Div(Codec::widen_odd(a32), divisor);
    return hn::BitCast(d, Codec::narrow(even, odd));
  }
};

struct BrainCodec {
  static HWY_INLINE VecF32 widen_even(VecU32 pair) { return hn::BitCast(TagF32(), hn::ShiftLeft<16>(pair)); }
  static HWY_INLINE VecF32 widen_odd(VecU32 pair) {
    return hn::BitCast(TagF32(), hn::And(pair, hn::Set(TagU32(), 0xFFFF0000U)));
  }
  // The rounded value in the upper half of each lane; the lower half is rubbish. A NaN needs no case of its own: it is
  // an operand made quiet or the CPU's default, so its lower half is zero and rounding leaves the upper one as it is.
  static HWY_INLINE VecU32 round(VecF32 value) {
    const TagU32 du;
    const VecU32 bits = hn::BitCast(du, value);
    const VecU32 odd_bit = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    return hn::Add(bits, hn::Add(odd_bit, hn::Set(du, 0x7FFF)));
  }
  static HWY_INLINE VecU32 narrow(VecF32 even, VecF32 odd) {
    return hn::Or(hn::ShiftRight<16>(round(even)), hn::And(round(odd), hn::Set(TagU32(), 0xFFFF0000U)));
  }
};
using Brain = Paired<BrainCodec>;

#if HWY_TARGET == HWY_SSE4  // before F16C

struct HalfCodec {
  // `bits` is one binary16 per lane, the upper half zero.
  static HWY_INLINE VecF32 widen(VecU32 bits) {
    const TagU32 du;
    const TagF32 df;
    const VecU32 magnitude = hn::And(bits, hn::Set(du, 0x7FFF));
    const VecU32 sign = hn::ShiftLeft<16>(hn::Xor(bits, magnitude));
    const VecU32 normal = hn::Add(hn::ShiftLeft<13>(magnitude), hn::Set(du, (127U - 15U) << 23));
    const VecU32 special = hn::Or(normal, hn::Set(du, 0x7F800000U));  // infinity or NaN: all exponent bits
    // A subnormal is a count of 2^-24. It goes through integer conversion, so that no f32 denormal (slow) arises.
    const VecF32 counted = hn::ConvertTo(df, hn::BitCast(hn::RebindToSigned<TagU32>(), magnitude));
    const VecU32 subnormal = hn::BitCast(du, hn::Mul(counted, hn::Set(df, 0x1p-24F)));
    const VecU32 finite = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x400)), subnormal, normal);
    const VecU32 wide = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7BFF)), special, finite);
    return hn::BitCast(df, hn::Or(wide, sign));
  }
  static HWY_INLINE VecF32 widen_even(VecU32 pair) { return widen(hn::And(pair, hn::Set(TagU32(), 0xFFFF))); }
  static HWY_INLINE VecF32 widen_odd(VecU32 pair) { return widen(hn::ShiftRight<16>(pair)); }
  // Returns binary16 in the lower half of each lane, the upper half zero.
  static HWY_INLINE VecU32 round(VecF32 value) {
    const TagU32 du;
    const TagF32 df;
    const VecU32 bits = hn::BitCast(du, value);
    const VecU32 magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFU));
    const VecU32 sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
    const VecU32 odd_bit = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
    const VecU32 rebiased = hn::Sub(magnitude, hn::Set(du, (127U - 15U) << 23));
    const VecU32 normal = hn::ShiftRight<13>(hn::Add(rebiased, hn::Add(odd_bit, hn::Set(du, 0xFFF))));
    // 0.5 has 2^-24 as its unit in the last place: adding it makes the FPU round to a count of half's subnormal units.
    const VecF32 aligned = hn::Add(hn::BitCast(df, magnitude), hn::Set(df, 0.5F));
    const VecU32 subnormal = hn::Sub(hn::BitCast(du, aligned), hn::Set(du, 0x3F000000U));
    const VecU32 finite = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, (127U - 14U) << 23)), subnormal, normal);
    const VecU32 infinity = hn::Set(du, 0x7C00);
    const VecU32 ordered = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, (127U + 16U) << 23)), finite, infinity);
    const VecU32 half = hn::IfThenElse(hn::RebindMask(du, hn::Eq(value, value)), ordered, hn::Set(du, 0x7E00));
    return hn::Or(half, sign);
  }
  static HWY_INLINE VecU32 narrow(VecF32 even, VecF32 odd) {
    return hn::Or(round(even), hn::ShiftLeft<16>(round(odd)));
  }
};
using Half = Paired<HalfCodec>;

#else  // F16C converts, with its own rounding mode (nearest even) whatever MXCSR says

struct Half {
  using Tag = hn::Rebind<hwy::float16_t, TagF32>;  // half a vector, the width that fills one of f32
  using Element = hwy::float16_t;
  using Arithmetic = float;
  template <class Op, class V>
  static HWY_INLINE V combine(Tag d, V a, V b) {
    const TagF32 df;
    return hn::DemoteTo(d, Op::combine(df, hn::PromoteTo(df, a), hn::PromoteTo(df, b)));
  }
  template <class V>
  static HWY_INLINE V divide(Tag d, V a, VecF32 divisor) {
    return hn::DemoteTo(d, hn::Div(hn::PromoteTo(TagF32(), a), divisor));
  }
};

#endif

constexpr size_t kUnroll = 4;  // vectors in flight per turn; enough to hide the latency of the conversions

// Converting takes so many instructions that few loads are in flight at a time: beyond L2 the 16-bit floats then run
// at half the speed of f32. Asking for the lines ahead brings them near it (512 bytes ahead were measured as too few,
// 2048 as no better).
constexpr size_t kPrefetchBytes = 1024;

// An address past the end is harmless here, but not as a pointer: hence the integer.
HWY_INLINE void prefetch(const void* base, size_t offset) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(base) + offset));
}

template <class Format, class Op>
void reduce_all(void* dst_bytes, const void* a_bytes, const void* b_bytes, size_t elements) {
  using Element = typename Format::Element;
  const typename Format::Tag d;
  constexpr size_t lanes = hn::MaxLanes(typename Format::Tag());
  Element* const dst = static_cast<Element*>(dst_bytes);
  const Element* const a = static_cast<const Element*>(a_bytes);
  const Element* const b = static_cast<const Element*>(b_bytes);
  size_t i = 0;
  // All loads of a turn come before its stores: dst may be a or b.
  for (; i + kUnroll * lanes <= elements; i += kUnroll * lanes) {
    if constexpr (sizeof(Element) == 2) {
      for (size_t line = 0; line < kUnroll * lanes * sizeof(Element); line += 64) {
        prefetch(a + i, kPrefetchBytes + line);
        prefetch(b + i, kPrefetchBytes + line);
      }
    }
    const auto a0 = hn::LoadU(d, a + i), b0 = hn::LoadU(d, b + i);
    const auto a1 = hn::LoadU(d, a + i + lanes), b1 = hn::LoadU(d, b + i + lanes);
    const auto a2 = hn::LoadU(d, a + i + 2 * lanes), b2 = hn::LoadU(d, b + i + 2 * lanes);
    const auto a3 = hn::LoadU(d, a + i + 3 * lanes), b3 = hn::LoadU(d, b + i + 3 * lanes);
    hn::StoreU(Format::template combine<Op>(d, a0, b0), d, dst + i);
    hn::StoreU(Format::template combine<Op>(d, a1, b1), d, dst + i + lanes);
    hn::StoreU(Format::template combine<Op>(d, a2, b2), d, dst + i + 2 * lanes);
    hn::StoreU(Format::template combine<Op>(d, a3, b3), d, dst + i + 3 * lanes);
  }
  for (; i + lanes <= elements; i += lanes) {
    hn::StoreU(Format::template combine<Op>(d, hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, dst + i);
  }
  if (i == elements) return;
  // The tail goes through copies: an overlapping last vector would combine elements twice when dst is a or b.
  const size_t tail_bytes = (elements - i) * sizeof(Element);
  alignas(64) Element tail_a[lanes];
  alignas(64) Element tail_b[lanes];
  __builtin_memset(tail_a, 0, sizeof(tail_a));
  __builtin_memset(tail_b, 0, sizeof(tail_b));
  __builtin_memcpy(tail_a, a + i, tail_bytes);
  __builtin_memcpy(tail_b, b + i, tail_bytes);
  hn::Store(Format::template combine<Op>(d, hn::Load(d, tail_a), hn::Load(d, tail_b)), d, tail_a);
  __builtin_memcpy(dst + i, tail_a, tail_bytes);
}

template <class Format>
void divide_all(void* bytes, size_t elements, uint32_t divisor) {
  using Element = typename Format::Element;
  using Arithmetic = typename Format::Arithmetic;
  const typename Format::Tag d;
  constexpr size_t lanes = hn::MaxLanes(typename Format::Tag());
  const auto divisors = hn::Set(hn::ScalableTag<Arithmetic>(), static_cast<Arithmetic>(divisor));
  Element* const data = static_cast<Element*>(bytes);
  size_t i = 0;
  for (; i + lanes <= elements; i += lanes) {
    hn::StoreU(Format::divide(d, hn::LoadU(d, data + i), divisors), d, data + i);
  }
  if (i == elements) return;
  const size_t tail_bytes = (elements - i) * sizeof(Element);
  alignas(64) Element tail[lanes];
  __builtin_memset(tail, 0, sizeof(tail));
  __builtin_memcpy(tail, data + i, tail_bytes);
  hn::Store(Format::divide(d, hn::Load(d, tail), divisors), d, tail);
  __builtin_memcpy(data + i, tail, tail_bytes);
}

template <class Format>
VariantReduceFn reduce_for(canary_redop op) {
  switch (op) {
    case CANARY_SUM:
    case CANARY_AVG:
      return reduce_all<Format, Sum>;
    case CANARY_MIN:
      return reduce_all<Format, Min>;
    case CANARY_MAX:
      return reduce_all<Format, Max>;
    case CANARY_PROD:
      return reduce_all<Format, Prod>;
  }
  return nullptr;
}

}  // namespace

VariantReduceFn reduce(canary_type type, canary_redop op) {
  switch (type) {
    case CANARY_F32:
      return reduce_for<Native<float>>(op);
    case CANARY_F64:
      return reduce_for<Native<double>>(op);
    case CANARY_F16:
      return reduce_for<Half>(op);
    case CANARY_BF16:
      return reduce_for<Brain>(op);
    case CANARY_I8:
      return reduce_for<Native<int8_t>>(op);
    case CANARY_U8:
      return reduce_for<Native<uint8_t>>(op);
    case CANARY_I32:
      return reduce_for<Native<int32_t>>(op);
    case CANARY_I64:
      return reduce_for<Native<int64_t>>(op);
  }
  return nullptr;
}

VariantDivideFn divide(canary_type type) {
  switch (type) {
    case CANARY_F32:
      return divide_all<Native<float>>;
    case CANARY_F64:
      return divide_all<Native<double>>;
    case CANARY_F16:
      return divide_all<Half>;
    case CANARY_BF16:
      return divide_all<Brain>;
    case CANARY_I8:
    case CANARY_U8:
    case CANARY_I32:
    case CANARY_I64:
      return nullptr;  // no vector division of integers exists
  }
  return nullptr;
}

}  // namespace canarynet::CANARY_KERNELS_NAMESPACE
HWY_AFTER_NAMESPACE();
