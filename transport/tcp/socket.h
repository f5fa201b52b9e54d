// transport/tcp/socket.h -- the system calls a TCP lane needs, as small functions over an owned descriptor.
//
// Memory: Socket owns its descriptor. Threads: none of its own; any. Failure: a Status with errno's text. Set-up only:
// these functions allocate.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "base/descriptor.h"
#include "base/status.h"
#include "base/units.h"
#include "topology/address.h"

namespace canarynet {

using Socket = Descriptor;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// `device` gives a link-local IPv6 address its scope.
SocketAddress to_socket_address(const Address& address, const std::string& device);
// IPv4-mapped IPv6 comes back as IPv4.
Address to_address(const sockaddr_storage& storage);
Address local_address(int fd);
Address peer_address(int fd);
bool is_wildcard(const Address& address);
// An address of this host: what is sent there goes through the loopback device, whichever NIC carries the address.
bool is_own_address(const Address& address);

// Non-blocking, close-on-exec, of the address's family.
Result<Socket> make_stream_socket(Address::Family family);
// Bound and listening; port 0 picks one. A wildcard IPv6 address takes IPv4 as well.
struct ListenOptions {
  std::string scope_device = {};  // for a link-local address
  int backlog = 0;
  std::string only_device = {};  // not empty: takes only what comes in by it, and answers by it
  // A listener on the same address and port that has an only_device: this one takes what comes in elsewhere.
  const Socket* beside = nullptr;
};
Result<Socket> listen_on(const Address& address, const ListenOptions& options);

// The tuning of every lane's socket. Returns a sentence for each thing that the system refused and the lane can live
// without.
struct SocketTuning {
  std::string congestion;   // "" = the system's default
  Bytes notsent_lowat;      // 0 = the system's default
  std::string bind_device;  // "" = none
};
std::string tune(int fd, const SocketTuning& tuning);
// TCP sends no faster than this, by its own timers: no queueing discipline is needed, and it works on loopback. A
// sentence if refused.
std::string pace(int fd, BytesPerSec rate);

// Whether TCP sends again what the peer's kernel did not acknowledge in time, or probes a closed window in vain.
bool retransmits(int fd);

}  // namespace canarynet
