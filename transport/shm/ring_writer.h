// transport/shm/ring_writer.h -- the producing end of a ring: frames of a FrameQueue into shared memory, copied or by
// reference.
//
// What: write() moves as much of the queue as there is room for; a payload that lies in an arena goes as a reference,
// any other is copied in chunks, each shown to the reader at once, so that its copy out runs beside ours, and ends with
// a trailer that says whether it is whole. revoke() takes references back.
// Memory: the view's, which outlives this. A copied payload is not looked at again once the queue has advanced past it;
// a referenced one is read by the peer until revoke() returned for it or the reader's tail passed it.
// Thread: one owner. Nothing allocates after construction, but the ring gets its memory as the first lap reaches it.
// Failures: a reason when there is none, or when the peer's counters make no sense: the ring is finished then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/frame_queue.h"
#include "transport/lane.h"
#include "transport/shm/segment.h"

namespace canarynet::shm {

// Knows which memory the peer can read by itself.
class ReferenceSource {
 public:
  struct Place {
    std::uint32_t arena = 0;
    std::uint64_t offset = 0;
  };
  // False: these bytes have to be copied.
  virtual bool locate(const std::byte* data, std::uint32_t bytes, Place* place) = 0;
  // The reader has not finished with `place` for long. True: it never will, or the memory is kept from it: don't wait
  // any more.
  virtual bool give_up_on_reader(const Place& place, std::uint32_t tries) = 0;

 protected:
  ~ReferenceSource() = default;
};

class RingWriter {
 public:
  // `bell`: the reader's. `source` may be null: everything is copied.
  RingWriter(RingView ring, int bell, ReferenceSource* source);

  // At most about `budget` bytes are copied. *full: it stopped for want of room.
  const char* write(FrameQueue& queue, std::size_t budget, LaneCounters& counters, bool* full);
  std::size_t ring_bytes() const { return ring_.size; }
  // After write() said full: half of the ring is free again.
  bool ready() const { return ring_.control->tail.load(std::memory_order_acquire) >= wanted(); }
  // Asks for the bell when it is. False: it is already.
  bool sleep();
  // Takes the references sent under `cookie` back; waits for a reader that is in the middle of one. Returns whether any
  // was unread.
  bool revoke(std::uint64_t cookie, LaneCounters& counters);
  // All of them.
  void revoke_all();

 private:
  struct Outstanding {
    std::uint64_t cookie = 0;
    std::uint64_t position = 0;  // of its record
    std::uint32_t bytes = 0;
    ReferenceSource::Place place;
  };
  static constexpr std::uint32_t kOutstandingMax = 1024;

  std::uint64_t wanted() const { return head_ - ring_.size / 2; }  // full: more than half of it is in use
  bool room(std::uint64_t bytes);
  bool reload_tail();
  void publish();
  bool back(std::uint64_t end);
  bool begin_frame(const FrameQueue::Front& front);
  bool take_back(Outstanding& reference);
  Outstanding& outstanding(std::uint32_t i) { return outstanding_[(first_ + i) % kOutstandingMax]; }
  void forget_read();

  const RingView ring_;
  const int bell_;
  ReferenceSource* const source_;
  std::uint64_t head_ = 0;
  std::uint64_t published_ = 0;
  std::uint64_t backed_ = 0;  // so much of the ring is known to have memory; its size after the first lap
  std::uint64_t tail_ = 0;    // as last read
  bool broken_ = false;
  std::unique_ptr<Outstanding[]> outstanding_;  // in the order of their records
  std::uint32_t first_ = 0;
  std::uint32_t count_ = 0;
};

}  // namespace canarynet::shm
