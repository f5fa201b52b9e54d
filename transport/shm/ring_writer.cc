#include "transport/shm/ring_writer.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

namespace canarynet::shm {
namespace {

// Shown to the reader piece by piece: small enough that it starts early and finds the bytes in a cache, large enough
// that the counters don't matter.
constexpr std::size_t kChunkBytes = std::size_t{32} << 10;
// A reader in the middle of a reference: so many looks at it before the processor is offered to others between them.
constexpr std::uint32_t kSpins = 2000;
// One step of write() needs less; so much of the ring gets its memory at once.
constexpr std::size_t kBackBytes = std::size_t{64} << 10;
constexpr const char* kNoMemory = "there is no memory for all of the ring";
constexpr const char* kBrokenCounters = "the ring's counters can't be believed";

}  // namespace

RingWriter::RingWriter(RingView ring, int bell, ReferenceSource* source)
    : ring_(ring),
      bell_(bell),
      source_(source),
      outstanding_(source != nullptr ? std::make_unique<Outstanding[]>(kOutstandingMax) : nullptr) {}

bool RingWriter::reload_tail() {
  const std::uint64_t tail = ring_.control->tail.load(std::memory_order_acquire);
  if (tail < tail_ || tail > head_) return !(broken_ = true);
  tail_ = tail;
  return true;
}

bool RingWriter::room(std::uint64_t bytes) {
  if (ring_.size - (head_ - tail_) >= bytes) return true;
  return reload_tail() && ring_.size - (head_ - tail_) >= bytes;
}

// False: there is no memory for the ring up to `end`. Better known here than by a SIGBUS in the middle of a copy.
bool RingWriter::back(std::uint64_t end) {
  while (backed_ < std::min<std::uint64_t>(end, ring_.size)) {
    if (!make_present(ring_.at(backed_), kBackBytes)) return false;
    backed_ += kBackBytes;
  }
  return true;
}

void RingWriter::publish() {
  if (published_ == head_) return;
  published_ = head_;
  move_to(ring_.control->head, head_, ring_.control->reader_wants, bell_);
}

void RingWriter::forget_read() {
  reload_tail();
  while (count_ > 0 && outstanding(0).position < tail_) {
    first_ = (first_ + 1) % kOutstandingMax;
    --count_;
  }
}

// Puts the record of a frame into the ring. True: by reference, so that nothing of it follows.
bool RingWriter::begin_frame(const FrameQueue::Front& front) {
  FrameRecord record;
  std::memcpy(&record.header, front.header, sizeof record.header);
  record.form = kInline;
  ReferenceSource::Place place;
  if (front.borrowed && source_ != nullptr) {
    if (count_ == kOutstandingMax) forget_read();
    if (count_ < kOutstandingMax && source_->locate(front.payload, front.payload_bytes, &place)) {
      record.form = kReference;
      record.arena = place.arena;
      record.offset = place.offset;
      outstanding(count_++) = {front.cookie, head_, front.payload_bytes, place};
    }
  }
  std::memcpy(ring_.at(head_), &record, sizeof record);
  head_ += sizeof record;
  return record.form == kReference;
}

const char* RingWriter::write(FrameQueue& queue, std::size_t budget, LaneCounters& counters, bool* full) {
  *full = false;
  std::size_t written = 0;
  while (!queue.empty() && written < budget) {
    if (backed_ < ring_.size && !back(head_ + kBackBytes)) {
      publish();
      return kNoMemory;
    }
    const FrameQueue::Front front = queue.front();
    std::size_t advanced = 0;
    if (front.begun == 0) {
      // A payload that send() copies is small: it goes in one piece with its record.
      const bool small = front.payload_bytes <= kInlinePayloadBytes;
      if (!room(kRecordBytes + (small ? padded(front.payload_bytes) : 0))) {
        *full = true;
        break;
      }
      advanced = sizeof(wire::Header);
      if (begin_frame(front)) {
        advanced += front.payload_bytes;
      } else if (small && front.payload_bytes != 0) {
        std::memcpy(ring_.at(head_), front.payload, front.payload_bytes);
        head_ += padded(front.payload_bytes);
        advanced += front.payload_bytes;
      }
      written += kRecordBytes;
    } else {
      const std::size_t done = front.begun - sizeof(wire::Header);
      const std::size_t left = front.payload_bytes - done;
      if (!room(2 * kRecordBytes)) {
        *full = true;
        break;
      }
      // Pieces of a multiple of 64 bytes but for the last one, so that the filling is always at the end. The trailer
      // goes with that one.
      const std::uint64_t free = (ring_.size - (head_ - tail_) - kRecordBytes) & ~std::uint64_t{kRecordBytes - 1};
      const std::size_t chunk = std::min({left, kChunkBytes, static_cast<std::size_t>(free)});
      if (!front.given_up) std::memcpy(ring_.at(head_), front.payload + done, chunk);
      head_ += padded(chunk);
      if (chunk == left) {
        const Trailer trailer{front.given_up ? kGivenUp : kWhole};
        std::memcpy(ring_.at(head_), &trailer, sizeof trailer);
        head_ += sizeof trailer;
      }
      advanced = chunk;
      written += chunk;
      publish();
    }
    counters.bytes_sent += advanced;
    counters.frames_sent += queue.advance(advanced);
  }
  publish();
  return broken_ ? kBrokenCounters : nullptr;
}

bool RingWriter::sleep() { return sleep_until(ring_.control->writer_wants, wanted(), ring_.control->tail); }

// False: the reader had it, or has it for good.
bool RingWriter::take_back(Outstanding& reference) {
  std::uint32_t expected = kReference;
  if (ring_.form_at(reference.position).compare_exchange_strong(expected, kRevoked, std::memory_order_acq_rel))
    return true;
  // In the middle of reading, which ends soon, unless its process has been stopped.
  for (std::uint32_t tries = 0;; ++tries) {
    if (!reload_tail() || tail_ > reference.position) return false;
    if (tries < kSpins) continue;
    if (source_->give_up_on_reader(reference.place, tries - kSpins)) return false;
    ::sched_yield();
  }
}

bool RingWriter::revoke(std::uint64_t cookie, LaneCounters& counters) {
  if (count_ == 0) return false;
  forget_read();
  bool unread = false;
  for (std::uint32_t i = 0; i < count_; ++i) {
    Outstanding& reference = outstanding(i);
    if (reference.cookie != cookie || reference.bytes == 0) continue;
    if (take_back(reference)) {
      unread = true;
      counters.bytes_sent -= sizeof(wire::Header) + reference.bytes;
      --counters.frames_sent;
    }
    reference.bytes = 0;
  }
  return unread;
}

void RingWriter::revoke_all() {
  if (count_ == 0) return;
  forget_read();
  for (std::uint32_t i = 0; i < count_; ++i) {
    if (outstanding(i).bytes != 0) take_back(outstanding(i));
  }
  count_ = 0;
}

}  // namespace canarynet::shm
