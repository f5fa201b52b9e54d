// tools/sim/trace_file.h -- reads the trace of a training iteration: when each layer's gradient is there, and its size.
//
//   {"forward_seconds": 0.2,
//    "layers": [{"name": "conv1", "bytes": 37632, "backward_seconds": 0.013}, …]}
//
// The layers come in forward order; the backward pass runs from the last to the first. `name` may be missing. Other
// keys are ignored, so that a recorder may add its own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "collectives/merge_planner.h"

namespace canarynet::sim {

struct TraceFile {
  BackwardPass pass;
  std::vector<std::string> names;  // [layer], "" where it has none
};

// `name` is for errors: "trace.json: layers[3].bytes: takes a whole number from 0 to 1099511627776, not -1"; where the
// text is no JSON, with line and column.
Result<TraceFile> parse_trace_file(std::string_view text, const std::string& name);
Result<TraceFile> read_trace_file(const std::string& path);

}  // namespace canarynet::sim
