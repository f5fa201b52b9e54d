// transport/tcp/frame_reader.h -- cuts a byte stream into frames and puts payloads where they belong, without knowing
// sockets.
//
// What: prepare() says where the next bytes of the stream go (the rest of the current landing, then a small read-ahead
// buffer), the caller puts them there (recvmsg, or memcpy in a test), consume() digests them. So the bulk of a large
// payload is written once, by the kernel, at its destination.
// Memory: the slot (for kSlot landings) and the read-ahead are its own, allocated at construction; `discard` is the
// caller's, may be shared by readers of one thread and is written only.
// Thread: one owner. Nothing allocates after construction.
// Failure: consume() returns a reason when the stream can't be believed; the reader is then finished. Headers are
// validated before the handler hears of them.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include "transport/lane.h"
#include "transport/wire.h"

namespace canarynet {

class FrameHandler {
 public:
  virtual Landing landing_for(const wire::Header& header) = 0;
  virtual void on_frame(const wire::Header& header, const Arrival& arrival) = 0;

 protected:
  ~FrameHandler() = default;
};

class FrameReader {
 public:
  static constexpr std::size_t kReadAheadBytes = 16 * 1024;
  // While a large payload is landing, less is read ahead: what lands in the buffer of the *next* payload has to be
  // copied.
  static constexpr std::size_t kReadAheadBulkBytes = 4 * 1024;
  static constexpr std::size_t kBulkBytes = 32 * 1024;
  static constexpr std::size_t kIovMax = 40;

  // `slot_bytes`: largest payload taken by a kSlot landing. `discard`: at least 32 KiB.
  FrameReader(std::size_t slot_bytes, std::span<std::byte> discard);
  FrameReader(const FrameReader&) = delete;
  FrameReader& operator=(const FrameReader&) = delete;

  // Fills `iov` (kIovMax entries); returns how many are in use. `*bytes`: their sum, never 0.
  std::size_t prepare(iovec* iov, std::size_t* bytes);
  // The first `bytes` bytes of what prepare() named were written. Null, or why the stream is finished ("magic", …).
  const char* consume(std::size_t bytes, FrameHandler& handler, LaneCounters& counters);
  // The last one that was read, for the message where it is refused.
  const wire::Header& header() const { return header_; }
  // See Lane::redirect(). Returns whether such a landing was in progress.
  bool redirect(std::uint64_t cookie);
  // The bytes still missing of the payload that is landing; 0 between frames.
  std::size_t rest_of_payload() const { return in_payload_ ? rest() : 0; }
  // Bytes of an unfinished frame are here: the end of the stream now is not a clean one.
  bool mid_frame() const { return in_payload_ || begin_ != end_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  using AlignedBytes = std::unique_ptr<std::byte[], Free>;

  std::size_t rest() const { return header_.payload_bytes - landed_; }
  const char* start_frame(FrameHandler& handler, LaneCounters& counters);
  void landed(std::size_t bytes, FrameHandler& handler, LaneCounters& counters);

  const std::size_t slot_bytes_;
  const std::span<std::byte> discard_;
  AlignedBytes slot_;
  AlignedBytes ahead_;
  std::size_t begin_ = 0;  // unparsed bytes of ahead_
  std::size_t end_ = 0;

  // The frame in progress; valid while in_payload_.
  bool in_payload_ = false;
  wire::Header header_;
  Landing landing_;
  std::byte* target_ = nullptr;  // null: discarded
  std::size_t landed_ = 0;
  std::uint32_t crc_ = 0;  // of the bytes landed so far
};

}  // namespace canarynet
