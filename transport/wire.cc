#include "transport/wire.h"

#include <bit>
#include <cstring>

#include "kernels/crc32c.h"

namespace canarynet::wire {

// The structs go onto the wire as they lie in memory.
static_assert(std::endian::native == std::endian::little,
              "a big-endian host needs byte swaps in seal() and validate()");

namespace {

std::uint32_t header_crc(const Header& header) { return crc32c(0, &header, offsetof(Header, header_crc32)); }

}  // namespace

void seal(Header& header) { header.header_crc32 = header_crc(header); }

const char* validate(const Header& header) {
  // Magic and version come before the CRC although it covers them: a stranger or an older peer deserves the better
  // reason.
  if (header.magic != kMagic) return "magic";
  const bool greets = header.kind == Kind::kHello || header.kind == Kind::kAbort;
  if (header.version != kVersion && !(greets && header.version == kGreetingVersion)) return "version";
  if (header.header_crc32 != header_crc(header)) return "header crc";
  if (header.kind < Kind::kHello || header.kind > Kind::kProbe) return "kind";
  if (header.payload_bytes > kPayloadMax) return "payload too large";
  return nullptr;
}

std::uint32_t payload_crc(const void* data, std::size_t bytes) { return bytes == 0 ? 0 : crc32c(0, data, bytes); }

std::string explain(const char* reason, const Header& header) {
  if (std::strcmp(reason, "version") != 0) return reason;
  return "the peer speaks protocol version " + std::to_string(header.version) + ", this side " +
         std::to_string(kVersion);
}

Header greeting(Kind kind, const void* payload, std::size_t bytes) {
  Header header;
  header.version = kGreetingVersion;
  header.kind = kind;
  header.payload_bytes = static_cast<std::uint32_t>(bytes);
  header.payload_crc32 = payload_crc(payload, bytes);
  seal(header);
  return header;
}

}  // namespace canarynet::wire
