#include "control/unique_id.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/crc32c.h"

namespace canarynet::control {
namespace {

constexpr std::string_view kMagic = "CANARID";
constexpr std::size_t kVersionAt = 7, kTokenAt = 8, kHostAt = 16, kPortAt = 24, kCountAt = 26, kZeroAt = 27,
                      kAddressesAt = 28, kAddressBytes = 18, kCrcAt = kUniqueIdBytes - 4;
static_assert(kAddressesAt + kUniqueIdAddressesMax * kAddressBytes <= kCrcAt);

template <typename T>
void put(UniqueIdBytes& bytes, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) bytes[at + i] = static_cast<std::uint8_t>(value >> (8 * i) & 0xff);
}
template <typename T>
T get(std::span<const std::uint8_t> bytes, std::size_t at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value |= std::uint64_t{bytes[at + i]} << (8 * i);
  return static_cast<T>(value);
}

Status bad(const std::string& why) { return {CANARY_INVALID_ARGUMENT, "not a unique id of Canary: " + why}; }

bool all_zero(std::span<const std::uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::uint8_t b) { return b == 0; });
}

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

UniqueIdBytes encode(const UniqueId& id) {
  CANARY_CHECK(!id.addresses.empty() && id.addresses.size() <= kUniqueIdAddressesMax && id.token != 0 && id.port != 0,
               "a unique id needs token, port and one to five addresses");
  UniqueIdBytes bytes{};
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  bytes[kVersionAt] = kUniqueIdVersion;
  put(bytes, kTokenAt, id.token);
  put(bytes, kHostAt, id.host);
  put(bytes, kPortAt, id.port);
  bytes[kCountAt] = static_cast<std::uint8_t>(id.addresses.size());
  for (std::size_t i = 0; i < id.addresses.size(); ++i) {
    const Address& a = id.addresses[i];
    std::uint8_t* at = bytes.data() + kAddressesAt + i * kAddressBytes;
    at[0] = static_cast<std::uint8_t>(a.family);
    at[1] = a.prefix_bits;
    std::copy_n(a.bytes.begin(), a.family == Address::Family::kIPv4 ? 4 : 16, at + 2);
  }
  put(bytes, kCrcAt, crc32c(0, bytes.data(), kCrcAt));
  return bytes;
}

Result<UniqueId> decode_unique_id(std::span<const std::uint8_t> bytes) {
  if (bytes.size() != kUniqueIdBytes)
    return bad(std::to_string(bytes.size()) + " bytes instead of " + std::to_string(kUniqueIdBytes));
  if (all_zero(bytes))
    return bad("it is all zeroes: canary_get_unique_id was not called, or the bytes were not passed on");
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) return bad("it begins with something else");
  if (bytes[kVersionAt] != kUniqueIdVersion) {
    return Status(CANARY_VERSION, "the unique id has version " + std::to_string(bytes[kVersionAt]) +
                                      ", this library reads " + std::to_string(kUniqueIdVersion));
  }
  if (get<std::uint32_t>(bytes, kCrcAt) != crc32c(0, bytes.data(), kCrcAt))
    return bad("the checksum is wrong: a byte changed on the way");
  // An id with a correct checksum may still be nonsense.
  UniqueId id;
  id.token = get<std::uint64_t>(bytes, kTokenAt);
  id.host = get<std::uint64_t>(bytes, kHostAt);
  id.port = get<std::uint16_t>(bytes, kPortAt);
  const std::size_t count = bytes[kCountAt];
  if (id.token == 0) return bad("its token is 0");
  if (id.port == 0) return bad("its port is 0");
  if (count < 1 || count > kUniqueIdAddressesMax) return bad("it has " + std::to_string(count) + " addresses");
  for (std::size_t i = 0; i < count; ++i) {
    const auto entry = bytes.subspan(kAddressesAt + i * kAddressBytes, kAddressBytes);
    Address a;
    a.family = static_cast<Address::Family>(entry[0]);
    const std::size_t size = a.family == Address::Family::kIPv4 ? 4 : a.family == Address::Family::kIPv6 ? 16 : 0;
    if (size == 0) return bad("address " + std::to_string(i) + " is of no known family");
    a.prefix_bits = entry[1];
    a.port = id.port;
    std::copy_n(entry.begin() + 2, size, a.bytes.begin());
    if (a.prefix_bits > 8 * size) return bad("address " + std::to_string(i) + " has an impossible prefix");
    if (all_zero(a.bytes)) return bad("address " + std::to_string(i) + " is no address to dial");
    if (!all_zero(entry.subspan(2 + size))) return bad("bytes that must be zero are not");
    id.addresses.push_back(a);
  }
  const std::size_t end = kAddressesAt + count * kAddressBytes;
  if (bytes[kZeroAt] != 0 || !all_zero(bytes.subspan(end, kCrcAt - end))) return bad("bytes that must be zero are not");
  return id;
}

std::string unique_id_text(std::span<const std::uint8_t, kUniqueIdBytes> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text(kUniqueIdScheme);
  for (const std::uint8_t b : bytes) {
    text += kDigits[b >> 4];
    text += kDigits[b & 15];
  }
  return text;
}

Result<UniqueId> parse_unique_id(std::string_view text) {
  if (!text.starts_with(kUniqueIdScheme)) return bad("does not begin with id:");
  text.remove_prefix(kUniqueIdScheme.size());
  if (text.size() != 2 * kUniqueIdBytes) {
    return bad("id: takes " + std::to_string(2 * kUniqueIdBytes) + " hexadecimal digits, here are " +
               std::to_string(text.size()));
  }
  UniqueIdBytes bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) {
      return bad("\"" + std::string(text.substr(2 * i, 2)) + "\" at digit " + std::to_string(2 * i) +
                 " is not hexadecimal");
    }
    bytes[i] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return decode_unique_id(bytes);
}

// FNV-1a.
std::uint64_t host_mark(std::string_view host_id) {
  std::uint64_t mark = 0xcbf29ce484222325ull;
  for (const char c : host_id) mark = (mark ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return mark;
}

}  // namespace canarynet::control
