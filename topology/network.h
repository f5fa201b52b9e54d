// topology/network.h -- a network of IP addresses, "10.61.0.0/16", as a route names it. A plain value; no I/O.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "topology/address.h"

namespace canarynet {

struct Network {
  Address base;           // family and bytes count; prefix and port are 0
  std::uint8_t bits = 0;  // of the prefix; 0: every address of the family (a default route)

  auto operator<=>(const Network&) const = default;
  static Network everything(Address::Family family);
  // The subnet that the address says it is in; an unknown one holds that address alone.
  static Network of(const Address& address);
  bool contains(const Address& address) const;
  bool contains(const Network& other) const { return other.bits >= bits && contains(other.base); }
  std::string to_string() const;  // "10.61.0.0/16"
};

// Covers the same addresses with as few networks as possible without joining neighbours: a network within another is
// dropped. More than `most` become one network of everything, which promises too much rather than too little.
std::vector<Network> summary_of(std::vector<Network> networks, std::size_t most);

}  // namespace canarynet
