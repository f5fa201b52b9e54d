// FrameQueue and FrameReader by themselves: any cut of the byte stream gives the same frames.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "base/random.h"
#include "tests/lane_conformance.h"
#include "transport/frame_queue.h"
#include "transport/tcp/frame_reader.h"

namespace canarynet {
namespace {

using lane_test::make_header;
using lane_test::pattern_bytes;
using Bytestream = std::vector<std::byte>;

void append_frame(Bytestream* stream, const wire::Header& header, std::span<const std::byte> payload) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&header);
  stream->insert(stream->end(), bytes, bytes + sizeof header);
  stream->insert(stream->end(), payload.begin(), payload.end());
}

std::size_t any_size(Random& random) {
  switch (random.below(6)) {
    case 0:
      return 0;
    case 1:
      return random.below(100);
    case 2:
      return kInlinePayloadBytes - 2 + random.below(5);
    case 3:
      return random.below(5000);
    case 4:
      return FrameReader::kBulkBytes - 2 + random.below(5);
    default:
      return random.below(200'000);
  }
}

// Writes up to `most` bytes of the queue to `out`, as a socket would.
std::size_t drain(FrameQueue& queue, std::size_t iov_max, std::size_t most, Bytestream* out) {
  std::vector<iovec> iov(iov_max);
  std::size_t offered = 0;
  const std::size_t count = queue.gather(iov.data(), iov_max, &offered);
  std::size_t taken = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t n = std::min(iov[i].iov_len, most - taken);
    const auto* data = static_cast<const std::byte*>(iov[i].iov_base);
    out->insert(out->end(), data, data + n);
    taken += n;
  }
  EXPECT_LE(taken, offered);
  queue.advance(taken);
  return taken;
}

TEST(FrameQueue, AnyPartialWritesGiveTheSameStream) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    FrameQueue queue(16);
    Bytestream expected, got;
    std::vector<std::vector<std::byte>> payloads;
    payloads.reserve(200);
    std::size_t frames = 0;
    while (frames < 200 || !queue.empty()) {
      if (frames < 200 && random.below(2) == 0) {
        payloads.push_back(pattern_bytes(seed + frames, any_size(random)));
        const wire::Header header = make_header(static_cast<std::uint32_t>(frames), payloads.back());
        const bool full = queue.size() == queue.capacity();
        ASSERT_EQ(queue.push(header, payloads.back().data(), frames), !full) << "seed " << seed;
        if (full) {
          payloads.pop_back();
        } else {
          append_frame(&expected, header, payloads.back());
          ++frames;
        }
      } else {
        drain(queue, 1 + random.below(8), random.below(3) == 0 ? random.below(200) : random.below(300'000), &got);
      }
      ASSERT_EQ(queue.bytes(), expected.size() - got.size()) << "seed " << seed;
    }
    ASSERT_TRUE(expected == got) << "seed " << seed;
  }
}

