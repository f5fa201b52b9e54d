#include "plugins/nccl/cost_model.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "plugins/nccl/report.h"

namespace canarynet::nccl {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

// Reads a plain decimal number and one of the units; returns nothing if it is neither.
template <std::size_t N>
std::optional<double> parse(std::string_view text, const Unit (&units)[N]) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return {};
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  for (const Unit& u : units) {
    if (unit == u.name) return number * u.factor;
  }
  return {};
}

// The costs of NCCL's protocols on the network: LL sends 4 bytes of flags with every 4 of data, LL128 8 with every 120.
// Simple waits for memory fences on both sides of a hop; NCCL's own model adds a network's latency twice for it, and
// LL128's lies between.
struct Protocol {
  double bytes_factor;
  double alpha_factor;
};
constexpr Protocol kProtocolCosts[abi::kProtocols] = {{2.0, 1.0}, {128.0 / 120.0, 1.5}, {1.0, 2.0}};

// A tree's share is 2 between hosts. NVLS tree is faster within them, which the model does not see: so it wins a draw.
constexpr double kNvlsTreeShare = 1.999;

}  // namespace

std::optional<std::uint32_t> parse_alpha(std::string_view text) {
  constexpr Unit kUnits[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
  const auto ns = parse(text, kUnits);
  if (!ns || *ns > 4e9) return {};
  return static_cast<std::uint32_t>(std::llround(*ns));
}

std::optional<std::uint64_t> parse_bandwidth(std::string_view text) {
  constexpr Unit kUnits[] = {{"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};
  const auto bits = parse(text, kUnits);
  if (!bits || *bits < 1e5 || *bits > 1e14) return {};
  return static_cast<std::uint64_t>(std::llround(*bits / 8));
}

CostModel read_model() {
  const char* const alpha = std::getenv("CANARY_NCCL_ALPHA");
  const char* const bandwidth = std::getenv("CANARY_NCCL_BANDWIDTH");
  const bool has_alpha = alpha != nullptr && *alpha != '\0', has_bandwidth = bandwidth != nullptr && *bandwidth != '\0';
  if (!has_alpha && !has_bandwidth) return {};
  if (has_alpha != has_bandwidth) {
    warn(here(), "CANARY_NCCL_ALPHA and CANARY_NCCL_BANDWIDTH make a cost model together, only %s is set: ignored",
         has_alpha ? "CANARY_NCCL_ALPHA" : "CANARY_NCCL_BANDWIDTH");
    return {};
  }
  const auto a = parse_alpha(alpha);
  if (!a)
    warn(here(), "CANARY_NCCL_ALPHA=\"%s\": takes a time up to 4s such as 25us or 1.5ms: no cost model is used", alpha);
  const auto b = parse_bandwidth(bandwidth);
  if (!b) {
    warn(here(),
         "CANARY_NCCL_BANDWIDTH=\"%s\": takes a rate from 100kbit to 100000gbit such as 2.5gbit: no cost model is used",
         bandwidth);
  }
  if (!a || !b) return {};
  return {*a, *b};
}

std::optional<float> cost_us(const CostModel& model, abi::Function function, std::size_t bytes, std::size_t ranks,
                             std::size_t nodes, int algorithm, int protocol) {
  if (!model.set() || nodes < 2 || ranks < nodes || protocol < 0 || protocol >= abi::kProtocols) return {};
  const Protocol& p = kProtocolCosts[protocol];
  const double n = static_cast<double>(nodes), r = static_cast<double>(ranks);
  double lg = 0;
  for (std::size_t reach = 1; reach < nodes; reach *= 2) ++lg;
  // `starts` counts messages between hosts one after the other, `share` the bytes through a host's NICs in one
  // direction as a share of `bytes`. A chain of ranks enters and leaves a host once, so messages between its ranks cost
  // neither.
  double starts = 0, share = 0;
  switch (function) {
    case abi::Function::kAllReduce:
      if (algorithm == abi::kRing) {
        starts = 2 * (n - 1);
        share = 2 * (r - 1) / r;
      } else if (algorithm == abi::kTree || algorithm == abi::kNvlsTree) {  // double binary tree, pipelined
        starts = 2 * lg;
        share = algorithm == abi::kTree ? 2 : kNvlsTreeShare;
      } else {
        return {};
      }
      break;
    case abi::Function::kAllGather:
    case abi::Function::kReduceScatter:
      // `bytes` is the total over all ranks.
      if (algorithm != abi::kRing && algorithm != abi::kPat) return {};
      starts = algorithm == abi::kRing ? n - 1 : lg;
      share = (r - 1) / r;
      break;
    case abi::Function::kBroadcast:
    case abi::Function::kReduce:
      if (algorithm != abi::kRing) return {};
      starts = n - 1;
      share = 1;
      break;
    default:
      return {};
  }
  const double seconds =
      starts * p.alpha_factor * static_cast<double>(model.alpha_ns) * 1e-9 +
      share * p.bytes_factor * static_cast<double>(bytes) / static_cast<double>(model.bytes_per_second);
  return static_cast<float>(seconds * 1e6);
}

}  // namespace canarynet::nccl
