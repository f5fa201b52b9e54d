#include "topology/network.h"

#include <algorithm>

namespace canarynet {
namespace {

bool is_internet(Address::Family family) {
  return family == Address::Family::kIPv4 || family == Address::Family::kIPv6;
}

// Clears everything after the first `bits` bits.
void mask(std::array<std::uint8_t, 16>* bytes, int bits) {
  for (int i = 0; i < 16; ++i) {
    const int kept = std::clamp(bits - 8 * i, 0, 8);
    (*bytes)[static_cast<std::size_t>(i)] &= static_cast<std::uint8_t>(0xff00 >> kept);
  }
}

}  // namespace

Network Network::everything(Address::Family family) {
  Network network;
  network.base.family = family;
  return network;
}

Network Network::of(const Address& address) {
  Network network;
  network.base.family = address.family;
  network.base.bytes = address.bytes;
  const std::uint8_t whole = address.family == Address::Family::kIPv4 ? 32 : 128;
  network.bits = address.prefix_bits == 0 ? whole : std::min(address.prefix_bits, whole);
  mask(&network.base.bytes, network.bits);
  return network;
}

bool Network::contains(const Address& address) const {
  if (address.family != base.family || !is_internet(base.family)) return false;
  auto bytes = address.bytes;
  mask(&bytes, bits);
  return bytes == base.bytes;
}

std::string Network::to_string() const { return base.to_string() + "/" + std::to_string(bits); }

std::vector<Network> summary_of(std::vector<Network> networks, std::size_t most) {
  std::sort(networks.begin(), networks.end());
  networks.erase(std::unique(networks.begin(), networks.end()), networks.end());
  std::vector<Network> out;
  for (const Network& n : networks) {
    const bool within = std::any_of(networks.begin(), networks.end(),
                                    [&](const Network& other) { return other != n && other.contains(n); });
    if (!within) out.push_back(n);
  }
  if (out.size() <= most) return out;
  std::vector<Network> whole;
  for (const Network& n : out) {
    const Network all = Network::everything(n.base.family);
    if (std::find(whole.begin(), whole.end(), all) == whole.end()) whole.push_back(all);
  }
  return whole;
}

}  // namespace canarynet
