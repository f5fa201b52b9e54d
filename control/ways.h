// control/ways.h -- the addresses at which an engine takes control connections.
#pragma once

#include <algorithm>
#include <vector>

#include "control/membership.h"

namespace canarynet::control {

// Of engine `it`, for one that joined with these options; the likeliest first. Rank 0's engine listens where it was
// named, any other where it said that it does; both do so at the addresses of all their NICs.
inline std::vector<Address> ways_to(const EngineInfo& it, const MembershipOptions& options) {
  const bool first = it.engine == 0;
  const std::uint16_t port = first ? options.coordinator.port : it.control.port;
  std::vector<Address> ways;
  if (port == 0) return ways;
  const Address& named = first ? options.coordinator : it.control;
  const bool loopback_job = options.coordinator.loopback();
  if (first || !named.loopback() || loopback_job || it.host_id == options.host_id) ways.push_back(named);
  if (loopback_job) return ways;
  for (const Rail& rail : it.rails) {
    if (rail.address.family == Address::Family::kSharedMemory) continue;  // control goes over IP
    Address a = rail.address;
    a.port = port;
    a.prefix_bits = 0;
    const auto same = [&](const Address& b) { return b.family == a.family && b.bytes == a.bytes; };
    if (a.valid() && std::none_of(ways.begin(), ways.end(), same)) ways.push_back(a);
  }
  return ways;
}

}  // namespace canarynet::control
