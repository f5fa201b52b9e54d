// tests/nccl/traffic.h -- which messages go over a connection, and which bytes are in them.
//
// Both are functions of (seed, connection, sequence number) alone, so that sender and receiver agree without speaking,
// and so that a message that arrives in the wrong place, order or connection can't look right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nccltest {

// The buffer of a connection that a message lies in; NCCL registers one for each.
enum class Protocol { kLL, kLL128, kSimple };
inline constexpr int kProtocolBuffers = 3;

struct Message {
  std::size_t bound = 0;  // what the receive is posted with
  std::size_t size = 0;   // what is sent: no more than that
  Protocol protocol = Protocol::kSimple;
};

std::uint64_t mix64(std::uint64_t x);

class Traffic {
 public:
  // "mix": 1 MiB, 600 KiB (LL128), 512 KiB, 128 KiB, 64 KiB (LL) and empty ones, a third of them shorter than posted,
  // odd lengths too. A number of bytes, with K or M: that size always. False with `error` for anything else.
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

// "64K", "1M", "123". False: not a size.
bool parse_bytes(const std::string& text, std::size_t* bytes);

}  // namespace nccltest
