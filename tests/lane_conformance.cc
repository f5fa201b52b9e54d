// The duties of every kind of lane: come up, carry frames in order, tell of room, go down. Where frames land, and what
// becomes of those that are taken back or stop half way, is in lane_conformance_landings.cc.
#include "tests/lane_conformance.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

namespace canarynet {

// --- coming up ------------------------------------------------------------------------------------------

TEST_P(LaneConformance, DialComesUpOnBothSides) {
  connect();
  EXPECT_TRUE(near().up());
  EXPECT_TRUE(far().up());
  EXPECT_EQ(near().rail(), 0);
  EXPECT_EQ(far().rail(), 0);
  EXPECT_EQ(doorman_.accepted, 1);
  EXPECT_EQ(far_sink_.ups, 0) << "accepted lanes are up when they are handed over";
  EXPECT_NE(near().description().find(fixture_->factory(0)->name()), std::string::npos) << near().description();
}

TEST_P(LaneConformance, ControlLaneHasNoRail) {
  Address any = fixture_->factory(1)->rails()[0].address;
  any.port = 0;
  auto bound = fixture_->factory(1)->listen_control(any);
  ASSERT_TRUE(bound.ok()) << bound.status().to_string();
  EXPECT_NE(bound.value().port, 0);
  auto dialled = fixture_->factory(0)->dial(kControlRail, bound.value(), near_sink_);
  ASSERT_TRUE(dialled.ok()) << dialled.status().to_string();
  near_ = dialled.take();
  ASSERT_TRUE(run_until([&] { return near_sink_.ups == 1 && doorman_.lanes.size() == 1; }));
  EXPECT_EQ(near().rail(), kControlRail);
  EXPECT_EQ(far().rail(), kControlRail);
  ASSERT_TRUE(send(near(), 1, lane_test::pattern_bytes(1, 100)));
  near().flush(fixture_->now());
  EXPECT_TRUE(run_until([&] { return far_sink_.frames == 1; }));
}

TEST_P(LaneConformance, RefusedDialReportsDownOnce) {
  auto dialled = fixture_->factory(0)->dial(0, fixture_->nobody(), near_sink_);
  ASSERT_TRUE(dialled.ok()) << dialled.status().to_string();
  near_ = dialled.take();
  EXPECT_EQ(near_sink_.downs, 0) << "sinks are called from poll() only";
  EXPECT_TRUE(run_until([&] { return near_sink_.downs > 0; }));
  run_for(20_ms);
  EXPECT_EQ(near_sink_.downs, 1);
  EXPECT_EQ(near_sink_.ups, 0);
  EXPECT_FALSE(near_sink_.reason.empty());
  EXPECT_FALSE(send(near(), 1, {}));
}

TEST_P(LaneConformance, AcceptorMayTurnALaneAway) {
  doorman_.sink = nullptr;
  auto dialled = fixture_->factory(0)->dial(0, fixture_->factory(1)->rails()[0].address, near_sink_);
  ASSERT_TRUE(dialled.ok());
  near_ = dialled.take();
  EXPECT_TRUE(run_until([&] { return near_sink_.downs == 1; }));
  EXPECT_EQ(doorman_.accepted, 1);
  EXPECT_TRUE(near_sink_.hangup) << near_sink_.reason;
}

TEST_P(LaneConformance, ManyLanesBetweenTheSameRails) {
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int i = 0; i < 40; ++i) {
    auto dialled = fixture_->factory(0)->dial(0, fixture_->factory(1)->rails()[0].address, near_sink_);
    ASSERT_TRUE(dialled.ok());
    lanes.push_back(dialled.take());
  }
  ASSERT_TRUE(run_until([&] { return near_sink_.ups == 40 && doorman_.lanes.size() == 40; }));
  for (std::uint32_t i = 0; i < 40; ++i) {
    ASSERT_TRUE(send(*lanes[i], i, lane_test::pattern_bytes(i, 900)));
    lanes[i]->flush(fixture_->now());
  }
  ASSERT_TRUE(run_until([&] { return far_sink_.frames == 40; }));
  for (const auto& got : far_sink_.received) EXPECT_EQ(got.payload, lane_test::pattern_bytes(got.header.piece, 900));
}

