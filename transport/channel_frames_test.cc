// The channel on lanes that only write down what they are given: which frame goes where, what is taken back, and when a
// piece is done.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "transport/channel.h"
#include "transport/channel_limits.h"

namespace canarynet {
namespace {

constexpr std::uint32_t kFlow = 7;
constexpr std::uint32_t kBytes = 64 * 1024;  // more than is copied

struct Sent {
  wire::Header header;
  std::uint64_t cookie;
};

class WrittenLane final : public Lane {
 public:
  bool send(const wire::Header& header, const std::byte*, std::uint64_t cookie) override {
    sent.push_back({header, cookie});
    return true;
  }
  void flush(Nanos) override {}
  bool cancel(std::uint64_t cookie) override {
    cancelled.push_back(cookie);
    return unsent;
  }
  void redirect(std::uint64_t cookie) override { redirected.push_back(cookie); }
  std::size_t queued_bytes() const override { return 0; }
  bool up() const override { return true; }
  const LaneCounters& counters() const override { return counters_; }
  std::string description() const override { return "written"; }
  int rail() const override { return 0; }

  std::vector<wire::Header> of(wire::Kind kind) const {
    std::vector<wire::Header> out;
    for (const Sent& s : sent) {
      if (s.header.kind == kind) out.push_back(s.header);
    }
    return out;
  }
  std::vector<Sent> sent;
  std::vector<std::uint64_t> cancelled, redirected;
  bool unsent = false;  // what is cancelled had not left yet

 private:
  LaneCounters counters_;
};

class WrittenLanes final : public LaneFactory {
 public:
  std::span<const Rail> rails() const override { return {}; }
  Result<std::unique_ptr<Lane>> dial(int rail, const Address&, LaneSink& sink) override {
    auto lane = std::make_unique<WrittenLane>();
    lane->set_sink(&sink);
    lanes[rail] = lane.get();
    ++dials;
    return std::unique_ptr<Lane>(std::move(lane));
  }
  Result<Address> listen_control(const Address& at) override { return at; }
  void set_acceptor(LaneAcceptor*) override {}
  std::size_t poll(Nanos) override { return 0; }
  Nanos next_deadline() const override { return Nanos::max(); }
  int poll_fd() const override { return -1; }
  const char* name() const override { return "written"; }
  std::uint64_t kernel_tx_bytes(int) const override { return 0; }
  WrittenLane* lanes[2] = {};
  int dials = 0;
};

class ChannelFrames : public ::testing::Test, public ChannelClient {
 protected:
  void open(int rails) {
    ChannelOptions o;
    o.peer_engine = 1;
    o.dialer = true;
    for (int rail = 0; rail < rails; ++rail) o.paths.push_back({rail, rail, 0, Address::parse("127.0.0.1:1").value()});
    o.piece_bytes = Bytes{kBytes};
    o.heartbeat_interval = 10_s;
    o.silence_limit = 100_s;
    o.rails = &rates;
    channel = std::make_unique<Channel>(std::move(o), factory, *this);
    now = 1_s;
    channel->start(now);
    for (int rail = 0; rail < rails; ++rail) {
      channel->on_up(lane(rail));
      wire::HelloPayload hello;
      hello.purpose = wire::kHelloChannel;
      from_peer(rail, wire::Kind::kHello, &hello, sizeof hello);
      asked += lane(rail).of(wire::Kind::kHeartbeat).size();
      lane(rail).sent.clear();
    }
    ASSERT_EQ(channel->paths_up(), rails);
  }
  // Whatever a test did to its lanes, their NICs have under way what the lanes have, and nothing when those are gone.
  void TearDown() override {
    const int rails = static_cast<int>(channel->paths().size());
    for (int rail = 0; rail < rails; ++rail)
      EXPECT_EQ(static_cast<std::uint64_t>(rates.under_way(rail).count), path(rail).unacked_bytes) << "rail " << rail;
    channel.reset();
    for (int rail = 0; rail < rails; ++rail) EXPECT_EQ(rates.under_way(rail).count, 0) << "rail " << rail;
  }
  WrittenLane& lane(int rail) { return *factory.lanes[rail]; }
  const Path& path(int rail) { return channel->paths()[static_cast<std::size_t>(rail)]; }

