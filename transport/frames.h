// transport/frames.h -- each kind of frame as its receiver may read it: what the frame says, or why it can't be right.
//
// What: the one place that turns a header and its payload into fields, for the frames that are the same on every flow
// and for those of operations; message_frames.h has those of messages. A reason is a few words that fit behind "a frame
// with". A function that gives one leaves `out` as it was. Only a header that validate() believes comes here; a payload
// is the intact one of that header. Whether a flow, an operation or a rank exists is the receiver's to know.
// Cost: check() is a few comparisons, once for each frame; the others look at a frame's few fields. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "transport/wire.h"

namespace canarynet::wire {

// Limits of what a kind's header may say.
struct Shape {
  std::uint8_t flags = 0;                      // all that it may have
  bool sequenced = false;                      // it has kSequenced and a sequence, or neither
  std::uint32_t bytes_min = 0, bytes_max = 0;  // of its payload
};
constexpr Shape shape_of(Kind kind) {
  constexpr std::uint8_t kOfPieces = kSequenced | kAckNow | kUnchecked;
  switch (kind) {
    case Kind::kHello:
      return {0, false, sizeof(HelloPayload), sizeof(HelloPayload)};
    case Kind::kPiece:
      return {kOfPieces | kSigned, true, 0, kPayloadMax};
    case Kind::kSignature:
      return {kOfPieces, true, 0, kPayloadMax};  // its flow knows more
    case Kind::kAck:
      return {0, false, kAckFixedBytes, sizeof(AckPayload)};
    case Kind::kHeartbeat:
      return {kAckNow, false, sizeof(HeartbeatPayload), sizeof(HeartbeatPayload)};
    case Kind::kAbort:
      return {0, false, sizeof(AbortPayload), sizeof(AbortPayload) + kAbortTextMax};
    case Kind::kGoodbye:
      return {};
    case Kind::kControl:
      return {0, false, 2, kPayloadMax};  // control/messages.h: its kind and its format come first
    case Kind::kVoid:
      return {kSequenced, true, 0, 0};
    case Kind::kProbe:
      return {kSequenced | kAckNow, true, 0, kPayloadMax};
  }
  return {};
}

// Checks any frame on a lane, before its payload is there. nullptr, or why no frame of this kind looks like that.
const char* check(const Header& header);

const char* read(const Header& header, std::span<const std::byte> payload, HelloPayload* out);
const char* read(const Header& header, std::span<const std::byte> payload, AckPayload* out);
const char* read(const Header& header, std::span<const std::byte> payload, HeartbeatPayload* out);

// An abort, or the refusal that answers a hello. `text` lies in the payload: a peer's words, not printable yet.
struct AbortFrame {
  AbortPayload verdict;
  std::string_view text;
};
const char* read(const Header& header, std::span<const std::byte> payload, AbortFrame* out);

// The signature of an operation, in a frame of its own.
const char* read(const Header& header, std::span<const std::byte> payload, SignaturePayload* out);

// A piece with kSigned. `piece`: as if the elements had come alone, unchecked: the CRC of the frame is of both parts.
struct SignedPiece {
  Header piece;
  std::span<const std::byte> elements;
  SignaturePayload signature;
};
const char* read(const Header& header, std::span<const std::byte> payload, SignedPiece* out);

// Whether the sender of a hello speaks this side's version; if not, "the peer speaks protocol version 1..1, this side
// 2".
inline bool speaks_our_version(const HelloPayload& hello) {
  return hello.version_min <= kVersion && kVersion <= hello.version_max;
}
std::string version_text(const HelloPayload& hello);  // "1..1"
std::string describe_versions(const HelloPayload& hello);

}  // namespace canarynet::wire
