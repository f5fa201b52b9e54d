#include "transport/strangers.h"

#include <cstring>

#include "base/text.h"
#include "transport/frames.h"

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
  const wire::Header h = wire::greeting(wire::Kind::kAbort, payload, sizeof fixed + why.size());
  std::memcpy(frame.data(), &h, sizeof h);
  return frame;
}

std::string refusal_text(const wire::Header& header, std::span<const std::byte> payload) {
  wire::AbortFrame abort;
  if (wire::read(header, payload, &abort) != nullptr) return {};
  std::string text(abort.text);
  make_printable(&text);
  return text;
}

}  // namespace canarynet
