#include "base/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

namespace canarynet {
namespace {

constexpr std::size_t kLineBytes = 1024;

std::atomic<LogSink> g_sink{nullptr};
std::atomic<void*> g_context{nullptr};
std::atomic<int> g_level{0};
std::atomic<int> g_in_sink{0};   // threads that may be in the sink
thread_local int t_in_sink = 0;  // 1: this thread is

// The file that CANARY_LOG opened.
std::atomic<int> g_fd{-1};
std::atomic<int> g_fd_level{0};
std::atomic<int> g_first_rank{-1}, g_last_rank{-1};
// The second whose lines are counted, how many it has, and how many were left out since the last written line.
std::atomic<std::int64_t> g_second{0};
std::atomic<int> g_in_second{0}, g_left_out{0};

const char* name_of_level(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return "error";
    case LogLevel::kWarn:
      return "warn";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kDebug:
      return "debug";
  }
  return "?";
}

void write_line(int fd, const timespec& now, LogLevel level, std::string_view text) {
  char line[kLineBytes + 128];
  // localtime_r would take a lock, which a forked child may find taken.
  const std::chrono::year_month_day day{std::chrono::sys_days{std::chrono::days{now.tv_sec / 86400}}};
  const auto second = static_cast<int>(now.tv_sec % 86400);
  char ranks[32] = "";
  const int first = g_first_rank.load(std::memory_order_relaxed), last = g_last_rank.load(std::memory_order_relaxed);
  if (first >= 0 && first == last) std::snprintf(ranks, sizeof ranks, " rank %d", first);
  if (first >= 0 && first != last) std::snprintf(ranks, sizeof ranks, " ranks %d-%d", first, last);
  int n = std::snprintf(
      line, sizeof line, "%04d-%02u-%02uT%02d:%02d:%02d.%06ldZ canary pid %d%s %s: ", static_cast<int>(day.year()),
      static_cast<unsigned>(day.month()), static_cast<unsigned>(day.day()), second / 3600, second / 60 % 60,
      second % 60, now.tv_nsec / 1000, static_cast<int>(::getpid()), ranks, name_of_level(level));
  if (n < 0) return;
  auto length = static_cast<std::size_t>(n);
  const std::size_t room = std::min(text.size(), sizeof line - 1 - length);
  std::copy_n(text.begin(), room, line + length);
  // A message stays one line, whatever its text contains.
  std::replace_if(
      line + length, line + length + room, [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  length += room;
  line[length++] = '\n';
  const int before = errno;
  while (::write(fd, line, length) < 0 && errno == EINTR) continue;
  errno = before;
}

void write_bounded(int fd, LogLevel level, std::string_view text) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  std::int64_t second = g_second.load(std::memory_order_relaxed);
  if (second != now.tv_sec && g_second.compare_exchange_strong(second, now.tv_sec)) g_in_second.store(0);
  if (g_in_second.fetch_add(1, std::memory_order_relaxed) >= kLogLinesPerSecond) {
    g_left_out.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (const int left_out = g_left_out.exchange(0, std::memory_order_relaxed); left_out != 0) {
    char told[96];
    const int n = std::snprintf(told, sizeof told, "%d lines were left out: more than %d in a second", left_out,
                                kLogLinesPerSecond);
    write_line(fd, now, LogLevel::kWarn, {told, static_cast<std::size_t>(n)});
  }
  write_line(fd, now, level, text);
}

Status invalid(std::string_view text, const std::string& why) {
  return Status(CANARY_INVALID_SETTING, "CANARY_LOG=\"" + std::string(text) + "\": " + why);
}

std::string with_pid(std::string_view path) {
  std::string out(path);
  const std::string pid = std::to_string(::getpid());
  for (std::size_t at = out.find("%p"); at != std::string::npos; at = out.find("%p", at + pid.size()))
    out.replace(at, 2, pid);
  return out;
}

}  // namespace

bool in_log_sink() { return t_in_sink != 0; }

void set_log_sink(LogSink sink, void* context, LogLevel up_to) {
  static std::mutex mutex;
  static const int at_fork = pthread_atfork(nullptr, nullptr, [] { g_in_sink.store(t_in_sink); });
  static_cast<void>(at_fork);
  if (in_log_sink()) return;
  const std::lock_guard lock(mutex);
  g_sink.store(nullptr);
  while (g_in_sink.load() != 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
  g_context.store(context);
  g_level.store(static_cast<int>(up_to));
  g_sink.store(sink);
}

Status write_log_to(std::string_view text) {
  const std::size_t comma = std::min(text.find(','), text.size());
  const std::string_view word = text.substr(0, comma);
  int level = 0;
  for (const LogLevel known : {LogLevel::kWarn, LogLevel::kInfo, LogLevel::kDebug}) {
    if (word == name_of_level(known)) level = static_cast<int>(known);
  }
  int fd = -1;
  if (!text.empty()) {
    if (level == 0)
      return invalid(text, "takes warn, info or debug, or one of them with a file: debug,/tmp/canary.%p.log");
    fd = STDERR_FILENO;
    if (comma < text.size()) {
      const std::string path = with_pid(text.substr(comma + 1));
      if (path.empty()) return invalid(text, "the name of the file is missing behind the comma");
      // Opening must not block: a FIFO may have no reader.
      fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
      if (fd < 0) return invalid(text, system_error("the file " + path + " can't be opened", errno).text());
    }
  }
  g_fd_level.store(level);
  const int before = g_fd.exchange(fd);
  if (before > STDERR_FILENO) ::close(before);
  return {};
}

Status write_log_as_environment_says() {
  static std::once_flag once;
  static Status& outcome = *new Status();  // never freed: threads that outlive static objects read it
  std::call_once(once, [] {
    const char* text = std::getenv("CANARY_LOG");
    if (text != nullptr) outcome = write_log_to(text);
  });
  return outcome;
}

void set_log_ranks(int first, int last) {
  g_first_rank.store(first, std::memory_order_relaxed);
  g_last_rank.store(last, std::memory_order_relaxed);
}

bool log_enabled(LogLevel level) {
  const int wanted = static_cast<int>(level);
  return wanted <= g_fd_level.load(std::memory_order_relaxed) ||
         (g_sink.load() != nullptr && wanted <= g_level.load(std::memory_order_relaxed));
}

void log(LogLevel level, const char* format, ...) {
  if (!log_enabled(level)) return;
  char line[kLineBytes];
  va_list args;
  va_start(args, format);
  const int n = std::vsnprintf(line, sizeof line, format, args);
  va_end(args);
  if (n < 0) return;
  const std::string_view text(line, std::min(static_cast<std::size_t>(n), sizeof line - 1));
  const int wanted = static_cast<int>(level);
  if (!in_log_sink()) {
    t_in_sink = 1;
    g_in_sink.fetch_add(1);  // set_log_sink() waits, or the sink is the new one
    const LogSink sink = g_sink.load();
    if (sink != nullptr && wanted <= g_level.load()) sink(g_context.load(), level, text);
    g_in_sink.fetch_sub(1);
    t_in_sink = 0;
  }
  const int fd = g_fd.load();
  if (fd >= 0 && wanted <= g_fd_level.load()) write_bounded(fd, level, text);
}

}  // namespace canarynet
