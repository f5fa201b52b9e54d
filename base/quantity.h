// base/quantity.h -- numbers with units as people write them on command lines: "2.5gbit", "1.5ms".
//
// Settings have their own, stricter grammar (base/settings.h: whole numbers). Nothing here throws.
#pragma once

#include <optional>
#include <string_view>

namespace canarynet {

// Splits a non-negative decimal number (no exponent, no sign) from what follows it. False if there is no number.
bool split_number(std::string_view text, double* number, std::string_view* unit);

// Bits per second from "500mbit", "2.5gbit", "100kbit", "1bit".
std::optional<double> bits_per_second(std::string_view text);

// Seconds from "1ms", "0.5us", "3s", "20ns"; a number without a unit is seconds and may have an exponent ("2e-10").
std::optional<double> seconds_of(std::string_view text);

}  // namespace canarynet
