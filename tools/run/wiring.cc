#include "tools/run/wiring.h"

#include <algorithm>
#include <map>

namespace canarynet::run {
namespace {

// The place where a NIC is plugged in.
struct Socket {
  std::string name;  // of the switch
  int a = 0, b = 0;  // 10.a.b.c, fd00:a:b::c
  int c = 0;
  int prefix = 24, prefix6 = 64;
  int gateway = 0;  // its c; 0: there is none
};

// Table numbers of the main ones are taken: 253 to 255.
constexpr int kFirstTable = 1000;
constexpr int kFirstMetric = 100;
// Every router has this address on every link, as the NICs see it.
constexpr const char* kLinkLocalGateway = "fe80::1";

std::string address_of(bool ipv6, int a, int b, int c) {
  const std::string first = std::to_string(a), second = std::to_string(b), third = std::to_string(c);
  if (!ipv6) return "10." + first + "." + second + "." + third;
  return b == 0 ? "fd00:" + first + "::" + third : "fd00:" + first + ":" + second + "::" + third;
}

Socket socket_of(const RunOptions& o, int host, int nic) {
  switch (o.topology) {
    case Topology::kFlat:
      return {"sw" + std::to_string(nic), 1 + nic, 0, host + 1};
    case Topology::kMesh: {
      const int other = nic < host ? nic : nic + 1;  // NICs count the other hosts upward
      const int low = std::min(host, other), high = std::max(host, other);
      return {"sw" + std::to_string(low) + "_" + std::to_string(high), 1 + low, high, host + 1};
    }
    case Topology::kBcube: {
      // The level's switch is numbered by the host's other digits.
      int below = 1;
      for (int i = 0; i < nic; ++i) below *= o.radix;
      const int number = host / (below * o.radix) * below + host % below;
      return {"sw" + std::to_string(nic) + "_" + std::to_string(number), 1 + nic, number, host + 1};
    }
    case Topology::kRouted:
      return {"router", 1 + nic, host, 2, 24, 64, 1};
    case Topology::kPointToPoint:
      return {"router", 1 + nic, 0, host + 2, 32, 128, 1};
    case Topology::kOneSubnet:  // the hosts' numbers within a /16, or those of its IPv6 counterpart
      return {"sw0", 1, nic, host + 1, 16, 32};
  }
  return {};
}

}  // namespace

std::string control_address(int host) { return "10.0.0." + std::to_string(host + 1); }

std::string host_addressing(const Wiring& wiring, const Port& p) {
  const std::string nodad = wiring.ipv6 ? " nodad" : "";
  std::string batch = "addr replace " + p.address + "/" + std::to_string(p.prefix) + " dev " + p.device + nodad +
                      "\nlink set " + p.device + " up\n";
  if (p.gateway.empty()) return batch;
  // A gateway outside every subnet of the NIC needs a route of its own.
  if (!wiring.ipv6 && p.prefix == 32) batch += "route replace " + p.gateway + "/32 dev " + p.device + "\n";
  const std::string way = "route replace default via " + p.gateway + " dev " + p.device;
  batch += way + " metric " + std::to_string(kFirstMetric + p.nic) + "\n";
  return batch + way + " table " + std::to_string(kFirstTable + p.nic) + "\n";
}

std::string source_rule(const Port& p) {
  if (p.gateway.empty()) return "";
  return "rule add from " + p.address + " lookup " + std::to_string(kFirstTable + p.nic) + "\n";
}

std::string router_addressing(const Wiring& wiring, const Port& p, const std::string& device) {
  const std::string whole = wiring.ipv6 ? "/128" : "/32", length = wiring.ipv6 ? "/64" : "/" + std::to_string(p.prefix);
  std::string batch = "link set " + device + " up\naddr add " + p.gateway + length + " dev " + device +
                      (wiring.ipv6 ? " nodad\n" : "\n");
  // This route is needed if the router's own address is in no subnet with the NIC's.
  if (wiring.ipv6 || length == whole) batch += "route add " + p.address + whole + " dev " + device + "\n";
  return batch;
}

std::string alias_of(const Port& port) { return "127" + port.address.substr(port.address.find('.')); }

std::string alias_rails(const Wiring& wiring, int host) {
  std::string rails;
  for (int k = 0; k < wiring.nics; ++k) rails += (k > 0 ? "," : "") + alias_of(wiring.port(host, k)) + "/24";
  return rails;
}

Wiring make_wiring(const RunOptions& o) {
  Wiring w;
  w.nics = o.nics;
  w.routed = o.topology == Topology::kRouted || o.topology == Topology::kPointToPoint;
  w.ipv6 = o.ipv6;
  std::map<std::string, int> known;
  for (int host = 0; host < o.hosts; ++host) {
    for (int nic = 0; nic < o.nics; ++nic) {
      const Socket socket = socket_of(o, host, nic);
      const auto [at, fresh] = known.emplace(socket.name, static_cast<int>(w.switches.size()));
      if (fresh) w.switches.push_back(socket.name);
      std::string gateway;
      if (socket.gateway != 0)
        gateway = o.ipv6 ? kLinkLocalGateway : address_of(false, socket.a, socket.b, socket.gateway);
      w.ports.push_back(
          {host, nic, at->second, "nic" + std::to_string(nic), "p" + std::to_string(host) + "_" + std::to_string(nic),
           address_of(o.ipv6, socket.a, socket.b, socket.c), o.ipv6 ? socket.prefix6 : socket.prefix, gateway});
    }
  }
  return w;
}

}  // namespace canarynet::run
