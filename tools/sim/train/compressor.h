// tools/sim/train/compressor.h -- what a codec leaves of the gradients that workers give to an exchange.
//
// Each worker encodes each of its colayers and goes on with what that decodes to; the rest waits as a residual for its
// next gradient (error feedback). Sums on their way are not encoded again, which ring and BCube plans would do at each
// hop. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "compress/codec.h"
#include "compress/error_feedback.h"
#include "tools/sim/train/slices.h"

namespace canarynet::sim {

class Compressor {
 public:
  // A codec whose values can be summed in an all-reduce; the error says which can't.
  static Result<CodecSpec> parse(std::string_view text);
  // Bytes sent per byte of a long gradient.
  static double share(const CodecSpec& spec);

  Compressor(const CodecSpec& spec, std::vector<Slice> slices, int workers);
  // Colayer z of a worker's gradient. An error where values are not finite.
  Status apply(int worker, int z, std::span<float> values);

 private:
  CodecSpec spec_;
  std::vector<Slice> slices_;
  std::vector<ErrorFeedback> left_;  // per worker; tensors are colayers
  std::vector<float> compensated_;
  std::vector<std::byte> workspace_;
  std::vector<std::uint8_t> encoded_;
};

}  // namespace canarynet::sim
