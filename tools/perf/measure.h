// tools/perf/measure.h -- runs one operation at one size, times it, checks it, and watches the NICs meanwhile.
//
// All ranks call measure() with the same arguments. Buffers live for the call. One thread (plus a sampling one if a
// series is asked for). Failures of the library come as canarynet::Error; wrong results and bytes that crossed no NIC
// are in the Row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "canarynet/canarynet.hpp"
#include "tools/perf/options.h"

namespace canarynet::perf {

class Series;

// The activity of one NIC of one rank during the timed loop, and its state at the end.
struct NicRow {
  int rank = 0;
  std::string device;
  std::uint64_t tx_bytes = 0;
  std::uint64_t rx_bytes = 0;
  std::uint64_t kernel_tx_bytes = 0;
  std::uint64_t retransmits = 0;
  std::uint64_t failovers = 0;
  std::uint64_t rate = 0;  // measured, bytes per second
  std::uint32_t lanes_up = 0;
};

struct Row {
  Op op = Op::kAllReduce;
  std::uint64_t bytes = 0;  // whole buffer
  std::uint64_t count = 0;  // elements, as given to the call
  std::string algorithm;
  std::string why;  // that algorithm runs, at the end, as canary_explain() says
  std::uint64_t iterations = 0;
  double time_us = 0;  // see --help
  double mean_us = 0, p50_us = 0, p99_us = 0, max_us = 0;
  double algbw = 0, busbw = 0;  // GB/s, 1e9
  std::int64_t wrong = 0;       // elements, all ranks
  std::uint64_t checked = 0;    // operations checked on each rank
  double cpu_s_per_gb = 0;
  std::vector<NicRow> nics;         // all ranks'
  std::vector<std::string> faults;  // this rank's reasons to fail, in words
  bool failed = false;              // some rank has one
};

Row measure(Context& context, const PerfOptions& options, Op op, std::uint64_t bytes, Series* series);

// The same with the sizes of one sweep taking turns (options.order), a row for each. The NICs' counters are in the last
// row; processor time per byte is that of all sizes together. Blocking operations only.
std::vector<Row> measure_mixed(Context& context, const PerfOptions& options, Op op, Series* series);

// Returns a sentence if the kernel did not see what Canary says it sent. It allows for counters read a moment apart.
std::string judge_nic(const NicRow& nic);

}  // namespace canarynet::perf
