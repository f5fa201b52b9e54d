#include "transport/tcp/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace canarynet {
namespace {

std::string errno_text(int error_number) {
  char buffer[128];
  return strerror_r(error_number, buffer, sizeof buffer);
}

bool set_int(int fd, int level, int option, int value) {
  return ::setsockopt(fd, level, option, &value, sizeof value) == 0;
}

}  // namespace

SocketAddress to_socket_address(const Address& address, const std::string& device) {
  SocketAddress out;
  if (address.family == Address::Family::kIPv4) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(address.port);
    std::memcpy(&in.sin_addr, address.bytes.data(), sizeof in.sin_addr);
    std::memcpy(&out.storage, &in, sizeof in);
    out.length = sizeof in;
  } else {
    sockaddr_in6 in{};
    in.sin6_family = AF_INET6;
    in.sin6_port = htons(address.port);
    std::memcpy(&in.sin6_addr, address.bytes.data(), sizeof in.sin6_addr);
    if (IN6_IS_ADDR_LINKLOCAL(&in.sin6_addr) && !device.empty()) in.sin6_scope_id = ::if_nametoindex(device.c_str());
    std::memcpy(&out.storage, &in, sizeof in);
    out.length = sizeof in;
  }
  return out;
}

Address to_address(const sockaddr_storage& storage) {
  Address out;
  if (storage.ss_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, &storage, sizeof in);
    out.family = Address::Family::kIPv4;
    out.port = ntohs(in.sin_port);
    std::memcpy(out.bytes.data(), &in.sin_addr, sizeof in.sin_addr);
  } else if (storage.ss_family == AF_INET6) {
    sockaddr_in6 in;
    std::memcpy(&in, &storage, sizeof in);
    out.port = ntohs(in.sin6_port);
    if (IN6_IS_ADDR_V4MAPPED(&in.sin6_addr)) {
      out.family = Address::Family::kIPv4;
      std::memcpy(out.bytes.data(), in.sin6_addr.s6_addr + 12, 4);
    } else {
      out.family = Address::Family::kIPv6;
      std::memcpy(out.bytes.data(), &in.sin6_addr, sizeof in.sin6_addr);
    }
  }
  return out;
}

Address local_address(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return {};
  return to_address(storage);
}

Address peer_address(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return {};
  return to_address(storage);
}

bool is_wildcard(const Address& address) {
  for (std::uint8_t byte : address.bytes) {
    if (byte != 0) return false;
  }
  return true;
}

bool is_own_address(const Address& address) {
  if (address.loopback()) return true;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return false;
  bool own = false;
  for (const ifaddrs* entry = list; entry != nullptr && !own; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    sockaddr_storage storage{};
    if (entry->ifa_addr->sa_family == AF_INET) {
      std::memcpy(&storage, entry->ifa_addr, sizeof(sockaddr_in));
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      std::memcpy(&storage, entry->ifa_addr, sizeof(sockaddr_in6));
    } else {
      continue;
    }
    const Address candidate = to_address(storage);
    own = candidate.family == address.family && candidate.bytes == address.bytes;
  }
  ::freeifaddrs(list);
  return own;
}

Result<Socket> make_stream_socket(Address::Family family) {
  const int domain = family == Address::Family::kIPv6 ? AF_INET6 : AF_INET;
  const int fd = ::socket(domain, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return system_error("tcp: cannot make a socket", errno);
  return Socket(fd);
}

Result<Socket> listen_on(const Address& address, const ListenOptions& options) {
  auto made = make_stream_socket(address.family);
  if (!made.ok()) return made.status();
  Socket socket = made.take();
  set_int(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
  const std::string& device = options.only_device;
  if (!device.empty() && ::setsockopt(socket.fd(), SOL_SOCKET, SO_BINDTODEVICE, device.data(),
                                      static_cast<socklen_t>(device.size())) != 0) {
    return system_error("tcp: cannot bind to device " + device, errno);
  }
  if (address.family == Address::Family::kIPv6) {
    set_int(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, is_wildcard(address) ? 0 : 1);
  }
  // The two say for the moment that they share the port; nobody else is to join them.
  const auto share_port = [&](int on) {
    if (options.beside == nullptr) return;
    set_int(socket.fd(), SOL_SOCKET, SO_REUSEPORT, on);
    set_int(options.beside->fd(), SOL_SOCKET, SO_REUSEPORT, on);
  };
  share_port(1);
  const SocketAddress at = to_socket_address(address, options.scope_device);
  const char* failed = nullptr;
  if (::bind(socket.fd(), at.get(), at.length) != 0) {
    failed = "tcp: cannot bind to ";
  } else if (::listen(socket.fd(), options.backlog) != 0) {
    failed = "tcp: cannot listen on ";
  }
  const int error_number = errno;
  share_port(0);
  if (failed != nullptr) return system_error(failed + address.to_string(), error_number);
  return socket;
}

bool retransmits(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  // The first probe of a window that a sleeping process has closed is always under way.
  return info.tcpi_retransmits != 0 || info.tcpi_probes > 1;
}

std::string pace(int fd, BytesPerSec rate) {
  const auto value = static_cast<unsigned long>(rate.count);
  if (::setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &value, sizeof value) == 0) return {};
  return "SO_MAX_PACING_RATE was refused (" + errno_text(errno) + "): lanes are not paced";
}

std::string tune(int fd, const SocketTuning& tuning) {
  std::string notes;
  const auto note = [&notes](const std::string& text) { notes += (notes.empty() ? "" : "; ") + text; };
  set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  const auto lowat = static_cast<int>(tuning.notsent_lowat.count);
  if (lowat > 0 && !set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, lowat)) {
    note("TCP_NOTSENT_LOWAT was refused (" + errno_text(errno) + ")");
  }
  if (!tuning.congestion.empty() && ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, tuning.congestion.data(),
                                                 static_cast<socklen_t>(tuning.congestion.size())) != 0) {
    const int error_number = errno;
    char in_use[32] = {};
    socklen_t length = sizeof in_use - 1;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, in_use, &length) != 0) in_use[0] = '\0';
    note("congestion control \"" + tuning.congestion + "\" was refused (" + errno_text(error_number) + "): \"" +
         in_use + "\" is used");
  }
  if (!tuning.bind_device.empty() && ::setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, tuning.bind_device.data(),
                                                  static_cast<socklen_t>(tuning.bind_device.size())) != 0) {
    note("binding to device " + tuning.bind_device + " was refused (" + errno_text(errno) +
         "): routing by source address decides");
  }
  return notes;
}

}  // namespace canarynet
