#include "transport/message_frames.h"

#include <cstring>

namespace canarynet::wire {
namespace {

constexpr const char* kLength = "a payload of another length than its word has";

template <typename Payload>
bool copy(std::span<const std::byte> payload, Payload* out) {
  if (payload.size() != sizeof *out) return false;
  std::memcpy(out, payload.data(), sizeof *out);
  return true;
}

bool ends(const char (&host)[kHostTextBytes]) { return host[kHostTextBytes - 1] == 0; }

}  // namespace

const char* read(const Header& header, std::span<const std::byte> payload, MessageWord* out) {
  if (header.kind != Kind::kSignature) return "another kind";
  if (payload.size() != header.payload_bytes) return "a payload of another length than its header tells";
  switch (static_cast<MessageFrame>(header.step)) {
    case MessageFrame::kCredit:
      if (!payload.empty()) return kLength;
      *out = Credit{header.op};
      return nullptr;
    case MessageFrame::kRefuse: {
      Refuse word{header.op, {}};
      if (!copy(payload, &word.why)) return kLength;
      if (word.why.unknown_tag > 1) return "a refusal for two reasons";
      *out = word;
      return nullptr;
    }
    case MessageFrame::kOpen: {
      Open word;
      if (!copy(payload, &word.terms)) return kLength;
      if (!ends(word.terms.host)) return "a host's name without an end";
      *out = word;
      return nullptr;
    }
    case MessageFrame::kOpened: {
      Opened word;
      if (!copy(payload, &word.terms)) return kLength;
      if (word.terms.accepted > 1 || word.terms.reserved != 0) return "an answer that is neither yes nor no";
      if (!ends(word.terms.host)) return "a host's name without an end";
      *out = word;
      return nullptr;
    }
    case MessageFrame::kClose:
      if (!payload.empty()) return kLength;
      *out = Close{header.op};
      return nullptr;
    case MessageFrame::kAbort:
      if (payload.size() > kAbortTextBytes) return "a text that is too long";
      *out = GiveUp{{reinterpret_cast<const char*>(payload.data()), payload.size()}};
      return nullptr;
  }
  return "a word that is not known";
}

}  // namespace canarynet::wire