// --- frames ------------------------------------------------------------------------------------------

TEST_P(LaneConformance, FramesOfAllSizesArriveIntactAndInOrder) {
  connect();
  const std::size_t sizes[] = {0,     1,     2,     47,    48,     49,     1023,     1024, 1025, 4096, 16335,
                               16336, 16337, 16384, 65536, 131071, 131072, 1u << 20, 0,    0,    7,    (1u << 20) - 1,
                               3};
  std::vector<std::vector<std::byte>> payloads;
  for (std::size_t i = 0; i < std::size(sizes); ++i) payloads.push_back(lane_test::pattern_bytes(i, sizes[i]));
  std::size_t sent = 0;
  ASSERT_TRUE(run_until([&] {
    while (sent < payloads.size() && send(near(), static_cast<std::uint32_t>(sent), payloads[sent], sent)) ++sent;
    near().flush(fixture_->now());
    return far_sink_.received.size() == payloads.size();
  }));
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    const lane_test::Received& got = far_sink_.received[i];
    EXPECT_EQ(got.header.piece, i);
    EXPECT_EQ(got.cookie, i);
    EXPECT_TRUE(got.intact) << i;
    EXPECT_FALSE(got.discarded);
    EXPECT_TRUE(got.payload == payloads[i]) << "frame " << i << " of " << sizes[i] << " bytes differs";
  }
  EXPECT_EQ(near().queued_bytes(), 0u);
}

TEST_P(LaneConformance, LandingIsAskedForEveryFrameEvenAnEmptyOne) {
  connect();
  ASSERT_TRUE(send(near(), 5, {}));
  near().flush(fixture_->now());
  ASSERT_TRUE(run_until([&] { return far_sink_.frames == 1; }));
  EXPECT_EQ(far_sink_.landings, 1);
  EXPECT_TRUE(far_sink_.received[0].intact);
  EXPECT_EQ(far_sink_.received[0].cookie, 5u);
}

