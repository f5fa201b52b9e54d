// topology/address.h -- where a lane can be dialled: an IP address with its port and subnet, or a process's name in the
// shared memory of its host. A plain value; no I/O.
//
// The simulator uses the same type (10.x.y.z), so that pairing rails by subnet runs the same code everywhere.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace canarynet {

struct Address {
  // kSharedMemory: `bytes` are a name. Names with equal first halves (a "subnet" of 64 bits) meet: same host and user.
  enum class Family : std::uint8_t { kNone = 0, kSharedMemory = 1, kIPv4 = 4, kIPv6 = 6 };
  Family family = Family::kNone;
  std::uint8_t prefix_bits = 0;          // of the subnet; 0 = unknown
  std::uint16_t port = 0;                // host byte order; 0 = not yet known
  std::array<std::uint8_t, 16> bytes{};  // network byte order; IPv4 in the first four

  auto operator<=>(const Address&) const = default;
  bool valid() const { return family != Family::kNone; }
  bool loopback() const;
  // Whether both have one family and one subnet under the shorter prefix; false if either prefix is unknown.
  bool same_subnet(const Address& other) const;
  // "10.0.0.1:4000" or "[fe80::1]:4000", without the port if it is 0. A name in shared memory prints as "shm:" and its
  // own half, which parse() does not read.
  std::string to_string() const;

  static Address ipv4(std::uint8_t a, std::uint8_t b, std::uint8_t c, std::uint8_t d, std::uint8_t prefix_bits = 0,
                      std::uint16_t port = 0);
  // Reads "10.0.0.1", "10.0.0.1:4000", "10.0.0.1/24", "10.0.0.1/24:4000", "[::1]:4000" or "::1". Numeric only: names
  // are resolved in discovery/.
  static Result<Address> parse(std::string_view text);
};

}  // namespace canarynet
