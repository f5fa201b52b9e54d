// engine/endpoint_handle.h -- the 128 bytes by which a listener is reached: made by one process, carried by anybody,
// read as foreign bytes.
//
//   0        2     3     4              8                             16
//   | magic  | ver | n   | listener     | token of the endpoint       | n rails ... zeroes up to 128
//   rail: | code | port 2 | address 4 or 16 |   code: prefix of an IPv4 subnet (0 to 32), 64 + that of an IPv6 one, or
//                                                255: the address is a name in shared memory, the last rail's
//
// Version 2 is one with such a name; without one it is version 1, which older libraries read. Little-endian; addresses
// in network order. 16 rails with IPv4 fit, or 13 and a name, or 5 with IPv6, or 4 and a name; what does not fit is
// left out, the name first. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "port/command.h"
#include "topology/rails.h"

namespace canarynet {

inline constexpr std::size_t kHandleBytes = port::kHandleBytes;

struct EndpointHandle {
  std::uint64_t token = 0;     // random, of the endpoint: who has it may connect
  std::uint32_t listener = 0;  // number of the listener there
  std::vector<Address> rails;  // where its lanes are accepted, in rail order

  // "10.0.0.1:4000, 10.0.1.1:4000": for messages. A name in shared memory only where there is nothing else.
  std::string text() const;
};

// Fills `out`, of up to kHandleBytes; returns how many of the rails fit in.
std::size_t encode(const EndpointHandle& handle, std::span<std::byte> out);
// CANARY_INVALID_ARGUMENT or CANARY_VERSION, with what is wrong.
Result<EndpointHandle> decode_handle(std::span<const std::byte, kHandleBytes> bytes);

}  // namespace canarynet
