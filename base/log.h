// base/log.h -- the library prints nothing of its own accord: it hands finished lines to a callback (none by default),
// and to stderr or a file if CANARY_LOG asks for it.
//
// Any thread may call the callback, which is not given lines that its own actions cause. Any thread may log, in a
// forked child too: a line is formatted on the stack and written by one call. Not for the data path.
#pragma once

#include <string_view>

#include "base/status.h"

namespace canarynet {

enum class LogLevel { kError = 1, kWarn = 2, kInfo = 3, kDebug = 4 };

using LogSink = void (*)(void* context, LogLevel level, std::string_view line);
// Returns when no thread is in the previous sink any more. It does nothing when a sink calls it.
void set_log_sink(LogSink sink, void* context, LogLevel up_to);
// Whether this thread is in the sink.
bool in_log_sink();

// Reads the text of CANARY_LOG: "warn", "info" or "debug" for stderr; "debug,FILE" appends to a file, created with mode
// 0600, in whose name %p stands for the process id. "" writes nothing. A line has time, pid, ranks and level. At most
// kLogLinesPerSecond lines are written in a second; the log says how many were left out.
Status write_log_to(std::string_view text);
// Does as CANARY_LOG says. The variable is read once per process, and every call returns the result of that.
Status write_log_as_environment_says();
// The ranks of this process, as its lines name them; -1: not known.
void set_log_ranks(int first, int last);
inline constexpr int kLogLinesPerSecond = 500;

bool log_enabled(LogLevel level);
// printf-like; lines longer than 1 KiB are cut.
void log(LogLevel level, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace canarynet
