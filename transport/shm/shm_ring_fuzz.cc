// Any bytes in a ring, shown in any steps, with any landings and redirects: RingReader must agree with a parser that
// reads them in one go and write nothing but its landings. Counters that lie end the ring and nothing else. The
// socket's messages are parsed as well.
//
// Input: one byte seeds the steps, one the landings, the rest is what the producer writes (and, as a whole, a message).
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "transport/shm/ring_reader.h"

extern "C" {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes);
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t bytes, std::size_t bytes_max, unsigned seed);
__attribute__((weak)) std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t bytes, std::size_t bytes_max);
}

namespace canarynet {
namespace {

constexpr std::size_t kControlBytes = 2;
constexpr std::size_t kArenaBytes = 8192;
constexpr std::size_t kSlotBytes = 256 * 1024;

struct Expected {
  wire::Header header;
  const std::uint8_t* payload = nullptr;  // null: by reference
};

bool is_reason(const char* text) { return text != nullptr; }

// The specification. Landings decide about references and large payloads, so it is asked frame by frame.
class Checker final : public shm::RingHandler {
 public:
  Checker(std::span<const std::uint8_t> stream, std::uint64_t seed) : stream_(stream), random_(seed) {}

  Landing landing_for(const wire::Header& header) override {
    CANARY_CHECK(at_ + shm::kRecordBytes <= stream_.size(), "a frame came from nowhere");
    std::memcpy(&record_, stream_.data() + at_, sizeof record_);
    while (record_.form == shm::kRevoked) next();
    CANARY_CHECK(std::memcmp(&header, &record_.header, sizeof header) == 0, "a header was changed");
    CANARY_CHECK(wire::validate(header) == nullptr, "a landing was asked for a header that can't be believed");
    landing_ = Landing{.kind = static_cast<Landing::Kind>(random_.below(3)), .cookie = random_.below(4)};
    span_.reset();
    if (landing_.kind == Landing::Kind::kSpan) {
      span_.reset(new std::byte[header.payload_bytes]);
      landing_.data = span_.get();
    }
    redirected_ = false;
    return landing_;
  }
  void on_frame(const wire::Header& header, const Arrival& arrival) override {
    CANARY_CHECK(arrival.cookie == landing_.cookie, "a cookie was lost");
    CANARY_CHECK(arrival.discarded == (redirected_ || landing_.kind == Landing::Kind::kDiscard),
                 "landed elsewhere than told");
    if (arrival.discarded) {
      CANARY_CHECK(arrival.payload.empty() && !arrival.intact, "a discarded frame has no payload");
    } else {
      const std::byte* want = record_.form == shm::kInline
                                  ? reinterpret_cast<const std::byte*>(stream_.data()) + at_ + shm::kRecordBytes
                                  : arena() + record_.offset;
      CANARY_CHECK(arrival.payload.size() == header.payload_bytes, "the payload's length is wrong");
      CANARY_CHECK(header.payload_bytes == 0 || std::memcmp(arrival.payload.data(), want, header.payload_bytes) == 0,
                   "the payload was changed");
      const bool unchecked = (header.flags & wire::kUnchecked) != 0 && (header.flags & wire::kSequenced) != 0;
      const bool right = unchecked || header.payload_crc32 == wire::payload_crc(want, header.payload_bytes);
      CANARY_CHECK(arrival.intact == (right && ending() == shm::kWhole), "the payload was judged wrong");
    }
    CANARY_CHECK(ending() == shm::kWhole || ending() == shm::kGivenUp, "a payload was shown without its trailer");
    next();
  }
  const std::byte* arena_at(std::uint32_t id, std::uint64_t offset, std::uint32_t bytes) override {
    return id == 1 && offset <= kArenaBytes && bytes <= kArenaBytes - offset ? arena() + offset : nullptr;
  }
  void maybe_redirect(shm::RingReader& reader) {
    if (random_.below(8) != 0 || !reader.redirect(random_.below(4))) return;
    redirected_ = true;
    span_.reset();  // nobody may write there any more
  }

