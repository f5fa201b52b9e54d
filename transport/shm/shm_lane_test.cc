// Shared-memory lanes beyond the conformance suite: references into arenas, and peers that break the rules.
#include "transport/shm/shm_lane.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "transport/shm/segment.h"
#include "transport/shm/shm_fixture.h"

namespace canarynet {
namespace {

std::unique_ptr<LaneFixture> make_ordinary() { return std::make_unique<ShmFixture>(ShmOptions{}.ring_bytes); }
std::unique_ptr<LaneFixture> make_small_rings() { return std::make_unique<ShmFixture>(shm::kRingBytesMin); }
std::unique_ptr<LaneFixture> make_medium_rings() { return std::make_unique<ShmFixture>(std::size_t{256} << 10); }

INSTANTIATE_TEST_SUITE_P(Shm, LaneConformance,
                         ::testing::Values(LaneKind{"ordinary", make_ordinary},
                                           LaneKind{"small_rings", make_small_rings},
                                           LaneKind{"medium_rings", make_medium_rings}),
                         lane_kind_name);

using lane_test::make_header;
using lane_test::pattern_bytes;
using lane_test::Recorder;

// Two connected lanes over a fixture of their own.
class ShmPair : public ::testing::Test {
 protected:
  void SetUp() override {
    fixture_.factory(1)->set_acceptor(&doorman_);
    auto dialled = fixture_.factory(0)->dial(0, fixture_.factory(1)->rails()[0].address, near_sink_);
    ASSERT_TRUE(dialled.ok()) << dialled.status().to_string();
    near_ = dialled.take();
    ASSERT_TRUE(run_until([&] { return near_sink_.ups == 1 && doorman_.lanes.size() == 1; })) << near_sink_.reason;
  }
  void TearDown() override {
    near_.reset();
    doorman_.lanes.clear();
  }
  bool run_until(const std::function<bool()>& done, Nanos limit = 20_s) {
    const Nanos end = fixture_.now() + limit;
    while (!done()) {
      if (fixture_.now() >= end) return false;
      fixture_.step();
    }
    return true;
  }
  std::byte* arena(int side, std::size_t bytes) {
    auto made = fixture_.arenas(side).allocate(bytes);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return static_cast<std::byte*>(made.value());
  }
  bool send(Lane& lane, std::uint32_t piece, std::span<const std::byte> payload, std::uint64_t cookie = 0) {
    return lane.send(make_header(piece, payload), payload.data(), cookie);
  }
  Lane& far() { return *doorman_.lanes.at(0); }

