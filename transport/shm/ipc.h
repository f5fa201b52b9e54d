// transport/shm/ipc.h -- what two processes of one host say to each other besides frames: abstract UNIX sockets,
// descriptors, doorbells.
//
// What: a listener's name (nothing in the file system: the kernel forgets it with its process), messages of fixed size
// that carry descriptors, and who the other end is. A lane's frames never go this way (segment.h).
// Memory: Descriptor owns. Threads: none of its own. Failures: a Status with errno's text; received messages are
// foreign bytes, check() says what is wrong with them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/descriptor.h"
#include "base/status.h"
#include "topology/address.h"

namespace canarynet::shm {

using canarynet::Descriptor;

// --- messages --------------------------------------------------------------------------------------------------------

enum class MessageKind : std::uint16_t {
  kOffer = 1,      // dialling side, first: descriptors are the segment and the bell to ring for it; bytes: of one ring
  kAccept = 2,     // the answer: descriptor is the bell to ring for the accepting side
  kArena = 3,      // references into this arena may follow; descriptor is its memory, bytes its size
  kArenaGone = 4,  // none will follow any more
};

struct Message {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  MessageKind kind = MessageKind::kOffer;
  std::uint32_t arena = 0;
  std::uint32_t reserved = 0;
  std::uint64_t bytes = 0;

  static constexpr std::uint32_t kMagic = 0xCA9A5113;
  static constexpr std::uint16_t kVersion = 2;  // of these messages and of what lies in a ring
};
static_assert(sizeof(Message) == 24 && std::has_unique_object_representations_v<Message>);

inline constexpr std::size_t kDescriptorsMax = 2;

struct Received {
  Message message;
  std::array<Descriptor, kDescriptorsMax> descriptors;
  std::size_t count = 0;  // of descriptors
};

// nullptr when `bytes` bytes at `data`, which came with `descriptors` descriptors, are a message that a peer may send;
// else what is wrong.
const char* check(const void* data, std::size_t bytes, std::size_t descriptors, Message* message);

enum class Io : std::uint8_t { kDone, kAgain, kClosed, kFailed };
// One message, without waiting. kFailed: errno's story, or the message can't be believed, in *why.
Io send_message(int socket, const Message& message, const int* descriptors, std::size_t count);
Io receive_message(int socket, Received* out, std::string* why);

// --- sockets and bells -----------------------------------------------------------------------------------------------

// Non-blocking, close-on-exec, keeps message boundaries.
Result<Descriptor> listen_at(const Address& address);
// AF_UNIX connects at once or not at all; *refused: nobody listens there.
Result<Descriptor> connect_to(const Address& address, bool* refused);
// The process at the other end runs as this one's user. *pid for messages.
Status check_peer(int socket, int* pid);

Result<Descriptor> make_bell();
// Foreign: made sure that ringing it never waits.
Status check_bell(int bell);
void ring(int bell);

}  // namespace canarynet::shm
