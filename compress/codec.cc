#include "compress/codec.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "compress/method.h"
#include "kernels/codec.h"

namespace canarynet {
namespace {

// With or_dense the head begins with one byte that says how the segment travels.
constexpr std::uint8_t kCoded = 1;
constexpr std::uint8_t kTravelsDense = 2;
constexpr std::size_t kLengthBytes = 4;  // of the head, in encode_whole

// artopk is a collective, and has no segments.
constexpr std::size_t kMethodCount = kCodecKindCount - 1;

const Method& method_of(const CodecSpec& spec) {
  using Factory = const Method& (*)();
  static constexpr std::array<Factory, kMethodCount> kFactories = {
      dense_method,    f16_method,         bf16_method,     int8_method,     sketch_method,
      top_k_method,    layer_top_k_method, ms_top_k_method, random_k_method, one_bit_method,
      sign_sgd_method, tern_grad_method,   power_method,    svd_method};
  const auto index = static_cast<std::size_t>(spec.kind);
  CANARY_CHECK(index < kFactories.size(), "a codec's kind is checked when it is chosen");
  return kFactories[index]();
}

Status bad_segment(const Coding& coding, const std::string& why) {
  return {CANARY_INVALID_ARGUMENT, "codec " + to_text(coding.spec) + ": " + why};
}

std::size_t form_bytes(const CodecSpec& spec) { return spec.or_dense ? 1 : 0; }

void check_piece(const Coding& coding, Piece piece) {
  CANARY_CHECK(piece.begin <= coding.segment.count && piece.count <= coding.segment.count - piece.begin,
               "a piece lies within its segment");
}

}  // namespace

Status check(const Coding& coding) {
  if (Status status = check(coding.spec); !status.ok()) return status;
  if (coding.spec.kind == CodecKind::kArTopK) return bad_segment(coding, "it is a collective, and encodes no segments");
  const Segment& segment = coding.segment;
  if (segment.count > kSegmentElementsMax) {
    return bad_segment(coding, "a segment of " + std::to_string(segment.count) + " elements is too large (at most " +
                                   std::to_string(kSegmentElementsMax) + ")");
  }
  const bool shaped = segment.rows != 0 || segment.columns != 0;
  if (shaped && (segment.columns == 0
                     ? segment.count != 0
                     : segment.count % segment.columns != 0 || segment.count / segment.columns != segment.rows)) {
    return bad_segment(coding, std::to_string(segment.rows) + " x " + std::to_string(segment.columns) + " is not " +
                                   std::to_string(segment.count) + " elements");
  }
  std::size_t left = segment.count;
  for (const std::size_t layer : segment.layers) {
    if (layer == 0 || layer > left) {
      return bad_segment(coding, layer == 0 ? "a layer is empty"
                                            : "the layers have more than the segment's " +
                                                  std::to_string(segment.count) + " elements");
    }
    left -= layer;
  }
  if (!segment.layers.empty() && left != 0) {
    return bad_segment(coding, "the layers leave " + std::to_string(left) + " elements over");
  }
  return method_of(coding.spec).check(coding);
}

CodecTraits traits_of(const CodecSpec& spec) { return method_of(spec).traits(); }

std::size_t head_bytes_max(const Coding& coding) {
  return form_bytes(coding.spec) + method_of(coding.spec).head_max(coding);
}

std::size_t body_bytes_max(const Coding& coding, Piece piece) {
  const std::size_t coded = method_of(coding.spec).body_max(coding, piece);
  const std::size_t dense = coding.spec.or_dense ? dense_method().body_max(coding, piece) : 0;
  return coded > dense ? coded : dense;
}

std::size_t workspace_bytes(const Coding& coding) { return method_of(coding.spec).workspace(coding); }

std::size_t whole_bytes_max(const Coding& coding) {
  return kLengthBytes + head_bytes_max(coding) + body_bytes_max(coding, {0, coding.segment.count});
}

std::size_t state_floats(const Coding& coding) { return method_of(coding.spec).state_floats(coding); }

SegmentEncoder::SegmentEncoder(const Coding& coding, std::span<std::byte> workspace, std::span<float> state)
    : coding_(coding), workspace_(workspace), state_(state) {
  CANARY_CHECK(check(coding).ok(), "a coding is checked when the operation is submitted");
  CANARY_CHECK(workspace.size() >= workspace_bytes(coding), "the workspace has workspace_bytes");
  CANARY_CHECK(state.empty() || state.size() == canarynet::state_floats(coding), "the state has state_floats");
}

Result<std::size_t> SegmentEncoder::fit(const float* values, std::span<std::uint8_t> head) {
  CANARY_CHECK(head.size() >= head_bytes_max(coding_), "the head has room for head_bytes_max");
  const Method& method = method_of(coding_.spec);
  const std::size_t form = form_bytes(coding_.spec);
  fitted_ = true;
  dense_ = false;
  if (form == 0) return method.fit(coding_, values, workspace_, state_, head.data());
  // Whether all is finite must be known before the first piece, also where encode would notice.
  if (codec_kernels().greatest(values, coding_.segment.count) >= kNotFinite32) {
    dense_ = true;
    head[0] = kTravelsDense;
    return form;
  }
  head[0] = kCoded;
  Result<std::size_t> fitted = method.fit(coding_, values, workspace_, state_, head.data() + form);
  if (!fitted.ok()) return fitted;
  return form + fitted.value();
}

Result<std::size_t> SegmentEncoder::encode(Piece piece, const float* values, std::span<std::uint8_t> body) const {
  check_piece(coding_, piece);
  CANARY_CHECK(fitted_ || !traits_of(coding_.spec).fitted, "fit comes before encode");
  CANARY_CHECK(body.size() >= body_bytes_max(coding_, piece), "the body has room for body_bytes_max");
  if (dense_) {
    const std::size_t bytes = piece.count * sizeof(float);
    if (bytes != 0) std::memcpy(body.data(), values, bytes);
    return bytes;
  }
  return method_of(coding_.spec).encode(coding_, piece, values, workspace_, body.data());
}

SegmentDecoder::SegmentDecoder(const Coding& coding, std::span<std::byte> workspace)
    : coding_(coding), workspace_(workspace) {
  CANARY_CHECK(check(coding).ok(), "a coding is checked when the operation is submitted");
  CANARY_CHECK(workspace.size() >= workspace_bytes(coding), "the workspace has workspace_bytes");
}

Status SegmentDecoder::open(std::span<const std::uint8_t> head) {
  opened_ = false;
  dense_ = false;
  if (coding_.spec.or_dense) {
    if (head.empty()) return malformed(coding_.spec, "head", "it is empty, its form is missing");
    const std::uint8_t form = head[0];
    head = head.subspan(1);
    if (form == kTravelsDense) {
      if (Status status = expect_bytes(coding_.spec, "dense head", head.size(), 0); !status.ok()) return status;
      dense_ = opened_ = true;
      return {};
    }
    if (form != kCoded) return malformed(coding_.spec, "head", "form " + std::to_string(form) + " does not exist");
  }
  Status status = method_of(coding_.spec).open(coding_, head, workspace_);
  opened_ = status.ok();
  return status;
}

Status SegmentDecoder::decode(Piece piece, std::span<const std::uint8_t> body, float* out, bool add) const {
  check_piece(coding_, piece);
  CANARY_CHECK(opened_, "open comes before decode");
  if (!dense_) return method_of(coding_.spec).decode(coding_, piece, body, workspace_, out, add);
  // Here NaN and infinity are what the caller asked to see.
  if (Status status = expect_bytes(coding_.spec, "dense body", body.size(), piece.count * sizeof(float));
      !status.ok()) {
    return status;
  }
  for (std::size_t i = 0; i < piece.count; ++i) {
    const float value = load<float>(body.data(), i);
    out[i] = add ? out[i] + value : value;
  }
  return {};
}

Status SegmentDecoder::decode(Piece piece, std::span<const std::uint8_t> body, float* out) const {
  return decode(piece, body, out, false);
}
Status SegmentDecoder::decode_add(Piece piece, std::span<const std::uint8_t> body, float* out) const {
  return decode(piece, body, out, true);
}

Result<std::size_t> encode_whole(const Coding& coding, const float* values, std::span<std::byte> workspace,
                                 std::span<float> state, std::span<std::uint8_t> out) {
  CANARY_CHECK(out.size() >= whole_bytes_max(coding), "the message has room for whole_bytes_max");
  SegmentEncoder encoder(coding, workspace, state);
  Result<std::size_t> head = encoder.fit(values, out.subspan(kLengthBytes));
  if (!head.ok()) return head;
  store(out.data(), static_cast<std::uint32_t>(head.value()));
  const std::size_t begin = kLengthBytes + head.value();
  Result<std::size_t> body = encoder.encode({0, coding.segment.count}, values, out.subspan(begin));
  if (!body.ok()) return body;
  return begin + body.value();
}

Status decode_whole(const Coding& coding, std::span<const std::uint8_t> bytes, std::span<std::byte> workspace,
                    float* out, bool add) {
  if (bytes.size() < kLengthBytes) return malformed(coding.spec, "message", "it ends within the head's length");
  const auto head_bytes = load<std::uint32_t>(bytes.data());
  bytes = bytes.subspan(kLengthBytes);
  if (head_bytes > bytes.size()) {
    return malformed(
        coding.spec, "message",
        "it announces a head of " + std::to_string(head_bytes) + " bytes and has " + std::to_string(bytes.size()));
  }
  SegmentDecoder decoder(coding, workspace);
  if (Status status = decoder.open(bytes.first(head_bytes)); !status.ok()) return status;
  const Piece all{0, coding.segment.count};
  return add ? decoder.decode_add(all, bytes.subspan(head_bytes), out)
             : decoder.decode(all, bytes.subspan(head_bytes), out);
}

std::size_t first_not_finite(const float* values, std::size_t count) {
  // The kernel finds the stretch, so that a clean prefix costs little.
  constexpr std::size_t kStretch = 4096;
  for (std::size_t begin = 0; begin < count; begin += kStretch) {
    const std::size_t stretch = count - begin < kStretch ? count - begin : kStretch;
    if (codec_kernels().greatest(values + begin, stretch) < kNotFinite32) continue;
    for (std::size_t i = begin; i < begin + stretch; ++i) {
      if (!std::isfinite(values[i])) return i;
    }
  }
  return count;
}

void widen_values(DataType type, const void* values, std::size_t count, float* out) {
  CANARY_CHECK(type == CANARY_F32 || type == CANARY_F16 || type == CANARY_BF16, "codecs encode floats");
  if (type == CANARY_F16) codec_kernels().from_f16(values, count, out, false);
  if (type == CANARY_BF16) codec_kernels().from_bf16(values, count, out, false);
  if (type == CANARY_F32 && count != 0) std::memcpy(out, values, count * sizeof(float));
}

void narrow_values(DataType type, const float* values, std::size_t count, void* out) {
  CANARY_CHECK(type == CANARY_F32 || type == CANARY_F16 || type == CANARY_BF16, "codecs encode floats");
  if (type == CANARY_F16) codec_kernels().to_f16(values, count, out);
  if (type == CANARY_BF16) codec_kernels().to_bf16(values, count, out);
  if (type == CANARY_F32 && count != 0) std::memcpy(out, values, count * sizeof(float));
}

Status Method::open(const Coding& coding, std::span<const std::uint8_t> head,
                    std::span<std::byte> /*workspace*/) const {
  return expect_bytes(coding.spec, "head", head.size(), 0);
}

Status refused(const CodecSpec& spec, const float* values, std::size_t count, std::size_t first) {
  const std::size_t index = first_not_finite(values, count);
  CANARY_CHECK(index < count, "a value was found that is not finite");
  return {CANARY_INVALID_ARGUMENT, "element " + std::to_string(first + index) + " is " + std::to_string(values[index]) +
                                       ", which codec " + to_text(spec) + " does not encode"};
}

Status malformed(const CodecSpec& spec, const char* part, const std::string& why) {
  return {CANARY_MISMATCH, "codec " + to_text(spec) + ", " + part + ": " + why};
}

Status expect_bytes(const CodecSpec& spec, const char* part, std::size_t bytes, std::size_t expected) {
  if (bytes == expected) return {};
  return malformed(spec, part, std::to_string(bytes) + " bytes instead of " + std::to_string(expected));
}

}  // namespace canarynet
