// tools/run/values.h -- the values of canary-run's options and link changes as users write them.
//
// Every error names the option, its value and what it takes. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/units.h"

namespace canarynet::run {

// "--nics 0: takes …".
Status wrong(std::string_view option, std::string_view value, const std::string& takes);

Result<int> parse_int(std::string_view option, std::string_view text, int min, int max);
// "1ms", "2.5s", "0s".
Result<Nanos> parse_time(std::string_view option, std::string_view text);
// "500mbit", "2.5gbit", "none" → bits per second.
Result<std::int64_t> parse_rate(std::string_view option, std::string_view text);
// "0.1%", "0" → parts per million.
Result<std::uint32_t> parse_loss(std::string_view option, std::string_view text);
// "72KiB": of a shaper's bucket or queue.
Result<Bytes> parse_room(std::string_view option, std::string_view text);
// As tc prints it: "500mbit"; "none" for 0.
std::string rate_text(std::int64_t bits_per_second);

}  // namespace canarynet::run
