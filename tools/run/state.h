// tools/run/state.h -- the public state of a running canary-run: a folder with the control socket and the state file.
//
// The init process owns both and removes them, also when canary-run is killed; canary-run removes them when init is
// killed. The JSON is documented in docs/canary-run.md. Pids are those that canary-run's caller sees.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "tools/run/options.h"
#include "tools/run/testbed.h"

namespace canarynet::run {

struct StatePaths {
  std::string folder;
  std::string state;
  std::string control;

  void remove() const;
};
// Makes a fresh folder under TMPDIR (or /tmp); `state_path` overrides where the state file goes.
Result<StatePaths> make_state_paths(const std::string& state_path);

struct RunState {
  const RunOptions* options = nullptr;
  const Testbed* bed = nullptr;  // null: plain processes
  pid_t pid = 0;                 // canary-run
  pid_t init_pid = 0;            // holds the fabric's namespace
  std::string join;
  RoundTrip round_trip;  // measured, with --delay
  std::vector<pid_t> ranks;
};
std::string to_json(const RunState& state, const StatePaths& paths);
// Readers see the old or the new file, never half of one.
Status write_state(const RunState& state, const StatePaths& paths);
// Reads the control socket's path from a state file.
Result<std::string> control_path(const std::string& state_path);

}  // namespace canarynet::run
