// engine/slowest_times.h -- how long operations took at the slowest rank of a part of the decision tree.
//
// What: ranks are done at different moments, and which one is last changes from operation to operation, so a choice is
// judged by the longest time of each single operation. A node hears every operation once from each of its ranks and
// children; what it has heard of from all goes up. Operations are drawn by a hash of their number: an engine that draws
// more thinly than another draws a subset of its operations, so enough of them match.
// Memory: fixed; the oldest entry makes room. Thread: the engine's owner. Units: us.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace canarynet {

class SlowestTimes {
 public:
  static constexpr std::size_t kKept = 64;
  struct Entry {
    std::uint32_t op = 0, us = 0, heard = 0;
    void* of = nullptr;  // what the caller's own rank said of it
  };

  // One operation in 2^thin_bits is drawn.
  static bool drawn(std::uint32_t op, int thin_bits) {
    return thin_bits == 0 || (op * 0x9e3779b1u) >> (32 - thin_bits) == 0;
  }
  // One more of `sources` tells its time. The entry if it was the last one, which is forgotten with the next call.
  const Entry* note(std::uint32_t op, std::uint32_t us, std::uint32_t sources, void* of) {
    auto at = std::find_if(kept_.begin(), kept_.end(), [&](const Entry& e) { return e.heard != 0 && e.op == op; });
    if (at == kept_.end()) {
      at = kept_.begin() + static_cast<std::ptrdiff_t>(next_++ % kKept);
      *at = {op, 0, 0, nullptr};
    }
    at->us = std::max(at->us, us);
    if (of != nullptr) at->of = of;
    if (++at->heard < sources) return nullptr;
    done_ = *at;
    *at = {};
    return &done_;
  }
  void clear() { kept_ = {}; }

 private:
  std::array<Entry, kKept> kept_{};
  std::size_t next_ = 0;
  Entry done_;
};

}  // namespace canarynet
