// control/unique_id.h -- the 128 bytes by which ranks find rank 0: what canary_get_unique_id writes and the others
// read.
//
// What: where rank 0 listens (up to five addresses of its host, one port), a random token that tells this job from all
// others, and on which host the id was made. The application carries the bytes, so they are read as foreign ones:
// magic, version, every field and a checksum over all of it. The token is no secret to whoever can read the traffic: it
// protects from mistakes, not from attackers.
// Memory: values. Any thread. Failures: CANARY_INVALID_ARGUMENT with a reason ("the checksum is wrong: a byte changed
// on the way").
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "topology/address.h"

namespace canarynet::control {

//   0                   7     8              16             24     26    27    28                118      124      128
//   | magic "CANARID"   | ver | token        | host         | port | n   | 0   | 5 x address     | 0      | crc32c |
//   address: family (4 or 6), prefix, 16 bytes in network order, IPv4 in the first four; unused ones are zero.
inline constexpr std::size_t kUniqueIdBytes = 128;
inline constexpr std::uint8_t kUniqueIdVersion = 1;
inline constexpr std::size_t kUniqueIdAddressesMax = 5;

using UniqueIdBytes = std::array<std::uint8_t, kUniqueIdBytes>;

struct UniqueId {
  std::uint64_t token = 0;         // never 0
  std::uint64_t host = 0;          // host_mark() of where it was made
  std::uint16_t port = 0;          // never 0
  std::vector<Address> addresses;  // 1 to kUniqueIdAddressesMax, the likeliest first; their ports are `port`
};

UniqueIdBytes encode(const UniqueId& id);
Result<UniqueId> decode_unique_id(std::span<const std::uint8_t> bytes);

// The text that CANARY_JOIN takes: "id:" and 256 hexadecimal digits.
inline constexpr std::string_view kUniqueIdScheme = "id:";
std::string unique_id_text(std::span<const std::uint8_t, kUniqueIdBytes> bytes);
Result<UniqueId> parse_unique_id(std::string_view text);

// A host id (boot id and network namespace) as a number: equal where loopback is the same.
std::uint64_t host_mark(std::string_view host_id);

}  // namespace canarynet::control
