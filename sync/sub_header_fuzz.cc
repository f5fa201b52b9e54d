// sync/sub_header_fuzz.cc -- any bytes as a sub-header: refused with a reason, or one whose encoding is these bytes.
// The first byte draws the number of workers. The hash would keep the fuzzer out, so a copy is tried with a right one.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "sync/sub_header.h"

namespace {

namespace sync = canarynet::sync;

// The set that was read, if the bytes were taken; the hash of what they say otherwise does not matter.
const char* judge(std::span<const std::uint8_t> bytes, const sync::SubHeaderBounds& bounds, sync::Contributors* set) {
  sync::SubHeader header;
  std::size_t used = 0;
  const char* why = sync::decode(bytes, bounds, &header, set, &used);
  if (why != nullptr) {
    if (*why == 0) std::abort();
    return why;
  }
  if (used > bytes.size() || used % 8 != 0) std::abort();
  if (!header.whole_set && !header.null) return nullptr;  // the set is not here, so it cannot be written again
  if (header.null) set->clear();
  std::vector<std::uint8_t> again(sync::sub_header_bytes_max(bounds.workers));
  if (sync::encode(header, *set, again) != used || !std::equal(again.begin(), again.begin() + used, bytes.begin())) {
    std::abort();
  }
  return nullptr;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const sync::SubHeaderBounds bounds{data[0] % 80 + 1, 10, 3};
  std::vector<std::uint8_t> bytes(data + 1, data + size);
  sync::Contributors set(bounds.workers);
  judge(bytes, bounds, &set);
  if (bytes.size() < sync::kSubHeaderFixedBytes) return 0;
  const std::uint8_t fixed[8] = {sync::kSubHeaderVersion,
                                 bytes[1],
                                 static_cast<std::uint8_t>(bytes[2] % 10),
                                 0,
                                 3,
                                 0,
                                 static_cast<std::uint8_t>(bounds.workers),
                                 0};
  std::memcpy(bytes.data(), fixed, sizeof fixed);
  set.clear();
  if (judge(bytes, bounds, &set) == nullptr) return 0;
  const std::uint32_t hash = set.hash();  // of what was read when the hash was found wrong
  std::memcpy(bytes.data() + 20, &hash, 4);
  judge(bytes, bounds, &set);
  return 0;
}