  void send(std::uint32_t pieces) {
    to_send += pieces;
    channel->wake();
    channel->pump(now);
  }
  void from_peer(int rail, wire::Kind kind, const void* payload, std::size_t bytes) {
    wire::Header h;
    h.kind = kind;
    h.payload_bytes = static_cast<std::uint32_t>(bytes);
    Arrival arrival;
    arrival.payload = {static_cast<const std::byte*>(payload), bytes};
    arrival.intact = true;
    channel->begin_cycle(now);
    channel->on_frame(lane(rail), h, arrival);
    channel->pump(now);
  }
  // Everything up to `cumulative` has come, and of the sequences behind it those in `beyond`. The ack has waited at the
  // peer.
  void ack(int rail, std::uint32_t cumulative, std::initializer_list<std::uint32_t> beyond = {}, Nanos waited = {}) {
    wire::AckPayload payload;
    payload.cumulative = cumulative;
    for (const std::uint32_t sequence : beyond) {
      const std::uint32_t bit = sequence - cumulative - 1;
      payload.words = std::max(payload.words, bit / 64 + 1);
      payload.bitmap[bit / 64] |= std::uint64_t{1} << (bit % 64);
    }
    payload.arrived_ns = static_cast<std::uint64_t>((now - waited).count);
    from_peer(rail, wire::Kind::kAck, &payload, wire::kAckFixedBytes + 8 * payload.words);
  }
  // A piece of the peer begins to land over this lane.
  Landing begin_landing(int rail) {
    wire::Header h;
    h.flow = kFlow;
    h.payload_bytes = kBytes;
    h.flags = wire::kSequenced;
    h.lane_sequence = 1;
    return channel->landing_for(lane(rail), h);
  }
  // A piece per lane at a time, until the lanes have proved that they carry one in a millisecond.
  void warm_up() {
    const int rails = static_cast<int>(channel->paths().size());
    for (int i = 0; i < 64; ++i) {
      // Beside short operations the lane that carries them would not be tried.
      send(static_cast<std::uint32_t>(i == 0 ? limits::kLongWaits / kBytes + 8 : rails));
      now += 1_ms;
      for (int rail = 0; rail < rails; ++rail) {
        const std::uint32_t last = path(rail).next_sequence - 1;
        if (last != 0) ack(rail, last);
      }
    }
    for (int rail = 0; rail < rails; ++rail) {
      ASSERT_GT(path(rail).estimator.rate().count, 0) << "lane " << rail << " was not tried";
      ASSERT_EQ(path(rail).unacked_bytes, 0u);
      lane(rail).sent.clear();
    }
    done.clear();
  }

  // ChannelClient
  bool next_piece(Channel&, PieceClass which, OutPiece* out) override {
    if (to_send == 0 || which != PieceClass::kBulk) return false;
    --to_send;
    out->header = {};
    out->header.flow = kFlow;
    out->header.piece = piece_;
    out->header.payload_bytes = kBytes;
    out->payload = memory_.data();
    out->encoded = encoded;
    out->cookie = piece_++;
    return true;
  }
  std::uint64_t waiting_bytes(const Channel&, PieceClass) const override { return std::uint64_t{to_send} * kBytes; }
  void on_done(Channel&, std::uint64_t, std::uint64_t cookie) override { done.push_back(cookie); }
  Landing landing_for(Channel&, const wire::Header&) override { return {Landing::Kind::kSpan, memory_.data(), 42}; }
  bool on_arrival(Channel&, const wire::Header&, const Arrival&) override { return true; }
  void on_landing_lost(Channel&, const wire::Header&, std::uint64_t, std::uint64_t) override { ++landings_lost; }
  void on_heartbeat(Channel&, const wire::Header&) override {}
  void fill_heartbeat(Channel&, wire::Header*) override {}
  void on_abort(Channel&, const wire::Header&, const wire::AbortFrame&) override {}
  void on_path_event(Channel&, const Path&, const std::string&) override {}

  WrittenLanes factory;
  RailRates rates;
  std::unique_ptr<Channel> channel;
  Nanos now;
  std::uint32_t to_send = 0;
  bool encoded = false;
  std::vector<std::uint64_t> done;
  int landings_lost = 0;
  std::size_t asked = 0;  // heartbeats that fresh lanes were given

