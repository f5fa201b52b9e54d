#include "transport/shm/ring_reader.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/crc32c.h"

namespace canarynet::shm {
namespace {

constexpr std::size_t kPageBytes = 4096;
// Below this a copy costs less than the caches' traffic over lines that the sender writes next.
constexpr std::size_t kInPlaceMin = 2048;
// Copied and checked in steps that stay in the nearest cache.
constexpr std::size_t kStepBytes = std::size_t{16} << 10;
// While a payload is copied out, waking up for less than this does not pay.
constexpr std::uint64_t kWakeBytes = std::uint64_t{32} << 10;
constexpr const char* kBrokenCounters = "the ring's counters can't be believed";

std::byte* allocate_pages(std::size_t bytes) {
  const std::size_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  auto* pages = static_cast<std::byte*>(std::aligned_alloc(kPageBytes, rounded));
  CANARY_CHECK(pages != nullptr, "no memory for a lane's slot");
  return pages;  // untouched: pages that no payload needs cost nothing
}

}  // namespace

RingReader::RingReader(RingView ring, int bell, std::size_t slot_bytes)
    : ring_(ring), bell_(bell), slot_bytes_(slot_bytes), slot_(allocate_pages(slot_bytes)) {
  CANARY_CHECK(slot_bytes >= kInPlaceMin, "a lane's slot is too small");
}

bool RingReader::available(std::uint64_t bytes) {
  if (head_ - tail_ >= bytes) return true;
  const std::uint64_t head = ring_.control->head.load(std::memory_order_acquire);
  if (head < head_ || head - tail_ > ring_.size) return !(broken_ = true);
  head_ = head;
  return head_ - tail_ >= bytes;
}

void RingReader::release() {
  if (released_ == tail_) return;
  released_ = tail_;
  move_to(ring_.control->tail, tail_, ring_.control->writer_wants, bell_);
}

const char* RingReader::read(std::size_t budget, RingHandler& handler, LaneCounters& counters, std::size_t* taken) {
  const std::uint64_t began = tail_;
  const char* reason = nullptr;
  referenced_ = 0;
  while (reason == nullptr && tail_ - began + referenced_ < budget) {
    if (in_payload_) {
      bool waits = false;
      reason = read_payload(handler, counters, &waits);
      if (waits) break;
    } else if (available(kRecordBytes)) {
      reason = start_frame(handler, counters);
    } else {
      break;
    }
    if (tail_ - released_ >= ring_.size / 8) release();
  }
  release();
  *taken = static_cast<std::size_t>(tail_ - began) + referenced_;
  return reason == nullptr && broken_ ? kBrokenCounters : reason;
}

// How many more bytes are worth a look.
std::uint64_t RingReader::wanted() const {
  if (!in_payload_) return kRecordBytes;
  return in_place_ ? rest() : std::min(rest(), kWakeBytes);
}

// A head that moved back is worth a look, too: the lane ends.
bool RingReader::ready() const { return ring_.control->head.load(std::memory_order_acquire) - tail_ >= wanted(); }

bool RingReader::sleep() {
  return sleep_until(ring_.control->reader_wants, tail_ + wanted(), ring_.control->head) && !ready();
}

const char* RingReader::start_frame(RingHandler& handler, LaneCounters& counters) {
  FrameRecord record;
  std::memcpy(&record, ring_.at(tail_), sizeof record);
  header_ = record.header;
  if (const char* reason = wire::validate(header_)) {
    ++counters.header_errors;
    return reason;
  }
  if (record.form != kInline) return read_reference(record, handler, counters);
  tail_ += kRecordBytes;
  counters.bytes_received += sizeof(wire::Header);
  landing_ = handler.landing_for(header_);
  target_ = nullptr;
  in_place_ = false;
  switch (landing_.kind) {
    case Landing::Kind::kSpan:
      CANARY_CHECK(landing_.data != nullptr || header_.payload_bytes == 0, "a kSpan landing needs memory");
      target_ = landing_.data;
      break;
    case Landing::Kind::kSlot:
      if (header_.payload_bytes > slot_bytes_) return "payload larger than the lane's slot";
      // Half a ring and the trailer, so that the writer, who sleeps until half of it is free, always wakes up to bring
      // the rest.
      in_place_ = header_.payload_bytes >= kInPlaceMin && header_.payload_bytes <= ring_.size / 2;
      if (!in_place_) target_ = slot_.get();
      break;
    case Landing::Kind::kDiscard:
      break;
  }
  landed_ = 0;
  crc_ = 0;
  in_payload_ = true;
  if (header_.payload_bytes == 0) finish_frame(target_, false, handler, counters);
  return nullptr;
}

const char* RingReader::read_payload(RingHandler& handler, LaneCounters& counters, bool* waits) {
  const std::byte* payload = target_;
  std::uint64_t passed = 0;  // in the ring, and not to be overwritten before on_frame()
  if (in_place_) {
    if (*waits = !available(rest()); *waits) return nullptr;
    payload = ring_.at(tail_);
    landed_ = header_.payload_bytes;
    counters.bytes_received += landed_;
    passed = padded(landed_);
  } else if (const std::size_t left = header_.payload_bytes - landed_; left != 0) {
    const std::size_t step = std::min(left, kStepBytes);
    *waits = !available(padded(step)) && broken_;
    // The part of it that is there, in whole lines: only a payload's last one may be incomplete.
    const std::uint64_t there = (head_ - tail_) & ~std::uint64_t{kRecordBytes - 1};
    const std::size_t n = std::min(step, static_cast<std::size_t>(there));
    *waits = *waits || n == 0;
    if (*waits) return nullptr;
    if (target_ != nullptr) {
      std::memcpy(target_ + landed_, ring_.at(tail_), n);
      if (checked()) crc_ = crc32c(crc_, target_ + landed_, n);
    }
    landed_ += n;
    counters.bytes_received += n;
    tail_ += padded(n);
    if (landed_ != header_.payload_bytes) return nullptr;
  }
  bool given_up = false;
  if (has_trailer(header_.payload_bytes)) {
    if (*waits = !available(passed + kRecordBytes); *waits) return nullptr;
    Trailer trailer;
    std::memcpy(&trailer, ring_.at(tail_ + passed), sizeof trailer);
    if (trailer.ending != kWhole && trailer.ending != kGivenUp) return "trailer";
    given_up = trailer.ending == kGivenUp;
    passed += sizeof trailer;
  }
  if (in_place_ && !given_up && checked()) crc_ = crc32c(0, payload, landed_);
  finish_frame(payload, given_up, handler, counters);
  tail_ += passed;
  return nullptr;
}

void RingReader::finish_frame(const std::byte* payload, bool given_up, RingHandler& handler, LaneCounters& counters) {
  in_payload_ = false;  // first: a redirect() from within on_frame() must not find this frame
  Arrival arrival;
  arrival.cookie = landing_.cookie;
  arrival.owner = landing_.owner;
  arrival.discarded = landing_.kind == Landing::Kind::kDiscard;
  if (!arrival.discarded) {
    arrival.payload = {payload, landed_};
    arrival.intact = !given_up && (!checked() || crc_ == header_.payload_crc32);
    if (!arrival.intact && !given_up) ++counters.payload_errors;
  }
  ++counters.frames_received;
  handler.on_frame(header_, arrival);
}

// The record stays in the ring until its payload has been dealt with: the sender looks there whether it may take it
// back.
const char* RingReader::read_reference(const FrameRecord& record, RingHandler& handler, LaneCounters& counters) {
  if (record.form != kReference && record.form != kRevoked) return "form";
  if (header_.payload_bytes <= kInlinePayloadBytes) return "a reference to a small payload";
  std::uint32_t expected = kReference;
  if (!ring_.form_at(tail_).compare_exchange_strong(expected, kTaken, std::memory_order_acq_rel)) {
    tail_ += kRecordBytes;  // taken back: as if it had never been sent
    return expected == kRevoked ? nullptr : "form";
  }
  landing_ = handler.landing_for(header_);
  landed_ = header_.payload_bytes;
  const std::byte* payload = nullptr;
  if (landing_.kind != Landing::Kind::kDiscard) {
    payload = handler.arena_at(record.arena, record.offset, header_.payload_bytes);
    if (payload == nullptr) return "a reference points into no arena";
    crc_ = 0;
    if (landing_.kind == Landing::Kind::kSpan) {
      CANARY_CHECK(landing_.data != nullptr, "a kSpan landing needs memory");
      for (std::size_t done = 0; done < landed_;) {
        const std::size_t step = std::min(landed_ - done, kStepBytes);
        std::memcpy(landing_.data + done, payload + done, step);
        if (checked()) crc_ = crc32c(crc_, landing_.data + done, step);
        done += step;
      }
      payload = landing_.data;
    } else if (checked()) {
      crc_ = crc32c(0, payload, landed_);
    }
  }
  counters.bytes_received += sizeof(wire::Header) + landed_;
  referenced_ += landed_;
  finish_frame(payload, false, handler, counters);
  tail_ += kRecordBytes;
  release();
  return nullptr;
}

bool RingReader::redirect(std::uint64_t cookie) {
  if (!in_payload_ || landing_.kind != Landing::Kind::kSpan || landing_.cookie != cookie) return false;
  landing_.kind = Landing::Kind::kDiscard;
  target_ = nullptr;
  return true;
}

}  // namespace canarynet::shm
