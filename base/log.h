// base/log.h -- the library never prints: it hands finished lines to a callback (none by default).
//
// Set once before engines start; the callback may be called from any engine's thread and must not call back into Canary.
// Not for the data path.
#pragma once

#include <string_view>

namespace canarynet {

enum class LogLevel { kError = 1, kWarn = 2, kInfo = 3, kDebug = 4 };

using LogSink = void (*)(void* context, LogLevel level, std::string_view line);
void set_log_sink(LogSink sink, void* context, LogLevel up_to);
bool log_enabled(LogLevel level);
// printf-like; lines longer than 1 KiB are cut.
void log(LogLevel level, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace canarynet
