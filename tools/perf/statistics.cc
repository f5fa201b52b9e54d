#include "tools/perf/statistics.h"

#include <algorithm>
#include <cmath>

namespace canarynet::perf {

double percentile(std::vector<double>& samples, double share) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(samples.size())));
  return samples[std::clamp<std::size_t>(rank, 1, samples.size()) - 1];
}

double median(std::vector<double>& samples) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const auto middle = samples.size() / 2;
  return samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
}

double bus_factor(Op op, int ranks) {
  const double n = ranks;
  switch (op) {
    case Op::kAllReduce:
      return 2 * (n - 1) / n;
    case Op::kReduceScatter:
    case Op::kAllGather:
    case Op::kGather:
    case Op::kScatter:
    case Op::kAllToAll:
    case Op::kAllGatherV:
    case Op::kAllToAllV:
      return (n - 1) / n;
    case Op::kBroadcast:
    case Op::kReduce:
    case Op::kSendRecv:
      return 1;
    case Op::kBarrier:
      return 0;
  }
  return 0;
}

std::uint64_t least_traffic(Op op, std::uint64_t bytes, int ranks) {
  const auto others = static_cast<std::uint64_t>(ranks - 1);
  switch (op) {
    case Op::kAllReduce:
      return 2 * others * bytes;
    case Op::kReduceScatter:
    case Op::kAllGather:
    case Op::kBroadcast:
    case Op::kReduce:
    case Op::kAllToAll:
    case Op::kAllGatherV:
    case Op::kAllToAllV:  // measure.cc: the blocks that stay are no longer than the mean
      return others * bytes;
    case Op::kGather:
    case Op::kScatter:
      return others * (bytes / static_cast<std::uint64_t>(ranks));
    case Op::kSendRecv:
      return ranks == 1 ? 0 : static_cast<std::uint64_t>(ranks) * bytes;
    case Op::kBarrier:
      return 0;
  }
  return 0;
}

}  // namespace canarynet::perf