  ShmFixture fixture_{ShmOptions{}.ring_bytes};
  Recorder near_sink_;
  Recorder far_sink_;
  lane_test::Doorman doorman_{&far_sink_};
  std::unique_ptr<Lane> near_;
};

// --- references ------------------------------------------------------------------------------------------------------

TEST_F(ShmPair, WhatLiesInAnArenaIsShownWhereItLies) {
  constexpr std::size_t kBytes = 1 << 20;
  std::byte* memory = arena(0, 4 * kBytes);
  const auto want = pattern_bytes(5, 4 * kBytes);
  std::copy(want.begin(), want.end(), memory);
  const std::byte* seen[4] = {};
  std::size_t count = 0;
  far_sink_.frame_hook = [&](Lane&, const wire::Header&, const Arrival& arrival) {
    seen[count++] = arrival.payload.data();
  };
  for (std::uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(send(*near_, i, {memory + i * kBytes, kBytes}, i));
  near_->flush(fixture_.now());
  EXPECT_EQ(near_->queued_bytes(), 0u) << "four times the ring, and all of it is on its way: nothing was copied";
  ASSERT_TRUE(run_until([&] { return count == 4; }));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(far_sink_.received[i].intact);
    EXPECT_TRUE(std::equal(far_sink_.received[i].payload.begin(), far_sink_.received[i].payload.end(),
                           want.begin() + static_cast<std::ptrdiff_t>(i * kBytes)));
    EXPECT_EQ(seen[i], seen[0] + i * kBytes) << "not shown in the mapped arena";
  }
  EXPECT_EQ(near_->counters().bytes_sent, 4 * (kBytes + sizeof(wire::Header)));
  EXPECT_EQ(far().counters().bytes_received, 4 * (kBytes + sizeof(wire::Header)));
}

TEST_F(ShmPair, AReferenceLandsInItsSpan) {
  std::byte* memory = arena(0, 300'000);
  const auto want = pattern_bytes(6, 200'000);
  std::copy(want.begin(), want.end(), memory + 1000);
  std::vector<std::byte> place(want.size() + 2, std::byte{0x5a});
  far_sink_.landing_hook = [&](const wire::Header&) {
    return Landing{.kind = Landing::Kind::kSpan, .data = place.data() + 1, .cookie = 3};
  };
  ASSERT_TRUE(near_->send(make_header(1, want), memory + 1000, 0));
  near_->flush(fixture_.now());
  ASSERT_TRUE(run_until([&] { return far_sink_.frames == 1; }));
  EXPECT_TRUE(far_sink_.received[0].intact);
  EXPECT_TRUE(std::equal(want.begin(), want.end(), place.begin() + 1));
  EXPECT_EQ(place.front(), std::byte{0x5a});
  EXPECT_EQ(place.back(), std::byte{0x5a});
}

// In every form that a payload can take: in the slot, in the ring, into a span, by reference.
TEST_F(ShmPair, APayloadWithoutItsChecksumIsTakenAsItIs) {
  constexpr std::size_t kSizes[] = {100, 3000, 200'000, 800'000};
  std::vector<std::byte> place(800'000);
  std::byte* memory = arena(0, 800'000);
  for (const bool span : {false, true}) {
    far_sink_.landing_hook = [&](const wire::Header&) {
      return Landing{.kind = span ? Landing::Kind::kSpan : Landing::Kind::kSlot, .data = place.data()};
    };
    for (const bool reference : {false, true}) {
      for (const std::size_t size : kSizes) {
        const auto want = pattern_bytes(static_cast<std::uint32_t>(size), size);
        if (reference) std::copy(want.begin(), want.end(), memory);
        wire::Header header = make_header(1, want);
        header.flags |= wire::kUnchecked | wire::kSequenced;
        header.payload_crc32 = 0;
        wire::seal(header);
        const int before = far_sink_.frames;
        ASSERT_TRUE(near_->send(header, reference ? memory : want.data(), 0));
        near_->flush(fixture_.now());
        ASSERT_TRUE(run_until([&] { return far_sink_.frames == before + 1; }));
        EXPECT_TRUE(far_sink_.received.back().intact) << size;
        EXPECT_EQ(far_sink_.received.back().payload, want) << size;
      }
    }
  }
  EXPECT_EQ(far().counters().payload_errors, 0u);
}

TEST_F(ShmPair, ACancelledReferenceIsNotReadAndLeavesNoFrame) {
  std::byte* memory = arena(0, 1 << 20);
  std::fill_n(memory, 1 << 20, std::byte{0x11});
  const std::span<const std::byte> all(memory, 1 << 20);
  for (std::uint32_t i = 0; i < 6; ++i) ASSERT_TRUE(send(*near_, i, all, 100 + i));
  near_->flush(fixture_.now());
  ASSERT_EQ(near_->queued_bytes(), 0u);
  const std::uint64_t before = near_->counters().bytes_sent;
  EXPECT_TRUE(near_->cancel(103));
  EXPECT_FALSE(near_->cancel(103)) << "nothing of it is left";
  EXPECT_EQ(near_->counters().bytes_sent, before - all.size() - sizeof(wire::Header));
  EXPECT_EQ(near_->counters().frames_sent, 5u);
  ASSERT_TRUE(run_until([&] { return far_sink_.frames == 5; }));
  EXPECT_FALSE(near_->cancel(101)) << "it has been read";
  ASSERT_TRUE(send(*near_, 9, pattern_bytes(1, 100)));
  near_->flush(fixture_.now());
  ASSERT_TRUE(run_until([&] { return far_sink_.frames == 6; }));
  std::vector<std::uint32_t> order;
  for (const auto& got : far_sink_.received) {
    EXPECT_TRUE(got.intact);
    order.push_back(got.header.piece);
  }
  EXPECT_EQ(order, (std::vector<std::uint32_t>{0, 1, 2, 4, 5, 9}));
}

TEST_F(ShmPair, AnArenaThatIsGoneIsForgottenAndItsPlaceIsUsedAgain) {
  for (int round = 0; round < 5; ++round) {
    std::byte* memory = arena(0, 100'000);
    const auto want = pattern_bytes(static_cast<std::uint64_t>(round), 100'000);
    std::copy(want.begin(), want.end(), memory);
    ASSERT_TRUE(near_->send(make_header(1, want), memory, 0));
    near_->flush(fixture_.now());
    ASSERT_TRUE(run_until([&] { return far_sink_.frames == round + 1; }));
    EXPECT_TRUE(far_sink_.received.back().intact);
    std::uint32_t id = 0;
    ASSERT_TRUE(fixture_.arenas(0).release(memory, &id).ok());
    fixture_.factory(0)->arena_is_gone(id);
    EXPECT_FALSE(fixture_.arenas(0).release(memory, &id).ok()) << "twice";
  }
  EXPECT_EQ(near_sink_.downs + far_sink_.downs, 0);
}

// Where the system has no memory for private pages, the peer goes on to see the owner's.
TEST_F(ShmPair, AnArenaThatCanNotBeDetachedStaysAsItIs) {
  std::byte* memory = arena(0, 100'000);
  const auto first = pattern_bytes(1, 100'000);
  std::copy(first.begin(), first.end(), memory);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_DATA, &before), 0);
  const rlimit none{4096, before.rlim_max};  // 0 would be taken for none
  ASSERT_EQ(::setrlimit(RLIMIT_DATA, &none), 0);
  const int error_number = fixture_.arenas(0).detach(shm::kArenasMax);
  ASSERT_EQ(::setrlimit(RLIMIT_DATA, &before), 0);
  if (error_number == 0) GTEST_SKIP() << "the limit does not hold here";
  ASSERT_TRUE(std::equal(first.begin(), first.end(), memory));
  ASSERT_TRUE(send(*near_, 1, first));
  near_->flush(fixture_.now());
  ASSERT_TRUE(run_until([&] { return far_sink_.frames == 1; }));
  EXPECT_EQ(fixture_.arenas(0).detach(shm::kArenasMax), 0) << "when there is memory again";
  EXPECT_TRUE(std::equal(first.begin(), first.end(), memory));
}

TEST_F(ShmPair, ADetachedArenaIsCopiedAndPeersKeepWhatTheySaw) {
  std::byte* memory = arena(0, 100'000);
  const auto first = pattern_bytes(1, 100'000), second = pattern_bytes(2, 100'000);
  std::copy(first.begin(), first.end(), memory);
  const std::byte* shown = nullptr;
  far_sink_.frame_hook = [&](Lane&, const wire::Header&, const Arrival& arrival) { shown = arrival.payload.data(); };
  ASSERT_TRUE(near_->send(make_header(1, first), memory, 0));
  near_->flush(fixture_.now());
  ASSERT_TRUE(run_until([&] { return far_sink_.frames == 1; }));
  const std::byte* before = shown;
  ASSERT_EQ(fixture_.arenas(0).detach(shm::kArenasMax), 0);  // the first use of the first place
  EXPECT_TRUE(std::equal(first.begin(), first.end(), memory)) << "the content was lost";
  std::copy(second.begin(), second.end(), memory);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), before)) << "the peer sees writes from after the detachment";
  ASSERT_TRUE(near_->send(make_header(2, second), memory, 0));
  near_->flush(fixture_.now());
  ASSERT_TRUE(run_until([&] { return far_sink_.frames == 2; }));
  EXPECT_TRUE(far_sink_.received[1].intact);
  EXPECT_TRUE(far_sink_.received[1].payload == second);
}

// --- what is given up ------------------------------------------------------------------------------------------------

TEST_F(ShmPair, APayloadThatWouldBeShownInTheRingIsNotShownWhenItWasGivenUp) {
  const std::vector<std::byte> memory(400'000, std::byte{0x11});  // less than half a ring, and a third one does not fit
  std::size_t shown = 0;
  far_sink_.frame_hook = [&](Lane&, const wire::Header&, const Arrival& arrival) { shown += arrival.intact ? 1 : 0; };
  for (std::uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(near_->send(lane_test::make_unchecked_header(i, memory), memory.data(), 100 + i));
  }
  near_->flush(fixture_.now());
  ASSERT_GT(near_->queued_bytes(), 0u);
  EXPECT_TRUE(near_->cancel(102));
  EXPECT_FALSE(near_->cancel(101)) << "it is in the ring whole";
  ASSERT_TRUE(run_until([&] { return far_sink_.frames == 3; }));
  EXPECT_EQ(shown, 2u);
  EXPECT_FALSE(far_sink_.received[2].intact);
  EXPECT_EQ(far().counters().payload_errors, 0u) << "nothing was damaged";
}

TEST(ShmRing, HoldsTwoOfTheLargestPieces) {
  EXPECT_EQ(ring_bytes_for(0), std::size_t{1} << 20);
  EXPECT_EQ(ring_bytes_for(512 << 10), std::size_t{1} << 20);
  EXPECT_EQ(ring_bytes_for((512 << 10) + 128), std::size_t{2} << 20);
  EXPECT_EQ(ring_bytes_for(wire::kPayloadMax), 2 * std::size_t{wire::kPayloadMax});
  EXPECT_LE(ring_bytes_for(wire::kPayloadMax), shm::kRingBytesMax);
}

// --- memory that is not there ----------------------------------------------------------------------------------------

TEST(ShmRing, WithoutMemoryIsAReasonAndNoSignal) {
  shm::Descriptor memory;
  auto segment = shm::Segment::create(shm::kRingBytesMin, &memory);
  ASSERT_TRUE(segment.ok());
  // Pages behind the end of a file can't be had, as those of a host whose memory is used up.
  shm::Descriptor empty(::memfd_create("test", MFD_CLOEXEC));
  void* nothing = ::mmap(nullptr, 2 * shm::kRingBytesMin, PROT_READ | PROT_WRITE, MAP_SHARED, empty.fd(), 0);
  ASSERT_NE(nothing, MAP_FAILED);
  shm::RingView ring = segment.value().ring(0);
  ring.bytes = static_cast<std::byte*>(nothing);
  if (shm::make_present(ring.bytes, shm::kRingBytesMin)) GTEST_SKIP() << "this kernel can't tell";
  shm::RingWriter writer(ring, -1, nullptr);
  FrameQueue queue(4);
  const auto payload = pattern_bytes(1, 100);
  ASSERT_TRUE(queue.push(make_header(1, payload), payload.data(), 0));
  LaneCounters counters;
  bool full = false;
  const char* reason = writer.write(queue, 1 << 20, counters, &full);
  ASSERT_NE(reason, nullptr);
  EXPECT_NE(std::string(reason).find("memory"), std::string::npos) << reason;
  EXPECT_EQ(ring.control->head.load(), 0u) << "nothing of it is shown";
  ::munmap(nothing, 2 * shm::kRingBytesMin);
}

TEST(ShmArena, HasItsMemoryBeforeItIsHandedOut) {
  shm::ArenaStore arenas;
  constexpr std::size_t kBytes = std::size_t{9} << 20;
  auto made = arenas.allocate(kBytes);
  ASSERT_TRUE(made.ok());
  const shm::ArenaStore::Arena* arena = arenas.find(static_cast<const std::byte*>(made.value()), kBytes);
  ASSERT_NE(arena, nullptr);
  struct stat about {};
  ASSERT_EQ(::fstat(arena->memory.fd(), &about), 0);
  EXPECT_GE(static_cast<std::size_t>(about.st_blocks) * 512, kBytes)
      << "its pages come, or don't, when they are touched";
}

TEST(ShmArena, ThatCantBeHadIsToldWithItsSizes) {
  shm::Descriptor memory(::memfd_create("test", MFD_CLOEXEC));
  const Status too_much = shm::reserve(memory.fd(), std::size_t{1} << 62);
  ASSERT_FALSE(too_much.ok());
  EXPECT_NE(too_much.text().find("4611686018427387904 bytes"), std::string::npos) << too_much.text();
  const Status refused = shm::reserve(-1, 8192);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.text().find("0 of 8192 bytes"), std::string::npos) << refused.text();
}

// --- strangers -------------------------------------------------------------------------------------------------------

// A peer that speaks the handshake by itself and then does as it likes.
class Stranger {
 public:
  explicit Stranger(const Address& to) {
    bool refused = false;
    auto connected = shm::connect_to(to, &refused);
    EXPECT_TRUE(connected.ok() && !refused);
    socket_ = connected.take();
    auto made = shm::Segment::create(shm::kRingBytesMin, &memory_);
    EXPECT_TRUE(made.ok());
    segment_ = made.take();
    bell_ = shm::make_bell().take();
  }
  shm::Io say(shm::Message message, std::vector<int> descriptors) {
    return shm::send_message(socket_.fd(), message, descriptors.data(), descriptors.size());
  }
  void offer() {
    shm::Message message;
    message.bytes = shm::kRingBytesMin;
    ASSERT_EQ(say(message, {memory_.fd(), bell_.fd()}), shm::Io::kDone);
  }
  // The bell of the other side.
  bool answered() {
    shm::Received received;
    std::string why;
    if (shm::receive_message(socket_.fd(), &received, &why) != shm::Io::kDone) return false;
    peer_bell_ = std::move(received.descriptors[0]);
    return received.message.kind == shm::MessageKind::kAccept;
  }
  bool hung_up() {
    char byte;
    return ::recv(socket_.fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
  }
  shm::RingView ring() { return segment_.ring(0); }
  void put(const wire::Header& header, std::uint32_t form, std::uint32_t arena, std::uint64_t offset) {
    shm::FrameRecord record{header, form, arena, offset};
    std::memcpy(ring().at(head_), &record, sizeof record);
    show(sizeof record);
  }
  void show(std::uint64_t more) {
    head_ += more;
    ring().control->head = head_;
    shm::ring(peer_bell_.fd());
  }

  shm::Descriptor socket_, memory_, bell_, peer_bell_;
  shm::Segment segment_;
  std::uint64_t head_ = 0;
};

class ShmStranger : public ShmPair {
 protected:
  void connect() {
    const Address to = fixture_.factory(1)->rails()[0].address;
    stranger_ = std::make_unique<Stranger>(to);
    stranger_->offer();
    ASSERT_TRUE(run_until([&] { return doorman_.lanes.size() == 2; }));
    ASSERT_TRUE(stranger_->answered());
  }
  void expect_down(const std::string& reason) {
    ASSERT_TRUE(run_until([&] { return far_sink_.downs == 1; })) << reason;
    EXPECT_NE(far_sink_.reason.find(reason), std::string::npos) << far_sink_.reason;
    EXPECT_FALSE(far_sink_.hangup);
    EXPECT_TRUE(stranger_->hung_up());
    EXPECT_TRUE(near_->up()) << "another lane suffers";
  }
  std::unique_ptr<Stranger> stranger_;
};

TEST_F(ShmStranger, ThatShowsMoreThanTheRingHoldsIsCutOff) {
  connect();
  stranger_->show(shm::kRingBytesMin + 64);
  expect_down("counters");
}

TEST_F(ShmStranger, ThatTakesBackWhatItShowedIsCutOff) {
  connect();
  stranger_->put(make_header(1, {}), shm::kInline, 0, 0);
  ASSERT_TRUE(run_until([&] { return far_sink_.frames == 1; }));
  stranger_->show(~std::uint64_t{0} - 63);
  expect_down("counters");
}

TEST_F(ShmStranger, WithAHeaderThatCannotBeBelievedIsCutOff) {
  connect();
  wire::Header header = make_header(1, {});
  header.payload_bytes = 77;
  stranger_->put(header, shm::kInline, 0, 0);
  expect_down("header crc");
}

TEST_F(ShmStranger, ThatDoesNotSayWhetherAPayloadIsWholeIsCutOff) {
  connect();
  stranger_->put(make_header(1, std::vector<std::byte>(2048)), shm::kInline, 0, 0);
  stranger_->show(2048 + shm::kRecordBytes);
  expect_down("trailer");
  EXPECT_EQ(far_sink_.frames, 0);
}

TEST_F(ShmStranger, ThatEndsBeforeItSaysWhetherAPayloadIsWholeDeliversNothing) {
  connect();
  std::vector<std::byte> place(2048);
  far_sink_.landing_hook = [&](const wire::Header&) {
    return Landing{.kind = Landing::Kind::kSpan, .data = place.data(), .cookie = 1};
  };
  stranger_->put(lane_test::make_unchecked_header(1, place), shm::kInline, 0, 0);
  stranger_->show(2048);
  ASSERT_TRUE(run_until([&] { return far_sink_.landings == 1; }));
  stranger_->socket_.close();
  ASSERT_TRUE(run_until([&] { return far_sink_.downs == 1; }));
  EXPECT_NE(far_sink_.reason.find("in the middle of a frame"), std::string::npos) << far_sink_.reason;
  EXPECT_EQ(far_sink_.frames, 0);
}

TEST_F(ShmStranger, WithAFormThatDoesNotExistIsCutOff) {
  connect();
  stranger_->put(make_header(1, {}), 99, 0, 0);
  expect_down("form");
}

TEST_F(ShmStranger, ThatRefersToNoArenaIsCutOff) {
  connect();
  stranger_->put(make_header(1, pattern_bytes(1, 5000)), shm::kReference, 7, 0);
  expect_down("no arena");
}

TEST_F(ShmStranger, ThatRefersBeyondItsArenaIsCutOff) {
  connect();
  auto memory = shm::make_sealed_memory("test", 8192);
  ASSERT_TRUE(memory.ok());
  shm::Message message;
  message.kind = shm::MessageKind::kArena;
  message.arena = 7;
  message.bytes = 8192;
  ASSERT_EQ(stranger_->say(message, {memory.value().fd()}), shm::Io::kDone);
  std::vector<std::byte> zeroes(5000);
  stranger_->put(make_header(1, zeroes), shm::kReference, 7, 8192 - 5000);
  ASSERT_TRUE(run_until([&] { return far_sink_.frames == 1; }));
  EXPECT_TRUE(far_sink_.received[0].intact);
  stranger_->put(make_header(2, zeroes), shm::kReference, 7, 8192 - 4999);
  expect_down("no arena");
}

TEST_F(ShmStranger, WithAnArenaThatCouldShrinkIsCutOff) {
  connect();
  shm::Descriptor memory(::memfd_create("test", MFD_ALLOW_SEALING | MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memory.fd(), 8192), 0);
  shm::Message message;
  message.kind = shm::MessageKind::kArena;
  message.arena = 7;
  message.bytes = 8192;
  ASSERT_EQ(stranger_->say(message, {memory.fd()}), shm::Io::kDone);
  expect_down("change its size");
}

TEST_F(ShmStranger, WhoseOfferMakesNoSenseIsTurnedAway) {
  struct Case {
    const char* name;
    std::uint64_t bytes;
    bool small_memory;
  };
  for (const Case& c : {Case{"no power of two", 70'000, false}, Case{"huge", std::uint64_t{1} << 40, false},
                        Case{"memory too small", shm::kRingBytesMin, true}}) {
    Stranger stranger(fixture_.factory(1)->rails()[0].address);
    auto small = shm::make_sealed_memory("test", 4096);
    shm::Message message;
    message.bytes = c.bytes;
    const int memory = c.small_memory ? small.value().fd() : stranger.memory_.fd();
    ASSERT_EQ(stranger.say(message, {memory, stranger.bell_.fd()}), shm::Io::kDone);
    EXPECT_TRUE(run_until([&] { return stranger.hung_up(); })) << c.name;
    EXPECT_EQ(doorman_.lanes.size(), 1u) << c.name;
  }
}

// Dials that cross: the one that is late is of no use to its owner any more. Nothing hinders connections.
TEST_F(ShmStranger, ThatLeavesBeforeItsAnswerIsNoTrouble) {
  {
    Stranger stranger(fixture_.factory(1)->rails()[0].address);
    stranger.offer();
  }
  run_until([] { return false; }, 50_ms);
  EXPECT_EQ(fixture_.factory(1)->trouble(), "");
  EXPECT_EQ(doorman_.lanes.size(), 1u);
}

TEST_F(ShmStranger, ThatSaysNothingIsGivenUp) {
  Stranger stranger(fixture_.factory(1)->rails()[0].address);
  EXPECT_FALSE(run_until([&] { return stranger.hung_up(); }, 1_s));
  EXPECT_LT(fixture_.factory(1)->next_deadline(), Nanos::max());
  EXPECT_TRUE(run_until([&] { return stranger.hung_up(); }, 5_s));
  EXPECT_EQ(fixture_.factory(1)->next_deadline(), Nanos::max());
}

}  // namespace
}  // namespace canarynet