 private:
  std::uint32_t piece_ = 0;
  std::vector<std::byte> memory_ = std::vector<std::byte>(kBytes);
};

TEST_F(ChannelFrames, APieceIsDoneWhenItIsAcknowledgedAndNotBefore) {
  open(1);
  send(2);
  ASSERT_EQ(lane(0).of(wire::Kind::kPiece).size(), 2u);
  EXPECT_TRUE(done.empty());
  now += 1_ms;
  ack(0, 0, {2});
  EXPECT_EQ(done, std::vector<std::uint64_t>{1});
  ack(0, 2);
  EXPECT_EQ(done, (std::vector<std::uint64_t>{1, 0}));
  ack(0, 2);
  EXPECT_EQ(done.size(), 2u) << "once";
}

// Only a lane that carries nothing yet tells the link's own round trip; without it each piece's time counts as latency,
// and a slow lane keeps the rate that a burst has shown.
TEST_F(ChannelFrames, BothEndsLearnTheRoundTripOfAFreshLane) {
  open(2);
  EXPECT_EQ(asked, 2u);
  wire::HeartbeatPayload beat;
  beat.sent_ns = 5;
  beat.echo_ns = static_cast<std::uint64_t>((now - 3_ms).count);
  beat.echo_held_ns = static_cast<std::uint64_t>((1_ms).count);
  from_peer(0, wire::Kind::kHeartbeat, &beat, sizeof beat);
  EXPECT_EQ(path(0).estimator.rtt_min(), 2_ms);
  EXPECT_EQ(lane(0).of(wire::Kind::kHeartbeat).size(), 1u) << "the peer waits for it";
  from_peer(0, wire::Kind::kHeartbeat, &beat, sizeof beat);
  EXPECT_EQ(lane(0).of(wire::Kind::kHeartbeat).size(), 1u) << "the others keep to their interval";
}

// With bytes one way only, the same old heartbeat may come back for hours, and two clocks drift meanwhile.
TEST_F(ChannelFrames, AnEchoThatWaitedForLongTellsNoRoundTrip) {
  open(1);
  wire::HeartbeatPayload beat;
  beat.sent_ns = 5;
  beat.echo_ns = static_cast<std::uint64_t>((now - 10_ms).count);
  beat.echo_held_ns = static_cast<std::uint64_t>((1_ms).count);
  from_peer(0, wire::Kind::kHeartbeat, &beat, sizeof beat);
  now += 600_s;
  beat.echo_held_ns = static_cast<std::uint64_t>((600_s + 8_ms).count);  // 7 ms of it are the clocks'
  from_peer(0, wire::Kind::kHeartbeat, &beat, sizeof beat);
  EXPECT_EQ(path(0).estimator.rtt_min(), 9_ms);
}

// One travels, and of one that arrived the acknowledgement comes behind a piece of the peer's: with two the link idles.
TEST_F(ChannelFrames, ALaneHoldsThreePiecesBeforeAnythingIsKnownOfIt) {
  open(1);
  send(4);
  EXPECT_EQ(lane(0).of(wire::Kind::kPiece).size(), 3u);
}

// A window of three pieces and a half would otherwise be one of three.
TEST_F(ChannelFrames, AWindowIsUsedToItsEnd) {
  open(1);
  send(200);
  for (std::uint32_t acked = 1; acked <= 100; ++acked) {
    now += BytesPerSec::from_mbit(70).time_for(Bytes{kBytes});
    ack(0, acked);
    channel->pump(now);
  }
  const std::uint64_t window = path(0).estimator.window();
  ASSERT_GT(window, 3u * kBytes) << "or three pieces hide what this is about";
  ASSERT_GT(window % (kBytes + sizeof(wire::Header)), kBytes / 8) << "it ends within one";
  EXPECT_GE(path(0).unacked_bytes, window);
  EXPECT_LE(path(0).unacked_bytes, window + kBytes + sizeof(wire::Header));
}

// Where two pieces are under way, each waits for the one before it: none shows the bare way, and a link that is always
// busy would seem to be idle between them.
TEST_F(ChannelFrames, AHeartbeatShowsTheBareWay) {
  open(1);
  wire::HeartbeatPayload beat;
  beat.sent_ns = beat.echo_ns = static_cast<std::uint64_t>(now.count);
  now += 2_ms;
  from_peer(0, wire::Kind::kHeartbeat, &beat, sizeof beat);
  const BytesPerSec rate = BytesPerSec::from_mbit(100);
  Nanos arrived = now;
  send(2);
  for (std::uint32_t piece = 1; piece <= 200; ++piece) {
    arrived = arrived + rate.time_for(Bytes{kBytes + sizeof(wire::Header)});
    now = arrived + 2_ms;
    ack(0, piece, {}, 2_ms);
    send(1);
  }
  EXPECT_NEAR(static_cast<double>(path(0).link.beta().count) / static_cast<double>(rate.count), 1, 0.05);
}

// As where the peer sends as much: the less it has left, the sooner its acks come.
TEST_F(ChannelFrames, AcksThatWaitedLessAndLessMakeNoLinkFaster) {
  open(1);
  const BytesPerSec rate = BytesPerSec::from_mbit(100);
  const Nanos each = rate.time_for(Bytes{kBytes + sizeof(wire::Header)});
  // The first heartbeat shows the bare way: none there, and two milliseconds back.
  wire::HeartbeatPayload beat;
  beat.sent_ns = beat.echo_ns = static_cast<std::uint64_t>(now.count);
  now += 2_ms;
  from_peer(0, wire::Kind::kHeartbeat, &beat, sizeof beat);
  std::vector<Nanos> left;
  Nanos arrived;
  for (std::uint32_t flight = 0; flight < 20; ++flight) {
    send(16);
    for (std::uint32_t k = 0; k < 16; ++k) {
      while (left.size() < lane(0).of(wire::Kind::kPiece).size()) left.push_back(now);
      arrived = std::max(arrived, left[flight * 16 + k]) + each;
      now = std::max(now, arrived + each / 4 * (16 - static_cast<int>(k)) + 2_ms);
      ack(0, flight * 16 + k + 1, {}, now - arrived);
    }
    now += 20_ms;
  }
  EXPECT_NEAR(static_cast<double>(path(0).link.beta().count) / static_cast<double>(rate.count), 1, 0.1);
}

TEST_F(ChannelFrames, AnAcknowledgementOfWhatWasNotSentFreesNothing) {
  open(1);
  send(2);
  now += 1_ms;
  for (const std::uint32_t cumulative : {3u, 1000u, 0x7fffffffu, 0x80000002u}) ack(0, cumulative);
  EXPECT_TRUE(done.empty());
  ack(0, 0, {3, 64, 65, 900});
  EXPECT_TRUE(done.empty());
  EXPECT_EQ(lane(0).of(wire::Kind::kVoid).size(), 0u) << "what was never sent proves no loss";
  ack(0, 2);
  EXPECT_EQ(done.size(), 2u);
}

// Also where its landing was not asked for: the header's fields decide, and nothing of it reaches the client.
TEST_F(ChannelFrames, OneThatCannotBeRightIsCountedAndDropped) {
  open(1);
  send(2);
  wire::AckPayload ack;
  ack.cumulative = 2;
  ack.words = 3;  // and none follows
  from_peer(0, wire::Kind::kAck, &ack, wire::kAckFixedBytes);
  EXPECT_TRUE(done.empty());
  EXPECT_EQ(path(0).counters().header_errors, 1u);
  ack.words = 0;
  wire::Header h;
  h.kind = wire::Kind::kAck;
  h.payload_bytes = wire::kAckFixedBytes;
  h.lane_sequence = 1;  // acks have none
  EXPECT_EQ(channel->landing_for(lane(0), h).kind, Landing::Kind::kDiscard);
  Arrival arrival;
  arrival.discarded = true;
  channel->on_frame(lane(0), h, arrival);
  EXPECT_TRUE(done.empty());
  EXPECT_EQ(path(0).counters().header_errors, 2u);
  from_peer(0, wire::Kind::kAck, &ack, wire::kAckFixedBytes);
  EXPECT_EQ(done.size(), 2u) << "those that come after it are heard";
}

TEST_F(ChannelFrames, APeerOfAnotherVersionIsNamedWithBoth) {
  open(1);
  channel->on_down(lane(0), Status(CANARY_PEER_DIED, "gone"), true);
  now += 10_s;
  channel->on_timer(now);
  ASSERT_EQ(factory.dials, 2);
  channel->on_up(lane(0));
  const wire::HelloPayload hello{.version_min = 1, .version_max = 1, .purpose = wire::kHelloChannel};
  from_peer(0, wire::Kind::kHello, &hello, sizeof hello);
  EXPECT_EQ(channel->paths_up(), 0);
  EXPECT_NE(channel->describe_failures().find("protocol version 1..1, this side 11"), std::string::npos)
      << channel->describe_failures();
}

// Three later ones arrived, so the hole is a loss: the frame leaves its lane's queue, a void takes its place, the piece
// goes again.
TEST_F(ChannelFrames, AHoleWellBehindWhatArrivedIsSentAgainAtOnce) {
  open(1);
  warm_up();
  const std::uint32_t before = path(0).next_sequence - 1;
  send(6);
  const auto first = lane(0).of(wire::Kind::kPiece);
  ASSERT_EQ(first.size(), 6u);
  now += 1_ms;
  ack(0, before, {before + 2, before + 3});
  EXPECT_EQ(lane(0).of(wire::Kind::kVoid).size(), 0u) << "two later ones prove nothing";
  lane(0).sent.clear();
  ack(0, before, {before + 2, before + 3, before + 4, before + 5, before + 6});
  const auto again = lane(0).of(wire::Kind::kPiece), voids = lane(0).of(wire::Kind::kVoid);
  ASSERT_EQ(voids.size(), 1u);
  EXPECT_EQ(voids[0].lane_sequence, before + 1);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].piece, first[0].piece);
  EXPECT_EQ(again[0].lane_sequence, before + 7);
  ASSERT_EQ(lane(0).cancelled.size(), 1u) << "its payload may be overwritten as soon as the other copy is acknowledged";
  EXPECT_EQ(path(0).resends[0], 1u);
  ack(0, before + 7);
  EXPECT_EQ(std::count(done.begin(), done.end(), std::uint64_t{first[0].piece}), 1);
}

