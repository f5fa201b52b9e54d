// tools/sim/print.h -- numbers as text.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

namespace canarynet::sim {

// Lines of up to 255 bytes; longer ones are cut.
[[gnu::format(printf, 1, 2)]] inline std::string printed(const char* format, ...) {
  char buffer[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

}  // namespace canarynet::sim
