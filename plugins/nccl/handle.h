// plugins/nccl/handle.h -- the 128 bytes that NCCL carries from a listener to a peer that connects to it. They are read
// as foreign bytes.
//
//   0                              112     114   115    116          120
//   | handle of the endpoint       | magic | ver | zero | alpha ns   | bytes per second |
//
// Little-endian. The endpoint's part is engine/endpoint_handle.h's, shortened to 112 bytes: 13 NICs with IPv4, 5 with
// IPv6. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "plugins/nccl/abi/types.h"
#include "plugins/nccl/cost_model.h"

namespace canarynet::nccl {

inline constexpr std::size_t kEndpointBytes = 112;
inline constexpr std::uint16_t kHandleMagic = 0x4E43;
inline constexpr std::uint8_t kHandleVersion = 1;

using HandleBytes = std::array<std::byte, abi::kHandleBytes>;

// Fills the bytes that follow the endpoint's part.
inline void write_trailer(const CostModel& model, std::span<std::byte, abi::kHandleBytes> handle) {
  std::memset(&handle[kEndpointBytes], 0, abi::kHandleBytes - kEndpointBytes);
  std::memcpy(&handle[kEndpointBytes], &kHandleMagic, 2);
  handle[kEndpointBytes + 2] = std::byte{kHandleVersion};
  std::memcpy(&handle[kEndpointBytes + 4], &model.alpha_ns, 4);
  std::memcpy(&handle[kEndpointBytes + 8], &model.bytes_per_second, 8);
}

// Returns "" for a handle of this plugin, with `model` filled; else what is wrong with it.
inline std::string read_trailer(std::span<const std::byte, abi::kHandleBytes> handle, CostModel* model) {
  std::uint16_t magic = 0;
  std::memcpy(&magic, &handle[kEndpointBytes], 2);
  const auto version = static_cast<unsigned>(handle[kEndpointBytes + 2]);
  if (magic != kHandleMagic) {
    std::string hex;
    for (std::size_t i = 0; i < 8; ++i) {
      constexpr char kDigits[] = "0123456789abcdef";
      const auto byte = static_cast<unsigned>(handle[i]);
      hex += {kDigits[byte >> 4], kDigits[byte & 15]};
    }
    return "the handle (" + hex +
           "...) was not made by Canary: the peer has loaded another network plugin, or none (NCCL_NET_PLUGIN "
           "must be the same on all ranks)";
  }
  if (version != kHandleVersion)
    return "the peer's plugin makes handles of version " + std::to_string(version) + ", this one of version " +
           std::to_string(kHandleVersion) + ": install the same on all hosts";
  if (handle[kEndpointBytes + 3] != std::byte{0}) return "the handle is damaged: byte 115 is not zero";
  std::memcpy(&model->alpha_ns, &handle[kEndpointBytes + 4], 4);
  std::memcpy(&model->bytes_per_second, &handle[kEndpointBytes + 8], 8);
  if (!model->set() && model->alpha_ns != 0) return "the handle is damaged: a start-up time without a bandwidth";
  return {};
}

// The bytes that canary_connect takes.
inline HandleBytes endpoint_part(std::span<const std::byte, abi::kHandleBytes> handle) {
  HandleBytes out{};
  std::memcpy(out.data(), handle.data(), kEndpointBytes);
  return out;
}

}  // namespace canarynet::nccl
