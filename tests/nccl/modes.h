// tests/nccl/modes.h -- the modes of the harness, for one rank. Each returns the exit status and prints a line of JSON.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "tests/nccl/communicator.h"
#include "tests/nccl/net.h"
#include "tests/nccl/options.h"

namespace nccltest {

int run_mode(const Options& options);

// A JSON object, members in the order in which they are added.
class Json {
 public:
  Json& add(const std::string& name, double value);
  Json& add(const std::string& name, std::uint64_t value);
  Json& add(const std::string& name, int value);
  Json& add(const std::string& name, const std::string& text);
  Json& raw(const std::string& name, const std::string& json);
  std::string text() const { return "{" + members_ + "}"; }
  static std::string quoted(const std::string& text);

 private:
  std::string members_;
};

// The rank's plugin, loaded; failures are recorded.
struct Loaded {
  std::unique_ptr<PluginFile> file;
  std::unique_ptr<Net> net;
};
Loaded load(const Options& options);

// Prints the line of a mode, with its failures, and returns the exit status.
int finish_mode(const Options& options, Json& json);

int correctness_mode(const Options& options);
int goodput_mode(const Options& options);
int latency_mode(const Options& options);
int abort_mode(const Options& options);
int churn_mode(const Options& options);
int foreign_mode(const Options& options);
int mixed_mode(const Options& options);
int kill_mode(const Options& options);
int stop_mode(const Options& options);
int tuner_mode(const Options& options);
int list_mode(const Options& options);

}  // namespace nccltest
