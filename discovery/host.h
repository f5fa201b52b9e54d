// discovery/host.h -- who this host is, and what a host's name means. Start-up only; resolving may block.
#pragma once

#include <string>

#include "base/status.h"
#include "topology/address.h"

namespace canarynet {

// Boot id + network namespace: equal for processes that see the same NICs and memory.
std::string default_host_id();
std::string host_name();
// A name for this process in its host's shared memory: `own` tells it from others; those whose first half is equal can meet there. They
// share the kernel, the network namespace (which holds the names of UNIX sockets), the user and his namespace, and `host_id`.
Address shared_memory_name(const std::string& host_id, std::uint64_t own);
// "tcp://host:port" → address. Errors say which part is wrong, and that it came from `source`.
Result<Address> resolve_join(const std::string& url, const std::string& source = "CANARY_JOIN");

}  // namespace canarynet
