// sync/sub_header.h -- what a piece of a session says before its payload. Little-endian.
//
//   0         1       2           4          6           8          12        16        20             24
//   | version | flags | colayer16 | layout16 | workers16 | round32  | ζ 32    | t 32    | set hash 32  |
//   24: with kWholeSet a bitmap of the workers, then per member two numbers: ζ - t_last, t_last - t_first
//   zeros up to a multiple of 8, where the payload begins
//
// The numbers are little-endian base 128 in their shortest form: a byte each as long as nobody lags by 128 iterations.
// A piece carries the whole set in the first piece of a part and step, and the hash in the rest. A null piece (kNull)
// is this header only, and its set is empty. So is a notice (kOpening): it is no part of the round, but says that one
// has been opened, to engines that the round's first steps do not reach (session_rounds.h). Epoch, source and length
// are in the frame's own header (transport/wire.h).
// decode() takes any bytes; nothing here allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sync/contributors.h"

namespace canarynet::sync {

inline constexpr std::uint8_t kSubHeaderVersion = 1;
inline constexpr std::size_t kSubHeaderFixedBytes = 24;
inline constexpr Iteration kIterationMax = 0x7fffffff;  // of ζ and t on the wire

struct SubHeader {
  bool null = false;       // nobody contributed: no payload follows
  bool opening = false;    // a notice that the round was opened: null, and no part of it
  bool whole_set = false;  // the contributors themselves, not only their hash
  std::uint16_t colayer = 0;
  std::uint16_t layout = 0;
  std::uint32_t round = 0;
  Iteration newest = 1;     // ζ as the source knows it; no contributor is newer
  Iteration iteration = 1;  // t of the source
  std::uint32_t set_hash = 0;
};

// What a session expects of all its pieces.
struct SubHeaderBounds {
  int workers = 0;
  int colayers = 0;
  std::uint16_t layout = 0;
};

// The longest sub-header of n workers.
std::size_t sub_header_bytes_max(int workers);

// Writes the sub-header and returns its bytes. null and set_hash follow from `set`, whatever `header` says;
// a notice has no contributors. `out` holds
// sub_header_bytes_max() at least; ζ is not below any contributor.
std::size_t encode(const SubHeader& header, const Contributors& set, std::span<std::uint8_t> out);

// Reads what `bytes` begins with: nullptr, or why it is refused. `set` (of bounds.workers) is written only with
// whole_set, `header` and `used` (where the payload begins) always when the sub-header is taken. After a refusal all
// three are unspecified.
const char* decode(std::span<const std::uint8_t> bytes, const SubHeaderBounds& bounds, SubHeader* header,
                   Contributors* set, std::size_t* used);

}  // namespace canarynet::sync
