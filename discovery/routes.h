// discovery/routes.h -- which networks the kernel's routing tables reach through which device. Reads netlink; start-up
// only.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "topology/network.h"

namespace canarynet {

struct DeviceRoute {
  std::string device;
  Network network;
};

// Unicast routes of all tables but the local one, IPv4 and IPv6, each next hop on its own: rules choose between tables
// by what is sent, so a socket that is bound to a device may use any of them. Link-local and multicast networks are
// left out.
Result<std::vector<DeviceRoute>> list_routes();

// What one message of the kernel's answer says, appended to `out`; false where it ends the answer or is malformed.
// `name_of_device` gives the name of an interface's number, "" where there is none.
bool read_routes(std::span<const std::byte> messages, std::string (*name_of_device)(unsigned),
                 std::vector<DeviceRoute>* out);

// The networks among `routes` that lead through `device` out of the subnet of `address`.
std::vector<Network> beyond(const std::vector<DeviceRoute>& routes, const std::string& device, const Address& address);

}  // namespace canarynet
