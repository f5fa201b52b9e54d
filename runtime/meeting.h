// runtime/meeting.h -- where the ranks of a job meet: an address that the user names, or a unique id that rank 0's
// process made.
//
// A unique id's listener is opened when the id is made, so that the others may come before rank 0 calls canary_init;
// until then it is kept here, per process. It serves one job: the first canary_init of rank 0 with that id takes it.
// Threads: any. Failures: as Status, naming the setting and its value.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "discovery/interfaces.h"
#include "runtime/context.h"
#include "transport/tcp/socket.h"

namespace canarynet {

struct Meeting {
  std::vector<Address> addresses;  // of rank 0, the likeliest first; at least one
  std::uint64_t token = 0;         // of the unique id; 0: an address
  Socket listener;                 // rank 0 with a unique id: already open
};

// This rank's meeting by options.settings.join: tcp://host:port or id:HEX. Refuses addresses beyond loopback unless
// CANARY_INSECURE=1.
Result<Meeting> meeting_point(const ContextOptions& options, const std::vector<Interface>& interfaces);

// Opens a listener and describes it in `bytes` (128). Which addresses: this host's NICs as CANARY_RAILS or
// CANARY_SOCKET_IFNAME choose them, then its other ones; loopback alone where those say so, or without
// CANARY_INSECURE=1.
Status make_unique_id(std::span<std::uint8_t> bytes);

}  // namespace canarynet
