// discovery/routes.h -- the networks that the kernel's routing tables reach through each device, and the device that
// the kernel takes. Reads netlink; start-up only.
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

// Unicast routes of all tables but the local one, IPv4 and IPv6, one entry per next hop. Rules choose between tables by
// what is sent, so a socket that is bound to a device may use any of them. Link-local and multicast networks are left
// out.
Result<std::vector<DeviceRoute>> list_routes();

// The device by which the kernel's tables and rules send from an address of this host to `to`, IPv4 only. Returns "" if
// it is not sent to a neighbour or a gateway, such as to this host itself, or if the kernel does not say.
std::string device_towards(const Address& from, const Address& to);

// Appends what one message of the kernel's answer says to `out`; false if the message ends the answer or is malformed.
// `name_of_device` gives the name of an interface's number, "" if there is none.
bool read_routes(std::span<const std::byte> messages, std::string (*name_of_device)(unsigned),
                 std::vector<DeviceRoute>* out);

// The networks among `routes` that are reached through `device` and lie outside the subnet of `address`.
std::vector<Network> beyond(const std::vector<DeviceRoute>& routes, const std::string& device, const Address& address);

}  // namespace canarynet
