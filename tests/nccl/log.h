// tests/nccl/log.h -- the logger that is handed to plugins: it prints their lines with level and rank, and keeps the
// WARN texts.
//
// Any thread may log, as in NCCL. One process, one rank.
#pragma once

#include <string>
#include <vector>

#include "tests/nccl/abi/net.h"

namespace nccltest {

// Prints lines up to this level on standard error. Lines above it are formatted (so that a bad format is found) and
// dropped.
void set_log(int rank, LogLevel print_up_to);
Logger plugin_logger();

std::vector<std::string> warnings();
std::string last_warning();  // "" if there was none
void clear_warnings();

// Prints the harness's own lines, in the same form. Those for a failed check are also remembered: a process with
// failures ends with status 1.
void say(const char* format, ...) __attribute__((format(printf, 1, 2)));
void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
int failures();
std::vector<std::string> failure_texts();

const char* result_name(Result result);

}  // namespace nccltest
