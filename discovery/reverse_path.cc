#include "discovery/reverse_path.h"

#include <algorithm>
#include <fstream>

#include "discovery/routes.h"
#include "topology/shared_subnet.h"

namespace canarynet {
namespace {

constexpr int kStrict = 1;
// How many addresses of the subnet are tried in search of one that is not this host's.
constexpr int kTries = 64;

int setting_of(const std::string& scope) {
  std::ifstream file("/proc/sys/net/ipv4/conf/" + scope + "/rp_filter");
  int value = -1;
  file >> value;
  return file ? value : -1;
}

// The kernel takes the greater of the two.
int filter_of(const std::string& device) { return std::max(setting_of("all"), setting_of(device)); }

// The n-th address of the subnet.
Address address_in(const Network& subnet, std::uint32_t n) {
  Address out = subnet.base;
  for (std::size_t i = 4; i-- > 0 && n > 0; n >>= 8) {
    n += out.bytes[i];
    out.bytes[i] = static_cast<std::uint8_t>(n);
  }
  return out;
}

// The device over which others of the rail's subnet are answered.
std::string way_back(const Rail& rail, const ReversePathView& view) {
  const Network subnet = Network::of(rail.address);
  for (std::uint32_t n = 1; n <= kTries; ++n) {
    const Address other = address_in(subnet, n);
    if (!subnet.contains(other)) break;
    if (other.bytes == rail.address.bytes) continue;
    if (std::string device = view.device_towards(rail.address, other); !device.empty()) return device;
  }
  return "";
}

}  // namespace

ReversePathView kernels_reverse_path() { return {filter_of, device_towards}; }

std::string deaf_rail(std::span<const Rail> rails, const ReversePathView& view) {
  for (std::size_t i = 0; i < rails.size(); ++i) {
    const std::string& device = rails[i].device;
    if (!shares_subnet(rails, i) || view.filter_of(device) != kStrict) continue;
    const std::string way = way_back(rails[i], view);
    if (way.empty() || way == device) continue;
    std::string out = describe_shared_subnet(rails, i);
    out.append(", and hears nothing of it: rp_filter is 1 (strict) for ").append(device);
    return out.append(", and the kernel's route to that subnet leads over ").append(way);
  }
  return "";
}

}  // namespace canarynet
