// kernels/crc32c.h -- CRC32C (Castagnoli, RFC 3720): a scalar table specifies it, SSE4.2 or wider is chosen at run
// time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace canarynet {

// Continues `crc` (0 to begin) over `bytes` bytes. Any alignment. Thread-safe.
std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes);

}  // namespace canarynet
