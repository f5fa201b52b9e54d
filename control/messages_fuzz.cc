// control/messages_fuzz.cc -- any bytes as a control message: refused with a reason, or a message whose encoding is
// these bytes.
#include <algorithm>
#include <cstdlib>

#include "control/messages.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto message = canarynet::control::decode(bytes);
  if (!message.ok()) {
    if (message.status().text().empty()) std::abort();
    return 0;
  }
  const auto again = canarynet::control::encode(message.value());
  if (again.size() != size || !std::equal(again.begin(), again.end(), bytes.begin())) std::abort();
  return 0;
}
