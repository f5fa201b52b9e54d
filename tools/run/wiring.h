// tools/run/wiring.h -- the plan of hosts, switches and addresses, and what is plugged in where. Pure; creates nothing.
//
// Each switch has a subnet of its own, in which the last part of an address is the host's number + 1. Behind routers
// each NIC has one of its own, with the router's address in it; with pointtopoint the addresses are in no subnet. One
// numbering serves both families: 10.1.0.2 is fd00:1::2 with --ipv6.
#pragma once

#include <string>
#include <vector>

#include "tools/run/options.h"

namespace canarynet::run {

struct Port {
  int host = 0;
  int nic = 0;
  int switch_index = 0;
  std::string device;   // in the host: "nic0"
  std::string uplink;   // the veth's other end, in the fabric: "p1_0"
  std::string address;  // without the prefix length
  int prefix = 24;
  std::string gateway;  // the router's end; "" on a switch
};

struct Wiring {
  std::vector<std::string> switches;
  std::vector<Port> ports;  // host-major: port of (h, k) at h * nics + k
  int nics = 0;
  bool routed = false;  // the only "switch" is a router
  bool ipv6 = false;

  const Port& port(int host, int nic) const { return ports[static_cast<std::size_t>(host * nics + nic)]; }
};

Wiring make_wiring(const RunOptions& options);
// Lines for `ip -batch` in a host: a NIC's address and, behind a router, its routes. They are also needed after the NIC
// was down, which costs it its routes, and with IPv6 its addresses. A packet leaves over the NIC whose address it
// carries, as clouds set it up (`source_rule`, once per NIC), else over the first.
std::string host_addressing(const Wiring& wiring, const Port& port);
std::string source_rule(const Port& port);
// The same at the router, where `device` leads to the port.
std::string router_addressing(const Wiring& wiring, const Port& port, const std::string& device);

// The port's address in the loopback network, "127.1.0.1" for "10.1.0.1", and those of a host's NICs as CANARY_RAILS
// takes them.
std::string alias_of(const Port& port);
std::string alias_rails(const Wiring& wiring, int host);
// 10.0.0.(host + 1), the address of ctl0; it is IPv4 also beside NICs with IPv6.
std::string control_address(int host);

}  // namespace canarynet::run
