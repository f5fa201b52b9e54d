#include "transport/frames.h"

#include <array>
#include <cstring>

namespace canarynet::wire {
namespace {

constexpr auto kShapes = [] {
  std::array<Shape, static_cast<std::size_t>(Kind::kProbe) + 1> shapes{};
  for (std::size_t kind = 1; kind < shapes.size(); ++kind) shapes[kind] = shape_of(static_cast<Kind>(kind));
  return shapes;
}();

template <typename Payload>
Payload copied(std::span<const std::byte> payload) {
  Payload out;
  std::memcpy(&out, payload.data(), sizeof out);
  return out;
}

const char* check_length(const Shape& shape, std::size_t bytes) {
  if (bytes < shape.bytes_min) return "a payload that is too short";
  if (bytes > shape.bytes_max) return "a payload that is too long";
  return nullptr;
}

// The memory accesses below rest on these checks; check() has looked at the rest of the header.
const char* check_payload(const Header& header, Kind kind, std::span<const std::byte> payload) {
  if (header.kind != kind) return "another kind";
  if (payload.size() != header.payload_bytes) return "a payload of another length than its header tells";
  return check_length(shape_of(kind), payload.size());
}

const char* check_signature(const SignaturePayload& s) {
  if (s.members == 0 || s.members > kRanksMax) return "a signature of a group that can't be";
  if (s.world_rank >= kRanksMax) return "a signature of a rank that can't be";
  if (s.root < -1 || s.root >= static_cast<std::int64_t>(s.members)) return "a signature with a root outside its group";
  return nullptr;
}

}  // namespace

const char* check(const Header& header) {
  const Shape& shape = kShapes[static_cast<std::size_t>(header.kind)];
  if ((header.flags & ~shape.flags) != 0) return "a flag that its kind does not have";
  if (((header.flags & kSequenced) != 0) != shape.sequenced) return "no sequence";
  if (!shape.sequenced && header.lane_sequence != 0) return "a sequence where none counts";
  if (header.codec != 0) return "an unknown codec";
  if ((header.flags & kSigned) != 0 && header.payload_bytes < sizeof(SignaturePayload))
    return "no room for its signature";
  return check_length(shape, header.payload_bytes);
}

const char* read(const Header& header, std::span<const std::byte> payload, HelloPayload* out) {
  if (const char* why = check_payload(header, Kind::kHello, payload)) return why;
  const auto hello = copied<HelloPayload>(payload);
  if (hello.purpose < kHelloChannel || hello.purpose > kHelloEndpoint) return "a purpose that is not known";
  if (hello.version_min > hello.version_max) return "versions that end before they begin";
  if (hello.purpose != kHelloEndpoint && hello.paths != 0) return "a count of paths where none is told";
  *out = hello;
  return nullptr;
}

const char* read(const Header& header, std::span<const std::byte> payload, AckPayload* out) {
  if (const char* why = check_payload(header, Kind::kAck, payload)) return why;
  AckPayload ack;
  std::memcpy(&ack, payload.data(), payload.size());
  if (ack.words > kAckWordsMax || payload.size() != kAckFixedBytes + 8 * std::size_t{ack.words})
    return "another number of words than it tells";
  *out = ack;
  return nullptr;
}

const char* read(const Header& header, std::span<const std::byte> payload, HeartbeatPayload* out) {
  if (const char* why = check_payload(header, Kind::kHeartbeat, payload)) return why;
  *out = copied<HeartbeatPayload>(payload);
  return nullptr;
}

const char* read(const Header& header, std::span<const std::byte> payload, AbortFrame* out) {
  if (const char* why = check_payload(header, Kind::kAbort, payload)) return why;
  const auto verdict = copied<AbortPayload>(payload);
  if (verdict.text_bytes != payload.size() - sizeof verdict) return "a text of another length than it tells";
  out->verdict = verdict;
  out->text = {reinterpret_cast<const char*>(payload.data()) + sizeof verdict, verdict.text_bytes};
  return nullptr;
}

const char* read(const Header& header, std::span<const std::byte> payload, SignaturePayload* out) {
  if (const char* why = check_payload(header, Kind::kSignature, payload)) return why;
  if (payload.size() != sizeof(SignaturePayload)) return "a signature of another length";
  const auto signature = copied<SignaturePayload>(payload);
  if (const char* why = check_signature(signature)) return why;
  *out = signature;
  return nullptr;
}

const char* read(const Header& header, std::span<const std::byte> payload, SignedPiece* out) {
  if (const char* why = check_payload(header, Kind::kPiece, payload)) return why;
  if ((header.flags & kSigned) == 0 || payload.size() < sizeof(SignaturePayload)) return "no room for its signature";
  const std::size_t bytes = payload.size() - sizeof(SignaturePayload);
  const auto signature = copied<SignaturePayload>(payload.subspan(bytes));
  if (const char* why = check_signature(signature)) return why;
  out->piece = header;
  out->piece.flags = static_cast<std::uint8_t>((header.flags & ~kSigned) | kUnchecked);
  out->piece.payload_bytes = static_cast<std::uint32_t>(bytes);
  out->elements = payload.first(bytes);
  out->signature = signature;
  return nullptr;
}

std::string version_text(const HelloPayload& hello) {
  return std::to_string(hello.version_min) + ".." + std::to_string(hello.version_max);
}

std::string describe_versions(const HelloPayload& hello) {
  return "the peer speaks protocol version " + version_text(hello) + ", this side " + std::to_string(kVersion);
}

}  // namespace canarynet::wire
