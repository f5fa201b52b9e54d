// discovery/routes.h -- which networks the kernel's routing tables reach through which device, and which device it
// takes. Reads netlink; start-up only.
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

// The device by which the kernel's tables and rules send what goes from an own address of this host to `to`, IPv4 only;
// "" where it is not sent to a neighbour or a gateway, such as to this host itself, or where the kernel does not say.
std::string device_towards(const Address& from, const Address& to);

// What one message of the kernel's answer says, appended to `out`; false where it ends the answer or is malformed.
// `name_of_device` gives the name of an interface's number, "" where there is none.
bool read_routes(std::span<const std::byte> messages, std::string (*name_of_device)(unsigned),
                 std::vector<DeviceRoute>* out);

// The networks among `routes` that lead through `device` out of the subnet of `address`.
std::vector<Network> beyond(const std::vector<DeviceRoute>& routes, const std::string& device, const Address& address);

}  // namespace canarynet