TEST_F(ChannelFrames, WhatALaneHeldThatIsGivenUpGoesOverTheOtherOnce) {
  open(2);
  warm_up();
  send(6);
  const std::size_t held = lane(0).of(wire::Kind::kPiece).size(), other = lane(1).of(wire::Kind::kPiece).size();
  ASSERT_GT(held, 0u);
  ASSERT_EQ(held + other, 6u);
  channel->on_down(lane(0), Status(CANARY_SYSTEM, "cut"), false);
  channel->pump(now);
  EXPECT_EQ(lane(1).of(wire::Kind::kPiece).size(), 6u);
  now += 1_ms;
  ack(1, path(1).next_sequence - 1);
  EXPECT_EQ(done.size(), 6u);
  EXPECT_TRUE(channel->drained());
}

TEST_F(ChannelFrames, WhatTheOtherLaneHoldsAlreadyIsNotSentAThirdTime) {
  open(2);
  warm_up();
  send(6);
  const std::size_t held = lane(0).of(wire::Kind::kPiece).size(), other = lane(1).of(wire::Kind::kPiece).size();
  ASSERT_GT(held, 0u);
  ASSERT_GT(other, 0u);
  ack(1, path(1).next_sequence - 1);  // this one answers; the other does not
  now += 200_ms;
  channel->on_timer(now);
  channel->pump(now);
  ASSERT_TRUE(path(0).stalled);
  ASSERT_EQ(lane(1).of(wire::Kind::kPiece).size(), 6u);
  // The first counts as lost. None is a hedge, which only a lane with a rate takes.
  EXPECT_EQ(path(1).resends[static_cast<std::size_t>(Resend::kStalled) - 1], held - 1);
  channel->on_down(lane(0), Status(CANARY_SYSTEM, "cut"), false);
  channel->pump(now);
  EXPECT_EQ(lane(1).of(wire::Kind::kPiece).size(), 6u);
}

