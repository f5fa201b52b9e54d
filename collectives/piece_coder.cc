#include "collectives/piece_coder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/check.h"
#include "collectives/null_piece.h"
#include "compress/codec.h"
#include "kernels/crc32c.h"
#include "transport/wire.h"

namespace canarynet {
namespace {

constexpr std::byte kValues{0};
constexpr std::byte kRefusal{1};
constexpr std::byte kNull{2};  // nothing follows
//  | form: u8 | rank: u32 | element: u64 | value: f32 |
constexpr std::uint32_t kRefusalBytes = 17;
constexpr std::uint32_t kUnit = 128;  // of a piece's bytes, as on every grid
constexpr std::uint32_t kPiecesOfAPart = 4;
// Pieces of at most so many bytes are not cut smaller for that: a codebook of 1 KiB is 1.6 % of half of it.
constexpr std::uint32_t kWorthACodebook = 256 * 1024;

template <typename T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}
template <typename T>
T get(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::size_t workspace_of(const Program& program) {
  std::size_t most = 0;
  std::uint32_t seen = 0;  // pieces of one length come in a row
  for (std::uint32_t piece = 0; piece + 1 < program.piece_offset.size(); ++piece) {
    if (program.bytes_of(piece) == seen) continue;
    seen = program.bytes_of(piece);
    most = std::max(most, workspace_bytes({program.codec, {.count = seen / sizeof(float)}}));
  }
  return most;
}

std::uint64_t stride_of(const Program& program) { return (program.encoded_bytes_max + 63) / 64 * 64; }

std::span<std::uint8_t> as_octets(std::byte* at, std::size_t bytes) {
  return {reinterpret_cast<std::uint8_t*>(at), bytes};
}

}  // namespace

std::size_t encoded_bytes_max(const CodecSpec& spec, std::size_t elements) {
  return std::max<std::size_t>(1 + whole_bytes_max({spec, {.count = elements}}), kRefusalBytes);
}

std::uint32_t coded_piece_bytes(const CodecSpec& spec, std::uint32_t piece_bytes, std::uint64_t part_bytes) {
  const std::uint64_t most = std::min<std::uint64_t>(4 * std::uint64_t{piece_bytes}, wire::kPayloadMax);
  auto bytes = static_cast<std::uint32_t>(std::uint64_t{16} * piece_bytes / kUnit * kUnit);
  while (bytes > kUnit && encoded_bytes_max(spec, bytes / sizeof(float)) > most) bytes = bytes / 2 / kUnit * kUnit;
  while (bytes > kWorthACodebook && kPiecesOfAPart * std::uint64_t{bytes} > part_bytes)
    bytes = bytes / 2 / kUnit * kUnit;
  return std::max(bytes, kUnit);
}

PieceCoder::PieceCoder(const Program& program)
    : program_(program),
      stride_(stride_of(program)),
      slots_(stride_ * program.tasks),
      workspace_memory_(workspace_of(program)),
      workspace_(workspace_memory_.begin(), workspace_memory_.bytes()),
      sent_memory_(program.piece_bytes),
      length_(program.tasks),
      crc_(program.tasks),
      refusals_(program.piece_offset.size() - 1) {}

void PieceCoder::begin(const CodedCall& call, bool null_pieces) {
  call_ = call;
  null_pieces_ = null_pieces;
  totals_ = {};
  std::fill(length_.begin(), length_.end(), 0);
  std::fill(crc_.begin(), crc_.end(), std::nullopt);
  std::fill(refusals_.begin(), refusals_.end(), Refusal{});
}

void PieceCoder::take_input(const float* input, float* output, std::uint64_t count) const {
  if (call_.residual.empty()) {
    if (output != input && count != 0) std::memcpy(output, input, count * sizeof(float));
    return;
  }
  for (std::uint64_t i = 0; i < count; ++i) output[i] = input[i] + call_.residual[i];
}

std::uint64_t PieceCoder::first_element(std::uint32_t piece) const {
  return program_.place[static_cast<std::size_t>(Buffer::kOutput)][piece] / sizeof(float);
}

// Which random numbers a piece gets depends on the operation and on its place, which all ranks know.
Coding PieceCoder::coding(std::uint32_t piece) const {
  return {program_.codec,
          {.count = program_.bytes_of(piece) / sizeof(float),
           .round = call_.round * 0x9E3779B97F4A7C15ULL + first_element(piece)}};
}

bool PieceCoder::is_null(std::uint32_t task) const { return length_[task] == 1 && *slot(task) == kNull; }

void PieceCoder::encode(std::uint32_t task, std::uint32_t piece, const float* values) {
  Coding how = coding(piece);
  // Dice of its own for each rank, or all would round the same elements up, and the owner of a sum those that are up
  // already: sums would be wrong on average. Whoever decodes throws none.
  if (how.spec.kind == CodecKind::kTernGrad)
    how.segment.round ^= (std::uint64_t{call_.rank} + 1) * 0xD1B54A32D192ED03ULL;
  std::byte* const out = slot(task);
  Refusal& refusal = refusals_[piece];
  const bool null = null_pieces_ && all_zero(values, program_.bytes_of(piece));
  const std::size_t room = program_.encoded_bytes_max - 1;
  const auto bytes =
      null ? Result<std::size_t>(std::size_t{0}) : encode_whole(how, values, workspace_, {}, as_octets(out + 1, room));
  if (!bytes.ok()) {
    const std::size_t at = first_not_finite(values, how.segment.count);
    CANARY_CHECK(at < how.segment.count, "a codec refuses only what is not finite");
    const Refusal own{first_element(piece) + at, call_.rank, values[at]};
    if (own.before(refusal)) refusal = own;
  }
  if (!refusal.there()) {
    out[0] = null ? kNull : kValues;
    length_[task] = static_cast<std::uint32_t>(1 + bytes.value());
  } else {
    out[0] = kRefusal;
    put(out + 1, refusal.rank);
    put(out + 5, refusal.element);
    put(out + 13, refusal.value);
    length_[task] = kRefusalBytes;
  }
  crc_[task].reset();
  totals_.value_bytes += program_.bytes_of(piece);
  totals_.encoded_bytes += length_[task];
}

// Where a dense segment carries what is not finite, nothing was left out.
void PieceCoder::leave_out(std::uint32_t piece, const float* values, const float* sent, float weight) {
  if (call_.left_out.empty() || refusals_[piece].there()) return;
  float* const out = call_.left_out.data() + first_element(piece);
  const std::size_t count = program_.bytes_of(piece) / sizeof(float);
  double energy = 0, sent_energy = 0, left_energy = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float before = out[i], sum = before + weight * (values[i] - sent[i]);
    if (std::isfinite(sum)) {
      out[i] = sum;
      left_energy += static_cast<double>(sum) * sum - static_cast<double>(before) * before;
    }
    energy += static_cast<double>(values[i]) * values[i];
    sent_energy += static_cast<double>(sent[i]) * sent[i];
  }
  totals_.left_energy += left_energy;
  if (!std::isfinite(energy) || !std::isfinite(sent_energy)) return;
  totals_.energy += energy;
  totals_.sent_energy += sent_energy;
}