// Against a model that keeps whole frames: what was begun is finished (borrowed payloads with zeroes from there on),
// the rest goes.
TEST(FrameQueue, CancelLeavesAStreamOfWholeFrames) {
  int half_written = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    FrameQueue queue(32);
    std::vector<Bytestream> memory;
    memory.reserve(64);
    struct Model {
      Bytestream bytes;
      std::uint64_t cookie;
      bool borrowed;
    };
    std::vector<Model> model;
    Bytestream got;
    for (std::uint32_t i = 0; i < 20; ++i) {
      memory.push_back(
          pattern_bytes(seed * 100 + i, random.below(2) == 0 ? random.below(100) : 1025 + random.below(150'000)));
      const wire::Header header = make_header(i, memory.back());
      const std::uint64_t cookie = random.below(4);
      ASSERT_TRUE(queue.push(header, memory.back().data(), cookie));
      model.push_back({{}, cookie, memory.back().size() > kInlinePayloadBytes});
      append_frame(&model.back().bytes, header, memory.back());
    }
    std::size_t done = drain(queue, 64, random.below(400'000), &got);
    const std::uint64_t cookie = random.below(5);
    bool expect_dropped = false;
    std::size_t position = 0;
    std::vector<Model> rest;
    for (std::size_t i = 0; i < model.size(); ++i) {
      Model& frame = model[i];
      const std::size_t begin = position;
      position += frame.bytes.size();
      if (frame.cookie == cookie && position > done) {
        if (begin >= done) {
          expect_dropped = true;
          std::fill(memory[i].begin(), memory[i].end(), std::byte{0xee});
          continue;
        }
        if (frame.borrowed) {
          const std::size_t from = std::max(done - begin, sizeof(wire::Header));
          std::fill(frame.bytes.begin() + static_cast<std::ptrdiff_t>(from), frame.bytes.end(), std::byte{0});
          std::fill(memory[i].begin(), memory[i].end(), std::byte{0xee});
          expect_dropped = true;  // the peer does not get it
          ++half_written;
        }
      }
      rest.push_back(frame);
    }
    EXPECT_EQ(queue.cancel(cookie), expect_dropped) << "seed " << seed;
    const auto late = pattern_bytes(seed, 50);
    const wire::Header header = make_header(99, late);
    ASSERT_TRUE(queue.push(header, late.data(), 9));
    rest.push_back({});
    append_frame(&rest.back().bytes, header, late);
    while (!queue.empty()) drain(queue, 1 + random.below(5), random.below(100'000), &got);
    EXPECT_EQ(queue.bytes(), 0u);
    Bytestream expected;
    for (const Model& frame : rest) expected.insert(expected.end(), frame.bytes.begin(), frame.bytes.end());
    ASSERT_TRUE(expected == got) << "seed " << seed;
  }
  EXPECT_GT(half_written, 20) << "the case that matters hardly occurred";
}

TEST(FrameQueue, WhatOvertakesGoesBehindAFrameThatHasBegunAndBeforeAllOthers) {
  FrameQueue queue(8);
  Bytestream begun, waiting, overtaking, got;
  const auto payload = pattern_bytes(1, 3000);
  const auto push = [&](std::uint32_t number, wire::Kind kind, Bytestream* frame) {
    wire::Header header = make_header(number, payload);
    header.kind = kind;
    wire::seal(header);
    ASSERT_TRUE(queue.push(header, payload.data(), number));
    append_frame(frame, header, payload);
  };
  push(1, wire::Kind::kPiece, &begun);
  push(2, wire::Kind::kPiece, &waiting);
  drain(queue, 8, 100, &got);
  push(3, wire::Kind::kAck, &overtaking);
  while (!queue.empty()) drain(queue, 8, 1000, &got);
  Bytestream expected = begun;
  expected.insert(expected.end(), overtaking.begin(), overtaking.end());
  expected.insert(expected.end(), waiting.begin(), waiting.end());
  EXPECT_TRUE(expected == got);
}

class Collector final : public FrameHandler {
 public:
  Landing landing_for(const wire::Header& header) override {
    const auto kind = static_cast<Landing::Kind>(header.op % 3);
    Landing landing{.kind = kind, .cookie = header.piece};
    if (kind == Landing::Kind::kSpan) {
      auto& span = spans[header.piece];
      span.assign(header.payload_bytes, std::byte{0xaa});
      landing.data = span.data();
    }
    return landing;
  }
  void on_frame(const wire::Header& header, const Arrival& arrival) override {
    pieces.push_back(header.piece);
    payloads.emplace_back(arrival.payload.begin(), arrival.payload.end());
    intact.push_back(arrival.intact);
    discarded.push_back(arrival.discarded);
    EXPECT_FALSE(reader != nullptr && reader->redirect(header.piece)) << "a finished frame is no landing in progress";
  }
  FrameReader* reader = nullptr;
  std::map<std::uint32_t, Bytestream> spans;
  std::vector<std::uint32_t> pieces;
  std::vector<Bytestream> payloads;
  std::vector<bool> intact, discarded;
};

// Gives the reader `bytes` of the stream where it wants them. Returns how many it took.
std::size_t feed(FrameReader& reader, std::span<const std::byte> stream, std::size_t most, FrameHandler& handler,
                 LaneCounters& counters, const char** reason) {
  iovec iov[FrameReader::kIovMax];
  std::size_t wanted = 0;
  const std::size_t count = reader.prepare(iov, &wanted);
  EXPECT_GT(wanted, 0u);
  most = std::min(most, stream.size());
  std::size_t given = 0;
  for (std::size_t i = 0; i < count && given < most; ++i) {
    const std::size_t n = std::min(iov[i].iov_len, most - given);
    std::memcpy(iov[i].iov_base, stream.data() + given, n);
    given += n;
  }
  *reason = reader.consume(given, handler, counters);
  return given;
}

TEST(FrameReader, AnyCutOfTheStreamGivesTheSameFrames) {
  std::vector<std::byte> discard(32 * 1024);
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    Bytestream stream;
    std::vector<Bytestream> payloads;
    std::vector<std::uint32_t> ops;
    for (std::uint32_t i = 0; i < 60; ++i) {
      payloads.push_back(pattern_bytes(seed * 1000 + i, any_size(random)));
      wire::Header header = make_header(i, payloads.back());
      header.op = static_cast<std::uint32_t>(random.below(3));
      wire::seal(header);
      ops.push_back(header.op);
      append_frame(&stream, header, payloads.back());
    }
    FrameReader reader(wire::kPayloadMax, discard);
    Collector collector;
    collector.reader = &reader;
    LaneCounters counters;
    for (std::size_t at = 0; at < stream.size();) {
      const char* reason = nullptr;
      const std::size_t most = random.below(2) == 0 ? 1 + random.below(100) : 1 + random.below(100'000);
      at += feed(reader, std::span(stream).subspan(at), most, collector, counters, &reason);
      ASSERT_EQ(reason, nullptr) << "seed " << seed;
    }
    EXPECT_FALSE(reader.mid_frame());
    ASSERT_EQ(collector.pieces.size(), 60u);
    EXPECT_EQ(counters.frames_received, 60u);
    for (std::uint32_t i = 0; i < 60; ++i) {
      ASSERT_EQ(collector.pieces[i], i);
      const bool discarded = static_cast<Landing::Kind>(ops[i] % 3) == Landing::Kind::kDiscard;
      ASSERT_EQ(collector.discarded[i], discarded);
      if (discarded) {
        EXPECT_TRUE(collector.payloads[i].empty());
      } else {
        ASSERT_TRUE(collector.intact[i]) << "seed " << seed << " frame " << i;
        ASSERT_TRUE(collector.payloads[i] == payloads[i]) << "seed " << seed << " frame " << i;
      }
    }
  }
}

TEST(FrameReader, RedirectStopsWritingAtOnce) {
  std::vector<std::byte> discard(32 * 1024);
  Bytestream stream;
  const auto payload = pattern_bytes(1, 300'000);
  wire::Header header = make_header(1, payload);
  header.op = 0;  // kSpan
  wire::seal(header);
  append_frame(&stream, header, payload);
  append_frame(&stream, make_header(2, {}), {});
  FrameReader reader(wire::kPayloadMax, discard);
  Collector collector;
  LaneCounters counters;
  const char* reason = nullptr;
  std::size_t at = feed(reader, stream, 100, collector, counters, &reason);
  EXPECT_TRUE(reader.mid_frame());
  EXPECT_FALSE(reader.redirect(2));
  EXPECT_TRUE(reader.redirect(1));
  EXPECT_FALSE(reader.redirect(1)) << "it is no landing any more";
  Bytestream& span = collector.spans[1];
  std::fill(span.begin(), span.end(), std::byte{0x33});
  while (at < stream.size()) at += feed(reader, std::span(stream).subspan(at), 50'000, collector, counters, &reason);
  EXPECT_TRUE(std::all_of(span.begin(), span.end(), [](std::byte b) { return b == std::byte{0x33}; }));
  ASSERT_EQ(collector.pieces.size(), 2u);
  EXPECT_TRUE(collector.discarded[0]);
  EXPECT_EQ(counters.payload_errors, 0u);
}

TEST(FrameReader, APayloadWithoutItsChecksumIsRefused) {
  std::vector<std::byte> discard(32 * 1024);
  Bytestream stream;
  const auto payload = lane_test::pattern_bytes(1, 3000);
  wire::Header unchecked = make_header(1, payload);
  unchecked.flags |= wire::kUnchecked;
  wire::seal(unchecked);
  append_frame(&stream, unchecked, payload);
  FrameReader reader(wire::kPayloadMax, discard);
  Collector collector;
  LaneCounters counters;
  const char* reason = nullptr;
  feed(reader, stream, stream.size(), collector, counters, &reason);
  EXPECT_STREQ(reason, "no payload crc");
  EXPECT_EQ(counters.header_errors, 1u);
  EXPECT_EQ(counters.frames_received, 0u);
}

TEST(FrameReader, NothingAfterABadHeaderIsBelieved) {
  std::vector<std::byte> discard(32 * 1024);
  Bytestream stream;
  append_frame(&stream, make_header(1, {}), {});
  wire::Header bad = make_header(2, {});
  bad.flow ^= 1;
  append_frame(&stream, bad, {});
  append_frame(&stream, make_header(3, {}), {});
  FrameReader reader(wire::kPayloadMax, discard);
  Collector collector;
  LaneCounters counters;
  const char* reason = nullptr;
  feed(reader, stream, stream.size(), collector, counters, &reason);
  EXPECT_STREQ(reason, "header crc");
  EXPECT_EQ(collector.pieces, std::vector<std::uint32_t>{1});
  EXPECT_EQ(counters.header_errors, 1u);
}

}  // namespace
}  // namespace canarynet
