// tools/run/wiring.h -- who is plugged in where: hosts, switches, addresses. Pure; nothing is created here.
//
// The last octet of an address is the host's number + 1; each switch has its own /24.
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
  std::string address;  // without prefix length, which is 24
};

struct Wiring {
  std::vector<std::string> switches;
  std::vector<Port> ports;  // host-major: port of (h, k) at h * nics + k
  int nics = 0;

  const Port& port(int host, int nic) const { return ports[static_cast<std::size_t>(host * nics + nic)]; }
};

Wiring make_wiring(const RunOptions& options);
// The port's address in the loopback network, "127.1.0.1" for "10.1.0.1", and those of a host's NICs as CANARY_RAILS
// takes them.
std::string alias_of(const Port& port);
std::string alias_rails(const Wiring& wiring, int host);
// 10.0.0.(host + 1), of ctl0.
std::string control_address(int host);

}  // namespace canarynet::run