PieceCoder::Encoded PieceCoder::to_send(std::uint32_t task, std::uint32_t piece, const float* values) {
  const std::uint32_t slot_of = slot_task(task);
  if (slot_of == task && length_[task] == 0) {
    encode(task, piece, values);
    if (!call_.left_out.empty() && !refusals_[piece].there() && !is_null(task)) {
      auto* const sent = reinterpret_cast<float*>(sent_memory_.begin());
      CANARY_CHECK(decode(piece, in_slot(task), sent, false, nullptr).ok(), "what was encoded decodes");
      leave_out(piece, values, sent, 1);
    }
  }
  CANARY_CHECK(length_[slot_of] != 0, "a piece is handed on before it is there");
  return {slot(slot_of), length_[slot_of], is_null(slot_of)};
}

std::uint32_t PieceCoder::crc_of(std::uint32_t task) {
  const std::uint32_t slot_of = slot_task(task);
  if (!crc_[slot_of]) crc_[slot_of] = crc32c(0, slot(slot_of), length_[slot_of]);
  return *crc_[slot_of];
}

void PieceCoder::complete(std::uint32_t task, std::uint32_t piece, float* values, float weight) {
  encode(task, piece, values);
  if (refusals_[piece].there() || is_null(task)) return;
  auto* const sent = reinterpret_cast<float*>(sent_memory_.begin());
  CANARY_CHECK(decode(piece, in_slot(task), sent, false, nullptr).ok(), "what was encoded decodes");
  leave_out(piece, values, sent, weight);
  std::memcpy(values, sent, program_.bytes_of(piece));
}

Status PieceCoder::decode(std::uint32_t piece, std::span<const std::byte> encoded, float* out, bool add,
                          Refusal* refusal) {
  if (encoded.empty()) return {CANARY_MISMATCH, "an encoded piece without a byte"};
  if (encoded[0] == kValues) {
    const std::span<const std::uint8_t> whole(reinterpret_cast<const std::uint8_t*>(encoded.data()) + 1,
                                              encoded.size() - 1);
    return decode_whole(coding(piece), whole, workspace_, out, add);
  }
  if (encoded[0] == kNull && encoded.size() == 1) {
    if (!add) std::memset(out, 0, program_.bytes_of(piece));
    return {};
  }
  if (encoded[0] != kRefusal || refusal == nullptr || encoded.size() != kRefusalBytes)
    return {CANARY_MISMATCH, "an encoded piece of a form that does not exist"};
  const Refusal told{get<std::uint64_t>(encoded.data() + 5), get<std::uint32_t>(encoded.data() + 1),
                     get<float>(encoded.data() + 13)};
  const std::uint64_t first = first_element(piece);
  if (told.element < first || told.element - first >= program_.bytes_of(piece) / sizeof(float))
    return {CANARY_MISMATCH, "an encoded piece that refuses an element which it does not have"};
  if (told.rank >= call_.ranks || std::isfinite(told.value))
    return {CANARY_MISMATCH, "an encoded piece whose refusal names no rank, or a number that any codec encodes"};
  *refusal = told;
  return {};
}

Status PieceCoder::add(std::uint32_t piece, std::span<const std::byte> encoded, float* values) {
  Refusal told;
  Status status = decode(piece, encoded, values, true, &told);
  if (told.there() && told.before(refusals_[piece])) refusals_[piece] = told;
  return status;
}

Status PieceCoder::replace(std::uint32_t piece, std::span<const std::byte> encoded, float* values) {
  Refusal told;
  Status status = decode(piece, encoded, values, false, &told);
  refusals_[piece] = told;
  return status;
}

Refusal PieceCoder::refusal() const {
  Refusal first;
  for (const Refusal& r : refusals_) {
    if (r.before(first)) first = r;
  }
  return first;
}

std::string PieceCoder::text_of(const Refusal& r) const {
  return "element " + std::to_string(r.element) + " of rank " + std::to_string(r.rank) + " is " +
         std::to_string(r.value) + ", which codec " + to_text(program_.codec) + " does not encode";
}

}  // namespace canarynet
