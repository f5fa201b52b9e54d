// transport/lane_table.h -- the lanes of one factory: the keys by which events find them, and who has asked for a turn.
//
// What: a key names one lane and, once that has gone, nobody: what comes late for it (an event, a time-out, a turn) is
// dropped. `LaneOfFactory` lets the table at its key_ and pending_. Memory: lanes belong to whoever got them; each is
// removed when it goes.
// Thread: the factory's. Only add() allocates.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"

namespace canarynet {

template <typename LaneOfFactory>
class LaneTable {
 public:
  // A lane's key is its place and, from bit 32 to 62, which lane of that place it is, from 1: keys below 2^32 and the
  // highest bit are the factory's.
  static constexpr std::uint64_t kFirstKey = std::uint64_t{1} << 32;
  static constexpr std::uint64_t kFactoryBit = std::uint64_t{1} << 63;

  void add(LaneOfFactory& lane) {
    if (free_.empty()) {
      free_.reserve(slots_.size() + 1);
      slots_.emplace_back();
      free_.push_back(static_cast<std::uint32_t>(slots_.size() - 1));
      // So that nothing else allocates.
      pending_.reserve(slots_.capacity());
      pending_now_.reserve(slots_.capacity());
      free_.reserve(slots_.capacity());
    }
    const std::uint32_t index = free_.back();
    free_.pop_back();
    Slot& slot = slots_[index];
    slot.generation = slot.generation % kGenerations + 1;
    slot.lane = &lane;
    lane.key_ = std::uint64_t{slot.generation} << 32 | index;
    ++size_;
  }

  void remove(LaneOfFactory& lane) {
    CANARY_CHECK(in_callback_ != &lane, "a lane was destroyed inside its own callback");
    if (lane.key_ < kFirstKey) return;  // memory ran out in add()
    const auto index = static_cast<std::uint32_t>(lane.key_ & 0xffffffff);
    CANARY_CHECK(index < slots_.size() && slots_[index].lane == &lane, "a lane leaves the table that it is in, once");
    slots_[index].lane = nullptr;
    free_.push_back(index);
    --size_;
  }

  std::uint32_t size() const { return size_; }
  LaneOfFactory* find(std::uint64_t key) const {
    const Slot& slot = slots_[key & 0xffffffff];
    return slot.generation == key >> 32 ? slot.lane : nullptr;
  }

  // work(lane), where the lane of that key is still there: the number of events it handled.
  template <typename Work>
  std::size_t visit(std::uint64_t key, Work work) {
    LaneOfFactory* lane = find(key);
    if (lane == nullptr) return 0;
    in_callback_ = lane;
    struct Over {  // also where memory ran out
      const LaneOfFactory*& mark;
      ~Over() { mark = nullptr; }
    } over{in_callback_};
    return work(*lane);
  }

  // Lanes that `fn` adds may be among those it gets.
  template <typename Fn>
  void for_each(Fn fn) const {
    for (std::size_t i = 0; i < slots_.size(); ++i) {  // by index: they may move
      if (slots_[i].lane != nullptr) fn(*slots_[i].lane);
    }
  }

  // on_pending() in the next run_pending(). False: it had asked before.
  bool schedule(LaneOfFactory& lane) {
    if (lane.pending_) return false;
    lane.pending_ = true;
    if (pending_.size() == pending_.capacity()) {
      // Names of lanes that are gone: drop them instead of growing.
      std::erase_if(pending_, [this](std::uint64_t key) { return find(key) == nullptr; });
    }
    pending_.push_back(lane.key_);
    return true;
  }
  bool pending() const { return !pending_.empty(); }
  std::size_t run_pending() {
    if (pending_.empty()) return 0;
    std::size_t handled = 0;
    pending_now_.swap(pending_);
    for (std::size_t i = 0; i < pending_now_.size(); ++i) {  // by index: a callback may dial, which reserves more
      handled += visit(pending_now_[i], [](LaneOfFactory& lane) {
        lane.pending_ = false;
        return lane.on_pending();
      });
    }
    pending_now_.clear();
    return handled;
  }

 private:
  static constexpr std::uint32_t kGenerations = 0x7fffffff;
  struct Slot {
    LaneOfFactory* lane = nullptr;
    std::uint32_t generation = 0;
  };
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint64_t> pending_;
  std::vector<std::uint64_t> pending_now_;
  std::uint32_t size_ = 0;
  const LaneOfFactory* in_callback_ = nullptr;
};

}  // namespace canarynet
