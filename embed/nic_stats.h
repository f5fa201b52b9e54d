// embed/nic_stats.h -- a rail's counters as the C ABI shows them.
#pragma once

#include <cstring>

#include "canarynet/canarynet.h"
#include "topology/rails.h"
#include "transport/rail_stats.h"

namespace canarynet {

inline bool is_shared_memory(const Rail& rail) { return rail.address.family == Address::Family::kSharedMemory; }

// Shared memory is no NIC: it is listed where it stands in for one.
inline bool is_listed(const Rail& rail, const RailStats& r) {
  return !is_shared_memory(rail) || r.lanes_up != 0 || r.lanes.bytes_sent != 0;
}

inline canary_nic_stats nic_stats(const Rail& rail, const RailStats& r, std::uint64_t kernel_tx_bytes) {
  canary_nic_stats n;
  std::memset(&n, 0, sizeof n);
  std::strncpy(n.device, rail.device.c_str(), sizeof n.device - 1);
  n.transmit_bytes = r.lanes.bytes_sent;
  n.receive_bytes = r.lanes.bytes_received;
  n.piece_retransmits = r.retransmits;
  n.piece_crc_errors = r.lanes.payload_errors;
  n.failovers = r.failovers;
  n.kernel_transmit_bytes = kernel_tx_bytes;
  n.rate_bytes_per_second = static_cast<std::uint64_t>(r.rate.count);
  n.lanes_up = r.lanes_up;
  return n;
}

}  // namespace canarynet
