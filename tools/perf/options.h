// tools/perf/options.h -- canary-perf's command line, checked before anything starts.
//
// Sizes are bytes of the whole buffer, as nccl-tests counts them. Every error names the option, its value and what it
// takes. No side effects.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "canarynet/types.h"
#include "tools/arguments.h"
#include "tools/perf/order.h"

namespace canarynet::perf {

enum class Op {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kBarrier,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kAllGatherV,
  kAllToAllV,
  kSendRecv
};

enum class Check { kNone, kEnds, kEvery };  // kEnds: warm-up operations and the last of each slot

struct PerfOptions {
  std::vector<Op> ops;
  std::uint64_t bytes_min = 0;
  std::uint64_t bytes_max = 0;
  std::uint64_t factor = 4;
  int iterations = 20;
  int warmup = 5;
  Order order = Order::kBlocks;
  std::uint64_t seed = 1;  // of Order::kRandom
  canary_type type = CANARY_F32;
  canary_redop redop = CANARY_SUM;
  int root = 0;
  std::string algo;                   // "": the library's choice
  std::vector<std::string> settings;  // "name=value" for the library
  Check check = Check::kEnds;
  bool in_place = false;
  bool arena = false;  // buffers are the library's memory
  int in_flight = 1;
  int threads = 1;          // ranks per process
  double duration_s = 0;    // > 0: instead of `iterations`
  std::string json_path;    // "": no JSON; "-": standard output, instead of the table
  std::string series_path;  // "": none; "%r" stands for the rank
};

struct ParsedOptions : tools::Outcome {
  PerfOptions options;
};
// Arguments without the program's name.
ParsedOptions parse_perf_options(const std::vector<std::string>& arguments);

// Reads "4K", "1M", "64MiB", "100": powers of 1024. Returns false for anything else, or past 1 TiB.
bool parse_size(std::string_view text, std::uint64_t* bytes);

// The sizes of a sweep: bytes_min, times factor, … up to bytes_max.
std::vector<std::uint64_t> sizes_of(const PerfOptions& options);

std::string_view name_of(Op op);
std::string_view name_of(canary_type type);
std::string_view name_of(canary_redop redop);
bool reduces(Op op);
bool has_root(Op op);
// Whether every pair of ranks has a block of its own in each direction.
bool is_pairwise(Op op);
// Whether the larger of a rank's two buffers is one block per rank.
bool in_blocks(Op op);
std::size_t element_bytes(canary_type type);

}  // namespace canarynet::perf
