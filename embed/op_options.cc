#include "embed/op_options.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

namespace canarynet {
namespace {

// Sizes of older versions.
constexpr std::size_t kWithoutMomentum = offsetof(canary_op_options, momentum);
constexpr std::size_t kWithoutRows = offsetof(canary_op_options, rows);

Status wrong(const std::string& what) { return Status(CANARY_INVALID_ARGUMENT, "canary_op_options." + what); }

}  // namespace

Nanos span_of(std::uint64_t nanoseconds) {
  return Nanos{static_cast<std::int64_t>(std::min<std::uint64_t>(nanoseconds, INT64_MAX / 2))};
}

Status read_options(const canary_op_options* options, bool takes_codec, OptionsRead* read) {
  if (options == nullptr) return {};
  const std::size_t size = options->struct_size;
  if (size != sizeof(canary_op_options) && size != kWithoutRows && size != kWithoutMomentum) {
    return wrong("struct_size is " + std::to_string(size) + ", expected " + std::to_string(sizeof(canary_op_options)) +
                 " (use CANARY_OP_OPTIONS_INIT)");
  }
  if (options->priority != CANARY_PRIORITY_NORMAL && options->priority != CANARY_PRIORITY_URGENT) {
    return wrong("priority is " + std::to_string(options->priority) +
                 ": takes CANARY_PRIORITY_NORMAL (0) or CANARY_PRIORITY_URGENT (1)");
  }
  if (options->codec != 0 && !takes_codec)
    return wrong("codec is " + std::to_string(options->codec) + ": only all_reduce takes one");
  if (options->tensor != 0 && options->codec == 0)
    return wrong("tensor is " + std::to_string(options->tensor) + " without a codec");
  const bool has_momentum = size != kWithoutMomentum;
  const float momentum = has_momentum ? options->momentum : 0;
  if (!(momentum >= 0 && momentum < 1))
    return wrong("momentum is " + std::to_string(momentum) + ": takes 0 (none) to below 1");
  if (momentum != 0 && options->tensor == 0)
    return wrong("momentum is " + std::to_string(momentum) + " without a tensor");
  if (has_momentum && options->reserved != 0)
    return wrong("reserved is " + std::to_string(options->reserved) + ", expected 0 (use CANARY_OP_OPTIONS_INIT)");
  const std::uint64_t rows = size == sizeof(canary_op_options) ? options->rows : 0;
  if (rows != 0 && options->codec == 0) return wrong("rows is " + std::to_string(rows) + " without a codec");
  read->momentum = momentum;
  read->rows = rows;
  read->priority = static_cast<canary_priority>(options->priority);
  read->time_limit = span_of(options->deadline);
  read->codec = options->codec;
  read->tensor = options->tensor;
  return {};
}

}  // namespace canarynet