// Done over one lane, a piece still waits in the queue of the other: it is taken off, and its sequence is filled.
TEST_F(ChannelFrames, AFrameTakenBackLeavesAVoidBehind) {
  open(2);
  warm_up();
  send(6);
  const auto stuck = lane(0).of(wire::Kind::kPiece);
  ASSERT_GT(stuck.size(), 0u);
  ack(1, path(1).next_sequence - 1);
  now += 200_ms;
  channel->on_timer(now);
  channel->pump(now);
  ASSERT_TRUE(path(0).stalled);
  const std::size_t filled = lane(0).of(wire::Kind::kVoid).size();
  lane(0).unsent = true;
  ack(1, path(1).next_sequence - 1);
  EXPECT_EQ(done.size(), 6u);
  const auto voids = lane(0).of(wire::Kind::kVoid);
  EXPECT_EQ(voids.size(), stuck.size()) << filled << " of them when it stalled";
  for (const wire::Header& frame : stuck) {
    const bool found = std::any_of(voids.begin(), voids.end(), [&](const wire::Header& v) {
      return v.lane_sequence == frame.lane_sequence && (v.flags & wire::kSequenced) != 0;
    });
    EXPECT_TRUE(found) << "sequence " << frame.lane_sequence << " would hold the peer's acknowledgements up for ever";
  }
  // Nor does its acknowledgement tell how long a piece takes there.
  ASSERT_GT(stuck.size(), 1u);
  const Nanos round_trip = path(0).estimator.srtt();
  now += 5_s;
  ack(0, path(0).first_unacked - 1, {stuck.back().lane_sequence});
  EXPECT_EQ(path(0).estimator.srtt(), round_trip);
}

