// plugins/nccl/report.h -- what NCCL hears: log lines through its logger, and results for the library's codes.
//
// Every failing call logs a warning before it returns: NCCL keeps that text as the communicator's last error.
// Threads: any. NCCL's logger takes a mutex: nothing here is for the data path.
#pragma once

#include "canarynet/canarynet.h"
#include "plugins/nccl/abi/types.h"

namespace canarynet::nccl {

// Of the latest init. The library's own lines (lost NICs, stalls) go there too.
void set_logger(abi::Logger logger);
void warn(const char* format, ...) __attribute__((format(printf, 1, 2)));
void info(unsigned long flags, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Warns and returns `result`.
abi::Result fail(abi::Result result, const char* format, ...) __attribute__((format(printf, 2, 3)));
// The same for a call of the library that has just failed in this thread: who, where, how much and since when are in its text.
abi::Result fail(const char* what, canary_status status);
abi::Result result_of(canary_status status);

}  // namespace canarynet::nccl