 private:
  static const std::byte* arena() {
    static const std::unique_ptr<std::byte[]> memory(new std::byte[kArenaBytes]());
    return memory.get();
  }
  bool has_trailer() const { return record_.form == shm::kInline && shm::has_trailer(record_.header.payload_bytes); }
  std::uint32_t ending() const {
    if (!has_trailer()) return shm::kWhole;
    shm::Trailer trailer;
    std::memcpy(&trailer, stream_.data() + at_ + shm::kRecordBytes + shm::padded(record_.header.payload_bytes),
                sizeof trailer);
    return trailer.ending;
  }
  void next() {
    at_ += shm::kRecordBytes + (record_.form == shm::kInline ? shm::padded(record_.header.payload_bytes) : 0) +
           (has_trailer() ? shm::kRecordBytes : 0);
    if (at_ + shm::kRecordBytes <= stream_.size()) std::memcpy(&record_, stream_.data() + at_, sizeof record_);
  }
  std::span<const std::uint8_t> stream_;
  Random random_;
  std::size_t at_ = 0;
  shm::FrameRecord record_;
  Landing landing_;
  std::unique_ptr<std::byte[]> span_;
  bool redirected_ = false;
};

void run(std::span<const std::uint8_t> input) {
  shm::Message message;
  if (shm::check(input.data(), input.size(), input.size() % 3, &message) == nullptr) {
    CANARY_CHECK(message.magic == shm::Message::kMagic, "a message without its magic was taken");
  }
  if (input.size() < kControlBytes) return;
  Random steps(input[0]);
  const bool lies = input[0] % 8 == 7;
  const auto stream = input.subspan(kControlBytes);
  static shm::Descriptor memory;
  static const shm::Segment segment = shm::Segment::create(shm::kRingBytesMin, &memory).take();
  const shm::RingView ring = segment.ring(0);
  ring.control->head = ring.control->tail = 0;
  ring.control->reader_wants = ring.control->writer_wants = shm::kAwake;
  shm::RingReader reader(ring, -1, kSlotBytes);
  Checker checker(stream, input[1]);
  LaneCounters counters;
  std::uint64_t head = 0;
  const char* reason = nullptr;
  bool lied = false;
  for (std::size_t at = 0; at < stream.size() && reason == nullptr && !lied;) {
    const std::uint64_t tail = ring.control->tail;
    const std::size_t room = ring.size - static_cast<std::size_t>(head - tail);
    const std::size_t n = std::min({stream.size() - at, room, static_cast<std::size_t>(1 + steps.below(20'000))});
    std::memcpy(ring.at(head), stream.data() + at, n);
    at += n;
    head += n;
    lied = lies && steps.below(4) == 0;
    ring.control->head =
        lied ? head + (steps.below(2) != 0 ? ring.size + 1 + steps.below(1u << 30) : 0 - steps.below(1u << 30)) : head;
    for (std::size_t taken = 1; taken != 0 && reason == nullptr;) {
      reason = reader.read(1 + steps.below(100'000), checker, counters, &taken);
      if (reason == nullptr) checker.maybe_redirect(reader);
    }
    if (reason == nullptr && !lied) {
      CANARY_CHECK(n != 0, "the reader leaves a full ring as it is");
      CANARY_CHECK(reader.sleep(), "there is more to read, and read() did not");
      ring.control->reader_wants = shm::kAwake;
    }
  }
  CANARY_CHECK(!is_reason(reason) || *reason != '\0', "a reason says something");
}

}  // namespace
}  // namespace canarynet

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  canarynet::run({data, bytes});
  return 0;
}

// Chance never finds a CRC: after libFuzzer's own mutation, headers are sealed again most of the time, and forms made
// to exist.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t bytes, std::size_t bytes_max,
                                               unsigned seed) {
  using namespace canarynet;
  bytes = LLVMFuzzerMutate(data, bytes, bytes_max);
  Random random(seed);
  for (std::size_t at = kControlBytes; at + shm::kRecordBytes <= bytes && random.below(16) != 0;) {
    shm::FrameRecord record;
    std::memcpy(&record, data + at, sizeof record);
    record.header.magic = wire::kMagic;
    record.header.version = wire::kVersion;
    const std::size_t left = bytes - at - sizeof record;
    if (random.below(8) != 0) record.form = random.below(4) == 0 ? shm::kReference : shm::kInline;
    if (record.form == shm::kReference && random.below(4) != 0) {
      record.header.payload_bytes = static_cast<std::uint32_t>(1025 + random.below(2000));
      record.arena = 1;
      record.offset = random.below(kArenaBytes);
    }
    if (record.form == shm::kInline && record.header.payload_bytes > left && random.below(4) != 0) {
      record.header.payload_bytes =
          static_cast<std::uint32_t>(std::min<std::size_t>(random.below(left + 1), wire::kPayloadMax));
    }
    if (record.form == shm::kInline && record.header.payload_bytes <= left && random.below(2) == 0) {
      record.header.payload_crc32 = wire::payload_crc(data + at + sizeof record, record.header.payload_bytes);
    }
    wire::seal(record.header);
    std::memcpy(data + at, &record, sizeof record);
    at += sizeof record + (record.form == shm::kInline ? shm::padded(record.header.payload_bytes) : 0);
    if (record.form != shm::kInline || !shm::has_trailer(record.header.payload_bytes)) continue;
    if (at + shm::kRecordBytes > bytes) break;
    const shm::Trailer trailer{random.below(4) != 0 ? shm::kWhole : shm::kGivenUp};
    if (random.below(16) != 0) std::memcpy(data + at, &trailer, sizeof trailer);
    at += shm::kRecordBytes;
  }
  return bytes;
}
