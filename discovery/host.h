// discovery/host.h -- the identity of this host, the address behind a host's name, and the state of its processes.
// Resolving may block: start-up only.
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
// Shows whether another process of this host stands still or merely waits for its turn: the time that its threads have
// spent on a core, and whether one of them is on a core now, or waits for one or for the kernel. Returns {} if that
// can't be seen (the process has ended, or has another PID namespace).
ProcessPulse pulse_of(std::int64_t pid);
// A name for this process in its host's shared memory. `own` distinguishes it from others; processes whose first halves
// are equal can meet there. They share the kernel, the network namespace (which holds the names of UNIX sockets), the
// user and the user namespace, and `host_id`.
Address shared_memory_name(const std::string& host_id, std::uint64_t own);
// "tcp://host:port" → address. An error says which part is wrong, and that it came from `source`.
Result<Address> resolve_join(const std::string& url, const std::string& source = "CANARY_JOIN");

}  // namespace canarynet
