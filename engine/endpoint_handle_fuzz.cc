// engine/endpoint_handle_fuzz.cc -- any bytes as a handle: refused with a reason, or a handle whose encoding is these
// bytes.
#include <algorithm>
#include <array>
#include <cstdlib>

#include "engine/endpoint_handle.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using canarynet::kHandleBytes;
  std::array<std::byte, kHandleBytes> bytes{};
  std::transform(data, data + std::min(size, kHandleBytes), bytes.begin(), [](std::uint8_t b) { return std::byte{b}; });
  const auto handle = canarynet::decode_handle(bytes);
  if (!handle.ok()) {
    if (handle.status().text().empty()) std::abort();
    return 0;
  }
  std::array<std::byte, kHandleBytes> again{};
  if (canarynet::encode(handle.value(), again) != handle.value().rails.size() || again != bytes) std::abort();
  return 0;
}
