// base/serial.h -- numbers that count up for ever in 32 bits: says which of two is the later one.
//
// The answer is right while the two are less than 2^31 apart (as in TCP's sequence numbers, RFC 1982). Never compare
// such numbers with < or std::max.
#pragma once

#include <cstdint>

namespace canarynet {

constexpr bool later(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) > 0; }
constexpr std::uint32_t later_of(std::uint32_t a, std::uint32_t b) { return later(a, b) ? a : b; }

}  // namespace canarynet
