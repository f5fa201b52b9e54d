// tests/nccl/log.h -- the logger that is handed to plugins: prints their lines with level and rank, and keeps the WARN
// texts.
//
// Any thread may log, as in NCCL. One process, one rank.
#pragma once

#include <string>
#include <vector>

#include "tests/nccl/abi/net.h"

namespace nccltest {

// Lines up to this level are printed on standard error; ones above it are formatted (so that a bad format is found) and
// dropped.
void set_log(int rank, LogLevel print_up_to);
Logger plugin_logger();

std::vector<std::string> warnings();
std::string last_warning();  // "" where none was given
void clear_warnings();

// The harness's own lines, in the same form; for a failed check also remembered: a process with failures ends with
// status 1.
void say(const char* format, ...) __attribute__((format(printf, 1, 2)));
void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
int failures();
std::vector<std::string> failure_texts();

const char* result_name(Result result);

}  // namespace nccltest
