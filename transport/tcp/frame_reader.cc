#include "transport/tcp/frame_reader.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/crc32c.h"

namespace canarynet {
namespace {

constexpr std::size_t kPageBytes = 4096;

std::byte* allocate_pages(std::size_t bytes) {
  const std::size_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  auto* pages = static_cast<std::byte*>(std::aligned_alloc(kPageBytes, rounded));
  CANARY_CHECK(pages != nullptr, "no memory for a lane's receive buffers");
  return pages;  // untouched: pages that no payload needs cost nothing
}

}  // namespace

FrameReader::FrameReader(std::size_t slot_bytes, std::span<std::byte> discard)
    : slot_bytes_(slot_bytes),
      discard_(discard),
      slot_(allocate_pages(slot_bytes)),
      ahead_(allocate_pages(kReadAheadBytes)) {
  CANARY_CHECK(discard.size() * (kIovMax - 1) >= wire::kPayloadMax, "the discard buffer is too small");
}

std::size_t FrameReader::prepare(iovec* iov, std::size_t* bytes) {
  if (!in_payload_) {
    // At most a piece of a header is left over; it moves to the front so that a whole buffer can follow.
    if (begin_ != 0) {
      std::memmove(ahead_.get(), ahead_.get() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    iov[0] = {ahead_.get() + end_, kReadAheadBytes - end_};
    *bytes = iov[0].iov_len;
    return 1;
  }
  // Within a payload the read-ahead is always empty: consume() has put its bytes into the landing.
  std::size_t count = 0;
  std::size_t left = rest();
  const std::size_t ahead = left >= kBulkBytes ? kReadAheadBulkBytes : kReadAheadBytes;
  *bytes = left + ahead;
  if (target_ != nullptr) {
    iov[count++] = {target_ + landed_, left};
  } else {
    for (; left > 0; left -= iov[count - 1].iov_len) {
      iov[count] = {discard_.data(), std::min(left, discard_.size())};
      ++count;
    }
  }
  iov[count++] = {ahead_.get(), ahead};
  return count;
}

const char* FrameReader::consume(std::size_t bytes, FrameHandler& handler, LaneCounters& counters) {
  if (in_payload_) {
    const std::size_t direct = std::min(bytes, rest());
    bytes -= direct;
    landed(direct, handler, counters);
  }
  end_ += bytes;
  while (begin_ != end_) {
    const std::size_t available = end_ - begin_;
    if (!in_payload_) {
      if (available < sizeof(wire::Header)) return nullptr;
      std::memcpy(&header_, ahead_.get() + begin_, sizeof header_);
      begin_ += sizeof header_;
      if (const char* reason = start_frame(handler, counters)) return reason;
      continue;
    }
    const std::size_t taken = std::min(available, rest());
    if (target_ != nullptr) std::memcpy(target_ + landed_, ahead_.get() + begin_, taken);
    begin_ += taken;
    landed(taken, handler, counters);
  }
  begin_ = end_ = 0;
  return nullptr;
}

const char* FrameReader::start_frame(FrameHandler& handler, LaneCounters& counters) {
  if (const char* reason = wire::validate(header_)) {
    ++counters.header_errors;
    return reason;
  }
  if ((header_.flags & wire::kUnchecked) != 0) {
    ++counters.header_errors;
    return "no payload crc";
  }
  landing_ = handler.landing_for(header_);
  switch (landing_.kind) {
    case Landing::Kind::kSpan:
      CANARY_CHECK(landing_.data != nullptr || header_.payload_bytes == 0, "a kSpan landing needs memory");
      target_ = landing_.data;
      break;
    case Landing::Kind::kSlot:
      if (header_.payload_bytes > slot_bytes_) return "payload larger than the lane's slot";
      target_ = slot_.get();
      break;
    case Landing::Kind::kDiscard:
      target_ = nullptr;
      break;
  }
  landed_ = 0;
  crc_ = 0;
  in_payload_ = true;
  if (header_.payload_bytes == 0) landed(0, handler, counters);
  return nullptr;
}

void FrameReader::landed(std::size_t bytes, FrameHandler& handler, LaneCounters& counters) {
  // The CRC goes along piece by piece, while the bytes are still in the cache from having been written.
  if (target_ != nullptr && bytes != 0) crc_ = crc32c(crc_, target_ + landed_, bytes);
  landed_ += bytes;
  if (landed_ != header_.payload_bytes) return;

  in_payload_ = false;  // first: a redirect() from within on_frame() must not find this frame
  Arrival arrival;
  arrival.cookie = landing_.cookie;
  arrival.owner = landing_.owner;
  arrival.discarded = landing_.kind == Landing::Kind::kDiscard;
  if (!arrival.discarded) {
    arrival.payload = {target_, landed_};
    arrival.intact = crc_ == header_.payload_crc32;
    if (!arrival.intact) ++counters.payload_errors;
  }
  ++counters.frames_received;
  handler.on_frame(header_, arrival);
}

bool FrameReader::redirect(std::uint64_t cookie) {
  if (!in_payload_ || landing_.kind != Landing::Kind::kSpan || landing_.cookie != cookie) return false;
  landing_.kind = Landing::Kind::kDiscard;
  target_ = nullptr;
  return true;
}

}  // namespace canarynet
