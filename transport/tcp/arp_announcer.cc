#include "transport/tcp/arp_announcer.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include "topology/shared_subnet.h"

namespace canarynet {
namespace {

constexpr std::uint16_t kDiscardPort = 9;

// 169.254.0.1 to .254: reserved, nobody may have them (RFC 3927, 2.1). Each time another one, for a router that answers
// for whatever it can't know ends the questions about that one.
Address nobody(std::uint32_t number) {
  return Address::ipv4(169, 254, 0, static_cast<std::uint8_t>(1 + number % 254), 0, kDiscardPort);
}

Socket voice_of(const Rail& rail) {
  Socket socket(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.open()) return {};
  Address from = rail.address;
  from.port = 0;
  const SocketAddress source = to_socket_address(from, rail.device);
  const auto length = static_cast<socklen_t>(rail.device.size());
  if (::setsockopt(socket.fd(), SOL_SOCKET, SO_BINDTODEVICE, rail.device.data(), length) != 0 ||
      ::bind(socket.fd(), source.get(), source.length) != 0)
    return {};
  return socket;
}

}  // namespace

ArpAnnouncer::ArpAnnouncer(std::span<const Rail> rails) : voices_(rails.size()) {
  for (std::size_t i = 0; i < rails.size(); ++i) {
    if (shares_subnet(rails, i)) voices_[i].socket = voice_of(rails[i]);
  }
}

bool ArpAnnouncer::serves(int rail) const {
  const auto i = static_cast<std::size_t>(rail);
  return rail >= 0 && i < voices_.size() && voices_[i].socket.open();
}

void ArpAnnouncer::announce(int rail, Nanos now) {
  if (!serves(rail)) return;
  Voice& voice = voices_[static_cast<std::size_t>(rail)];
  if (now < voice.next) return;
  voice.next = now + kInterval;
  const SocketAddress to = to_socket_address(nobody(announced_++), "");
  // By no gateway: asked for on the NIC's own link.
  const char nothing = 0;
  [[maybe_unused]] const ssize_t sent =
      ::sendto(voice.socket.fd(), &nothing, sizeof nothing, MSG_DONTROUTE | MSG_DONTWAIT, to.get(), to.length);
}

}  // namespace canarynet
