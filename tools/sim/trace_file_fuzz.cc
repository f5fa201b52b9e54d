// The input is a trace file. Whatever is accepted must be a pass that the planner can plan.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "tools/sim/trace_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace canarynet;
  const auto trace = sim::parse_trace_file({reinterpret_cast<const char*>(data), size}, "trace.json");
  if (!trace.ok()) return trace.status().text().starts_with("trace.json: ") ? 0 : (std::abort(), 0);
  const BackwardPass& pass = trace.value().pass;
  if (!check(pass).ok() || trace.value().names.size() != pass.layers.size()) std::abort();
  const AffineTime time{1e-3, 1e-9};
  if (pass.layers.size() > 256) return 0;
  const double exact = merge_exactly(pass, time).iteration_seconds;
  if (!(exact <= merge_greedily(pass, time).iteration_seconds * (1 + 1e-9))) std::abort();
  return 0;
}
