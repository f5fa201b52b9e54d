// Acknowledgements, as a peer may send them: old, impossible, and around the place where sequences begin again.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "transport/channel.h"

namespace canarynet {
namespace {

constexpr std::uint32_t kPieceBytes = 20'000;  // borrowed, not copied

// Keeps the headers of what is sent; takes back what it is told to, of which the first `begun` frames are half written.
class FakeLane final : public Lane {
 public:
  bool send(const wire::Header& header, const std::byte* payload, std::uint64_t cookie) override {
    if (sent.size() == 10'000) return false;  // as every queue ends somewhere
    sent.push_back(header);
    if (header.kind == wire::Kind::kHeartbeat) {
      wire::HeartbeatPayload beat;
      std::memcpy(&beat, payload, sizeof beat);
      beats.push_back(beat.sent_ns);
    }
    if (header.kind == wire::Kind::kAck) {
      wire::AckPayload ack;
      std::memcpy(&ack, payload, header.payload_bytes);
      arrived.push_back(ack.arrived_ns);
      received.push_back(ack.nic_received);
    }
    cookies.push_back(cookie);
    return true;
  }
  void flush(Nanos) override {}
  bool cancel(std::uint64_t cookie) override {
    cancelled.push_back(cookie);
    return gives_up;
  }
  void redirect(std::uint64_t) override {}
  std::size_t queued_bytes() const override { return 0; }
  bool up() const override { return true; }
  const LaneCounters& counters() const override { return counters_; }
  std::string description() const override { return "fake"; }
  int rail() const override { return 0; }

  std::vector<wire::Header> sent;
  std::vector<std::uint64_t> cookies, cancelled;
  std::vector<std::uint64_t> beats;              // when they were sent
  std::vector<std::uint64_t> arrived, received;  // by the acks
  bool gives_up = true;

 private:
  LaneCounters counters_;
};

class ChannelAcks : public ::testing::Test, public LaneFactory, public ChannelClient {
 protected:
  void open(int paths, std::uint32_t first_sequence) {
    ChannelOptions o;
    o.dialer = true;
    o.peer_engine = 1;
    for (int p = 0; p < paths; ++p) o.paths.push_back({p, p, 0, Address::ipv4(10, 0, 0, 1, 24, 1)});
    o.piece_bytes = Bytes{kPieceBytes};
    o.heartbeat_interval = 100_ms;
    o.silence_limit = 1_s;
    o.rails = &rates_;
    channel_ = std::make_unique<Channel>(std::move(o), *this, *this);
    channel_->start(now_);
    for (FakeLane* lane : lanes_) {
      channel_->on_up(*lane);
      const wire::HelloPayload hello{.purpose = wire::kHelloChannel};
      const wire::Header header = wire::greeting(wire::Kind::kHello, &hello, sizeof hello);
      const auto* bytes = reinterpret_cast<const std::byte*>(&hello);
      channel_->on_frame(*lane, header, Arrival{.payload = {bytes, sizeof hello}, .intact = true});
      lane->sent.clear();
      lane->cookies.clear();
    }
    for (const Path& path : channel_->paths()) {
      auto& mine = const_cast<Path&>(path);  // as after that many frames
      mine.first_unacked = mine.next_sequence = first_sequence;
    }
  }
  void send(std::size_t pieces) {
    to_send_ += pieces;
    channel_->wake();
    channel_->pump(now_);
  }
  void ack(FakeLane& lane, std::uint32_t cumulative, std::uint64_t bitmap = 0) {
    now_ = now_ + 100_us;
    channel_->begin_cycle(now_);
    wire::AckPayload payload;
    payload.cumulative = cumulative;
    payload.words = bitmap != 0 ? 1 : 0;
    payload.bitmap[0] = bitmap;
    payload.arrived_ns = static_cast<std::uint64_t>(now_.count);
    wire::Header header;
    header.kind = wire::Kind::kAck;
    header.payload_bytes = wire::kAckFixedBytes + 8 * payload.words;
    const auto* bytes = reinterpret_cast<const std::byte*>(&payload);
    channel_->on_frame(lane, header, Arrival{.payload = {bytes, header.payload_bytes}, .intact = true});
  }
  // A small frame of the peer's comes, and a piece of ours goes.
  std::size_t acks_after(std::uint32_t sequence, std::uint32_t bytes, Nanos later) {
    arrive(sequence, bytes, later);
    send(1);
    std::size_t n = 0;
    for (const wire::Header& h : lane().sent) n += h.kind == wire::Kind::kAck ? 1 : 0;
    return n;
  }
  // A small frame of the peer's comes.
  void arrive(std::uint32_t sequence, std::uint32_t bytes, Nanos later) {
    now_ = now_ + later;
    channel_->begin_cycle(now_);
    wire::Header header;
    header.payload_bytes = bytes;
    header.flags = wire::kSequenced;
    header.lane_sequence = sequence;
    channel_->on_frame(lane(), header, Arrival{.payload = {memory_.data(), bytes}, .intact = true});
  }
  // A heartbeat of the peer's comes, with the echo of ours of that time (0: it has heard none).
  void beat(std::uint64_t echo, bool asks = false) {
    channel_->begin_cycle(now_);
    wire::HeartbeatPayload payload;
    payload.sent_ns = static_cast<std::uint64_t>(now_.count);
    payload.echo_ns = echo;
    wire::Header header;
    header.kind = wire::Kind::kHeartbeat;
    header.flags = asks ? wire::kAckNow : 0;
    header.payload_bytes = sizeof payload;
    const auto* bytes = reinterpret_cast<const std::byte*>(&payload);
    channel_->on_frame(lane(), header, Arrival{.payload = {bytes, sizeof payload}, .intact = true});
  }
  static std::size_t beats(const FakeLane& lane) { return lane.beats.size(); }
  static std::uint64_t last_beat(const FakeLane& lane) { return lane.beats.back(); }
  static std::size_t voids(const FakeLane& lane) {
    std::size_t n = 0;
    for (const wire::Header& h : lane.sent) n += h.kind == wire::Kind::kVoid ? 1 : 0;
    return n;
  }
  FakeLane& lane(std::size_t i = 0) { return *lanes_[i]; }
  const Path& path(std::size_t i = 0) { return channel_->paths()[i]; }

