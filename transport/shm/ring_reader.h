// transport/shm/ring_reader.h -- the consuming end of a ring: cuts it into frames and puts payloads where they belong.
//
// What: read() digests what the producer has shown so far. A payload for a slot is shown where it lies (in the ring,
// once it is there whole, or in the sender's arena), without a copy; one for a span is copied there once, while the
// sender still copies in behind it. Nothing is shown before its trailer says that it is whole; a payload that its
// sender gave up is not intact.
// Memory: the view's, which outlives this; the slot is its own, for what is too large for the ring or too small for a
// look in place.
// Foreign bytes: records are copied out and validated before anything is believed. A payload is read where the peer can
// still write it; it can forge its own frames as well as it likes anyway.
// Thread: one owner. Nothing allocates after construction. Failures: a reason when the ring can't be believed; the
// reader is then finished.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "transport/lane.h"
#include "transport/shm/segment.h"

namespace canarynet::shm {

class RingHandler {
 public:
  virtual Landing landing_for(const wire::Header& header) = 0;
  virtual void on_frame(const wire::Header& header, const Arrival& arrival) = 0;
  // `bytes` bytes at `offset` of one of the peer's arenas, readable until the arena is announced gone; null: there is
  // no such place.
  virtual const std::byte* arena_at(std::uint32_t arena, std::uint64_t offset, std::uint32_t bytes) = 0;

 protected:
  ~RingHandler() = default;
};

class RingReader {
 public:
  // `bell`: the writer's. `slot_bytes`: largest payload taken by a kSlot landing.
  RingReader(RingView ring, int bell, std::size_t slot_bytes);

  // Digests about `budget` bytes, or what there is; *taken: how many, records included. Null, or why the ring is
  // finished.
  const char* read(std::size_t budget, RingHandler& handler, LaneCounters& counters, std::size_t* taken);
  // There is more to do.
  bool ready() const;
  // Asks for the bell when there is. False: there is already.
  bool sleep();
  // See Lane::redirect(). Returns whether such a landing was in progress.
  bool redirect(std::uint64_t cookie);
  // The last one that was read, for the message where it is refused.
  const wire::Header& header() const { return header_; }
  // A frame has begun and is not complete: the end of the lane now is not a clean one.
  bool mid_frame() const { return in_payload_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  bool available(std::uint64_t bytes);
  std::uint64_t wanted() const;
  // Only what is sent again when it is lost may go unchecked: pieces and signatures.
  bool checked() const {
    constexpr auto kMayBe = static_cast<std::uint8_t>(wire::kUnchecked | wire::kSequenced);
    return (header_.flags & kMayBe) != kMayBe;
  }
  const char* start_frame(RingHandler& handler, LaneCounters& counters);
  const char* read_reference(const FrameRecord& record, RingHandler& handler, LaneCounters& counters);
  // *waits: nothing more to do before the writer brings more. Null, or why the ring is finished.
  const char* read_payload(RingHandler& handler, LaneCounters& counters, bool* waits);
  void finish_frame(const std::byte* payload, bool given_up, RingHandler& handler, LaneCounters& counters);
  // The bytes of the frame in progress that have not been taken.
  std::uint64_t rest() const {
    return padded(header_.payload_bytes - landed_) + (has_trailer(header_.payload_bytes) ? kRecordBytes : 0);
  }
  void release();

  const RingView ring_;
  const int bell_;
  const std::size_t slot_bytes_;
  std::unique_ptr<std::byte[], Free> slot_;
  std::uint64_t head_ = 0;  // as last read
  std::uint64_t tail_ = 0;
  std::uint64_t released_ = 0;  // the tail that the writer knows
  std::size_t referenced_ = 0;  // bytes that this read() dealt with outside of the ring
  bool broken_ = false;

  // The frame in progress; valid while in_payload_.
  bool in_payload_ = false;
  bool in_place_ = false;  // shown in the ring, when it is there whole
  wire::Header header_;
  Landing landing_;
  std::byte* target_ = nullptr;  // null: discarded, or shown in place
  std::size_t landed_ = 0;
  std::uint32_t crc_ = 0;  // of the bytes landed so far
};

}  // namespace canarynet::shm
