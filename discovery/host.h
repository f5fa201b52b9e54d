// discovery/host.h -- who this host is, and what a host's name means. Start-up only; resolving may block.
#pragma once

#include <string>

#include "base/status.h"
#include "topology/address.h"

namespace canarynet {

// Boot id + network namespace: equal for processes that see the same NICs and memory.
std::string default_host_id();
std::string host_name();
// "tcp://host:port" → address. Errors say which part is wrong, and that it came from `source`.
Result<Address> resolve_join(const std::string& url, const std::string& source = "CANARY_JOIN");

}  // namespace canarynet