  // LaneFactory
  std::span<const Rail> rails() const override { return {}; }
  Result<std::unique_ptr<Lane>> dial(int, const Address&, LaneSink&) override {
    auto made = std::make_unique<FakeLane>();
    lanes_.push_back(made.get());
    return std::unique_ptr<Lane>(std::move(made));
  }
  Result<Address> listen_control(const Address& at) override { return at; }
  void set_acceptor(LaneAcceptor*) override {}
  std::size_t poll(Nanos) override { return 0; }
  Nanos next_deadline() const override { return Nanos::max(); }
  int poll_fd() const override { return -1; }
  const char* name() const override { return "fake"; }
  std::uint64_t kernel_tx_bytes(int) const override { return 0; }

  // ChannelClient
  bool next_piece(Channel&, PieceClass which, OutPiece* out) override {
    if (sent_ == to_send_ || which != PieceClass::kBulk) return false;
    out->header.kind = wire::Kind::kPiece;
    out->header.piece = static_cast<std::uint32_t>(sent_);
    out->header.payload_bytes = piece_bytes_;
    out->payload = memory_.data();
    out->cookie = sent_++;
    return true;
  }
  std::uint64_t waiting_bytes(const Channel&, PieceClass) const override { return (to_send_ - sent_) * kPieceBytes; }
  void on_done(Channel&, std::uint64_t, std::uint64_t) override { ++done_; }
  Landing landing_for(Channel&, const wire::Header&) override { return {Landing::Kind::kSlot, nullptr, 0}; }
  bool on_arrival(Channel&, const wire::Header&, const Arrival&) override { return true; }
  void on_landing_lost(Channel&, const wire::Header&, std::uint64_t, std::uint64_t) override {}
  void on_heartbeat(Channel&, const wire::Header&) override {}
  void fill_heartbeat(Channel&, wire::Header*) override {}
  void on_abort(Channel&, const wire::Header&, const wire::AbortFrame&) override {}
  void on_path_event(Channel&, const Path&, const std::string&) override {}

