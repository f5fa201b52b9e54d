// engine/eager_store.h -- where pieces wait whose operation this engine has not entered yet. One store per channel.
//
// The sender counts the same charge against the same budget (CANARY_EAGER_BYTES), so a well-behaved peer never finds it
// full but for fragmentation; then the piece is not acked and comes again. Fixed memory, of which what was never
// used costs nothing; one owner thread; no allocation after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/wire.h"

namespace canarynet {

class EagerStore {
 public:
  static constexpr std::uint32_t kBlock = 1024;
  // What a piece of `bytes` costs: at least one block.
  static constexpr std::uint32_t charge(std::uint32_t bytes) {
    return bytes == 0 ? kBlock : (bytes + kBlock - 1) / kBlock * kBlock;
  }

  struct Entry {
    wire::Header header;
    std::uint32_t first_block = 0;
    std::uint32_t blocks = 0;
    bool used = false;
    bool complete = false;
  };

  explicit EagerStore(std::uint64_t bytes)
      : blocks_(static_cast<std::uint32_t>(bytes / kBlock)),
        memory_(std::make_unique_for_overwrite<std::byte[]>(bytes)),
        taken_(blocks_) {
    entries_.reserve(blocks_);
  }
  std::byte* data(const Entry& e) { return memory_.get() + std::size_t{e.first_block} * kBlock; }
  bool empty() const { return used_ == 0; }

  Entry* find(const wire::Header& h) {
    for (std::uint32_t i = 0, seen = 0; seen < used_ && i < high_; ++i) {
      if (!entries_[i].used) continue;
      ++seen;
      const wire::Header& e = entries_[i].header;
      if (e.flow == h.flow && e.epoch == h.epoch && e.op == h.op && e.step == h.step && e.source == h.source &&
          e.destination == h.destination && e.piece == h.piece) {
        return &entries_[i];
      }
    }
    return nullptr;
  }
  // nullptr: no room.
  Entry* take(const wire::Header& h) {
    const std::uint32_t need = charge(h.payload_bytes) / kBlock;
    std::uint32_t run = 0;
    for (std::uint32_t b = 0; b < blocks_; ++b) {
      run = taken_[b] ? 0 : run + 1;
      if (run < need) continue;
      const std::uint32_t first = b + 1 - need;
      std::uint32_t i = 0;
      while (i < entries_.size() && entries_[i].used) ++i;
      if (i == entries_.size()) entries_.emplace_back();  // there are never more than blocks
      for (std::uint32_t k = first; k <= b; ++k) taken_[k] = 1;
      entries_[i] = Entry{h, first, need, true, false};
      ++used_;
      if (i + 1 > high_) high_ = i + 1;
      return &entries_[i];
    }
    return nullptr;
  }
  void release(Entry* e) {
    for (std::uint32_t k = 0; k < e->blocks; ++k) taken_[e->first_block + k] = 0;
    e->used = false;
    if (--used_ == 0) high_ = 0;
  }
  // Calls fn(Entry&) for every used entry; fn may release it.
  template <typename Fn>
  void for_each(Fn fn) {
    const std::uint32_t high = high_;
    for (std::uint32_t i = 0; i < high && used_ > 0; ++i) {
      if (entries_[i].used) fn(entries_[i]);
    }
  }

 private:
  std::uint32_t blocks_;
  std::unique_ptr<std::byte[]> memory_;
  std::vector<std::uint8_t> taken_;
  std::vector<Entry> entries_;  // those that were ever used; room for one per block
  std::uint32_t used_ = 0;
  std::uint32_t high_ = 0;  // entries at and beyond were never used since the store was last empty
};

}  // namespace canarynet
