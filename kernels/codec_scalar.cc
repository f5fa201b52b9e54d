// The specification of the codec kernels: plain C++, element by element.
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/half.h"
#include "kernels/variant.h"

namespace canarynet::kernels_scalar {
namespace {

std::uint32_t magnitude_of(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU; }

// Codes lie in the middle of messages, at any address.
template <typename T>
T load(const void* base, std::size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + index * sizeof(T), sizeof(T));
  return value;
}
template <typename T>
void store(void* base, std::size_t index, T value) {
  std::memcpy(static_cast<char*>(base) + index * sizeof(T), &value, sizeof(T));
}

void put(float value, std::size_t index, float* out, bool add) { out[index] = add ? out[index] + value : value; }

std::uint32_t greatest(const float* values, std::size_t count) {
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < count; ++i) most = magnitude_of(values[i]) > most ? magnitude_of(values[i]) : most;
  return most;
}

ValueSurvey survey(const float* values, std::size_t count) {
  ValueSurvey found{};
  if (count == 0) return found;
  found.min = found.max = values[0];
  for (std::size_t i = 0; i < count; ++i) {
    const float value = values[i];
    found.min = value < found.min ? value : found.min;
    found.max = value > found.max ? value : found.max;
    found.zeros += value == 0 ? 1 : 0;
    found.negatives += value < 0 ? 1 : 0;
    found.greatest = magnitude_of(value) > found.greatest ? magnitude_of(value) : found.greatest;
  }
  found.min += 0.0F;  // -0 becomes +0
  found.max += 0.0F;
  return found;
}

SignSums sum_signs(const float* values, std::size_t count) {
  constexpr std::size_t kLanes = 16;
  double positive[kLanes] = {}, negative[kLanes] = {};
  SignSums sums{};
  for (std::size_t i = 0; i < count; ++i) {
    const float value = values[i];
    positive[i % kLanes] += value > 0 ? static_cast<double>(value) : 0.0;
    negative[i % kLanes] += value < 0 ? static_cast<double>(value) : 0.0;
    sums.sign_clear += std::signbit(value) ? 0 : 1;
    sums.greatest = magnitude_of(value) > sums.greatest ? magnitude_of(value) : sums.greatest;
  }
  for (std::size_t apart = kLanes / 2; apart != 0; apart /= 2) {
    for (std::size_t i = 0; i < apart; ++i) {
      positive[i] += positive[i + apart];
      negative[i] += negative[i + apart];
    }
  }
  sums.positive = positive[0];
  sums.negative = negative[0];
  return sums;
}

template <typename Format>
std::uint32_t to_half(const float* values, std::size_t count, void* codes, std::uint16_t greatest_finite) {
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    most = magnitude_of(values[i]) > most ? magnitude_of(values[i]) : most;
    Format code;
    narrow(values[i], &code);
    if ((code.bits & 0x7FFFU) > greatest_finite) {
      code.bits = static_cast<std::uint16_t>((code.bits & 0x8000U) | greatest_finite);
    }
    store(codes, i, code.bits);
  }
  return most;
}

template <typename Format>
std::uint32_t from_half(const void* codes, std::size_t count, float* out, bool add) {
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Format code{load<std::uint16_t>(codes, i)};
    const std::uint32_t magnitude = code.bits & 0x7FFFU;
    most = magnitude > most ? magnitude : most;
    put(widen(code), i, out, add);
  }
  return most;
}

std::uint32_t to_f16(const float* values, std::size_t count, void* codes) {
  return to_half<Half>(values, count, codes, kNotFiniteF16 - 1);
}
std::uint32_t to_bf16(const float* values, std::size_t count, void* codes) {
  return to_half<Brain>(values, count, codes, kNotFiniteBf16 - 1);
}
std::uint32_t from_f16(const void* codes, std::size_t count, float* out, bool add) {
  return from_half<Half>(codes, count, out, add);
}
std::uint32_t from_bf16(const void* codes, std::size_t count, float* out, bool add) {
  return from_half<Brain>(codes, count, out, add);
}

void to_int8(const float* values, std::size_t count, float before, float inverse, void* codes) {
  for (std::size_t i = 0; i < count; ++i) {
    float scaled = (values[i] * before) * inverse;
    scaled = scaled > -127.0F ? scaled : -127.0F;  // NaN becomes -127
    scaled = scaled < 127.0F ? scaled : 127.0F;
    store(codes, i, static_cast<std::int8_t>(std::nearbyint(scaled)));
  }
}

void from_int8(const void* codes, std::size_t count, float scale, float* out, bool add) {
  for (std::size_t i = 0; i < count; ++i) put(static_cast<float>(load<std::int8_t>(codes, i)) * scale, i, out, add);
}

void to_buckets(const float* values, std::size_t count, const float* tree, std::uint8_t* codes) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = values[i];
    std::uint32_t entry = 1;
    // No branch: which way a search goes cannot be predicted.
    for (int level = 0; level < 8; ++level) entry = 2 * entry + static_cast<std::uint32_t>(value >= tree[entry]);
    codes[i] = static_cast<std::uint8_t>(entry);
  }
}

void from_buckets(const std::uint8_t* codes, std::size_t count, const float* codebook, float* out, bool add) {
  for (std::size_t i = 0; i < count; ++i) put(codebook[codes[i]], i, out, add);
}

std::size_t count_from(const float* values, std::size_t count, std::uint32_t magnitude) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < count; ++i) found += magnitude_of(values[i]) >= magnitude ? 1 : 0;
  return found;
}

std::size_t select(const float* values, std::size_t count, std::uint32_t magnitude, std::uint32_t first_index,
                   std::uint32_t* indices, float* selected, std::size_t room) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < count && found <= room; ++i) {
    indices[found] = first_index + static_cast<std::uint32_t>(i);
    selected[found] = values[i];
    found += magnitude_of(values[i]) >= magnitude ? 1 : 0;
  }
  return found;
}

void pack_signs(const float* values, std::size_t count, std::uint8_t* bits) {
  for (std::size_t i = 0; i < (count + 7) / 8; ++i) bits[i] = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::signbit(values[i])) bits[i / 8] = static_cast<std::uint8_t>(bits[i / 8] | 1U << i % 8);
  }
}

void unpack_signs(const std::uint8_t* bits, std::size_t count, float if_clear, float if_set, float* out, bool add) {
  for (std::size_t i = 0; i < count; ++i) put((bits[i / 8] >> i % 8 & 1) != 0 ? if_set : if_clear, i, out, add);
}

}  // namespace

const CodecKernels& codec() {
  static constexpr CodecKernels kTable = {greatest,     survey,     sum_signs, to_f16,     to_bf16,
                                          from_f16,     from_bf16,  to_int8,   from_int8,  to_buckets,
                                          from_buckets, count_from, select,    pack_signs, unpack_signs};
  return kTable;
}

}  // namespace canarynet::kernels_scalar
