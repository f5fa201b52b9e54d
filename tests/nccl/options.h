// tests/nccl/options.h -- the command line of canary-nccl-harness, checked before anything is loaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/nccl/endpoint.h"
#include "tests/nccl/log.h"

namespace nccltest {

struct Options {
  std::string mode;
  std::vector<std::string> plugins;  // one for all ranks, or one per rank
  int version = 0;                   // 0: the newest exported
  int ranks = 2;
  int rank = -1;     // -1: this process forks all ranks
  std::string meet;  // folder of the bootstrap's sockets
  int channels = 2;  // connections per neighbour and direction
  std::string pattern = "ring";
  int contexts = 1;       // communicators per process
  int reloads = 1;        // times that the plugin is loaded, used and unloaded
  std::string dev = "0";  // a device, or "spread"
  Traffic traffic;
  std::string size = "mix";
  std::uint64_t messages = 400;  // per connection, in modes that count them
  double seconds = 3;
  double warmup = 0.5;
  int depth = kSteps;
  int group = 1;
  Check check = Check::kFull;
  // Microseconds between passes that moved nothing; 0: sched_yield, like NCCL; -1: not even that. Sleeps begin after
  // 50 us of such passes; in latency mode at once.
  long idle_sleep_us = 0;
  bool pauses = false;  // the progress thread now and then does nothing for a while, as when the GPU is late
  std::uint64_t seed = 1;
  double connect_limit = 20;
  double stall_limit = 15;
  double error_limit = 2;  // seconds within which survivors must have an error
  int repeat = 10;
  int victim = 1;
  double stop_seconds = 1;  // how long the victim of `stop` stands still
  bool hold = true;         // kill: nobody closes before all have heard, like applications that call ncclCommAbort late
  // Regular expressions; one WARN line of each survivor has to match all of them. {pid} and {host} in them are the
  // killed process's.
  std::vector<std::string> warn_must;
  double gap_ms = 0;
  std::string end_file;  // goodput ends when it is there, --seconds at the latest
  std::string variant;
  std::string offer = "all";  // tuner: algorithms that NCCL could run
  LogLevel log_level = kLogWarn;

  const std::string& plugin_of(int r) const { return plugins[plugins.size() == 1 ? 0 : static_cast<std::size_t>(r)]; }
};

// Returns false with `error`.
bool parse_options(const std::vector<std::string>& arguments, Options* out, std::string* error);
std::string help_text();

}  // namespace nccltest
