// discovery/host.h -- who this host is, what a host's name means, and how its processes are. Resolving may block:
// start-up only.
#pragma once

#include <cstdint>
#include <string>

#include "base/process_pulse.h"
#include "base/status.h"
#include "topology/address.h"

namespace canarynet {

// Boot id + network namespace: equal for processes that see the same NICs and memory.
std::string default_host_id();
std::string host_name();
// Whether another process of this host stands still or merely waits for its turn: the time that its threads have spent
// on a core, and whether one of them is on a core now, or waits for one or for the kernel. {} where that can't be seen
// (it has ended, or has another PID namespace).
ProcessPulse pulse_of(std::int64_t pid);
// A name for this process in its host's shared memory: `own` tells it from others; those whose first half is equal can
// meet there. They share the kernel, the network namespace (which holds the names of UNIX sockets), the user and his
// namespace, and `host_id`.
Address shared_memory_name(const std::string& host_id, std::uint64_t own);
// "tcp://host:port" → address. Errors say which part is wrong, and that it came from `source`.
Result<Address> resolve_join(const std::string& url, const std::string& source = "CANARY_JOIN");

}  // namespace canarynet
