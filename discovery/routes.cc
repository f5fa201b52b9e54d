#include "discovery/routes.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/descriptor.h"
#include "topology/rails.h"

namespace canarynet {
namespace {

constexpr std::size_t kAnswerBytes = 64 * 1024;  // the kernel writes at most 32 KiB at once

std::string device_name(unsigned number) {
  char name[IF_NAMESIZE];
  return ::if_indextoname(number, name) != nullptr ? name : "";
}

// Calls see(attribute type, payload) for each attribute of `bytes`; stops at one that is longer than the rest.
template <typename See>
void for_each_attribute(std::span<const std::byte> bytes, const See& see) {
  while (bytes.size() >= sizeof(rtattr)) {
    rtattr head;
    std::memcpy(&head, bytes.data(), sizeof head);
    if (head.rta_len < sizeof head || head.rta_len > bytes.size()) return;
    see(head.rta_type & NLA_TYPE_MASK, bytes.subspan(sizeof head, head.rta_len - sizeof head));
    bytes = bytes.subspan(std::min<std::size_t>(RTA_ALIGN(head.rta_len), bytes.size()));
  }
}

template <typename T>
bool read_as(std::span<const std::byte> bytes, T* out) {
  if (bytes.size() < sizeof *out) return false;
  std::memcpy(out, bytes.data(), sizeof *out);
  return true;
}

bool link_local_or_multicast(const Network& n) {
  const auto& b = n.base.bytes;
  if (n.bits == 0) return false;
  if (n.base.family == Address::Family::kIPv4) return b[0] >= 224 || b[0] == 127 || (b[0] == 169 && b[1] == 254);
  return b[0] == 0xff || (b[0] == 0xfe && (b[1] & 0xc0) == 0x80);
}

void read_route(std::span<const std::byte> body, std::string (*name_of_device)(unsigned),
                std::vector<DeviceRoute>* out) {
  rtmsg route;
  if (!read_as(body, &route) || route.rtm_type != RTN_UNICAST) return;
  if (route.rtm_family != AF_INET && route.rtm_family != AF_INET6) return;
  Address to;
  to.family = route.rtm_family == AF_INET ? Address::Family::kIPv4 : Address::Family::kIPv6;
  const std::size_t bytes = route.rtm_family == AF_INET ? 4 : 16;
  if (route.rtm_dst_len > 8 * bytes) return;
  unsigned table = route.rtm_table;
  std::vector<unsigned> devices;
  for_each_attribute(body.subspan(NLMSG_ALIGN(sizeof route)), [&](int type, std::span<const std::byte> value) {
    unsigned number = 0;
    switch (type) {
      case RTA_DST:
        if (value.size() >= bytes) std::memcpy(to.bytes.data(), value.data(), bytes);
        break;
      case RTA_OIF:
        if (read_as(value, &number)) devices.push_back(number);
        break;
      case RTA_TABLE:
        if (read_as(value, &number)) table = number;
        break;
      case RTA_MULTIPATH:
        for (rtnexthop hop; read_as(value, &hop) && hop.rtnh_len >= sizeof hop && hop.rtnh_len <= value.size();
             value = value.subspan(std::min<std::size_t>(RTNH_ALIGN(hop.rtnh_len), value.size()))) {
          devices.push_back(static_cast<unsigned>(hop.rtnh_ifindex));
        }
        break;
      default:
        break;
    }
  });
  if (table == RT_TABLE_LOCAL) return;
  Network network = Network::everything(to.family);
  if (route.rtm_dst_len != 0) {
    to.prefix_bits = route.rtm_dst_len;
    network = Network::of(to);
  }
  if (link_local_or_multicast(network)) return;
  for (const unsigned device : devices) {
    if (std::string name = name_of_device(device); !name.empty()) out->push_back({std::move(name), network});
  }
}

Descriptor netlink_socket() {
  Descriptor socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  const timeval patience{.tv_sec = 2, .tv_usec = 0};
  if (socket.open()) ::setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return socket;
}

Status ask(int fd, int family) {
  struct {
    nlmsghdr head;
    rtmsg route;
  } request{};
  request.head.nlmsg_len = sizeof request;
  request.head.nlmsg_type = RTM_GETROUTE;
  request.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.route.rtm_family = static_cast<unsigned char>(family);
  if (::send(fd, &request, sizeof request, 0) != static_cast<ssize_t>(sizeof request))
    return system_error("netlink: cannot ask for routes", errno);
  return {};
}

}  // namespace

bool read_routes(std::span<const std::byte> messages, std::string (*name_of_device)(unsigned),
                 std::vector<DeviceRoute>* out) {
  nlmsghdr head;
  while (read_as(messages, &head)) {
    if (head.nlmsg_len < sizeof head || head.nlmsg_len > messages.size()) return false;
    if (head.nlmsg_type == NLMSG_DONE || head.nlmsg_type == NLMSG_ERROR) return false;
    if (head.nlmsg_type == RTM_NEWROUTE)
      read_route(messages.subspan(NLMSG_HDRLEN, head.nlmsg_len - NLMSG_HDRLEN), name_of_device, out);
    messages = messages.subspan(std::min<std::size_t>(NLMSG_ALIGN(head.nlmsg_len), messages.size()));
  }
  return true;
}

Result<std::vector<DeviceRoute>> list_routes() {
  const Descriptor socket = netlink_socket();
  if (!socket.open()) return system_error("netlink: cannot make a socket", errno);
  std::vector<DeviceRoute> out;
  std::vector<std::byte> answer(kAnswerBytes);
  for (const int family : {AF_INET, AF_INET6}) {
    if (Status status = ask(socket.fd(), family); !status.ok()) return status;
    for (;;) {
      const ssize_t n = ::recv(socket.fd(), answer.data(), answer.size(), 0);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return system_error("netlink: no answer about routes", errno);
      if (!read_routes(std::span(answer).first(static_cast<std::size_t>(n)), device_name, &out)) break;
    }
  }
  return out;
}

std::string device_towards(const Address& from, const Address& to) {
  if (from.family != Address::Family::kIPv4 || to.family != Address::Family::kIPv4) return "";
  constexpr std::size_t kAddressBytes = 4;
  struct {
    nlmsghdr head;
    rtmsg route;
    rtattr to_head;
    std::array<std::uint8_t, kAddressBytes> to;
    rtattr from_head;
    std::array<std::uint8_t, kAddressBytes> from;
  } request{};
  request.head.nlmsg_len = sizeof request;
  request.head.nlmsg_type = RTM_GETROUTE;
  request.head.nlmsg_flags = NLM_F_REQUEST;
  request.route.rtm_family = AF_INET;
  request.route.rtm_dst_len = request.route.rtm_src_len = 8 * kAddressBytes;
  request.to_head = {.rta_len = RTA_LENGTH(kAddressBytes), .rta_type = RTA_DST};
  request.from_head = {.rta_len = RTA_LENGTH(kAddressBytes), .rta_type = RTA_SRC};
  std::copy_n(to.bytes.begin(), kAddressBytes, request.to.begin());
  std::copy_n(from.bytes.begin(), kAddressBytes, request.from.begin());
  const Descriptor socket = netlink_socket();
  if (!socket.open() || ::send(socket.fd(), &request, sizeof request, 0) != static_cast<ssize_t>(sizeof request))
    return "";
  std::vector<std::byte> answer(kAnswerBytes);
  const ssize_t n = ::recv(socket.fd(), answer.data(), answer.size(), 0);
  std::vector<DeviceRoute> routes;
  if (n > 0) read_routes(std::span(answer).first(static_cast<std::size_t>(n)), device_name, &routes);
  return routes.empty() ? "" : routes.front().device;
}

std::vector<Network> beyond(const std::vector<DeviceRoute>& routes, const std::string& device, const Address& address) {
  if (!address.valid() || address.loopback()) return {};
  const Network own = Network::of(address);
  std::vector<Network> out;
  for (const DeviceRoute& route : routes) {
    if (route.device != device || route.network.base.family != address.family || own.contains(route.network)) continue;
    out.push_back(route.network);
  }
  return summary_of(std::move(out), kBeyondMax);
}

}  // namespace canarynet
