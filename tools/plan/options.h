// tools/plan/options.h -- canary-plan's command line. Pure: nothing is opened, nothing printed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/cost.h"
#include "collectives/schedule.h"
#include "tools/arguments.h"

namespace canarynet::plan {

enum class Command : std::uint8_t { kShow, kCheck, kCost, kChoose };

struct PlanOptions {
  Command command = Command::kShow;
  Collective collective = Collective::kAllReduce;
  std::vector<PlannerId> planners;  // empty: every one that can
  int ranks_min = 4, ranks_max = 4;
  int rails = 1;
  BCubeShape bcube;  // levels 0: flat wiring
  int root = 0;
  int servers = 1;
  int ranks_per_host = 1;
  std::uint64_t bytes = std::uint64_t{1} << 20;  // of the collective's whole space, as canary-perf counts
  // show
  int rank = -1;  // -1: all
  bool steps = false;
  std::string svg_path;
  // cost
  CostModel model;
  bool piece_given = false;
  std::string json_path;  // "-": standard output; choose too
  // choose
  std::string network_path;
  std::vector<std::uint64_t> pieces = {32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20};
};

struct ParsedOptions : tools::Outcome {
  PlanOptions options;
};
ParsedOptions parse_plan_options(const std::vector<std::string>& arguments);

// The number and size of elements that make up --bytes: element_bytes, and count as PlanRequest has it.
void size_of(const PlanOptions& options, int ranks, PlanRequest* request);
// A request for `ranks` of them; `reach` and `host_of` must outlive it.
PlanRequest request_of(const PlanOptions& options, int ranks, const Reachability& reach,
                       const std::vector<int>& host_of);
// [rank]: its host. Hosts are filled one after the other.
std::vector<int> hosts_of(const PlanOptions& options, int ranks);
Reachability reach_of(const PlanOptions& options, int ranks);

}  // namespace canarynet::plan
