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
// The reverse; false when the name is unknown.
bool parse(std::string_view name, DataType* type);
bool parse(std::string_view name, ReduceOp* op);

// The collectives that have schedules.
enum class Collective : std::uint8_t {
  kAllReduce = 0,
  kReduceScatter = 1,
  kAllGather = 2,
  kBroadcast = 3,
  kBarrier = 4
};
inline constexpr int kCollectiveCount = 5;
std::string_view name_of(Collective op);
bool parse(std::string_view name, Collective* op);

}  // namespace canarynet
