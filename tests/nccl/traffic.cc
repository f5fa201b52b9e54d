#include "tests/nccl/traffic.h"

#include <algorithm>
#include <cstring>

namespace nccltest {
namespace {

constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15u;

struct Kind {
  std::size_t bound;
  Protocol protocol;
};
// The sizes that NCCL's protocols give (ring Simple, LL128, tree Simple, p2p, LL), and empty slices.
constexpr Kind kKinds[] = {{1 << 20, Protocol::kSimple},   {600 << 10, Protocol::kLL128},
                           {512 << 10, Protocol::kSimple}, {128 << 10, Protocol::kSimple},
                           {64 << 10, Protocol::kLL},      {64 << 10, Protocol::kSimple},
                           {0, Protocol::kSimple},         {32 << 10, Protocol::kSimple}};

}  // namespace

std::uint64_t mix64(std::uint64_t x) {
  x += kStep;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

bool parse_bytes(const std::string& text, std::size_t* bytes) {
  std::size_t used = 0;
  unsigned long long value = 0;
  try {
    value = std::stoull(text, &used);
  } catch (const std::exception&) {
    return false;
  }
  const std::string unit = text.substr(used);
  if (unit != "" && unit != "K" && unit != "M") return false;
  *bytes = static_cast<std::size_t>(value) << (unit == "M" ? 20 : unit == "K" ? 10 : 0);
  return *bytes <= (std::size_t{1} << 30);
}

bool Traffic::parse(const std::string& text, std::uint64_t seed, Traffic* out, std::string* error) {
  *out = Traffic{};
  out->seed_ = seed;
  if (text == "mix") return true;
  out->mixed_ = false;
  if (parse_bytes(text, &out->fixed_)) return true;
  *error = "takes mix, or a size up to 1024M such as 64K, not \"" + text + "\"";
  return false;
}

Message Traffic::at(std::uint64_t connection, std::uint64_t sequence) const {
  if (!mixed_) return {fixed_, fixed_, Protocol::kSimple};
  const std::uint64_t h = mix64(mix64(seed_ ^ mix64(connection)) + sequence);
  const Kind& kind = kKinds[h % std::size(kKinds)];
  Message message{kind.bound, kind.bound, kind.protocol};
  const std::uint64_t how = (h >> 8) % 12;
  const std::uint64_t pick = mix64(h);
  if (how < 3) message.size = pick % (message.bound + 1);                         // any length
  if (how == 3) message.size = message.bound / 32;                                // what small collectives send
  if (how == 4) message.size = 0;                                                 // an empty slice of a full receive
  if (how == 5) message.size = std::min<std::size_t>(message.bound, pick % 256);  // around the inline sizes
  if (message.protocol == Protocol::kLL) message.size &= ~std::size_t{7};  // LL is in units of 8 bytes, flags included
  return message;
}

std::size_t Traffic::largest(Protocol protocol) const {
  if (!mixed_) return protocol == Protocol::kSimple ? fixed_ : 0;
  std::size_t most = 0;
  for (const Kind& kind : kKinds) {
    if (kind.protocol == protocol) most = std::max(most, kind.bound);
  }
  return most;
}

std::uint64_t pattern_key(std::uint64_t connection, std::uint64_t sequence) {
  return mix64(mix64(connection) + sequence);
}

void fill_pattern(unsigned char* data, std::size_t bytes, std::uint64_t key) {
  std::uint64_t word = key;
  std::size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    word += kStep;
    std::memcpy(data + i, &word, 8);
  }
  word += kStep;
  std::memcpy(data + i, &word, bytes - i);
}

std::size_t check_pattern(const unsigned char* data, std::size_t bytes, std::uint64_t key) {
  std::uint64_t word = key;
  std::size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    word += kStep;
    std::uint64_t got;
    std::memcpy(&got, data + i, 8);
    if (got != word) break;
  }
  if (i + 8 > bytes) word += kStep;
  unsigned char want[8];
  std::memcpy(want, &word, 8);
  for (std::size_t k = 0; i + k < bytes && k < 8; ++k) {
    if (data[i + k] != want[k]) return i + k;
  }
  return bytes;
}

std::size_t check_bytes(const unsigned char* data, std::size_t bytes, unsigned char value) {
  if (bytes == 0) return 0;
  if (data[0] != value) return 0;
  // If the data equals itself moved by one, all bytes are like the first.
  if (std::memcmp(data, data + 1, bytes - 1) == 0) return bytes;
  for (std::size_t i = 0; i < bytes; ++i) {
    if (data[i] != value) return i;
  }
  return bytes;
}

}  // namespace nccltest
