// discovery/interfaces.h -- chooses this host's rails among its NICs. Reads getifaddrs and sysfs; start-up only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "topology/rails.h"

namespace canarynet {

// An address of an interface that is up.
struct Interface {
  std::string name;
  Address address;  // with prefix; port 0
  BytesPerSec nominal;
  std::vector<Network> beyond = {};  // networks outside its subnet that the routing tables reach through it
};

// The first usable address of each interface that is up: IPv4 before IPv6, none link-local. In the kernel's order.
Result<std::vector<Interface>> list_interfaces();

// CANARY_SOCKET_IFNAME has NCCL's grammar: comma-separated prefixes; "^a,b" all but those; "=a" exact names ("^=a"
// excludes exactly).
bool matches_ifname(std::string_view pattern, std::string_view name);

// CANARY_PACING_RATE for `rails` rails: the most that one connection of each may send; 0: no limit. Empty if it is not
// set.
Result<std::vector<BytesPerSec>> pacing_of(const Settings& settings, std::size_t rails);

// Chooses rails out of `available`: those of CANARY_RAILS (exact names or addresses, in that order), else of
// CANARY_SOCKET_IFNAME, else all but loopback, docker* and virbr*; loopback itself with a loopback join address, or if
// there is nothing else. CANARY_RAILS also takes addresses of 127.0.0.0/8 that no interface lists ("127.1.0.2/24"): the
// kernel answers to all of them. Such a rail is called lo:0, lo:1 … by its number, and stands in for a NIC on machines
// that have none. Errors (CANARY_INVALID_SETTING) name the setting, its value and what there is.
Result<std::vector<Rail>> choose_rails(const Settings& settings, const std::vector<Interface>& available,
                                       bool join_is_loopback);

}  // namespace canarynet
