// port/check_parts.h -- what the checks of commands (port/command_check.h) have in common.
//
// No state; any thread. Where all is well nothing is allocated.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "base/status.h"
#include "port/command.h"

namespace canarynet::port {

// Of all ranks of an operation together.
inline constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 46;
// Behind any moment that a clock shows there is still one that far away.
inline constexpr std::int64_t kTimeLimitMax = std::numeric_limits<std::int64_t>::max() / 2;

Status wrong(const std::string& what);
Status no_such_group();
Status no_such_ticket(const Command& command);

// `needs` bytes of it are read or written.
Status check_buffer(const MemoryRef& buffer, std::uint64_t needs, const char* what, const Regions& regions);
// The command's list of so many 8-byte words.
Status check_words(const Command& command, std::uint64_t words, const char* what, const Regions& regions);

}  // namespace canarynet::port