  std::uint32_t piece_bytes_ = kPieceBytes;
  std::vector<std::byte> memory_ = std::vector<std::byte>(kPieceBytes);
  std::vector<FakeLane*> lanes_;  // the channel's
  RailRates rates_;
  std::unique_ptr<Channel> channel_;
  Nanos now_{1'000'000'000};
  std::size_t to_send_ = 0, sent_ = 0, done_ = 0;
};

TEST_F(ChannelAcks, OneTellsWhenTheLastFrameArrivedHoweverLateItIsItself) {
  open(1, 1);
  arrive(1, 64, 3_ms);
  arrive(2, 64, 2_ms);
  const auto arrived = static_cast<std::uint64_t>(now_.count);
  now_ += 40_ms;
  channel_->begin_cycle(now_);
  channel_->pump(now_);
  EXPECT_EQ(lane().arrived, std::vector{arrived});
}

TEST_F(ChannelAcks, OneTellsWhatAllChannelsReceivedOverItsNicWhenTheLastFrameArrived) {
  open(1, 1);
  arrive(1, 64, 3_ms);
  now_ += 40_ms;
  channel_->begin_cycle(now_);
  channel_->pump(now_);
  rates_.add_received(0, 5000);
  rates_.add_received(1, 700);
  arrive(2, 64, 2_ms);
  rates_.add_received(0, 9000);
  now_ += 40_ms;
  channel_->begin_cycle(now_);
  channel_->pump(now_);
  ASSERT_EQ(lane().received.size(), 2u);
  EXPECT_EQ(lane().received[1] - lane().received[0], 5000 + sizeof(wire::Header) + 64);
}

TEST_F(ChannelAcks, OneThatIsOlderThanTheLastOrWasNeverSentSaysNothing) {
  open(1, 5000);
  send(2);
  ASSERT_EQ(path().next_sequence, 5002u);
  // The worst is just short of half the circle behind: from there on "later" holds for every sequence that is tried.
  constexpr std::uint32_t kHalf = 0x80000000;
  for (const std::uint32_t far :
       {1u, 2u, 1024u, 1025u, kHalf - 5, kHalf - 4, kHalf - 3, kHalf - 2, kHalf - 1, kHalf, kHalf + 1, 0xfffffff0u}) {
    ack(lane(), 4999 - far);
    ASSERT_EQ(voids(lane()), 0u) << far << " behind: losses were looked for all the way there";
    EXPECT_EQ(done_, 0u);
    EXPECT_EQ(path().first_unacked, 5000u);
  }
  ack(lane(), 4999);  // nothing new, and nothing wrong
  EXPECT_EQ(done_, 0u);
  ack(lane(), 5001);
  EXPECT_EQ(done_, 2u);
  EXPECT_EQ(path().first_unacked, 5002u);
  ack(lane(), 5002);
  EXPECT_EQ(path().first_unacked, 5002u);
}

TEST_F(ChannelAcks, OfSmallFramesSeveralShareTheAckThatGoesAlongWithOthers) {
  open(1, 1);
  piece_bytes_ = 128;  // so that the lane always has room
  std::uint32_t s = 0;
  for (std::size_t acks = 1; acks <= 3; ++acks) {
    for (int i = 1; i <= 3; ++i) EXPECT_EQ(acks_after(++s, 128, 10_us), acks - 1);
    EXPECT_EQ(acks_after(++s, 128, 10_us), acks);
  }
  EXPECT_EQ(acks_after(++s, 5000, 10_us), 4u) << "of some size";
  EXPECT_EQ(acks_after(++s, 128, 10_us), 4u);
  EXPECT_EQ(acks_after(++s, 128, 600_us), 5u) << "it would soon go by itself";
}

// Acknowledgements of what the peer sends keep this lane's heartbeats away, and nobody answers them.
TEST_F(ChannelAcks, AnEndThatOnlyAcknowledgesAsksWhetherItIsHeardAndBelievesTheEcho) {
  open(1, 1);
  const Nanos began = now_;
  const std::size_t before = beats(lane());
  for (std::uint32_t i = 1; now_ < began + 2_s; ++i) {
    arrive(i, 5000, 20_ms);
    channel_->on_timer(now_);
    channel_->pump(now_);
    if (now_ < began + 500_ms) {
      ASSERT_EQ(beats(lane()), before) << "half of the limit has not passed";
    }
  }
  EXPECT_GE(beats(lane()) - before, 10u) << "one in each interval from then on";
  EXPECT_LE(beats(lane()) - before, 20u);
  EXPECT_EQ(channel_->last_heard_by_peer(), began) << "nothing says that the peer hears this end";
  const std::uint64_t heard = last_beat(lane());
  beat(heard);
  EXPECT_EQ(channel_->last_heard_by_peer().count, static_cast<std::int64_t>(heard));
  beat(static_cast<std::uint64_t>((now_ + 1_s).count));
  EXPECT_EQ(channel_->last_heard_by_peer().count, static_cast<std::int64_t>(heard)) << "never sent";
}

TEST_F(ChannelAcks, AHeartbeatInAPauseOfThePeersTrafficIsAnsweredOnce) {
  open(1, 1);
  beat(0);  // the first is answered
  std::size_t before = beats(lane());
  beat(last_beat(lane()));
  EXPECT_EQ(beats(lane()), before) << "nothing came in between";
  arrive(1, 5000, 30_ms);
  for (int i = 0; i < 3; ++i) {
    beat(last_beat(lane()));
    EXPECT_EQ(beats(lane()), before + 1);
  }
  arrive(2, 5000, 30_ms);
  send(1);
  before = beats(lane());
  beat(last_beat(lane()));
  EXPECT_EQ(beats(lane()), before) << "what goes this way would be before the answer";
}

TEST_F(ChannelAcks, AQuestionWhetherItIsHeardIsAnsweredAmidTraffic) {
  open(1, 1);
  beat(0);  // the first is answered
  send(1);  // and not acknowledged: there is no pause
  const std::size_t before = beats(lane());
  for (std::uint32_t i = 1; i <= 10; ++i) {  // something is sent all the time
    arrive(i, 5000, 40_ms);
    channel_->on_timer(now_);
    channel_->pump(now_);
    beat(last_beat(lane()), i % 5 == 0);
  }
  EXPECT_EQ(beats(lane()) - before, 2u) << "those two were questions";
}

TEST_F(ChannelAcks, LossesAreFoundOverTheEndOfTheNumbers) {
  const std::uint32_t first = 0u - 2;
  open(1, first);
  // The first is missing, all others arrive.
  for (std::uint32_t n = 1; n <= 5; ++n) {
    EXPECT_EQ(voids(lane()), 0u);
    send(1);
    ASSERT_EQ(path().next_sequence, first + n);
    if (n > 1) ack(lane(), first - 1, (std::uint64_t{1} << n) - 2);
  }
  EXPECT_EQ(voids(lane()), 1u) << "three later ones arrived";
  EXPECT_EQ(path().first_unacked, first);
}

TEST_F(ChannelAcks, AFrameThatIsGivenUpIsFilledUpSoThatTheCountGoesOn) {
  open(1, 1);
  send(2);
  channel_->cancel_flow(0);
  EXPECT_EQ(lane().cancelled.size(), 2u);
  EXPECT_EQ(voids(lane()), 2u) << "the peer never counts what it can't use";
  lane().sent.clear();
  ack(lane(), 2);
  EXPECT_EQ(done_, 0u) << "taken back, not done";
  EXPECT_EQ(path().first_unacked, path().next_sequence);
}

TEST(AckState, CountsOverTheEndOfTheNumbers) {
  AckState state;
  const std::uint32_t first = 0u - 3;
  state.reset(first - 1);
  wire::AckPayload ack;
  // Every second one.
  for (std::uint32_t i = 1; i < 70; i += 2) EXPECT_TRUE(state.mark(first + i));
  EXPECT_EQ(state.encode(&ack), wire::kAckFixedBytes + 16u);
  EXPECT_EQ(ack.cumulative, first - 1);
  EXPECT_EQ(ack.bitmap[0], 0xaaaaaaaaaaaaaaaau);
  EXPECT_EQ(ack.bitmap[1], 0b101010u);
  for (std::uint32_t i = 0; i < 70; i += 2) EXPECT_TRUE(state.mark(first + i));
  EXPECT_EQ(state.encode(&ack), wire::kAckFixedBytes);
  EXPECT_EQ(ack.cumulative, first + 69);
  EXPECT_TRUE(state.mark(first)) << "behind: a duplicate";
  EXPECT_TRUE(state.mark(first + 69 + AckState::kWindow));
  EXPECT_FALSE(state.mark(first + 70 + AckState::kWindow)) << "beyond the window";
  EXPECT_EQ(state.encode(&ack), sizeof ack);
}

}  // namespace
}  // namespace canarynet
