// plugins/nccl/report.h -- reports to NCCL: log lines through its logger, and results for the library's codes.
//
// Every failing call logs a warning before it returns: NCCL keeps that text as the communicator's last error.
// Threads: any. NCCL's logger takes a mutex, so nothing here is for the data path.
#pragma once

#include "canarynet/canarynet.h"
#include "plugins/nccl/abi/types.h"

namespace canarynet::nccl {

// The origin of a line; NCCL prints it with warnings. It is an argument of its own: a default one cannot follow `...`,
// and the compiler checks no format without that.
struct Place {
  const char* file;  // as the compiler names it
  int line;
};
constexpr Place here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }

// Sets the logger of the latest init. The library's own lines (lost NICs, stalls) go there too, under the library's
// name and line 0.
void set_logger(abi::Logger logger);
void warn(Place at, const char* format, ...) __attribute__((format(printf, 2, 3)));
void info(Place at, unsigned long flags, const char* format, ...) __attribute__((format(printf, 3, 4)));

// Warns and returns `result`.
abi::Result fail(Place at, abi::Result result, const char* format, ...) __attribute__((format(printf, 3, 4)));
// The same for a call of the library that has just failed in this thread: its text says who, where, how much and since
// when.
abi::Result fail(const char* what, canary_status status, Place at = here());
abi::Result result_of(canary_status status);

}  // namespace canarynet::nccl
