// Any bytes, in any cut, with any landings and redirects: FrameReader must agree with a parser that reads the stream in
// one go, and write nothing but its landings (each in a block of exactly its size, for the address sanitizer to watch).
//
// Input: one byte seeds the cuts, one the landings and redirects, the rest is the stream.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "transport/tcp/frame_reader.h"

extern "C" {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes);
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t bytes, std::size_t bytes_max, unsigned seed);
__attribute__((weak)) std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t bytes, std::size_t bytes_max);
}

namespace canarynet {
namespace {

constexpr std::size_t kControlBytes = 2;

struct Expected {
  wire::Header header;
  const std::uint8_t* payload = nullptr;
};

// The specification: frames one after the other until the end or the first header that can't be believed.
std::vector<Expected> parse(std::span<const std::uint8_t> stream, const char** reason) {
  std::vector<Expected> frames;
  *reason = nullptr;
  std::size_t at = 0;
  while (stream.size() - at >= sizeof(wire::Header)) {
    Expected frame;
    std::memcpy(&frame.header, stream.data() + at, sizeof frame.header);
    *reason = wire::validate(frame.header);
    if (*reason == nullptr && (frame.header.flags & wire::kUnchecked) != 0) *reason = "no payload crc";
    if (*reason != nullptr) break;
    at += sizeof frame.header;
    if (stream.size() - at < frame.header.payload_bytes) break;
    frame.payload = stream.data() + at;
    at += frame.header.payload_bytes;
    frames.push_back(frame);
  }
  return frames;
}

class Checker final : public FrameHandler {
 public:
  Checker(const std::vector<Expected>& expected, std::uint64_t seed) : expected_(expected), random_(seed) {}

  Landing landing_for(const wire::Header& header) override {
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
    CANARY_CHECK(seen_ < expected_.size(), "a frame came from nowhere");
    const Expected& want = expected_[seen_++];
    CANARY_CHECK(std::memcmp(&header, &want.header, sizeof header) == 0, "a header was changed");
    CANARY_CHECK(arrival.cookie == landing_.cookie, "a cookie was lost");
    CANARY_CHECK(arrival.discarded == (redirected_ || landing_.kind == Landing::Kind::kDiscard),
                 "landed elsewhere than told");
    if (arrival.discarded) {
      CANARY_CHECK(arrival.payload.empty() && !arrival.intact, "a discarded frame has no payload");
      return;
    }
    CANARY_CHECK(arrival.payload.size() == header.payload_bytes, "the payload's length is wrong");
    CANARY_CHECK(
        header.payload_bytes == 0 || std::memcmp(arrival.payload.data(), want.payload, header.payload_bytes) == 0,
        "the payload was changed");
    CANARY_CHECK(arrival.intact == (header.payload_crc32 == wire::payload_crc(want.payload, header.payload_bytes)),
                 "the payload's CRC was judged wrong");
  }
  void maybe_redirect(FrameReader& reader) {
    if (random_.below(8) != 0) return;
    if (!reader.redirect(random_.below(4))) return;
    redirected_ = true;
    span_.reset();  // nobody may write there any more
  }
  std::size_t seen() const { return seen_; }

 private:
  const std::vector<Expected>& expected_;
  Random random_;
  Landing landing_;
  std::unique_ptr<std::byte[]> span_;
  bool redirected_ = false;
  std::size_t seen_ = 0;
};

void run(std::span<const std::uint8_t> input) {
  if (input.size() < kControlBytes) return;
  Random cuts(input[0]);
  const bool fine = input[0] % 2 == 0;
  const auto stream = input.subspan(kControlBytes);
  const char* expected_reason = nullptr;
  const std::vector<Expected> expected = parse(stream, &expected_reason);
  static std::vector<std::byte> discard(32 * 1024);
  FrameReader reader(wire::kPayloadMax, discard);
  Checker checker(expected, input[1]);
  LaneCounters counters;
  const char* reason = nullptr;
  for (std::size_t at = 0; at < stream.size() && reason == nullptr;) {
    iovec iov[FrameReader::kIovMax];
    std::size_t wanted = 0;
    const std::size_t count = reader.prepare(iov, &wanted);
    CANARY_CHECK(count > 0 && count <= FrameReader::kIovMax && wanted > 0, "the reader wants nothing");
    const std::size_t most = std::min(stream.size() - at, 1 + cuts.below(fine ? 40 : 40'000));
    std::size_t given = 0;
    for (std::size_t i = 0; i < count && given < most; ++i) {
      const std::size_t n = std::min(iov[i].iov_len, most - given);
      std::memcpy(iov[i].iov_base, stream.data() + at + given, n);
      given += n;
    }
    at += given;
    reason = reader.consume(given, checker, counters);
    if (reason == nullptr) checker.maybe_redirect(reader);
  }
  CANARY_CHECK((reason == nullptr) == (expected_reason == nullptr), "the end of the stream was judged differently");
  CANARY_CHECK(reason == nullptr || std::strcmp(reason, expected_reason) == 0, "another reason was given");
  CANARY_CHECK(checker.seen() == expected.size(), "a frame was lost");
  CANARY_CHECK(counters.header_errors == (reason != nullptr), "header errors were miscounted");
}

}  // namespace
}  // namespace canarynet

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  canarynet::run({data, bytes});
  return 0;
}

// Chance never finds a CRC: after libFuzzer's own mutation, headers are sealed again most of the time (and payload
// CRCs, sometimes).
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t bytes, std::size_t bytes_max,
                                               unsigned seed) {
  using namespace canarynet;
  bytes = LLVMFuzzerMutate(data, bytes, bytes_max);
  Random random(seed);
  for (std::size_t at = kControlBytes; at + sizeof(wire::Header) <= bytes && random.below(16) != 0;) {
    wire::Header header;
    std::memcpy(&header, data + at, sizeof header);
    header.magic = wire::kMagic;
    header.version = wire::kVersion;
    const std::size_t left = bytes - at - sizeof header;
    if (header.payload_bytes > left && random.below(4) != 0) {
      header.payload_bytes =
          static_cast<std::uint32_t>(std::min<std::size_t>(random.below(left + 1), wire::kPayloadMax));
    }
    if (header.payload_bytes <= left && random.below(2) == 0) {
      header.payload_crc32 = wire::payload_crc(data + at + sizeof header, header.payload_bytes);
    }
    wire::seal(header);
    std::memcpy(data + at, &header, sizeof header);
    at += sizeof header + header.payload_bytes;
  }
  return bytes;
}
