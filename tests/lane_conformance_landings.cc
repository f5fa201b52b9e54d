// The duties of every kind of lane towards the places where frames land, and towards frames that are taken back,
// redirected or stop half way.
#include <algorithm>

#include "tests/lane_conformance.h"

namespace canarynet {

// --- landings ------------------------------------------------------------------------------------------

TEST_P(LaneConformance, SpanLandingIsWrittenInPlaceAndNowhereElse) {
  connect();
  for (const std::size_t size : {std::size_t{100}, std::size_t{20'000}, std::size_t{400'000}}) {
    std::vector<std::byte> memory(size + 64, std::byte{0x5a});
    const auto payload = lane_test::pattern_bytes(size, size);
    far_sink_.received.clear();
    far_sink_.frames = 0;
    far_sink_.landing_hook = [&](const wire::Header&) {
      return Landing{.kind = Landing::Kind::kSpan, .data = memory.data() + 32, .cookie = 99};
    };
    const std::byte* seen = nullptr;
    far_sink_.frame_hook = [&](Lane&, const wire::Header&, const Arrival& arrival) { seen = arrival.payload.data(); };
    ASSERT_TRUE(send(near(), 1, payload));
    near().flush(fixture_->now());
    ASSERT_TRUE(run_until([&] { return far_sink_.frames == 1; }));
    EXPECT_EQ(seen, memory.data() + 32);
    EXPECT_EQ(far_sink_.received[0].cookie, 99u);
    EXPECT_TRUE(far_sink_.received[0].intact);
    EXPECT_TRUE(std::equal(payload.begin(), payload.end(), memory.begin() + 32));
    for (std::size_t i = 0; i < 32; ++i) {
      ASSERT_EQ(memory[i], std::byte{0x5a});
      ASSERT_EQ(memory[size + 32 + i], std::byte{0x5a});
    }
  }
}

TEST_P(LaneConformance, DiscardedFrameIsReportedAndTheNextOneArrives) {
  connect();
  far_sink_.landing_hook = [](const wire::Header& header) {
    return Landing{.kind = header.piece % 2 == 0 ? Landing::Kind::kDiscard : Landing::Kind::kSlot, .cookie = 7};
  };
  const std::size_t sizes[] = {1u << 20, 100, 60, 70'000, 33'000, 1u << 20};
  std::vector<std::vector<std::byte>> payloads;
  for (std::size_t size : sizes) payloads.push_back(lane_test::pattern_bytes(size, size));
  std::uint32_t sent = 0;
  ASSERT_TRUE(run_until([&] {
    while (sent < payloads.size() && send(near(), sent, payloads[sent])) ++sent;
    near().flush(fixture_->now());
    return far_sink_.frames == static_cast<int>(payloads.size());
  }));
  for (std::uint32_t i = 0; i < payloads.size(); ++i) {
    const lane_test::Received& got = far_sink_.received[i];
    EXPECT_EQ(got.header.piece, i);
    EXPECT_EQ(got.cookie, 7u);
    EXPECT_EQ(got.discarded, i % 2 == 0);
    if (i % 2 == 0) {
      EXPECT_TRUE(got.payload.empty());
    } else {
      EXPECT_TRUE(got.intact);
      EXPECT_TRUE(got.payload == payloads[i]);
    }
  }
}

TEST_P(LaneConformance, RedirectLeavesTheLandingAlone) {
  connect();
  std::vector<std::byte> memory(1u << 20, std::byte{0});
  far_sink_.landing_hook = [&](const wire::Header& header) {
    return header.piece == 1 ? Landing{.kind = Landing::Kind::kSpan, .data = memory.data(), .cookie = 1}
                             : Landing{.kind = Landing::Kind::kSlot, .cookie = header.piece};
  };
  const auto large = lane_test::pattern_bytes(1, 1u << 20);
  const auto small = lane_test::pattern_bytes(2, 500);
  ASSERT_TRUE(send(near(), 1, large));
  ASSERT_TRUE(send(near(), 2, small));
  near().flush(fixture_->now());
  ASSERT_TRUE(run_until([&] { return far_sink_.landings == 1; }));
  if (far_sink_.frames != 0)
    GTEST_SKIP() << "this kind of lane delivers whole frames at once: nothing is ever in progress";
  far().redirect(12345);  // another landing: no effect
  far().redirect(1);
  std::fill(memory.begin(), memory.end(), std::byte{0x77});
  ASSERT_TRUE(run_until([&] {
    near().flush(fixture_->now());
    return far_sink_.frames == 2;
  }));
  EXPECT_TRUE(far_sink_.received[0].discarded);
  EXPECT_TRUE(far_sink_.received[0].payload.empty());
  EXPECT_EQ(far_sink_.received[0].cookie, 1u);
  EXPECT_TRUE(std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == std::byte{0x77}; }));
  EXPECT_TRUE(far_sink_.received[1].intact);
  EXPECT_TRUE(far_sink_.received[1].payload == small);
}

