// plugins/nccl/handle_fuzz.cc -- gives connect any bytes as NCCL's handle: they are refused in words, or are a trailer
// that is written back the same.
#include <algorithm>
#include <cstdlib>

#include "plugins/nccl/handle.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace canarynet::nccl;
  HandleBytes bytes{};
  std::transform(data, data + std::min(size, bytes.size()), bytes.begin(), [](std::uint8_t b) { return std::byte{b}; });
  CostModel model;
  if (!read_trailer(bytes, &model).empty()) return 0;
  HandleBytes again = bytes;
  write_trailer(model, again);
  if (again != bytes) std::abort();
  const HandleBytes part = endpoint_part(bytes);
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (part[i] != (i < kEndpointBytes ? bytes[i] : std::byte{0})) std::abort();
  }
  return 0;
}
