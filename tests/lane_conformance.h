// tests/lane_conformance.h -- the fixture for the duties of every kind of lane. The tests are in lane_conformance.cc
// and lane_conformance_landings.cc (CMake target canarynet_lane_conformance); one test file per kind links them and
// names its fixtures:
//
//   INSTANTIATE_TEST_SUITE_P(Tcp, LaneConformance, ::testing::Values(LaneKind{"ipv4", [] { return …; }}),
//   lane_kind_name);
//
// A LaneFixture is two hosts, 0 and 1, with a rail each (rail 0 of both meet). step() lets a little time pass, real or
// virtual, and polls both factories with now(). step_far() polls only host 1: a frame that host 0 has begun to write
// stays half written.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/lane.h"
#include "transport/wire.h"

namespace canarynet {

class LaneFixture {
 public:
  virtual ~LaneFixture() = default;
  virtual LaneFactory* factory(int side) = 0;
  virtual Nanos now() const = 0;
  virtual void step() = 0;
  virtual void step_far() = 0;
  // Frames may come without the CRC of their payloads (wire::kUnchecked).
  virtual bool takes_unchecked() const { return false; }
  // An address where nobody listens and a dial from host 0 is refused.
  virtual Address nobody() = 0;
};

struct LaneKind {
  const char* name;
  std::unique_ptr<LaneFixture> (*make)();
};
inline void PrintTo(const LaneKind& kind, std::ostream* out) { *out << kind.name; }
inline std::string lane_kind_name(const ::testing::TestParamInfo<LaneKind>& info) { return info.param.name; }

namespace lane_test {

inline std::byte pattern(std::uint64_t seed, std::size_t i) {
  return static_cast<std::byte>((seed * 0x9e3779b97f4a7c15ull + i * 0x2545f4914f6cdd1dull) >> 37);
}
inline std::vector<std::byte> pattern_bytes(std::uint64_t seed, std::size_t size) {
  std::vector<std::byte> out(size);
  for (std::size_t i = 0; i < size; ++i) out[i] = pattern(seed, i);
  return out;
}
// `piece` names the frame; everything else is filled in and sealed.
inline wire::Header make_header(std::uint32_t piece, std::span<const std::byte> payload) {
  wire::Header header;
  header.kind = wire::Kind::kPiece;
  header.flow = 1;
  header.op = 1;
  header.piece = piece;
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  header.payload_crc32 = wire::payload_crc(payload.data(), payload.size());
  wire::seal(header);
  return header;
}

// Makes a header without the CRC of its payload: damage that the lane itself can't see goes unnoticed.
inline wire::Header make_unchecked_header(std::uint32_t piece, std::span<const std::byte> payload) {
  wire::Header header = make_header(piece, payload);
  header.flags = wire::kSequenced | wire::kUnchecked;
  header.lane_sequence = piece + 1;
  header.payload_crc32 = 0;
  wire::seal(header);
  return header;
}

struct Received {
  wire::Header header;
  std::vector<std::byte> payload;
  std::uint64_t cookie = 0;
  bool intact = false;
  bool discarded = false;
};

// Records everything and refuses nothing; the two hooks change its behaviour.
class Recorder : public LaneSink {
 public:
  void on_up(Lane& lane) override {
    EXPECT_TRUE(lane.up());
    ++ups;
    if (up_hook) up_hook(lane);
  }
  Landing landing_for(Lane&, const wire::Header& header) override {
    EXPECT_EQ(downs, 0) << "a frame was announced after on_down";
    EXPECT_EQ(wire::validate(header), nullptr);
    ++landings;
    return landing_hook ? landing_hook(header) : Landing{.kind = Landing::Kind::kSlot, .cookie = header.piece};
  }
  void on_frame(Lane& lane, const wire::Header& header, const Arrival& arrival) override {
    EXPECT_EQ(downs, 0) << "a frame arrived after on_down";
    ++frames;
    if (keep) {
      received.push_back({header,
                          {arrival.payload.begin(), arrival.payload.end()},
                          arrival.cookie,
                          arrival.intact,
                          arrival.discarded});
    }
    if (frame_hook) frame_hook(lane, header, arrival);
  }
  void on_writable(Lane& lane) override {
    EXPECT_EQ(downs, 0);
    ++writables;
    if (writable_hook) writable_hook(lane);
  }
  void on_down(Lane& lane, const Status& why, bool hang) override {
    EXPECT_FALSE(lane.up());
    EXPECT_FALSE(why.ok());
    ++downs;
    reason = why.to_string();
    hangup = hang;
  }

