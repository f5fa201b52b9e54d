// engine/eager_store.h -- where pieces wait whose operation this engine has not entered yet. One store per channel, and
// another for messages that came before their receive.
//
// The sender counts the same charge against the same budget (CANARY_EAGER_BYTES), so a well-behaved peer never finds it
// full but for fragmentation; then the piece is not acked and comes again. A piece is found by what identifies it, and
// all pieces of one conversation (an operation and the two ranks; for messages the pair) in the order in which they
// came, whatever else is kept. Fixed memory, whose pages come when they are used, but for the heads of its lists and
// what its BlockPool touches; one owner thread; no allocation after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/reserved.h"
#include "engine/block_pool.h"
#include "transport/wire.h"

namespace canarynet {

class EagerStore {
 public:
  static constexpr std::uint32_t kBlock = 1024;
  // The cost of a piece of `bytes`: at least one block.
  static constexpr std::uint32_t charge(std::uint32_t bytes) {
    return bytes == 0 ? kBlock : (bytes + kBlock - 1) / kBlock * kBlock;
  }
  enum class Keeps : std::uint8_t {
    kOperations,  // a conversation has an epoch and an operation's number
    kMessages,    // it has neither
  };

  // In a list of entries: indices plus one, 0 for none. The first one's `previous` is the last one.
  struct Link {
    std::uint32_t previous = 0;
    std::uint32_t next = 0;
  };
  struct Entry {
    wire::Header header;
    std::uint32_t first_block = 0;
    bool used = false;
    bool complete = false;
    Link same_name;  // of those whose identities fall into one bucket
    Link same_talk;  // of those whose conversations do
  };

  EagerStore(std::uint64_t bytes, Keeps keeps);

  std::byte* data(const Entry& e) { return memory_.begin() + std::size_t{e.first_block} * kBlock; }
  bool empty() const { return used_ == 0; }
  bool half_full() const { return 2 * charged_ >= bytes_; }

  Entry* find(const wire::Header& header);
  // nullptr: no room.
  Entry* take(const wire::Header& header);
  void release(Entry* entry);

  // Calls fn(Entry&) for every entry of a conversation (kMessages: epoch and op don't matter), oldest first, until it
  // says false; fn may release its entry.
  template <typename Fn>
  void for_each_of(std::uint32_t flow, std::uint32_t epoch, std::uint32_t op, std::uint16_t source,
                   std::uint16_t destination, Fn fn) {
    wire::Header h;
    h.flow = flow;
    h.epoch = epoch;
    h.op = op;
    h.source = source;
    h.destination = destination;
    std::uint32_t at = used_ == 0 ? 0 : talks_[talk_of(h) & mask_];
    while (at != 0) {
      Entry& e = entries_[at - 1];
      at = e.same_talk.next;  // before it is released
      if (e.used && is_same_talk(e.header, h) && !fn(e)) return;
    }
  }
  // Calls fn(Entry&) for every entry, for ends of groups and connections; fn may release it.
  template <typename Fn>
  void for_each(Fn fn) {
    for (std::size_t i = 0; i < entries_.size() && used_ > 0; ++i) {
      if (entries_[i].used) fn(entries_[i]);
    }
  }

 private:
  using Buckets = std::vector<std::uint32_t>;  // each the index plus one of its oldest entry

  std::uint64_t talk_of(const wire::Header& header) const;
  std::uint64_t name_of(const wire::Header& header) const;
  bool is_same_talk(const wire::Header& a, const wire::Header& b) const;
  static bool is_same_name(const wire::Header& a, const wire::Header& b);
  template <Link Entry::*link>
  void append(std::uint32_t* head, std::uint32_t index);
  template <Link Entry::*link>
  void unlink(std::uint32_t* head, std::uint32_t index);

  Keeps keeps_;
  std::uint64_t bytes_;
  std::uint64_t charged_ = 0;  // of them
  ReservedRow<std::byte> memory_;
  BlockPool blocks_;
  std::vector<Entry, ReservedAllocator<Entry>> entries_;  // those that were ever used; room for one per block
  std::uint32_t unused_ = 0;  // index plus one of an entry that was used, and through same_name.next of all such
  std::uint32_t used_ = 0;
  std::uint64_t mask_;  // number of buckets less one
  Buckets names_;
  Buckets talks_;
};

}  // namespace canarynet
