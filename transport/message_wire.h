// transport/message_wire.h -- how messages (send/recv in a group, connections without one) use the frames of wire.h.
// Little-endian.
//
// Messages travel on flows with the high bit set. There, of a header:
//   kPiece      op: number of the message in its direction, from 1 (low 32 bits); piece: from 0; epoch: the
//               group's, on connections the message's tag; signature and the low byte of step: length of the whole
//               message, 40 bits; high byte of step: type.
//   kSignature  step: MessageFrame; op, payload: see there.
// source and destination: ranks in the group; on connections 0 is the end that connected, 1 the one that accepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "transport/wire.h"

namespace canarynet::wire {

inline constexpr std::uint32_t kMessageFlow = 0x80000000;     // of a group: or'ed with the group's own flow
inline constexpr std::uint32_t kConnectionFlow = 0xC0000000;  // of a connection: or'ed with generation << 14 | slot
inline constexpr std::uint32_t kConnectionSlots = 1u << 14;   // per pair of endpoints and direction of dialling
inline constexpr std::uint64_t kMessageBytesMax = (std::uint64_t{1} << 40) - 1;

enum class MessageFrame : std::uint16_t {
  kCredit = 1,  // op: every message up to this number has a place now. No payload; credits may overtake each other.
  kRefuse = 2,  // op: this message does not fit the receive it met (RefusePayload); the connection has failed
  kOpen = 3,    // the dialling end wants a connection (OpenPayload)
  kOpened = 4,  // answer (OpenedPayload)
  kClose = 5,   // this end has closed the connection; op: what it was sent up to this number had been received
  kAbort = 6,   // this end has given the connection up; payload: why, at most kAbortTextBytes of UTF-8
};

struct RefusePayload {
  std::uint64_t room_bytes = 0;
  std::uint64_t message_bytes = 0;
  std::uint32_t tag = 0;
  std::uint32_t unknown_tag = 0;  // 1: no receive of the group has that tag
};
static_assert(sizeof(RefusePayload) == 24 && std::has_unique_object_representations_v<RefusePayload>);

inline constexpr std::size_t kAbortTextBytes = 512;
inline constexpr std::size_t kHostTextBytes = 64;  // zero-padded UTF-8, at most 63 bytes of text
struct OpenPayload {
  std::uint64_t listener = 0;     // from the handle
  std::uint32_t piece_bytes = 0;  // the smaller one of both ends' is used
  std::uint32_t eager_bytes = 0;  // likewise, for the channel
  std::int64_t pid = 0;
  char host[kHostTextBytes] = {};
};
static_assert(sizeof(OpenPayload) == 88 && std::has_unique_object_representations_v<OpenPayload>);

struct OpenedPayload {
  std::uint32_t accepted = 0;  // 0: nobody listens under that number any more
  std::uint32_t piece_bytes = 0;
  std::uint32_t eager_bytes = 0;
  std::uint32_t reserved = 0;
  std::int64_t pid = 0;
  char host[kHostTextBytes] = {};
};
static_assert(sizeof(OpenedPayload) == 88 && std::has_unique_object_representations_v<OpenedPayload>);

inline void set_message_length(Header* header, std::uint64_t bytes, std::uint8_t type) {
  header->signature = static_cast<std::uint32_t>(bytes);
  header->step = static_cast<std::uint16_t>((bytes >> 32) & 0xff) | static_cast<std::uint16_t>(type << 8);
}
inline std::uint64_t message_length(const Header& header) {
  return std::uint64_t{header.step & 0xffu} << 32 | header.signature;
}
inline std::uint8_t message_type(const Header& header) { return static_cast<std::uint8_t>(header.step >> 8); }

}  // namespace canarynet::wire
