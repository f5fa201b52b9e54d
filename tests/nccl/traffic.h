// tests/nccl/traffic.h -- the messages that go over a connection, and the bytes in them.
//
// Both are functions of (seed, connection, sequence number) alone, so that sender and receiver agree without speaking,
// and so that a message that arrives in the wrong place, order or connection can't look right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nccltest {

// The buffer of a connection in which a message lies; NCCL registers one for each.
enum class Protocol { kLL, kLL128, kSimple };
inline constexpr int kProtocolBuffers = 3;

struct Message {
  std::size_t bound = 0;  // the length with which the receive is posted
  std::size_t size = 0;   // the length that is sent: no more than that
  Protocol protocol = Protocol::kSimple;
};

std::uint64_t mix64(std::uint64_t x);

class Traffic {
 public:
  // "mix": 1 MiB, 600 KiB (LL128), 512 KiB, 128 KiB, 64 KiB (LL) and empty messages, a third of them shorter than
  // posted, odd lengths too. A number of bytes, with K or M: always that size. Returns false with `error` for other
  // text.
  static bool parse(const std::string& text, std::uint64_t seed, Traffic* out, std::string* error);
  Message at(std::uint64_t connection, std::uint64_t sequence) const;
  std::size_t largest(Protocol protocol) const;

 private:
  std::uint64_t seed_ = 0;
  std::size_t fixed_ = 0;
  bool mixed_ = true;
};

// The pattern: 8-byte words key + (i + 1) x odd constant, cut at the end.
std::uint64_t pattern_key(std::uint64_t connection, std::uint64_t sequence);
void fill_pattern(unsigned char* data, std::size_t bytes, std::uint64_t key);
// Offset of the first wrong byte, or `bytes`.
std::size_t check_pattern(const unsigned char* data, std::size_t bytes, std::uint64_t key);
// Offset of the first byte that is not `value`, or `bytes`.
std::size_t check_bytes(const unsigned char* data, std::size_t bytes, unsigned char value);

// Reads "64K", "1M" or "123". Returns false if it is not a size.
bool parse_bytes(const std::string& text, std::size_t* bytes);

}  // namespace nccltest
