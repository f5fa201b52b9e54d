#include "engine/endpoint_handle.h"

#include <cstdio>
#include <cstring>

namespace canarynet {
namespace {

constexpr std::uint16_t kMagic = 0xCA9B;
constexpr std::uint8_t kVersion = 1, kVersionWithMemory = 2;
constexpr std::size_t kFixed = 16;
constexpr std::uint8_t kIPv6Code = 64;
constexpr std::uint8_t kMemoryCode = 255;
constexpr std::uint8_t kMemoryPrefix = 64;  // of every name; see Address::Family

bool is_memory(const Address& a) { return a.family == Address::Family::kSharedMemory; }

std::uint8_t code_of(const Address& a) {
  if (is_memory(a)) return kMemoryCode;
  return a.family == Address::Family::kIPv4 ? a.prefix_bits : static_cast<std::uint8_t>(kIPv6Code + a.prefix_bits);
}

std::size_t address_bytes(const Address& a) { return a.family == Address::Family::kIPv4 ? 4 : 16; }

}  // namespace

std::string EndpointHandle::text() const {
  std::string out;
  for (const Address& a : rails) {
    if (!is_memory(a) || out.empty()) out += (out.empty() ? "" : ", ") + a.to_string();
  }
  return out;
}

std::size_t encode(const EndpointHandle& handle, std::span<std::byte> out) {
  std::memset(out.data(), 0, out.size());
  std::size_t at = kFixed;
  std::uint8_t count = 0, version = kVersion;
  for (const Address& a : handle.rails) {
    const std::size_t bytes = address_bytes(a);
    if (!a.valid() || at + 3 + bytes > out.size() || count == kRailsMax) break;
    if (is_memory(a)) version = kVersionWithMemory;
    out[at] = static_cast<std::byte>(code_of(a));
    std::memcpy(&out[at + 1], &a.port, 2);
    std::memcpy(&out[at + 3], a.bytes.data(), bytes);
    at += 3 + bytes;
    ++count;
  }
  std::memcpy(&out[0], &kMagic, 2);
  out[2] = static_cast<std::byte>(version);
  out[3] = static_cast<std::byte>(count);
  std::memcpy(&out[4], &handle.listener, 4);
  std::memcpy(&out[8], &handle.token, 8);
  return count;
}

Result<EndpointHandle> decode_handle(std::span<const std::byte, kHandleBytes> bytes) {
  const auto refuse = [](canary_status code, const std::string& why) { return Status(code, "handle: " + why); };
  std::uint16_t magic = 0;
  std::memcpy(&magic, &bytes[0], 2);
  if (magic != kMagic) {
    char hex[8];
    std::snprintf(hex, sizeof hex, "%04x", static_cast<unsigned>(magic));
    return refuse(CANARY_INVALID_ARGUMENT, "it begins with 0x" + std::string(hex) +
                                               " and is none of Canary's: does the other side use another transport?");
  }
  const auto version = static_cast<std::uint8_t>(bytes[2]);
  if (version != kVersion && version != kVersionWithMemory) {
    return refuse(CANARY_VERSION, "it has version " + std::to_string(version) + ", this library speaks versions " +
                                      std::to_string(kVersion) + " and " + std::to_string(kVersionWithMemory));
  }
  const auto count = static_cast<std::uint8_t>(bytes[3]);
  if (count == 0 || count > kRailsMax)
    return refuse(CANARY_INVALID_ARGUMENT, "it names " + std::to_string(count) + " rails, 1 to 16 are possible");
  EndpointHandle h;
  std::memcpy(&h.listener, &bytes[4], 4);
  std::memcpy(&h.token, &bytes[8], 8);
  std::size_t at = kFixed;
  for (int i = 0; i < count; ++i) {
    if (at == kHandleBytes) return refuse(CANARY_INVALID_ARGUMENT, "its rails are longer than it is");
    const auto code = static_cast<std::uint8_t>(bytes[at]);
    Address a;
    if (code == kMemoryCode && version == kVersionWithMemory) {
      if (i + 1 != count) return refuse(CANARY_INVALID_ARGUMENT, "something follows its name in shared memory");
      a.family = Address::Family::kSharedMemory;
      a.prefix_bits = kMemoryPrefix;
    } else {
      const bool six = code >= kIPv6Code;
      a.family = six ? Address::Family::kIPv6 : Address::Family::kIPv4;
      a.prefix_bits = static_cast<std::uint8_t>(six ? code - kIPv6Code : code);
      if (a.prefix_bits > (six ? 128 : 32))
        return refuse(CANARY_INVALID_ARGUMENT, "rail " + std::to_string(i) + " has no such subnet");
    }
    const std::size_t length = address_bytes(a);
    if (at + 3 + length > kHandleBytes) return refuse(CANARY_INVALID_ARGUMENT, "its rails are longer than it is");
    std::memcpy(&a.port, &bytes[at + 1], 2);
    if (a.port == 0) return refuse(CANARY_INVALID_ARGUMENT, "rail " + std::to_string(i) + " has no port");
    std::memcpy(a.bytes.data(), &bytes[at + 3], length);
    at += 3 + length;
    h.rails.push_back(a);
  }
  for (; at < kHandleBytes; ++at) {
    if (bytes[at] != std::byte{0}) return refuse(CANARY_INVALID_ARGUMENT, "something follows its rails");
  }
  if (version == kVersionWithMemory && !is_memory(h.rails.back()))
    return refuse(CANARY_INVALID_ARGUMENT, "it is of version 2 and has no name in shared memory");
  return h;
}

}  // namespace canarynet
