#include "plugins/nccl/report.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <string_view>

namespace canarynet::nccl {
namespace {

constexpr Place kLibrary{"libnccl-net-canary.so", 0};
constexpr std::size_t kLineBytes = 2048;
// The length of the prefix that the compiler puts before our files' names: the source root, wherever this was built.
constexpr std::size_t kRootBytes =
    std::string_view(__FILE__).size() - std::string_view("plugins/nccl/report.cc").size();
static_assert(std::string_view(__FILE__).substr(kRootBytes) == "plugins/nccl/report.cc");

std::atomic<abi::Logger> g_logger{nullptr};

void say(Place at, abi::LogLevel level, unsigned long flags, const char* line) {
  if (const abi::Logger logger = g_logger.load(std::memory_order_acquire))
    logger(level, flags, at.file, at.line, "NET/Canary : %s", line);
}

__attribute__((format(printf, 4, 0))) void say_formatted(Place at, abi::LogLevel level, unsigned long flags,
                                                         const char* format, va_list arguments) {
  char line[kLineBytes];
  std::vsnprintf(line, sizeof line, format, arguments);
  say({at.file + kRootBytes, at.line}, level, flags, line);
}

void library_line(void*, int level, const char* line, std::size_t length) {
  char text[kLineBytes];
  std::snprintf(text, sizeof text, "%.*s", static_cast<int>(length), line);
  say(kLibrary, level <= 2 ? abi::LogLevel::kWarn : abi::LogLevel::kInfo, abi::kLogNet, text);
}

}  // namespace

void set_logger(abi::Logger logger) {
  const abi::Logger before = g_logger.exchange(logger, std::memory_order_acq_rel);
  if (before == nullptr && logger != nullptr) canary_set_log(library_line, nullptr, 3);
}

void warn(Place at, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say_formatted(at, abi::LogLevel::kWarn, abi::kLogNet, format, arguments);
  va_end(arguments);
}

void info(Place at, unsigned long flags, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say_formatted(at, abi::LogLevel::kInfo, flags, format, arguments);
  va_end(arguments);
}

abi::Result fail(Place at, abi::Result result, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say_formatted(at, abi::LogLevel::kWarn, abi::kLogNet, format, arguments);
  va_end(arguments);
  return result;
}

abi::Result fail(const char* what, canary_status status, Place at) {
  canary_error error{};
  error.struct_size = sizeof error;
  const bool known = canary_last_error(&error) == CANARY_OK && error.code == status;
  return fail(at, result_of(status), "%s: %s", what, known ? error.message : canary_status_name(status));
}

abi::Result result_of(canary_status status) {
  switch (status) {
    case CANARY_OK:
      return abi::Result::kSuccess;
    case CANARY_INVALID_SETTING:
    case CANARY_INSECURE:
    case CANARY_VERSION:
    case CANARY_MISMATCH:
      return abi::Result::kInvalidUsage;
    case CANARY_SYSTEM:
    case CANARY_LIMIT:
      return abi::Result::kSystemError;
    // NCCL has called wrongly. The README of its plugins leaves ncclInvalidArgument to NCCL's own checks.
    case CANARY_INVALID_ARGUMENT:
    case CANARY_WOULD_BLOCK:
    case CANARY_INTERNAL:
      return abi::Result::kInternalError;
    default:
      return abi::Result::kRemoteError;  // a peer or the way to it: dead, silent, closed, not to be reached
  }
}

}  // namespace canarynet::nccl
