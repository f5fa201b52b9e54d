#include "transport/strangers.h"

#include <cstring>

namespace canarynet {

std::vector<std::byte> refusal_frame(std::string_view why) {
  why = why.substr(0, wire::kAbortTextMax);
  wire::AbortPayload fixed;
  fixed.code = CANARY_LIMIT;
  fixed.text_bytes = static_cast<std::uint32_t>(why.size());
  std::vector<std::byte> frame(sizeof(wire::Header) + sizeof fixed + why.size());
  std::byte* payload = frame.data() + sizeof(wire::Header);
  std::memcpy(payload, &fixed, sizeof fixed);
  std::memcpy(payload + sizeof fixed, why.data(), why.size());
  wire::Header h;
  h.kind = wire::Kind::kAbort;
  h.payload_bytes = static_cast<std::uint32_t>(sizeof fixed + why.size());
  h.payload_crc32 = wire::payload_crc(payload, h.payload_bytes);
  wire::seal(h);
  std::memcpy(frame.data(), &h, sizeof h);
  return frame;
}

std::string refusal_text(std::span<const std::byte> payload) {
  wire::AbortPayload fixed;
  if (payload.size() < sizeof fixed) return {};
  std::memcpy(&fixed, payload.data(), sizeof fixed);
  if (fixed.text_bytes != payload.size() - sizeof fixed || fixed.text_bytes > wire::kAbortTextMax) return {};
  std::string text(reinterpret_cast<const char*>(payload.data()) + sizeof fixed, fixed.text_bytes);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char b) { return b < 0x20 || b == 0x7f; }, '?');
  return text;
}

}  // namespace canarynet