TEST_F(ChannelFrames, ALaneThatIsGivenUpLosesItsLanding) {
  open(2);
  ASSERT_EQ(begin_landing(0).kind, Landing::Kind::kSpan);
  channel->on_down(lane(1), Status(CANARY_SYSTEM, "cut"), false);
  EXPECT_EQ(landings_lost, 0);
  WrittenLane& first = lane(0);
  channel->on_down(first, Status(CANARY_SYSTEM, "cut"), false);
  EXPECT_EQ(landings_lost, 1);
  EXPECT_EQ(first.redirected, std::vector<std::uint64_t>{42});
}

TEST_F(ChannelFrames, ALandingOfACancelledFlowIsTurnedAway) {
  open(2);
  begin_landing(1);
  channel->cancel_flow(kFlow + 1);
  EXPECT_TRUE(lane(1).redirected.empty());
  channel->cancel_flow(kFlow);
  EXPECT_EQ(lane(1).redirected, std::vector<std::uint64_t>{42});
  EXPECT_TRUE(lane(0).redirected.empty());
}

TEST_F(ChannelFrames, ALandingThatWasOvertakenIsTurnedAwayAndItsPlaceFree) {
  open(2);
  begin_landing(0);
  wire::Header piece;
  piece.flow = kFlow;
  channel->redirect_landing(piece);
  EXPECT_EQ(lane(0).redirected, std::vector<std::uint64_t>{42});
  EXPECT_EQ(landings_lost, 1);
}

TEST_F(ChannelFrames, APeerThatLeftHasGotEverything) {
  open(1);
  send(3);
  channel->peer_departed();
  channel->pump(now);
  EXPECT_EQ(done, (std::vector<std::uint64_t>{0, 1, 2}));
  EXPECT_TRUE(channel->drained());
}

// A process that is given the dead peer's port would hear the job's token.
TEST_F(ChannelFrames, APeerThatDiedIsNotDialledAgain) {
  open(2);
  const auto go_on = [&](Nanos span) {
    for (const Nanos end = now + span; now < end; now += 50_ms) {
      channel->begin_cycle(now);
      channel->on_timer(now);
      channel->pump(now);
    }
  };
  channel->on_down(lane(0), Status(CANARY_PEER_DIED, "closed"), true);
  go_on(1_s);
  const int dials = factory.dials;
  ASSERT_GT(dials, 2) << "a lane that ends is dialled again while the peer may live";
  channel->peer_died();
  channel->on_up(lane(0));
  EXPECT_TRUE(lane(0).sent.empty()) << "a connection that was under way says hello";
  channel->on_down(lane(1), Status(CANARY_PEER_DIED, "closed"), true);
  go_on(60_s);
  EXPECT_EQ(factory.dials, dials);
}

