#include "tests/nccl/log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <mutex>

namespace nccltest {
namespace {

std::mutex g_mutex;
std::vector<std::string> g_warnings;
std::vector<std::string> g_failures;
std::atomic<int> g_rank{0};
std::atomic<int> g_print_up_to{kLogWarn};

std::string formatted(const char* format, std::va_list arguments) {
  char text[2048];
  std::vsnprintf(text, sizeof text, format, arguments);
  return text;
}

const char* level_name(LogLevel level) {
  switch (level) {
    case kLogNone:
      return "NONE";
    case kLogVersion:
      return "VERSION";
    case kLogWarn:
      return "WARN";
    case kLogInfo:
      return "INFO";
    case kLogAbort:
      return "ABORT";
    case kLogTrace:
      return "TRACE";
  }
  return "LEVEL?";
}

__attribute__((format(printf, 5, 6))) void log_from_plugin(LogLevel level, unsigned long flags, const char* file,
                                                           int line, const char* format, ...) {
  (void)flags;
  std::va_list arguments;
  va_start(arguments, format);
  const std::string text = formatted(format, arguments);
  va_end(arguments);
  const std::lock_guard lock(g_mutex);
  if (level == kLogWarn) g_warnings.push_back(text);
  if (level <= g_print_up_to.load()) {
    std::fprintf(stderr, "rank %d plugin %s %s:%d %s\n", g_rank.load(), level_name(level), file ? file : "?", line,
                 text.c_str());
  }
}

}  // namespace

void set_log(int rank, LogLevel print_up_to) {
  g_rank = rank;
  g_print_up_to = print_up_to;
}

Logger plugin_logger() { return log_from_plugin; }

std::vector<std::string> warnings() {
  const std::lock_guard lock(g_mutex);
  return g_warnings;
}

std::string last_warning() {
  const std::lock_guard lock(g_mutex);
  return g_warnings.empty() ? std::string() : g_warnings.back();
}

void clear_warnings() {
  const std::lock_guard lock(g_mutex);
  g_warnings.clear();
}

void say(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  const std::string text = formatted(format, arguments);
  va_end(arguments);
  const std::lock_guard lock(g_mutex);
  std::fprintf(stderr, "rank %d harness %s\n", g_rank.load(), text.c_str());
}

void fail(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  const std::string text = formatted(format, arguments);
  va_end(arguments);
  const std::lock_guard lock(g_mutex);
  // The first failures tell enough; a stream of them (every message wrong) would only hide these.
  if (g_failures.size() < 20) std::fprintf(stderr, "rank %d harness FAILED %s\n", g_rank.load(), text.c_str());
  g_failures.push_back(text);
}

int failures() {
  const std::lock_guard lock(g_mutex);
  return static_cast<int>(g_failures.size());
}

std::vector<std::string> failure_texts() {
  const std::lock_guard lock(g_mutex);
  return g_failures;
}

const char* result_name(Result result) {
  switch (result) {
    case kSuccess:
      return "ncclSuccess";
    case kUnhandledCudaError:
      return "ncclUnhandledCudaError";
    case kSystemError:
      return "ncclSystemError";
    case kInternalError:
      return "ncclInternalError";
    case kInvalidArgument:
      return "ncclInvalidArgument";
    case kInvalidUsage:
      return "ncclInvalidUsage";
    case kRemoteError:
      return "ncclRemoteError";
    case kInProgress:
      return "ncclInProgress";
  }
  return "a result that NCCL does not know";
}

}  // namespace nccltest
