// control/unique_id_fuzz.cc -- any bytes as a unique id: refused with a reason, or one whose encoding is these bytes.
// The checksum would keep the fuzzer out, so bytes of the right length are tried with a right one as well.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "control/unique_id.h"
#include "kernels/crc32c.h"

namespace {

void judge(std::span<const std::uint8_t> bytes) {
  const auto id = canarynet::control::decode_unique_id(bytes);
  if (!id.ok()) {
    if (id.status().text().empty()) std::abort();
    return;
  }
  const auto again = canarynet::control::encode(id.value());
  if (!std::equal(again.begin(), again.end(), bytes.begin(), bytes.end())) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  judge({data, size});
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto id = canarynet::control::parse_unique_id(text); !id.ok() && id.status().text().empty()) std::abort();
  if (size != canarynet::control::kUniqueIdBytes) return 0;
  canarynet::control::UniqueIdBytes sealed;
  std::copy_n(data, size, sealed.begin());
  std::memcpy(sealed.data(), "CANARID\x01", 8);
  const std::uint32_t crc = canarynet::crc32c(0, sealed.data(), size - 4);
  std::memcpy(sealed.data() + size - 4, &crc, 4);
  judge(sealed);
  return 0;
}