TEST_P(LaneConformance, BothDirectionsAtOnce) {
  connect();
  const auto payload = lane_test::pattern_bytes(3, 200'000);
  std::uint32_t there = 0, back = 0;
  ASSERT_TRUE(run_until([&] {
    if (there < 30 && send(near(), there, payload)) ++there;
    if (back < 30 && send(far(), back, payload)) ++back;
    near().flush(fixture_->now());
    far().flush(fixture_->now());
    return far_sink_.frames == 30 && near_sink_.frames == 30;
  }));
  for (const auto* sink : {&near_sink_, &far_sink_}) {
    for (std::uint32_t i = 0; i < 30; ++i) {
      ASSERT_EQ(sink->received[i].header.piece, i);
      ASSERT_TRUE(sink->received[i].intact);
    }
  }
}

TEST_P(LaneConformance, SmallPayloadsAreCopiedBySend) {
  connect();
  auto payload = lane_test::pattern_bytes(9, kInlinePayloadBytes);
  const auto original = payload;
  ASSERT_TRUE(send(near(), 0, payload));
  std::fill(payload.begin(), payload.end(), std::byte{0});
  near().flush(fixture_->now());
  ASSERT_TRUE(run_until([&] { return far_sink_.frames == 1; }));
  EXPECT_TRUE(far_sink_.received[0].payload == original);
}

TEST_P(LaneConformance, LargePayloadsAreBorrowed) {
  connect();
  auto payload = lane_test::pattern_bytes(9, 100'000);
  const auto changed = lane_test::pattern_bytes(10, 100'000);
  ASSERT_TRUE(near().send(lane_test::make_header(0, changed), payload.data(), 0));
  payload = changed;  // before anything was flushed: a copy made by send() would show the old bytes
  near().flush(fixture_->now());
  ASSERT_TRUE(run_until([&] { return far_sink_.frames == 1; }));
  EXPECT_TRUE(far_sink_.received[0].intact);
  EXPECT_TRUE(far_sink_.received[0].payload == changed);
}

TEST_P(LaneConformance, FullQueueRefusesThenTellsWhenThereIsRoom) {
  connect();
  const auto payload = lane_test::pattern_bytes(4, 300);
  std::uint32_t sent = 0;
  const std::uint32_t total = 6000;
  const auto push = [&](Lane& lane) {
    while (sent < total && send(lane, sent, payload)) ++sent;
  };
  near_sink_.writable_hook = push;  // nothing else sends or flushes: a forgotten on_writable stalls the test
  run_for(5_ms);                    // the lane has gone idle: it has to start moving by itself
  push(near());
  ASSERT_LT(sent, total) << "the queue has no bound";
  EXPECT_GT(near().queued_bytes(), 0u);
  ASSERT_TRUE(run_until([&] { return far_sink_.frames == static_cast<int>(total); })) << far_sink_.frames;
  EXPECT_GT(near_sink_.writables, 0);
  for (std::uint32_t i = 0; i < total; ++i) ASSERT_EQ(far_sink_.received[i].header.piece, i);
  EXPECT_EQ(near_sink_.downs, 0);
}

TEST_P(LaneConformance, NoWritableWithoutARefusal) {
  connect();
  const auto payload = lane_test::pattern_bytes(1, 5000);
  ASSERT_TRUE(send(near(), 0, payload));
  near().flush(fixture_->now());
  ASSERT_TRUE(run_until([&] { return far_sink_.frames == 1; }));
  run_for(10_ms);
  EXPECT_EQ(near_sink_.writables, 0);
}

TEST_P(LaneConformance, CorruptedPayloadIsFlagged) {
  connect();
  const auto payload = lane_test::pattern_bytes(1, 50'000);
  wire::Header header = lane_test::make_header(0, payload);
  header.payload_crc32 ^= 1;
  wire::seal(header);
  ASSERT_TRUE(near().send(header, payload.data(), 0));
  ASSERT_TRUE(send(near(), 1, payload));
  near().flush(fixture_->now());
  ASSERT_TRUE(run_until([&] { return far_sink_.frames == 2; }));
  EXPECT_FALSE(far_sink_.received[0].intact);
  EXPECT_FALSE(far_sink_.received[0].discarded);
  EXPECT_TRUE(far_sink_.received[1].intact);
  EXPECT_EQ(far().counters().payload_errors, 1u);
  EXPECT_TRUE(far().up()) << "a broken payload is the channel's to judge";
}

TEST_P(LaneConformance, AcksOvertakeQueuedPiecesAndKeepTheirOrder) {
  connect();
  const std::vector<std::byte> memory(1u << 20, std::byte{0x11});
  constexpr std::uint32_t kPieces = 32;
  for (std::uint32_t i = 0; i < kPieces; ++i) ASSERT_TRUE(send(near(), i, memory));
  near().flush(fixture_->now());
  ASSERT_GT(near().queued_bytes(), (kPieces / 2) << 20) << "the path took too much: nothing is tested";
  const auto small = lane_test::pattern_bytes(2, 16);
  const auto say = [&](wire::Kind kind, std::uint32_t piece) {
    wire::Header h = lane_test::make_header(piece, small);
    h.kind = kind;
    wire::seal(h);
    ASSERT_TRUE(near().send(h, small.data(), 0));
  };
  say(wire::Kind::kVoid, 1000);  // sequenced, so it stays where it is
  say(wire::Kind::kAck, 1001);
  say(wire::Kind::kHeartbeat, 1002);
  say(wire::Kind::kAck, 1003);
  far_sink_.keep = false;
  std::vector<std::uint32_t> order;
  far_sink_.frame_hook = [&](Lane&, const wire::Header& header, const Arrival& arrival) {
    EXPECT_TRUE(arrival.intact);
    order.push_back(header.piece);
  };
  ASSERT_TRUE(run_until([&] {
    near().flush(fixture_->now());
    return order.size() == kPieces + 4;
  }));
  const auto place = [&](std::uint32_t piece) { return std::find(order.begin(), order.end(), piece) - order.begin(); };
  EXPECT_LT(place(1001), place(kPieces / 2)) << "an ack waited behind data that had not begun";
  EXPECT_EQ(place(1002), place(1001) + 1);
  EXPECT_EQ(place(1003), place(1001) + 2);
  EXPECT_EQ(order.back(), 1000u);
  for (std::uint32_t i = 1; i < kPieces; ++i) EXPECT_GT(place(i), place(i - 1));
}

// --- going down ------------------------------------------------------------------------------------------

TEST_P(LaneConformance, PeersDestructionIsAHangupAndWhatItSentFirstArrives) {
  connect();
  const auto goodbye = lane_test::pattern_bytes(1, 200);
  // Unread frames lie at the far side, too: they must not cost us its last words.
  for (std::uint32_t i = 0; i < 20; ++i) ASSERT_TRUE(send(near(), i, goodbye));
  near().flush(fixture_->now());
  ASSERT_TRUE(send(far(), 77, goodbye));
  far().flush(fixture_->now());
  doorman_.lanes.clear();
  ASSERT_TRUE(run_until([&] { return near_sink_.downs == 1; }));
  ASSERT_EQ(near_sink_.frames, 1);
  EXPECT_EQ(near_sink_.received[0].header.piece, 77u);
  EXPECT_TRUE(near_sink_.hangup);
  EXPECT_FALSE(near().up());
  EXPECT_FALSE(near_sink_.reason.empty());
  EXPECT_FALSE(send(near(), 1, goodbye)) << "a lane that is down takes nothing";
  near().flush(fixture_->now());
  near().cancel(0);
  near().redirect(0);
  run_for(20_ms);
  EXPECT_EQ(near_sink_.downs, 1) << "on_down comes once";
}

TEST_P(LaneConformance, PeersDestructionWhileWeWriteIsNoticed) {
  connect();
  const auto payload = lane_test::pattern_bytes(1, 100'000);
  doorman_.lanes.clear();
  ASSERT_TRUE(run_until([&] {
    if (send(near(), 1, payload)) near().flush(fixture_->now());
    return near_sink_.downs > 0;
  }));
  EXPECT_EQ(near_sink_.downs, 1);
  EXPECT_TRUE(near_sink_.hangup) << near_sink_.reason;
  EXPECT_EQ(near().queued_bytes(), 0u);
}

TEST_P(LaneConformance, LaneMayBeDestroyedBetweenPollsWithWorkWaiting) {
  connect();
  const auto payload = lane_test::pattern_bytes(1, 60'000);
  ASSERT_TRUE(send(near(), 1, payload));
  near().flush(fixture_->now());
  ASSERT_TRUE(send(far(), 1, payload));
  far().flush(fixture_->now());
  near_.reset();
  const int frames = near_sink_.frames;
  ASSERT_TRUE(run_until([&] { return far_sink_.downs == 1; }));
  EXPECT_EQ(near_sink_.frames, frames) << "nothing is delivered after destruction";
  EXPECT_EQ(near_sink_.downs, 0) << "its owner knows";
  EXPECT_TRUE(far_sink_.hangup);
}

TEST_P(LaneConformance, LaneMayBeDestroyedWhileItConnects) {
  auto dialled = fixture_->factory(0)->dial(0, fixture_->factory(1)->rails()[0].address, near_sink_);
  ASSERT_TRUE(dialled.ok());
  dialled.take().reset();
  run_for(20_ms);
  EXPECT_EQ(near_sink_.ups + near_sink_.downs, 0);
}

TEST_P(LaneConformance, APlaceThatWasFreedIsUsedAgain) {
  const auto payload = lane_test::pattern_bytes(1, 2000);
  for (int round = 0; round < 50; ++round) {
    near_sink_ = Recorder();
    far_sink_ = Recorder();
    connect();
    ASSERT_TRUE(send(near(), 1, payload));
    near().flush(fixture_->now());
    ASSERT_TRUE(run_until([&] { return far_sink_.frames == 1; }));
    if (round % 2 == 0) {
      near_.reset();
      ASSERT_TRUE(run_until([&] { return far_sink_.downs == 1; }));
      doorman_.lanes.clear();
    } else {
      doorman_.lanes.clear();
      ASSERT_TRUE(run_until([&] { return near_sink_.downs == 1; }));
      near_.reset();
    }
  }
}

// --- the rest ------------------------------------------------------------------------------------------

TEST_P(LaneConformance, CountersAgreeOnBothSides) {
  connect();
  const std::size_t sizes[] = {0, 10, 1000, 100'000, 500'000};
  std::size_t total = 0;
  for (std::size_t size : sizes) {
    const auto payload = lane_test::pattern_bytes(size, size);
    ASSERT_TRUE(send(near(), 0, payload));
    const int before = far_sink_.frames;
    ASSERT_TRUE(run_until([&] {
      near().flush(fixture_->now());
      return far_sink_.frames == before + 1;
    }));
    total += size + sizeof(wire::Header);
  }
  EXPECT_EQ(near().counters().frames_sent, std::size(sizes));
  EXPECT_EQ(near().counters().bytes_sent, total);
  EXPECT_EQ(far().counters().frames_received, std::size(sizes));
  EXPECT_EQ(far().counters().bytes_received, total);
  EXPECT_EQ(near().counters().bytes_received, 0u);
  EXPECT_EQ(far().counters().bytes_sent, 0u);
  EXPECT_EQ(far().counters().header_errors + far().counters().payload_errors, 0u);
}

TEST_P(LaneConformance, PollDescriptorTellsOfWorkAndOfNothingElse) {
  const int fd = fixture_->factory(1)->poll_fd();
  if (fd < 0) GTEST_SKIP() << "no descriptors in virtual time";
  const auto works = [&](int side, int wait_ms) {
    if (!fixture_->factory(side)->prepare_to_sleep()) return true;
    pollfd entry{fixture_->factory(side)->poll_fd(), POLLIN, 0};
    return ::poll(&entry, 1, wait_ms) == 1;
  };
  const auto readable = [&](int wait_ms) { return works(1, wait_ms); };
  connect();
  ASSERT_TRUE(run_until([&] { return !readable(0) && !works(0, 0); }, 2_s))
      << "a descriptor stays readable with nothing to do";
  ASSERT_TRUE(send(near(), 1, lane_test::pattern_bytes(1, 100)));
  near().flush(fixture_->now());
  EXPECT_TRUE(readable(5000));
  while (far_sink_.frames == 0 && readable(5000)) fixture_->factory(1)->poll(fixture_->now());
  EXPECT_EQ(far_sink_.frames, 1);
  ASSERT_TRUE(run_until([&] { return !readable(0); }));
  near_.reset();
  EXPECT_TRUE(readable(5000)) << "a hang-up is work, too";
}

// A forked child's copies keep the kernel's side of a connection alive after the parent has closed its own.
TEST_P(LaneConformance, AnEndedLaneIsSilentWhileAForkedChildHoldsItsDescriptors) {
  if (fixture_->factory(0)->poll_fd() < 0) GTEST_SKIP() << "these lanes have no descriptors";
  constexpr int kMost = 256;
  std::vector<bool> before(kMost);
  for (int fd = 0; fd < kMost; ++fd) before[static_cast<std::size_t>(fd)] = ::fcntl(fd, F_GETFD) >= 0;
  connect();
  std::vector<int> copies;
  for (int fd = 0; fd < kMost; ++fd) {
    if (before[static_cast<std::size_t>(fd)] || ::fcntl(fd, F_GETFD) < 0) continue;
    copies.push_back(::fcntl(fd, F_DUPFD_CLOEXEC, kMost));
  }
  EXPECT_GE(copies.size(), 2u);
  for (const int copy : copies) ::shutdown(copy, SHUT_RDWR);  // both ends hang up
  EXPECT_TRUE(run_until([&] { return near_sink_.downs == 1 && far_sink_.downs == 1; }));
  run_for(5_ms);
  for (int side = 0; side < 2; ++side) {
    EXPECT_TRUE(fixture_->factory(side)->prepare_to_sleep());
    pollfd entry{fixture_->factory(side)->poll_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 0), 0) << "host " << side << " would not sleep any more";
  }
  for (const int copy : copies) ::close(copy);
}

}  // namespace canarynet
