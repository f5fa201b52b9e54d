#include "topology/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

namespace canarynet {
namespace {

int bits_of(Address::Family family) { return family == Address::Family::kIPv4 ? 32 : 128; }

// Reads the whole text as a number in [low, high].
bool parse_number(std::string_view text, int low, int high, int* out) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return false;
  if (value < low || value > high) return false;
  *out = value;
  return true;
}

Status bad(std::string_view text, const char* why) {
  return {CANARY_INVALID_ARGUMENT, "\"" + std::string(text) + "\" is no address: " + why};
}

}  // namespace

bool Address::loopback() const {
  if (family == Family::kIPv4) return bytes[0] == 127;
  if (family != Family::kIPv6) return false;
  return std::all_of(bytes.begin(), bytes.end() - 1, [](std::uint8_t b) { return b == 0; }) && bytes[15] == 1;
}

bool Address::same_subnet(const Address& other) const {
  if (family != other.family || !valid() || prefix_bits == 0 || other.prefix_bits == 0) return false;
  const int bits = std::min({int{prefix_bits}, int{other.prefix_bits}, bits_of(family)});
  for (int i = 0; i < bits; i += 8) {
    const int here = std::min(8, bits - i);
    const int mask = (0xff00 >> here) & 0xff;
    const auto byte = static_cast<std::size_t>(i / 8);
    if (((bytes[byte] ^ other.bytes[byte]) & mask) != 0) return false;
  }
  return true;
}

std::string Address::to_string() const {
  if (!valid()) return "none";
  if (family == Family::kSharedMemory) {
    std::string name = "shm:";
    for (std::size_t i = bytes.size() / 2; i < bytes.size(); ++i) {
      name += "0123456789abcdef"[bytes[i] >> 4];
      name += "0123456789abcdef"[bytes[i] & 15];
    }
    return name;
  }
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family == Family::kIPv4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof text);
  if (port == 0) return text;
  const std::string colon_port = ":" + std::to_string(port);
  return family == Family::kIPv4 ? text + colon_port : "[" + std::string(text) + "]" + colon_port;
}

Address Address::ipv4(std::uint8_t a, std::uint8_t b, std::uint8_t c, std::uint8_t d, std::uint8_t prefix_bits,
                      std::uint16_t port) {
  Address address;
  address.family = Family::kIPv4;
  address.prefix_bits = prefix_bits;
  address.port = port;
  address.bytes = {a, b, c, d};
  return address;
}

// Grammar: host [ "/" prefix ] [ ":" port ]. An IPv6 host with a port stands in brackets, "[host]" or "[host/prefix]";
// one without brackets takes a prefix but no port.
Result<Address> Address::parse(std::string_view text) {
  std::string_view host = text;
  std::string_view prefix;
  std::string_view port;
  bool has_prefix = false;
  bool has_port = false;
  const auto cut = [](std::string_view* from, std::string_view* rest, std::size_t at) {
    *rest = from->substr(at + 1);
    *from = from->substr(0, at);
  };
  const bool bracketed = !text.empty() && text.front() == '[';
  if (bracketed) {
    const auto close = text.find(']');
    if (close == std::string_view::npos) return bad(text, "']' is missing");
    std::string_view after = text.substr(close + 1);
    host = text.substr(1, close - 1);
    if (!after.empty() && after.front() == '/') {
      has_prefix = true;
      prefix = after.substr(1);
      after = {};
      if (const auto colon = prefix.find(':'); colon != std::string_view::npos) {
        has_port = true;
        cut(&prefix, &port, colon);
      }
    }
    if (!after.empty()) {
      if (after.front() != ':') return bad(text, "only \":port\" or \"/prefix\" may follow ']'");
      has_port = true;
      port = after.substr(1);
    }
  }
  if (const auto slash = host.find('/'); slash != std::string_view::npos) {
    if (has_prefix) return bad(text, "two prefixes");
    has_prefix = true;
    cut(&host, &prefix, slash);
    if (const auto colon = prefix.find(':'); !bracketed && colon != std::string_view::npos) {
      has_port = true;
      cut(&prefix, &port, colon);
    }
  } else if (!bracketed && std::count(host.begin(), host.end(), ':') == 1) {
    has_port = true;
    cut(&host, &port, host.find(':'));
  }

  Address address;
  const std::string terminated(host);
  if (inet_pton(AF_INET, terminated.c_str(), address.bytes.data()) == 1 && !bracketed) {
    address.family = Family::kIPv4;
  } else if (inet_pton(AF_INET6, terminated.c_str(), address.bytes.data()) == 1) {
    address.family = Family::kIPv6;
  } else {
    return bad(text, "the host is not numeric IPv4 or IPv6");
  }
  int number = 0;
  if (has_prefix) {
    if (!parse_number(prefix, 1, bits_of(address.family), &number)) return bad(text, "the prefix is out of range");
    address.prefix_bits = static_cast<std::uint8_t>(number);
  }
  if (has_port) {
    if (!parse_number(port, 0, 65535, &number)) return bad(text, "the port is out of range");
    address.port = static_cast<std::uint16_t>(number);
  }
  return address;
}

}  // namespace canarynet
