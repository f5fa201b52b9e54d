// collectives/null_piece.h -- null pieces: those whose bytes are all zero, which travel without them.
//
// docs/decisions/0054-rounds-with-codecs.md says where, and who takes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace canarynet {

// Zeros that a sum takes in the place of a null piece's bytes, block by block.
inline constexpr std::size_t kZeroBlock = 4096;
alignas(64) inline constexpr std::byte kZeros[kZeroBlock] = {};

// Whether there are bytes, and all are zero. Looks no further than the first one that is not, so it costs nothing where
// values are. -0.0 has a bit.
inline bool all_zero(const void* data, std::size_t bytes) {
  std::uint64_t first = 0;
  if (bytes < sizeof first) return bytes != 0 && std::memcmp(data, kZeros, bytes) == 0;
  std::memcpy(&first, data, sizeof first);
  // Each word is like the one before.
  return first == 0 && std::memcmp(data, static_cast<const std::byte*>(data) + sizeof first, bytes - sizeof first) == 0;
}

}  // namespace canarynet
