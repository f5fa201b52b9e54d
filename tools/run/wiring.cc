#include "tools/run/wiring.h"

#include <map>

namespace canarynet::run {
namespace {

struct Place {
  std::string name;    // of the switch
  std::string subnet;  // "10.1.0."
};

std::string dotted(int a, int b) { return "10." + std::to_string(a) + "." + std::to_string(b) + "."; }

Place place_of(const RunOptions& o, int host, int nic) {
  switch (o.topology) {
    case Topology::kFlat:
      return {"sw" + std::to_string(nic), dotted(1 + nic, 0)};
    case Topology::kMesh: {
      const int other = nic < host ? nic : nic + 1;  // NICs count the other hosts upward
      const int low = std::min(host, other), high = std::max(host, other);
      return {"sw" + std::to_string(low) + "_" + std::to_string(high), dotted(1 + low, high)};
    }
    case Topology::kBcube: {
      // The level's switch is numbered by the host's other digits.
      int below = 1;
      for (int i = 0; i < nic; ++i) below *= o.radix;
      const int number = host / (below * o.radix) * below + host % below;
      return {"sw" + std::to_string(nic) + "_" + std::to_string(number), dotted(1 + nic, number)};
    }
  }
  return {};
}

}  // namespace

std::string control_address(int host) { return "10.0.0." + std::to_string(host + 1); }

std::string alias_of(const Port& port) { return "127" + port.address.substr(port.address.find('.')); }

std::string alias_rails(const Wiring& wiring, int host) {
  std::string rails;
  for (int k = 0; k < wiring.nics; ++k) rails += (k > 0 ? "," : "") + alias_of(wiring.port(host, k)) + "/24";
  return rails;
}

Wiring make_wiring(const RunOptions& o) {
  Wiring w;
  w.nics = o.nics;
  std::map<std::string, int> known;
  for (int host = 0; host < o.hosts; ++host) {
    for (int nic = 0; nic < o.nics; ++nic) {
      const Place place = place_of(o, host, nic);
      const auto [at, fresh] = known.emplace(place.name, static_cast<int>(w.switches.size()));
      if (fresh) w.switches.push_back(place.name);
      w.ports.push_back({host, nic, at->second, "nic" + std::to_string(nic),
                         "p" + std::to_string(host) + "_" + std::to_string(nic),
                         place.subnet + std::to_string(host + 1)});
    }
  }
  return w;
}

}  // namespace canarynet::run
