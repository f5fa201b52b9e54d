// topology/shared_subnet.h -- finds the rails of one host that share an IPv4 subnet, and warns once if the kernel's
// settings are in their way.
//
// Linux answers ARP for every address of a host on each of its NICs, and may drop what comes in by a NIC other than its
// route back. Unless something is done about it, one of those NICs carries everything. IPv6 asks per NIC.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "topology/rails.h"

namespace canarynet {

// Whether another device of `rails` has an IPv4 address in the subnet of this one; false for loopback.
bool shares_subnet(std::span<const Rail> rails, std::size_t rail);

// "nic1 (10.1.1.1) shares 10.1.0.0/16 with nic0 (10.1.0.1)".
std::string describe_shared_subnet(std::span<const Rail> rails, std::size_t rail);

// Logs once per process: several reasons, ranks and endpoints lead to the same advice.
void warn_of_shared_subnet(const std::string& what);

}  // namespace canarynet