// --- cancel ------------------------------------------------------------------------------------------

void LaneConformance::expect_a_last_frame_arrives() {
  const auto last = lane_test::pattern_bytes(7, 40'000);
  ASSERT_TRUE(send(near(), kLast, last));
  ASSERT_TRUE(run_until([&] {
    near().flush(fixture_->now());
    return !far_sink_.received.empty() && far_sink_.received.back().header.piece == kLast;
  }));
  EXPECT_TRUE(far_sink_.received.back().intact);
  EXPECT_TRUE(far_sink_.received.back().payload == last);
  EXPECT_EQ(far_sink_.downs, 0) << far_sink_.reason;
}

TEST_P(LaneConformance, CancelDropsWhatHasNotBegun) {
  connect();
  const auto payload = lane_test::pattern_bytes(1, 10'000);
  const auto small = lane_test::pattern_bytes(2, 10);
  ASSERT_TRUE(send(near(), 0, payload, 100));
  ASSERT_TRUE(send(near(), 1, payload, 200));
  ASSERT_TRUE(send(near(), 2, small, 200));
  ASSERT_TRUE(send(near(), 3, payload, 300));
  const std::size_t before = near().queued_bytes();
  EXPECT_TRUE(near().cancel(200));
  EXPECT_FALSE(near().cancel(200)) << "nothing of it is left";
  EXPECT_FALSE(near().cancel(999));
  EXPECT_EQ(near().queued_bytes(), before - 10'000 - 10 - 2 * sizeof(wire::Header));
  ASSERT_TRUE(send(near(), 4, small, 400));
  near().flush(fixture_->now());
  ASSERT_TRUE(run_until([&] { return far_sink_.frames == 3; }));
  run_for(5_ms);
  ASSERT_EQ(far_sink_.received.size(), 3u);
  EXPECT_EQ(far_sink_.received[0].header.piece, 0u);
  EXPECT_EQ(far_sink_.received[1].header.piece, 3u);
  EXPECT_EQ(far_sink_.received[2].header.piece, 4u);
  for (const auto& got : far_sink_.received) EXPECT_TRUE(got.intact);
  EXPECT_EQ(near().counters().frames_sent, 3u);
}

TEST_P(LaneConformance, CancelledMemoryIsNeverReadAgainAndTheStreamStaysInFrame) {
  connect();
  // More than the path holds, so that some frame is half written; all are cancelled, then the memory is overwritten.
  std::vector<std::byte> memory(1u << 20, std::byte{0x11});
  std::uint32_t queued = 0;
  while (queued < 64 && send(near(), queued, memory, 1000 + queued)) ++queued;
  ASSERT_GT(queued, 1u);
  near().flush(fixture_->now());
  EXPECT_GT(near().queued_bytes(), 0u) << "the path took it all: nothing is tested";
  bool dropped = false;
  for (std::uint32_t i = 0; i < queued; ++i) dropped |= near().cancel(1000 + i);
  EXPECT_TRUE(dropped);
  EXPECT_LT(near().queued_bytes(), (1u << 20) + sizeof(wire::Header)) << "only the rest of one frame may remain";
  std::fill(memory.begin(), memory.end(), std::byte{0xee});
  ASSERT_NO_FATAL_FAILURE(expect_a_last_frame_arrives());
  for (std::size_t i = 0; i + 1 < far_sink_.received.size(); ++i) {
    const lane_test::Received& got = far_sink_.received[i];
    EXPECT_TRUE(std::none_of(got.payload.begin(), got.payload.end(), [](std::byte b) { return b == std::byte{0xee}; }))
        << "frame " << i << " shows memory that had been given back";
  }
}

TEST_P(LaneConformance, CancelMakesRoomAndTells) {
  connect();
  const auto payload = lane_test::pattern_bytes(1, 100);
  std::uint32_t sent = 0;
  while (sent < 200'000 && send(near(), sent, payload, sent % 2)) ++sent;
  ASSERT_LT(sent, 200'000u);
  EXPECT_TRUE(near().cancel(1));
  EXPECT_TRUE(send(near(), sent, payload, 0)) << "cancelled frames must not hold their places";
  ASSERT_TRUE(run_until([&] { return near_sink_.writables == 1; }));
}

// --- frames that stop in the middle --------------------------------------------------------------------------

bool LaneConformance::half_write(Landing::Kind kind, bool unchecked) {
  near_.reset();
  doorman_.lanes.clear();
  near_sink_ = Recorder();
  far_sink_ = Recorder();
  connect();
  memory_.assign(1u << 20, kSent);
  span_.assign(1u << 20, kUntouched);
  far_sink_.landing_hook = [this, kind](const wire::Header& header) {
    if (header.piece == kLast) return Landing{.kind = Landing::Kind::kSlot, .cookie = header.piece};
    return Landing{kind, kind == Landing::Kind::kSpan ? span_.data() : nullptr, header.piece};
  };
  const auto header = unchecked ? lane_test::make_unchecked_header : lane_test::make_header;
  for (queued_ = 0; queued_ < 32; ++queued_) {
    if (!near().send(header(queued_, memory_), memory_.data(), 1000 + queued_)) break;
  }
  near().flush(fixture_->now());
  const bool virtual_time = fixture_->factory(1)->poll_fd() < 0;
  for (int quiet = 0, seen = 0; quiet < (virtual_time ? 5000 : 20); ++quiet) {
    fixture_->step_far();
    if (far_sink_.landings == seen) continue;
    seen = far_sink_.landings;
    quiet = 0;
    if (virtual_time && far_sink_.landings > far_sink_.frames) break;  // its time does not wait
  }
  in_the_middle_ = static_cast<std::uint32_t>(far_sink_.landings) - 1;
  return far_sink_.landings == far_sink_.frames + 1 && near().queued_bytes() > 0;
}

void LaneConformance::take_everything_back() {
  for (std::uint32_t i = 0; i < queued_; ++i) {
    const bool taken_back = near().cancel(1000 + i);
    if (i == in_the_middle_) given_up_ = taken_back;
  }
  std::fill(memory_.begin(), memory_.end(), std::byte{0xee});
}

bool LaneConformance::all(const std::vector<std::byte>& bytes, std::byte value) const {
  return std::all_of(bytes.begin(), bytes.end(), [value](std::byte b) { return b == value; });
}

TEST_P(LaneConformance, APayloadWithoutCrcIsTakenOnlyWhereTheLaneNeedsNone) {
  connect();
  for (const std::size_t size : {std::size_t{700}, std::size_t{50'000}}) {
    const auto payload = lane_test::pattern_bytes(size, size);
    far_sink_.received.clear();
    ASSERT_TRUE(near().send(lane_test::make_unchecked_header(1, payload), payload.data(), 0));
    ASSERT_TRUE(run_until([&] {
      near().flush(fixture_->now());
      return far_sink_.received.size() == 1 || far_sink_.downs == 1;
    }));
    if (!fixture_->takes_unchecked()) {
      EXPECT_EQ(far_sink_.landings, 0) << "a payload that nothing protects was given a place";
      EXPECT_EQ(far_sink_.downs, 1);
      EXPECT_EQ(far().counters().header_errors, 1u);
      return;
    }
    EXPECT_TRUE(far_sink_.received[0].intact);
    EXPECT_TRUE(far_sink_.received[0].payload == payload);
  }
}

TEST_P(LaneConformance, AHalfWrittenFrameThatIsTakenBackIsNoArrival) {
  for (const bool unchecked : {false, true}) {
    if (unchecked && !fixture_->takes_unchecked()) continue;
    for (const auto kind : {Landing::Kind::kSpan, Landing::Kind::kSlot, Landing::Kind::kDiscard}) {
      SCOPED_TRACE(testing::Message() << "landing " << static_cast<int>(kind) << (unchecked ? ", no CRC" : ""));
      if (!half_write(kind, unchecked)) GTEST_SKIP() << "frames of this kind of lane have no middle";
      take_everything_back();
      EXPECT_TRUE(given_up_) << "its owner has to hear that the peer does not get it";
      ASSERT_NO_FATAL_FAILURE(expect_a_last_frame_arrives());
      for (const auto& got : far_sink_.received) {
        if (got.header.piece == kLast) continue;
        EXPECT_EQ(got.discarded, kind == Landing::Kind::kDiscard);
        EXPECT_LE(got.header.piece, in_the_middle_);
        if (got.header.piece == in_the_middle_) {
          EXPECT_FALSE(got.intact) << "the rest of it was never sent";
        } else if (kind != Landing::Kind::kDiscard) {
          EXPECT_TRUE(got.intact);
          EXPECT_TRUE(all(got.payload, kSent));
        }
      }
    }
  }
}

TEST_P(LaneConformance, AFrameThatStopsInTheMiddleCanBeRedirected) {
  for (const bool unchecked : {false, true}) {
    if (unchecked && !fixture_->takes_unchecked()) continue;
    for (const bool taken_back : {false, true}) {
      if (!half_write(Landing::Kind::kSpan, unchecked)) GTEST_SKIP() << "frames of this kind of lane have no middle";
      const std::size_t before = far_sink_.received.size();
      far().redirect(in_the_middle_);
      if (taken_back) take_everything_back();
      far_sink_.landing_hook = nullptr;
      std::fill(span_.begin(), span_.end(), kUntouched);
      ASSERT_TRUE(run_until([&] {
        near().flush(fixture_->now());
        return far_sink_.received.size() > before;
      }));
      EXPECT_TRUE(far_sink_.received[before].discarded);
      EXPECT_EQ(far_sink_.received[before].cookie, in_the_middle_);
      EXPECT_TRUE(all(span_, kUntouched)) << "written after redirect()";
    }
  }
}

TEST_P(LaneConformance, ALaneThatBreaksInTheMiddleOfAFrameDeliversNothingOfIt) {
  for (const bool unchecked : {false, true}) {
    if (unchecked && !fixture_->takes_unchecked()) continue;
    for (const auto kind : {Landing::Kind::kSpan, Landing::Kind::kSlot, Landing::Kind::kDiscard}) {
      SCOPED_TRACE(testing::Message() << "landing " << static_cast<int>(kind) << (unchecked ? ", no CRC" : ""));
      if (!half_write(kind, unchecked)) GTEST_SKIP() << "frames of this kind of lane have no middle";
      near_.reset();
      std::fill(memory_.begin(), memory_.end(), std::byte{0xee});  // the memory is its owner's again
      ASSERT_TRUE(run_until([&] { return far_sink_.downs == 1; }));
      EXPECT_EQ(far_sink_.frames, static_cast<int>(in_the_middle_)) << "half a frame was delivered";
      EXPECT_TRUE(std::find(span_.begin(), span_.end(), std::byte{0xee}) == span_.end());
      std::fill(span_.begin(), span_.end(), kUntouched);
      run_for(20_ms);
      EXPECT_TRUE(all(span_, kUntouched)) << "written after on_down()";
    }
  }
}

}  // namespace canarynet
