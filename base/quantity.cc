#include "base/quantity.h"

#include <charconv>
#include <cmath>

namespace canarynet {

bool split_number(std::string_view text, double* number, std::string_view* unit) {
  // from_chars alone would take "inf" and "1e3".
  const auto digits = text.find_first_not_of("0123456789.");
  const auto length = digits == std::string_view::npos ? text.size() : digits;
  const auto [end, error] = std::from_chars(text.data(), text.data() + length, *number);
  if (length == 0 || error != std::errc() || end != text.data() + length) return false;
  *unit = text.substr(length);
  return true;
}

std::optional<double> bits_per_second(std::string_view text) {
  double number = 0;
  std::string_view unit;
  if (!split_number(text, &number, &unit)) return {};
  if (unit == "bit") return number;
  if (unit == "kbit") return number * 1e3;
  if (unit == "mbit") return number * 1e6;
  if (unit == "gbit") return number * 1e9;
  return {};
}

std::optional<double> seconds_of(std::string_view text) {
  double number = 0;
  std::string_view unit;
  if (split_number(text, &number, &unit)) {
    if (unit == "ns") return number * 1e-9;
    if (unit == "us") return number * 1e-6;
    if (unit == "ms") return number * 1e-3;
    if (unit == "s") return number;
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number) || number < 0) return {};
  return number;
}

}  // namespace canarynet
