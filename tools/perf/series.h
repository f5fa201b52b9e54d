// tools/perf/series.h -- bytes per NIC over time: a thread that reads the counters every 10 ms while operations run.
//
// It writes one file of CSV with a line per bin and device: seconds since the start of the loop and CLOCK_MONOTONIC at
// the bin's end, bytes in the bin by Canary's counters and by the kernel's. One thread calls start() and stop(); stop()
// writes the lines. A file that can't be written is a std::runtime_error.
#pragma once

#include <atomic>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "canarynet/canarynet.hpp"

namespace canarynet::perf {

class Series {
 public:
  explicit Series(const std::string& path);
  ~Series();
  Series(const Series&) = delete;
  Series& operator=(const Series&) = delete;

  void start(Context& context, const std::string& op, std::uint64_t bytes);
  void stop();

 private:
  struct Sample {
    std::int64_t at_ns;
    std::vector<canary_nic_stats> nics;
  };
  void take(const Context& context);

  std::string path_;
  std::ofstream file_;
  std::thread thread_;
  std::atomic<bool> running_{false};
  std::string op_;
  std::uint64_t bytes_ = 0;
  std::vector<Sample> samples_;
};

}  // namespace canarynet::perf
