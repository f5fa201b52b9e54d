#include "transport/wire.h"

#include <bit>

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
  if (header.version != kVersion) return "version";
  if (header.header_crc32 != header_crc(header)) return "header crc";
  if (header.kind < Kind::kHello || header.kind > Kind::kProbe) return "kind";
  if (header.payload_bytes > kPayloadMax) return "payload too large";
  return nullptr;
}

std::uint32_t payload_crc(const void* data, std::size_t bytes) { return bytes == 0 ? 0 : crc32c(0, data, bytes); }

bool split(const Header& header, std::span<const std::byte> payload, SignedPiece* out) {
  if (payload.size() != header.payload_bytes || payload.size() < sizeof(SignaturePayload)) return false;
  out->header = header;
  out->header.flags = static_cast<std::uint8_t>((header.flags & ~kSigned) | kUnchecked);
  out->header.payload_bytes = header.payload_bytes - static_cast<std::uint32_t>(sizeof(SignaturePayload));
  out->elements = payload.first(out->header.payload_bytes);
  out->signature = payload.subspan(out->header.payload_bytes);
  return true;
}

}  // namespace canarynet::wire
