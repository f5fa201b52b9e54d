// sim/event_queue.h -- the next events in virtual time: a binary heap ordered by (time, order of scheduling).
//
// What: plain 32-byte events. Two events of the same instant come out in the order in which they were pushed, so a seed
// replays bit for bit.
// Units: Nanos of the virtual clock. Memory: one array that grows to the high-water mark and stays. One owner thread.
// Nothing fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/units.h"

namespace canarynet {

struct Event {
  Nanos at;
  std::uint64_t sequence = 0;    // set by push()
  std::uint32_t kind = 0;        // the owner's
  std::uint32_t index = 0;       // the slot that the event is about
  std::uint32_t generation = 0;  // of that slot: reuse of the slot makes the event void
  std::uint32_t unused = 0;
};
static_assert(sizeof(Event) == 32);

class EventQueue {
 public:
  explicit EventQueue(std::size_t capacity_hint = 4096) { heap_.reserve(capacity_hint); }
  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }
  // The time of the next event; Nanos::max() if there is none.
  Nanos next_at() const { return heap_.empty() ? Nanos::max() : heap_.front().at; }
  void push(Nanos at, std::uint32_t kind, std::uint32_t index, std::uint32_t generation = 0);
  Event pop();

 private:
  // Compares both words at once: no branch to mispredict. Times are never negative.
  static bool before(const Event& a, const Event& b) {
    __extension__ using Key = unsigned __int128;
    return (Key(static_cast<std::uint64_t>(a.at.count)) << 64 | a.sequence) <
           (Key(static_cast<std::uint64_t>(b.at.count)) << 64 | b.sequence);
  }
  std::vector<Event> heap_;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace canarynet
