// plugins/nccl/cost_model.h -- start-up time and bandwidth of the network between hosts, as the user gives them, and
// the cost of collectives by them.
//
// Plain arithmetic on numbers that are equal on all ranks, so that all of them choose alike; ranks compare the two
// numbers when they connect. Pure but for read_model(), which reads the environment. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "plugins/nccl/abi/tuner.h"

namespace canarynet::nccl {

struct CostModel {
  std::uint32_t alpha_ns = 0;
  std::uint64_t bytes_per_second = 0;  // 0: no model, NCCL's own stands
  bool set() const { return bytes_per_second != 0; }
  bool operator==(const CostModel&) const = default;
};

// "25us", "1.5ms", up to 4 s → nanoseconds; "2.5gbit", "500mbit" → bytes per second. Empty if it is neither.
std::optional<std::uint32_t> parse_alpha(std::string_view text);
std::optional<std::uint64_t> parse_bandwidth(std::string_view text);

// Reads CANARY_NCCL_ALPHA and CANARY_NCCL_BANDWIDTH. There is no model unless both are there and make sense; it warns
// if they don't.
CostModel read_model();

// Microseconds of a collective over `ranks` ranks on `nodes` hosts, by algorithm and protocol; empty if the model does
// not know that one.
std::optional<float> cost_us(const CostModel& model, abi::Function function, std::size_t bytes, std::size_t ranks,
                             std::size_t nodes, int algorithm, int protocol);

}  // namespace canarynet::nccl
