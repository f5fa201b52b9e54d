#include "transport/shm/ipc.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace canarynet::shm {
namespace {

constexpr int kBacklog = 1024;

// "\0canarynet-" + 32 hexadecimal digits + "-" + port. Returns the length of the address.
socklen_t name_of(const Address& address, sockaddr_un* out) {
  *out = {};
  out->sun_family = AF_UNIX;
  char* text = out->sun_path + 1;
  const std::size_t room = sizeof out->sun_path - 1;
  int used = std::snprintf(text, room, "canarynet-");
  for (const std::uint8_t byte : address.bytes) {
    used += std::snprintf(text + used, room - static_cast<std::size_t>(used), "%02x", byte);
  }
  used += std::snprintf(text + used, room - static_cast<std::size_t>(used), "-%u", unsigned{address.port});
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(used));
}

Result<Descriptor> make_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.open()) return system_error("shm: socket", errno);
  return socket;
}

}  // namespace

const char* check(const void* data, std::size_t bytes, std::size_t descriptors, Message* message) {
  if (bytes != sizeof *message) return "length";
  std::memcpy(message, data, sizeof *message);
  if (message->magic != Message::kMagic) return "magic";
  if (message->version != Message::kVersion) return "version";
  std::size_t wanted = 0;
  switch (message->kind) {
    case MessageKind::kOffer:
      wanted = 2;
      break;
    case MessageKind::kAccept:
    case MessageKind::kArena:
      wanted = 1;
      break;
    case MessageKind::kArenaGone:
      break;
    default:
      return "kind";
  }
  return descriptors == wanted ? nullptr : "descriptors";
}

Io send_message(int socket, const Message& message, const int* descriptors, std::size_t count) {
  iovec part{const_cast<Message*>(&message), sizeof message};
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsMax * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (count != 0) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(c), descriptors, count * sizeof(int));
  }
  for (;;) {
    const ssize_t n = ::sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n == static_cast<ssize_t>(sizeof message)) return Io::kDone;
    if (n >= 0) return Io::kFailed;
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS)
      return Io::kAgain;
    return errno == EPIPE || errno == ECONNRESET ? Io::kClosed : Io::kFailed;
  }
}

Io receive_message(int socket, Received* out, std::string* why) {
  char data[sizeof(Message) + 1];  // one more, so that longer ones are seen as such
  iovec part{data, sizeof data};
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsMax * sizeof(int))];
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t n = 0;
  do {
    n = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Io::kAgain;
    if (errno == ECONNRESET) return Io::kClosed;
    *why = system_error("shm: recvmsg", errno).text();
    return Io::kFailed;
  }
  out->count = 0;
  for (Descriptor& d : out->descriptors) d.close();
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      Descriptor owned(fd);
      if (out->count < kDescriptorsMax) out->descriptors[out->count++] = std::move(owned);
    }
  }
  if (n == 0 && out->count == 0) return Io::kClosed;
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    *why = "shm: the peer's descriptors could not be taken: too many open files here: raise ulimit -n";
    return Io::kFailed;
  }
  const char* wrong = check(data, static_cast<std::size_t>(n), out->count, &out->message);
  if (wrong == nullptr) return Io::kDone;
  *why = std::string("a message can't be believed (") + wrong + ")";
  return Io::kFailed;
}

Result<Descriptor> listen_at(const Address& address) {
  auto made = make_socket();
  if (!made.ok()) return made.status();
  Descriptor socket = made.take();
  sockaddr_un name;
  const socklen_t length = name_of(address, &name);
  if (::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&name), length) != 0)
    return system_error("shm: bind", errno);
  if (::listen(socket.fd(), kBacklog) != 0) return system_error("shm: listen", errno);
  return socket;
}

Result<Descriptor> connect_to(const Address& address, bool* refused) {
  *refused = false;
  auto made = make_socket();
  if (!made.ok()) return made.status();
  Descriptor socket = made.take();
  sockaddr_un name;
  const socklen_t length = name_of(address, &name);
  if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&name), length) == 0) return socket;
  *refused = errno == ECONNREFUSED;
  if (*refused) return socket;
  return system_error("shm: cannot connect to " + address.to_string(), errno);
}

Status check_peer(int socket, int* pid) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    return system_error("shm: who is the peer?", errno);
  *pid = static_cast<int>(credentials.pid);
  if (credentials.uid == ::geteuid()) return {};
  return Status(CANARY_SYSTEM, "shm: process " + std::to_string(credentials.pid) + " runs as user " +
                                   std::to_string(credentials.uid) + ", this one as " + std::to_string(::geteuid()));
}

Result<Descriptor> make_bell() {
  Descriptor bell(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!bell.open()) return system_error("shm: eventfd", errno);
  return bell;
}

Status check_bell(int bell) {
  const int flags = ::fcntl(bell, F_GETFL);
  if (flags < 0) return system_error("shm: the peer's bell", errno);
  if ((flags & O_NONBLOCK) != 0 && (flags & O_ACCMODE) == O_RDWR) return {};
  return Status(CANARY_SYSTEM, "shm: the peer's bell would make us wait");
}

void ring(int bell) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(bell, &one, sizeof one);  // full: it rings already
}

}  // namespace canarynet::shm
