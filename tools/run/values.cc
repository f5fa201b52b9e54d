#include "tools/run/values.h"

#include <cmath>

#include "base/quantity.h"
#include "base/settings.h"
#include "tools/arguments.h"

namespace canarynet::run {

Status wrong(std::string_view option, std::string_view value, const std::string& takes) {
  return {CANARY_INVALID_ARGUMENT, std::string(option) + " " + std::string(value) + ": " + takes};
}

Result<int> parse_int(std::string_view option, std::string_view text, int min, int max) {
  const auto value = tools::whole(text, min, max);
  if (!value)
    return wrong(option, text, "takes a whole number from " + std::to_string(min) + " to " + std::to_string(max));
  return *value;
}

Result<Nanos> parse_time(std::string_view option, std::string_view text) {
  // Whole numbers may also have the settings' units, such as min; decimal ones have those of a command line.
  if (auto parsed = parse_duration(text); parsed.ok()) return parsed;
  double number = 0;
  std::string_view unit;
  const auto seconds = split_number(text, &number, &unit) && !unit.empty() ? seconds_of(text) : std::optional<double>();
  if (!seconds || *seconds > 1e6) return wrong(option, text, "takes a time such as 1ms, 200us, 2.5s or 0s");
  return Nanos{std::llround(*seconds * 1e9)};
}

Result<std::int64_t> parse_rate(std::string_view option, std::string_view text) {
  if (text == "none") return std::int64_t{0};
  const auto bits = bits_per_second(text);
  if (!bits || *bits < 1e5 || *bits > 4e11) {
    return wrong(option, text, "takes a rate from 100kbit to 400gbit such as 500mbit or 2.5gbit, or none");
  }
  return static_cast<std::int64_t>(std::llround(*bits));
}

Result<std::uint32_t> parse_loss(std::string_view option, std::string_view text) {
  double number = 0;
  std::string_view unit;
  if (!split_number(text, &number, &unit) || (unit != "%" && !(unit.empty() && number == 0)) || number > 100) {
    return wrong(option, text, "takes a percentage from 0% to 100% such as 0.1%");
  }
  return static_cast<std::uint32_t>(std::llround(number * 1e4));
}

Result<Bytes> parse_room(std::string_view option, std::string_view text) {
  auto bytes = parse_bytes(text);
  if (!bytes.ok() || bytes.value() < Bytes{2048} || bytes.value() > Bytes{1 << 30}) {
    return wrong(option, text, "takes a size from 2KiB to 1GiB, such as 128KiB");
  }
  return bytes;
}

std::string rate_text(std::int64_t bits) {
  if (bits == 0) return "none";
  if (bits % 1'000'000'000 == 0) return std::to_string(bits / 1'000'000'000) + "gbit";
  if (bits % 1'000'000 == 0) return std::to_string(bits / 1'000'000) + "mbit";
  if (bits % 1'000 == 0) return std::to_string(bits / 1'000) + "kbit";
  return std::to_string(bits) + "bit";
}

}  // namespace canarynet::run
