// compress/codec_decode_fuzz.cc -- gives foreign bytes to every decoder of compress/: messages, heads and bodies of all
// codecs, saved error feedback, indices of AR-Topk, texts of codecs. Whatever comes, it is refused with a reason or
// decoded to finite numbers; a sanitizer sees any read or write outside.
//
// Input: | codec: u8 | elements: u16 | piece begin: u8 | piece end: u8 | head bytes: u8 | then the bytes |.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "compress/ar_topk.h"
#include "compress/codec.h"
#include "compress/codec_test_util.h"
#include "compress/error_feedback.h"

namespace {

using namespace canarynet;

constexpr const char* kSpecs[] = {"dense",
                                  "fp16",
                                  "bf16",
                                  "int8",
                                  "sketch:8",
                                  "sketch:1",
                                  "sketch:5",
                                  "topk:0.1",
                                  "topk:1",
                                  "lwtopk:0.3",
                                  "mstopk:0.5",
                                  "randomk:0.2",
                                  "onebit",
                                  "signsgd",
                                  "terngrad",
                                  "power:2",
                                  "svd:3",
                                  "power:2+sketch:3",
                                  "int8,or-dense",
                                  "topk:0.5,or-dense",
                                  "sketch:2,or-dense"};
constexpr std::size_t kHeader = 6;

void require(bool condition) {
  if (!condition) std::abort();
}

// A refusal has a reason; what is taken is finite, unless NaN may travel dense.
void judge(const Status& status, const Coding& coding, const float* out, std::size_t count) {
  if (!status.ok()) return require(status.code() == CANARY_MISMATCH && !status.text().empty());
  require(coding.spec.or_dense || first_not_finite(out, count) == count);
}

void decode(std::span<const std::uint8_t> input) {
  const CodecSpec spec = codec_test::spec_of(kSpecs[input[0] % std::size(kSpecs)]);
  const std::size_t count = (input[1] | static_cast<std::size_t>(input[2]) << 8) % 2000;
  const Coding coding{spec, codec_test::segment_of(count)};
  require(check(coding).ok());
  const std::size_t begin = count * input[3] / 256;
  const Piece piece{begin, (count - begin) * input[4] / 255};
  const std::span<const std::uint8_t> bytes = input.subspan(kHeader);
  std::vector<std::byte> workspace(workspace_bytes(coding));
  // Exact-size blocks, so that one byte too many is seen.
  const auto out = std::make_unique<float[]>(count);
  judge(decode_whole(coding, bytes, workspace, out.get(), false), coding, out.get(), count);

  SegmentDecoder decoder(coding, workspace);
  const std::size_t head_bytes = std::min<std::size_t>(input[5], bytes.size());
  const auto head = std::make_unique<std::uint8_t[]>(head_bytes);
  std::copy_n(bytes.begin(), head_bytes, head.get());
  if (!decoder.open({head.get(), head_bytes}).ok()) return;
  const auto part = std::make_unique<float[]>(piece.count);
  judge(decoder.decode(piece, bytes.subspan(head_bytes), part.get()), coding, part.get(), piece.count);
  std::fill_n(part.get(), piece.count, 0.0F);
  judge(decoder.decode_add(piece, bytes.subspan(head_bytes), part.get()), coding, part.get(), piece.count);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const std::span<const std::uint8_t> input(data, bytes);
  if (bytes >= kHeader) decode(input);
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  if (const auto spec = parse_codec(text); spec.ok()) {
    require(check(spec.value()).ok());
    require(parse_codec(to_text(spec.value())).value() == spec.value());
  }
  ErrorFeedback feedback;
  if (feedback.restore(input).ok()) require(ErrorFeedback().restore(feedback.save()).ok());
  std::vector<std::uint32_t> indices(bytes / 4);
  std::copy_n(data, indices.size() * 4, reinterpret_cast<std::uint8_t*>(indices.data()));
  std::vector<float> values(100, 1), taken(indices.size());
  (void)take_at(indices, values, taken).ok();
  return 0;
}