  int ups = 0, landings = 0, frames = 0, writables = 0, downs = 0;
  bool keep = true;
  bool hangup = false;
  std::string reason;
  std::vector<Received> received;
  std::function<void(Lane&)> up_hook;
  std::function<Landing(const wire::Header&)> landing_hook;
  std::function<void(Lane&, const wire::Header&, const Arrival&)> frame_hook;
  std::function<void(Lane&)> writable_hook;
};

class Doorman : public LaneAcceptor {
 public:
  explicit Doorman(LaneSink* given) : sink(given) {}
  void on_accept(std::unique_ptr<Lane> lane) override {
    EXPECT_TRUE(lane->up());
    ++accepted;
    if (sink == nullptr) return;  // turned away
    lane->set_sink(sink);
    lanes.push_back(std::move(lane));
  }
  LaneSink* sink;
  int accepted = 0;
  std::vector<std::unique_ptr<Lane>> lanes;
};

}  // namespace lane_test

class LaneConformance : public ::testing::TestWithParam<LaneKind> {
 protected:
  using Recorder = lane_test::Recorder;

  void SetUp() override {
    fixture_ = GetParam().make();
    ASSERT_NE(fixture_, nullptr);
    fixture_->factory(1)->set_acceptor(&doorman_);
  }
  void TearDown() override {
    near_.reset();
    doorman_.lanes.clear();
  }

  bool run_until(const std::function<bool()>& done, Nanos limit = 20_s) {
    const Nanos end = fixture_->now() + limit;
    while (!done()) {
      if (fixture_->now() >= end) return false;
      fixture_->step();
    }
    return true;
  }
  void run_for(Nanos time) {
    const Nanos end = fixture_->now() + time;
    run_until([&] { return fixture_->now() >= end; });
  }
  // Dials from host 0's rail 0 to host 1's.
  void connect() {
    auto dialled = fixture_->factory(0)->dial(0, fixture_->factory(1)->rails()[0].address, near_sink_);
    ASSERT_TRUE(dialled.ok()) << dialled.status().to_string();
    near_ = dialled.take();
    ASSERT_TRUE(run_until([&] { return near_sink_.ups == 1 && doorman_.lanes.size() == 1; })) << near_sink_.reason;
  }
  Lane& near() { return *near_; }
  Lane& far() { return *doorman_.lanes.at(0); }
  bool send(Lane& lane, std::uint32_t piece, std::span<const std::byte> payload, std::uint64_t cookie = 0) {
    return lane.send(lane_test::make_header(piece, payload), payload.data(), cookie);
  }

  // Makes a lane on which a frame is in the middle: host 1 has its beginning, host 0 the rest and does not get to write
  // it. Pieces from 0 on of 1 MiB each, all out of memory_ (kSent), land as told; piece i goes under cookie 1000 + i.
  // Returns false if this kind of lane has no middle.
  static constexpr std::byte kSent{0x11};
  static constexpr std::byte kUntouched{0x5a};
  static constexpr std::uint32_t kLast = 5000;
  bool half_write(Landing::Kind kind, bool unchecked);
  void take_everything_back();
  // Expects that piece kLast, sent now, arrives whole behind whatever came before, and that the lane lives.
  void expect_a_last_frame_arrives();
  bool all(const std::vector<std::byte>& bytes, std::byte value) const;

  Recorder near_sink_;
  Recorder far_sink_;
  std::vector<std::byte> memory_, span_;
  std::uint32_t queued_ = 0;
  std::uint32_t in_the_middle_ = 0;  // the piece
  bool given_up_ = false;            // take_everything_back() found it half written
  lane_test::Doorman doorman_{&far_sink_};
  std::unique_ptr<LaneFixture> fixture_;
  std::unique_ptr<Lane> near_;
};

}  // namespace canarynet