// A lane has much before it, the other has nothing: the youngest pieces go over that one, too, long before anybody
// calls it a stall.
TEST_F(ChannelFrames, APieceThatWouldWaitLongGoesOverAnIdleLaneAsWell) {
  open(2);
  warm_up();
  send(200);
  const auto waiting = lane(0).of(wire::Kind::kPiece);
  ASSERT_GT(waiting.size(), 8u);
  now += 1_ms;
  lane(1).sent.clear();
  ack(1, path(1).next_sequence - 1);
  channel->wake();
  channel->pump(now);
  const auto hedged = lane(1).of(wire::Kind::kPiece);
  ASSERT_GT(hedged.size(), 0u);
  ASSERT_LT(hedged.size(), waiting.size()) << "those that are soon there stay where they are";
  for (std::size_t i = 0; i < hedged.size(); ++i) EXPECT_EQ(hedged[i].piece, waiting[waiting.size() - 1 - i].piece);
  EXPECT_EQ(path(1).resends[3], hedged.size());
}

// Its next one may still be encoded, and the peer may be decoding others: an idle lane proves nothing.
TEST_F(ChannelFrames, AnEncodedPieceIsHedgedOnceItIsLateAndNotBefore) {
  open(2);
  warm_up();
  encoded = true;
  send(200);
  ASSERT_GT(lane(0).of(wire::Kind::kPiece).size(), 8u);
  now += 1_ms;
  lane(1).sent.clear();
  ack(1, path(1).next_sequence - 1);
  channel->wake();
  channel->pump(now);
  EXPECT_TRUE(lane(1).of(wire::Kind::kPiece).empty());
  now += limits::kStallMin;
  channel->wake();
  channel->pump(now);
  EXPECT_FALSE(lane(1).of(wire::Kind::kPiece).empty());
}

TEST_F(ChannelFrames, AnAcknowledgementWaitsForCompanyButNotForLong) {
  open(1);
  wire::Header h;
  h.flags = wire::kSequenced;
  Arrival arrival;
  arrival.intact = true;
  const auto arrives = [&](std::uint32_t sequence) {
    h.lane_sequence = sequence;
    channel->on_frame(lane(0), h, arrival);
    channel->pump(now);
  };
  arrives(1);
  EXPECT_EQ(lane(0).of(wire::Kind::kAck).size(), 0u);
  now += limits::kAckDelay;
  EXPECT_LE(channel->next_deadline(), now);
  channel->on_timer(now);
  channel->pump(now);
  EXPECT_EQ(lane(0).of(wire::Kind::kAck).size(), 1u);
  h.flags |= wire::kAckNow;
  arrives(2);
  EXPECT_EQ(lane(0).of(wire::Kind::kAck).size(), 2u) << "somebody waits for it";
}

TEST(AckWindow, ABitIsClearedBeforeAnotherSequenceTakesItsPlace) {
  AckState state;
  EXPECT_TRUE(state.mark(2));
  EXPECT_TRUE(state.mark(1));  // 2 is counted with it
  for (std::uint32_t s = 3; s < 2 + AckState::kWindow; ++s) ASSERT_TRUE(state.mark(s));
  ASSERT_TRUE(state.mark(2 + AckState::kWindow + 1));  // the one in the place of 2 is missing
  wire::AckPayload ack;
  state.encode(&ack);
  EXPECT_EQ(ack.cumulative, 1 + AckState::kWindow);
  EXPECT_EQ(ack.bitmap[0], 2u);
}

TEST(AckWindow, WhatIsBeyondItIsNotTakenForOneWithin) {
  AckState state;
  EXPECT_TRUE(state.mark(AckState::kWindow));
  EXPECT_FALSE(state.mark(AckState::kWindow + 1));
  EXPECT_TRUE(state.mark(0)) << "long counted";
  wire::AckPayload ack;
  EXPECT_EQ(state.encode(&ack), wire::kAckFixedBytes + 8 * AckState::kWindow / 64);
  EXPECT_EQ(ack.bitmap[AckState::kWindow / 64 - 1], std::uint64_t{1} << 63);
}

}  // namespace
}  // namespace canarynet
