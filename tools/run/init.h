// tools/run/init.h -- the first process of the job's PID namespace: builds the test bed, starts the ranks, serves until
// they have ended, and removes what lies in the file system. When it ends, the kernel ends every process below it.
#pragma once

#include <string>

#include "tools/run/options.h"
#include "tools/run/process.h"

namespace canarynet::run {

// Bytes on the lifeline from canary-run: kGo first, then numbers of signals to pass on. Its end means that canary-run
// is gone.
inline constexpr unsigned char kGo = 255;

struct InitArguments {
  const RunOptions* options = nullptr;
  pid_t caller = 0;  // canary-run itself
  Descriptor lifeline;
  Descriptor report;       // takes the state's paths, which canary-run removes should init be killed
  bool namespaces = true;  // false: a plain child, if the kernel gives no PID namespace
};

// Returns the exit status of canary-run.
int run_init(InitArguments arguments);

}  // namespace canarynet::run
