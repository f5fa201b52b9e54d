#include "base/log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace canarynet {
namespace {

std::atomic<LogSink> g_sink{nullptr};
std::atomic<void*> g_context{nullptr};
std::atomic<int> g_level{0};

}  // namespace

void set_log_sink(LogSink sink, void* context, LogLevel up_to) {
  g_sink.store(nullptr);
  g_context.store(context);
  g_level.store(static_cast<int>(up_to));
  g_sink.store(sink);
}

bool log_enabled(LogLevel level) { return g_sink.load() != nullptr && static_cast<int>(level) <= g_level.load(); }

void log(LogLevel level, const char* format, ...) {
  if (!log_enabled(level)) return;
  char line[1024];
  va_list args;
  va_start(args, format);
  const int n = std::vsnprintf(line, sizeof line, format, args);
  va_end(args);
  if (n < 0) return;
  const auto length = static_cast<std::size_t>(n) < sizeof line ? static_cast<std::size_t>(n) : sizeof line - 1;
  if (LogSink sink = g_sink.load()) sink(g_context.load(), level, {line, length});
}

}  // namespace canarynet
