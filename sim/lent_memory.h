// sim/lent_memory.h -- a buffer as a strict caller lends it: guarded on both sides, overwritten the moment its owner
// has it back, and watched from then on.
//
// An engine that still sends from a buffer after it said "done" sends the pattern instead. One that still writes there,
// or writes beyond the ends at any time, leaves a trace that trespass() finds. Owned and used by one thread.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

namespace canarynet {

class LentMemory {
 public:
  explicit LentMemory(std::size_t bytes)
      : bytes_(bytes), memory_(std::make_unique_for_overwrite<std::byte[]>(bytes + 2 * kGuard)) {
    std::memset(memory_.get(), kPattern, kGuard);
    std::memset(data(), kFresh, bytes_);
    std::memset(data() + bytes_, kPattern, kGuard);
  }

  std::byte* data() { return memory_.get() + kGuard; }
  std::size_t size() const { return bytes_; }

  // The owner has it back: its content is gone.
  void take_back() {
    std::memset(data(), kPattern, bytes_);
    returned_ = true;
  }
  bool returned() const { return returned_; }

  // Returns "" while nobody has written where it is forbidden, else where somebody did.
  std::string trespass() const {
    const std::byte* at = memory_.get();
    if (!untouched(at, kGuard)) return "written before the beginning of a buffer";
    if (!untouched(at + kGuard + bytes_, kGuard)) return "written behind the end of a buffer";
    if (!returned_ || untouched(at + kGuard, bytes_)) return "";
    std::size_t first = 0, last = bytes_;
    while (at[kGuard + first] == std::byte{kPattern}) ++first;
    while (at[kGuard + last - 1] == std::byte{kPattern}) --last;
    return "bytes " + std::to_string(first) + " to " + std::to_string(last) + " of " + std::to_string(bytes_) +
           " were written after the buffer had been given back";
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr unsigned char kPattern = 0xC9, kFresh = 0xEE;

  static bool untouched(const std::byte* at, std::size_t bytes) {
    return bytes == 0 || (at[0] == std::byte{kPattern} && std::memcmp(at, at + 1, bytes - 1) == 0);
  }

  std::size_t bytes_;
  std::unique_ptr<std::byte[]> memory_;
  bool returned_ = false;
};

}  // namespace canarynet
