#include "discovery/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

#include "base/quantity.h"
#include "base/text.h"
#include "discovery/routes.h"

namespace canarynet {
namespace {

int prefix_of(const void* mask, std::size_t bytes) {
  int bits = 0;
  for (std::size_t i = 0; i < bytes; ++i) bits += std::popcount(static_cast<const unsigned char*>(mask)[i]);
  return bits;
}

Address address_of(const ifaddrs& i) {
  Address a;
  if (i.ifa_addr->sa_family == AF_INET) {
    a.family = Address::Family::kIPv4;
    std::memcpy(a.bytes.data(), &reinterpret_cast<const sockaddr_in*>(i.ifa_addr)->sin_addr, 4);
    if (i.ifa_netmask)
      a.prefix_bits =
          static_cast<std::uint8_t>(prefix_of(&reinterpret_cast<const sockaddr_in*>(i.ifa_netmask)->sin_addr, 4));
  } else if (i.ifa_addr->sa_family == AF_INET6) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6*>(i.ifa_addr)->sin6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(&in6)) return a;
    a.family = Address::Family::kIPv6;
    std::memcpy(a.bytes.data(), &in6, 16);
    if (i.ifa_netmask) {
      a.prefix_bits =
          static_cast<std::uint8_t>(prefix_of(&reinterpret_cast<const sockaddr_in6*>(i.ifa_netmask)->sin6_addr, 16));
    }
  }
  return a;
}

// The speed in Mbit/s from sysfs; 0 if the driver does not know it.
BytesPerSec nominal_speed(const std::string& name) {
  std::ifstream f("/sys/class/net/" + name + "/speed");
  long mbit = 0;
  return f >> mbit && mbit > 0 ? BytesPerSec::from_mbit(mbit) : BytesPerSec{};
}

std::string names_of(const std::vector<Interface>& interfaces) {
  std::string out;
  for (const Interface& i : interfaces) out += (out.empty() ? "" : ", ") + i.name + " (" + i.address.to_string() + ")";
  return out.empty() ? "none" : out;
}

Rail to_rail(const Interface& i) { return {i.name, i.address, i.nominal, i.beyond}; }

// Makes an address of the loopback network a rail of its own; false if `wanted` is none, or there is no loopback.
bool loopback_alias(std::string_view wanted, const std::vector<Interface>& available, std::size_t number, Rail* out) {
  const auto parsed = Address::parse(wanted);
  if (!parsed.ok()) return false;
  Address a = parsed.value();
  const auto lo = std::find_if(available.begin(), available.end(), [&](const Interface& i) {
    return i.address.family == a.family && i.address.loopback();
  });
  if (a.family != Address::Family::kIPv4 || !a.loopback() || a.port != 0 || lo == available.end()) return false;
  if (a.prefix_bits == 0) a.prefix_bits = lo->address.prefix_bits;
  *out = {"lo:" + std::to_string(number), a, {}};
  return true;
}

}  // namespace

Result<std::vector<Interface>> list_interfaces() {
  ifaddrs* head = nullptr;
  if (getifaddrs(&head) != 0) return system_error("getifaddrs", errno);
  std::vector<Interface> out;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* i = head; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family || (i->ifa_flags & IFF_UP) == 0) continue;
      const bool known = std::any_of(out.begin(), out.end(), [&](const Interface& o) { return o.name == i->ifa_name; });
      const Address a = address_of(*i);
      if (!known && a.valid()) out.push_back({i->ifa_name, a, nominal_speed(i->ifa_name)});
    }
  }
  freeifaddrs(head);
  // If the kernel does not tell its routes, rails are paired by subnet alone.
  if (const auto routes = list_routes(); routes.ok()) {
    for (Interface& i : out) i.beyond = beyond(routes.value(), i.name, i.address);
  }
  return out;
}

bool matches_ifname(std::string_view pattern, std::string_view name) {
  const bool exclude = pattern.starts_with('^');
  if (exclude) pattern.remove_prefix(1);
  const bool exact = pattern.starts_with('=');
  if (exact) pattern.remove_prefix(1);
  bool found = false;
  for (const auto part : split(pattern)) {
    if (!part.empty()) found |= exact ? name == part : name.starts_with(part);
  }
  return found != exclude;
}

Result<std::vector<BytesPerSec>> pacing_of(const Settings& settings, std::size_t rails) {
  std::vector<BytesPerSec> out;
  if (settings.pacing_rate.empty()) return out;
  const auto wrong = [&](const std::string& why) {
    return Status(CANARY_INVALID_SETTING, "CANARY_PACING_RATE=\"" + settings.pacing_rate + "\": " + why);
  };
  for (const auto part : split(settings.pacing_rate)) {
    const auto bits = part == "none" ? std::optional<double>(0) : bits_per_second(part);
    if (!bits || (part != "none" && *bits < 1e5) || *bits > 4e11)
      return wrong("takes rates from 100kbit to 400gbit such as 500mbit, or none");
    out.push_back(BytesPerSec{std::llround(*bits / 8)});
  }
  if (out.size() == 1) out.resize(rails, out[0]);
  if (out.size() != rails) return wrong("takes one rate, or one for each of the " + std::to_string(rails) + " rails");
  return out;
}

Result<std::vector<Rail>> choose_rails(const Settings& settings, const std::vector<Interface>& available,
                                       bool join_is_loopback) {
  std::vector<Rail> out;
  if (!settings.rails.empty()) {
    for (const auto wanted : split(settings.rails)) {
      if (wanted.empty()) continue;
      const auto at = std::find_if(available.begin(), available.end(), [&](const Interface& i) {
        return i.name == wanted || i.address.to_string() == wanted;
      });
      if (Rail alias; at == available.end() && loopback_alias(wanted, available, out.size(), &alias)) {
        out.push_back(alias);
        continue;
      }
      if (at == available.end()) {
        return Status(CANARY_INVALID_SETTING, "CANARY_RAILS=\"" + settings.rails +
                                                  "\": no interface is called or has the address " +
                                                  std::string(wanted) + "; up are " + names_of(available));
      }
      out.push_back(to_rail(*at));
    }
  } else {
    for (const Interface& i : available) {
      const bool wanted = !settings.socket_ifname.empty() ? matches_ifname(settings.socket_ifname, i.name)
                          : join_is_loopback              ? i.address.loopback()
                                             : !i.address.loopback() && matches_ifname("^docker,virbr", i.name);
      if (wanted) out.push_back(to_rail(i));
    }
    if (out.empty() && settings.socket_ifname.empty()) {
      for (const Interface& i : available) {
        if (i.address.loopback()) out.push_back(to_rail(i));
      }
    }
  }
  if (out.empty()) {
    return Status(CANARY_INVALID_SETTING, "CANARY_SOCKET_IFNAME=\"" + settings.socket_ifname +
                                              "\": no interface matches; up are " + names_of(available));
  }
  if (out.size() > static_cast<std::size_t>(kRailsMax)) {
    return Status(CANARY_LIMIT, std::to_string(out.size()) + " NICs match, at most " + std::to_string(kRailsMax) +
                                    " can be used: narrow CANARY_SOCKET_IFNAME or CANARY_RAILS");
  }
  return out;
}

}  // namespace canarynet
