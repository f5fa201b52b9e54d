// base/units.h -- integer units that travel with their values.
//
// Nanos (monotonic instants and durations), Bytes and BytesPerSec are 64-bit signed integers behind distinct types, so
// that a rate is never added to a time by accident. Products go through 128 bits and saturate. Nothing here allocates
// or throws.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>

namespace canarynet {

__extension__ typedef __int128 Int128;  // GNU types, spelled so that -Wpedantic agrees
__extension__ typedef unsigned __int128 Uint128;

struct Nanos {
  std::int64_t count = 0;

  constexpr auto operator<=>(const Nanos&) const = default;
  constexpr Nanos& operator+=(Nanos o) { return count += o.count, *this; }
  constexpr Nanos& operator-=(Nanos o) { return count -= o.count, *this; }
  static constexpr Nanos max() { return {std::numeric_limits<std::int64_t>::max()}; }
  static constexpr Nanos from_seconds(double s) { return {static_cast<std::int64_t>(s * 1e9)}; }
  constexpr double seconds() const { return static_cast<double>(count) * 1e-9; }
};
constexpr Nanos operator+(Nanos a, Nanos b) { return {a.count + b.count}; }
constexpr Nanos operator-(Nanos a, Nanos b) { return {a.count - b.count}; }
constexpr Nanos operator*(Nanos a, std::int64_t k) { return {a.count * k}; }
constexpr Nanos operator/(Nanos a, std::int64_t k) { return {a.count / k}; }

constexpr Nanos operator""_ns(unsigned long long v) { return {static_cast<std::int64_t>(v)}; }
constexpr Nanos operator""_us(unsigned long long v) { return {static_cast<std::int64_t>(v) * 1'000}; }
constexpr Nanos operator""_ms(unsigned long long v) { return {static_cast<std::int64_t>(v) * 1'000'000}; }
constexpr Nanos operator""_s(unsigned long long v) { return {static_cast<std::int64_t>(v) * 1'000'000'000}; }

struct Bytes {
  std::int64_t count = 0;

  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes& operator+=(Bytes o) { return count += o.count, *this; }
  constexpr Bytes& operator-=(Bytes o) { return count -= o.count, *this; }
};
constexpr Bytes operator+(Bytes a, Bytes b) { return {a.count + b.count}; }
constexpr Bytes operator-(Bytes a, Bytes b) { return {a.count - b.count}; }

// a * b / c without overflow on the way. It runs several times per piece, and 128 bits, in which division is slow, are
// hardly ever needed.
constexpr Int128 mul_div(std::int64_t a, std::int64_t b, std::int64_t c) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? static_cast<Int128>(a) * b / c : product / c;
}

struct BytesPerSec {
  std::int64_t count = 0;

  constexpr auto operator<=>(const BytesPerSec&) const = default;
  static constexpr BytesPerSec from_mbit(std::int64_t mbit) { return {mbit * 125'000}; }

  // Time to move `bytes` at this rate; Nanos::max() at rate 0.
  constexpr Nanos time_for(Bytes bytes) const {
    if (count <= 0) return Nanos::max();
    const auto ns = mul_div(bytes.count, 1'000'000'000, count);
    return ns > Nanos::max().count ? Nanos::max() : Nanos{static_cast<std::int64_t>(ns)};
  }
  // Bytes moved in `t` at this rate.
  constexpr Bytes bytes_in(Nanos t) const {
    const auto b = mul_div(count, t.count, 1'000'000'000);
    const auto limit = std::numeric_limits<std::int64_t>::max();
    return {b > limit ? limit : static_cast<std::int64_t>(b)};
  }
  // Rate of `bytes` moved in `t` (> 0).
  static constexpr BytesPerSec of(Bytes bytes, Nanos t) {
    return {static_cast<std::int64_t>(mul_div(bytes.count, 1'000'000'000, t.count > 0 ? t.count : 1))};
  }
};

}  // namespace canarynet
