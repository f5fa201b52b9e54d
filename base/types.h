// base/types.h -- element types and reductions of the C ABI with their sizes and names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "canarynet/types.h"

namespace canarynet {

using DataType = canary_type;
using ReduceOp = canary_redop;

inline constexpr int kDataTypeCount = 8;
inline constexpr int kReduceOpCount = 5;

constexpr std::size_t size_of(DataType type) {
  switch (type) {
    case CANARY_F64:
    case CANARY_I64:
      return 8;
    case CANARY_F32:
    case CANARY_I32:
      return 4;
    case CANARY_F16:
    case CANARY_BF16:
      return 2;
    case CANARY_I8:
    case CANARY_U8:
      return 1;
  }
  return 0;
}
// "f32" …; "?" for a value outside the enum.
std::string_view name_of(DataType type);
std::string_view name_of(ReduceOp op);
// The reverse; false if the name is unknown.
bool parse(std::string_view name, DataType* type);
bool parse(std::string_view name, ReduceOp* op);

// The collectives that have schedules.
enum class Collective : std::uint8_t {
  kAllReduce = 0,
  kReduceScatter = 1,
  kAllGather = 2,
  kBroadcast = 3,
  kBarrier = 4,
  kReduce = 5,
  kGather = 6,
  kScatter = 7,
  kAllToAll = 8,
  kAllGatherV = 9,
  kAllToAllV = 10
};
inline constexpr int kCollectiveCount = 11;
// Whether contributions are added up, so that the reduction counts.
constexpr bool reduces(Collective c) {
  return c == Collective::kAllReduce || c == Collective::kReduceScatter || c == Collective::kReduce;
}
// Whether one rank gives or gets what the others do not, so that the root counts.
constexpr bool has_root(Collective c) {
  return c == Collective::kBroadcast || c == Collective::kReduce || c == Collective::kGather ||
         c == Collective::kScatter;
}
// Whether every pair of ranks has a block of its own in each direction.
constexpr bool is_pairwise(Collective c) { return c == Collective::kAllToAll || c == Collective::kAllToAllV; }
// Whether the caller says how long each block is.
constexpr bool has_counts(Collective c) { return c == Collective::kAllGatherV || c == Collective::kAllToAllV; }
// Whether the larger of a rank's two buffers is one block per rank, and the caller counts the elements of one.
constexpr bool in_blocks(Collective c) {
  return c == Collective::kReduceScatter || c == Collective::kAllGather || c == Collective::kGather ||
         c == Collective::kScatter || c == Collective::kAllGatherV || is_pairwise(c);
}
// Whether a rank's input is read, its output written.
constexpr bool reads_input(Collective c, bool is_root) {
  return is_root || (c != Collective::kBroadcast && c != Collective::kScatter);
}
constexpr bool writes_output(Collective c, bool is_root) {
  return is_root || (c != Collective::kReduce && c != Collective::kGather);
}
// Whether the input, or the output, holds the blocks of all ranks.
constexpr bool input_in_blocks(Collective c) {
  return c == Collective::kReduceScatter || c == Collective::kScatter || is_pairwise(c);
}
constexpr bool output_in_blocks(Collective c) {
  return c == Collective::kAllGather || c == Collective::kGather || c == Collective::kAllGatherV || is_pairwise(c);
}
std::string_view name_of(Collective op);
bool parse(std::string_view name, Collective* op);

}  // namespace canarynet
