// transport/message_frames.h -- the words of messages and connections (kSignature frames on their flows) as their
// receiver may read them.
//
// What: read() turns a frame into the word that it is, or says in a few words why it is none. Texts lie in the payload:
// a peer's, not printable yet. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "transport/message_wire.h"

namespace canarynet::wire {

struct Credit {
  std::uint32_t up_to = 0;  // number of a message, low 32 bits
};
struct Refuse {
  std::uint32_t message = 0;
  RefusePayload why;
};
struct Open {
  OpenPayload terms;
};
struct Opened {
  OpenedPayload terms;
};
struct Close {
  std::uint32_t received = 0;  // every message up to this number had been
};
struct GiveUp {
  std::string_view why;
};
using MessageWord = std::variant<Credit, Refuse, Open, Opened, Close, GiveUp>;

const char* read(const Header& header, std::span<const std::byte> payload, MessageWord* out);

}  // namespace canarynet::wire
