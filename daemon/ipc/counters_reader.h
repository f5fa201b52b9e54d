// daemon/ipc/counters_reader.h -- finds and reads the counters of this host's processes. Every byte of them is foreign.
//
// What: it looks through /proc/*/fd for memory called canary-counters, copies each table whole and consistent, and
// validates the copy.
// Memory: tables are copies. Nothing is kept between calls: a process that has died is simply not found again.
// Threads: any; blocks for as long as the kernel takes to list descriptors. Failures: tables that can't be read are
// named in `notes`, never fatal.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "daemon/ipc/counters.h"

namespace canarynet::ipc {

// Maps the memory read-only and copies its table. The error says what is wrong with it.
Status read_counters(int memory, CountersTable* out);

struct ScannedTable {
  int pid = 0;  // as this process sees it
  std::unique_ptr<CountersTable> table;
};
struct CountersScan {
  std::vector<ScannedTable> tables;  // by pid, then in the order of the engines
  std::vector<std::string> notes;    // "pid 12: counters: it has version 2, ...": found, but not believed
  int hidden = 0;                    // processes whose descriptors this user may not see
};
// `only_pid` 0 means all processes. `proc` is the path of /proc.
Result<CountersScan> scan_counters(int only_pid = 0, const std::string& proc = "/proc");

}  // namespace canarynet::ipc
