// Channels alone, which a test opens by address between two ends that know nothing of engines or groups: over simulated
// lanes with their faults, and over TCP on loopback.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "sim/channel_test_util.h"

namespace canarynet {
namespace {

struct Kind {
  const char* name;
  std::unique_ptr<Pair> (*make)(int rails);
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class ChannelOver : public ::testing::TestWithParam<Kind> {
 protected:
  void open(int rails) {
    pair = GetParam().make(rails);
    pair->open(rails);
  }
  std::unique_ptr<Pair> pair;
};

constexpr std::uint32_t kSizes[] = {1, 48, 1000, 1024, 1025, 8192, 8193, 65'536, 131'072, 1 << 20};

TEST_P(ChannelOver, EveryPieceArrivesOnceAndItsMemoryIsGivenBack) {
  open(2);
  for (std::uint32_t i = 0; i < 60; ++i) pair->a().send(kFlow, i, kSizes[i % std::size(kSizes)]);
  pair->expect_all(20_s);
}

TEST_P(ChannelOver, SmallPiecesAreCopiedAndDoneAtOnce) {
  open(1);
  for (std::uint32_t i = 0; i < 20; ++i) pair->a().send(kFlow, i, kCopiedPieceBytes);
  pair->a().channel->pump(pair->now());
  EXPECT_EQ(pair->a().done(), 20u);  // and their memory is gone; what the lanes still send is the copy
  EXPECT_FALSE(pair->a().channel->drained());
  pair->expect_all(5_s);
}

TEST_P(ChannelOver, AcksComeForManyFramesAtOnce) {
  open(1);
  for (std::uint32_t i = 0; i < 2000; ++i) pair->a().send(kFlow, i, 64);
  const std::uint64_t before = pair->b().frames_sent();
  const Nanos began = pair->now();
  pair->expect_all(10_s);
  const auto beats = static_cast<std::uint64_t>((pair->now() - began).count / (100_ms).count) + 2;
  EXPECT_LT(pair->b().frames_sent() - before, 2000 / 8 + beats);
}

TEST_P(ChannelOver, ACancelledFlowLeavesNoReference) {
  open(2);
  for (std::uint32_t i = 0; i < 24; ++i) pair->a().send(kFlow, i, 512 * 1024);
  ASSERT_TRUE(pair->until([&] { return pair->b().arrived >= 4; }, 5_s));
  ASSERT_LT(pair->b().arrived, 24u);
  for (End* end : {&pair->a(), &pair->b()}) end->channel->cancel_flow(kFlow);
  for (End::Out& o : pair->a().sent) {
    o.cancelled = !o.done;
    o.memory->take_away();
  }
  pair->b().refuse.insert(kFlow);
  for (auto& [key, in] : pair->b().got) {
    if (in.memory) in.memory->take_away();
  }
  const std::size_t over = pair->b().arrived, done = pair->a().done();
  for (std::uint32_t i = 0; i < 40; ++i) pair->a().send(kFlow + 1, i, kSizes[i % std::size(kSizes)]);
  ASSERT_TRUE(pair->until([&] { return pair->b().arrived == over + 40; }, 10_s))
      << pair->b().arrived << " after " << over;
  ASSERT_TRUE(pair->until([&] { return pair->a().channel->drained(); }, 5_s));
  EXPECT_GE(pair->a().done(), done + 40);
}

TEST_P(ChannelOver, AGoodbyeIsNoFailure) {
  open(2);
  for (std::uint32_t i = 0; i < 10; ++i) pair->a().send(kFlow, i, 100'000);
  pair->expect_all(5_s);
  pair->a().channel->goodbye(pair->now());
  pair->a().channel->pump(pair->now());
  ASSERT_TRUE(pair->until([&] { return pair->b().channel->peer_left(); }, 2_s));
  pair->a().channel.reset();
  pair->pass(300_ms);
  EXPECT_EQ(pair->b().events.find("down"), std::string::npos) << pair->b().events;
  EXPECT_TRUE(pair->b().channel->drained());
}

TEST_P(ChannelOver, ALaneThatCarriesNothingIsHeardAllTheSameHoweverLateItCame) {
  pair = GetParam().make(1);
  pair->open(1, 250_ms);
  pair->pass(1_s);
  for (End* end : {&pair->a(), &pair->b()}) {
    EXPECT_LT(pair->now() - end->channel->last_heard(), 500_ms) << "its peer's heartbeats are 100 ms apart";
  }
}

TEST_P(ChannelOver, APeerThatComesBackGetsWhatItHadNotAcked) {
  open(2);
  for (std::uint32_t i = 0; i < 40; ++i) pair->a().send(kFlow, i, 300'000);
  ASSERT_TRUE(pair->until([&] { return pair->b().arrived >= 5; }, 5_s));
  ASSERT_LT(pair->b().arrived, 40u);
  pair->b().channel.reset();  // every lane ends
  for (auto& [key, in] : pair->b().got) in.landing = false;
  pair->pass(50_ms);
  EXPECT_EQ(pair->a().channel->paths_up(), 0);
  pair->b().open(pair->factory(0).rails(), pair->now(), 2);
  pair->expect_all(20_s);
}

INSTANTIATE_TEST_SUITE_P(
    Lanes, ChannelOver,
    ::testing::Values(Kind{"sim", [](int rails) -> std::unique_ptr<Pair> { return std::make_unique<SimPair>(rails); }},
                      Kind{"tcp", [](int rails) -> std::unique_ptr<Pair> { return std::make_unique<TcpPair>(rails); }}),
    [](const auto& kind) { return std::string(kind.param.name); });

TEST(ChannelOverTcp, AResetLanesPiecesGoToTheOther) {
  TcpPair pair(2);
  pair.open(2);
  for (std::uint32_t i = 0; i < 60; ++i) pair.a().send(kFlow, i, 500'000);
  ASSERT_TRUE(pair.until([&] { return pair.b().arrived >= 10; }, 5_s));
  ASSERT_LT(pair.b().arrived, 60u);
  ASSERT_TRUE(TcpPair::cut(*pair.a().channel->paths()[1].lane));
  pair.expect_all(10_s);
  ASSERT_TRUE(pair.until([&] { return pair.a().events.find("rail1>rail1 up again") != std::string::npos; }, 5_s))
      << pair.a().events;
  EXPECT_EQ(pair.a().channel->paths()[1].failovers, 1u);
}

// --- faults, in virtual time -----------------------------------------------------------------------------------------

TEST(ChannelFaults, LossDuplicatesReorderingAndFlippedBitsCostTimeOnly) {
  for (const bool stream : {false, true}) {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      FabricOptions o = SimPair::quick();
      o.seed = seed;
      o.stream = stream;
      o.bad_header_resets = false;  // a flipped header is a lost frame here
      o.retransmit_delay = 5_ms;
      SimPair pair(2, o);
      pair.open(2);
      for (int host = 0; host < 2; ++host) {
        for (int rail = 0; rail < 2; ++rail) {
          DirectionOptions& out = pair.fabric.nic(host, rail).out;
          out.loss_ppm = 50'000;
          out.duplicate_ppm = 50'000;
          out.reorder_ppm = 50'000;
          out.corrupt_ppm = 20'000;
        }
      }
      for (std::uint32_t i = 0; i < 150; ++i) pair.a().send(kFlow, i, kSizes[i % 9]);
      pair.expect_all(60_s);
      if (::testing::Test::HasFailure()) FAIL() << "seed " << seed << (stream ? ", streams" : ", packets");
    }
  }
}

TEST(ChannelFaults, ADeadRailCostsAStallAndIsUsedAgainAfterProbation) {
  for (const NicDeath death : {NicDeath::kSilent, NicDeath::kLocal, NicDeath::kBothEnds}) {
    SimPair pair(2);
    pair.open(2);
    for (std::uint32_t i = 0; i < 200; ++i) pair.a().send(kFlow, i, 131'072);  // 105 ms over both
    pair.pass(20_ms);
    pair.fabric.nic_down(1, 0, death);
    pair.expect_all(500_ms);
    pair.pass(1_s);
    ASSERT_EQ(pair.a().channel->paths_up(), 1) << pair.a().events;
    EXPECT_EQ(pair.a().channel->paths()[0].failovers, 1u);
    pair.fabric.nic_up(1, 0);
    ASSERT_TRUE(pair.until([&] { return pair.a().channel->paths_up() == 2 && pair.b().channel->paths_up() == 2; }, 2_s))
        << pair.a().events;
    const auto before = pair.fabric.nic_counters(0, 0).tx_bytes;
    for (std::uint32_t i = 200; i < 400; ++i) pair.a().send(kFlow, i, 131'072);
    pair.expect_all(1_s);
    EXPECT_GT(pair.fabric.nic_counters(0, 0).tx_bytes - before, 200u * 131'072 / 3);
  }
}

TEST(ChannelFaults, ALaneOnProbationCarriesDataWhenThereIsNoOther) {
  SimPair pair(1);
  pair.open(1);
  for (int flap = 0; flap < 5; ++flap) {  // each return that fails doubles the probation: 1.6 s now
    pair.fabric.nic_down(1, 0, NicDeath::kBothEnds);
    pair.pass(150_ms);
    pair.fabric.nic_up(1, 0);
    ASSERT_TRUE(pair.until([&] { return pair.a().channel->paths()[0].state == Path::State::kProbation; }, 2_s));
    EXPECT_TRUE(pair.a().channel->stands());
    EXPECT_EQ(pair.a().channel->paths_up(), 0);
  }
  pair.fabric.nic_down(1, 0, NicDeath::kBothEnds);
  ASSERT_TRUE(pair.until([&] { return !pair.a().channel->stands(); }, 1_s));
  for (std::uint32_t i = 0; i < 4; ++i) pair.a().send(kFlow, i, 100'000);  // while there is no lane at all
  pair.pass(150_ms);
  pair.fabric.nic_up(1, 0);
  ASSERT_TRUE(pair.until([&] { return pair.a().channel->paths()[0].state == Path::State::kProbation; }, 2_s));
  EXPECT_GT(pair.a().channel->paths()[0].probation_until, pair.now() + 1_s);
  pair.expect_all(100_ms);
}

// The one lane that is up dies silently while the other serves a long probation: traffic does not wait for its end.
TEST(ChannelFaults, ALaneOnProbationTakesOverFromTheLastOneThatFallsSilent) {
  SimPair pair(2);
  pair.open(2);
  for (int flap = 0; flap < 5; ++flap) {
    pair.fabric.nic_down(1, 0, NicDeath::kBothEnds);
    pair.pass(150_ms);
    pair.fabric.nic_up(1, 0);
    ASSERT_TRUE(pair.until([&] { return pair.a().channel->paths()[0].state == Path::State::kProbation; }, 2_s));
  }
  ASSERT_GT(pair.a().channel->paths()[0].probation_until, pair.now() + 1_s);
  for (std::uint32_t i = 0; i < 60; ++i) pair.a().send(kFlow, i, 131'072);
  pair.pass(10_ms);
  pair.fabric.nic_down(1, 1, NicDeath::kSilent);
  pair.expect_all(400_ms);
}

TEST(ChannelFaults, AStalledLaneIsTriedAgainWhenItIsTheOnlyOneLeft) {
  FabricOptions o = SimPair::quick();
  o.stream = false;  // what a dead wire takes is gone, a void as well
  SimPair pair(2, o);
  pair.open(2);
  for (std::uint32_t i = 0; i < 60; ++i) pair.a().send(kFlow, i, 131'072);
  pair.pass(10_ms);
  pair.fabric.nic_down(1, 0, NicDeath::kSilent);
  ASSERT_TRUE(pair.until([&] { return pair.a().channel->paths()[0].stalled; }, 500_ms));
  pair.pass(5_ms);  // the void that asks for a sign of life is lost, too
  pair.fabric.nic_down(1, 1, NicDeath::kBothEnds);
  for (std::uint32_t i = 60; i < 64; ++i) pair.a().send(kFlow, i, 131'072);
  pair.fabric.nic_up(1, 0);
  pair.expect_all(5_s);
}

// The other lane had not taken over yet. The pieces that the stalled lane holds are on their way, and it is not given
// them a second time.
TEST(ChannelFaults, ALaneThatWasOnlyHeldUpIsNotGivenItsPiecesAgain) {
  SimPair pair(2);
  pair.open(2);
  for (std::uint32_t i = 0; i < 100; ++i) pair.a().send(kFlow, i, 131'072);
  pair.expect_all(1_s);
  pair.fabric.nic(0, 1).out.rate = BytesPerSec::from_mbit(40);
  for (std::uint32_t i = 100; i < 160; ++i) pair.a().send(kFlow, i, 131'072);
  pair.pass(2_ms);
  const Path& held_up = pair.a().channel->paths()[0];
  pair.fabric.nic_down(1, 0, NicDeath::kSilent);
  ASSERT_TRUE(pair.until([&] { return held_up.stalled; }, 500_ms));
  pair.fabric.nic_up(1, 0);
  ASSERT_TRUE(pair.until([&] { return !held_up.stalled; }, 1_s));
  EXPECT_EQ(held_up.failovers, 0u);
  pair.expect_all(5_s);
  EXPECT_EQ(held_up.resends[static_cast<std::size_t>(Resend::kStalled) - 1], 0u);
}

TEST(ChannelFaults, ASlowLanesPiecesAreSentOnTheIdleOneToo) {
  SimPair pair(2);
  pair.open(2);
  for (std::uint32_t i = 0; i < 100; ++i) pair.a().send(kFlow, i, 131'072);
  pair.expect_all(1_s);
  // Rail 0 becomes 200 times slower with pieces on it.
  for (std::uint32_t i = 100; i < 104; ++i) pair.a().send(kFlow, i, 131'072);
  pair.fabric.nic(0, 0).out.rate = BytesPerSec::from_mbit(5);
  const Nanos began = pair.now();
  pair.expect_all(2_s);
  EXPECT_LT(pair.now() - began, 300_ms) << "two pieces at 5 Mbit/s take 420 ms";
}

// --- taking a lane's place -------------------------------------------------------------------------------------------

// Dials one end by hand and says the hello of one of the other's lanes; it knows the job's token.
class Newcomer final : public LaneSink {
 public:
  Newcomer(SimPair& pair, int host, int rail, std::uint16_t claimed_rail) : claimed_(claimed_rail) {
    lane = pair.fabric.factory(host)
               .dial(rail, pair.fabric.factory(1).rails()[static_cast<std::size_t>(rail)].address, *this)
               .take();
  }
  void on_up(Lane& l) override {
    const wire::HelloPayload hello{
        .job = kJob, .engine = 0, .target = 1, .rail = claimed_, .peer_rail = claimed_, .purpose = wire::kHelloChannel};
    const auto* bytes = reinterpret_cast<const std::byte*>(&hello);
    wire::Header h;
    h.kind = wire::Kind::kHello;
    h.payload_bytes = sizeof hello;
    h.payload_crc32 = wire::payload_crc(bytes, sizeof hello);
    wire::seal(h);
    EXPECT_TRUE(l.send(h, bytes, kNoCookie));
    l.flush({});
    said = true;
  }
  Landing landing_for(Lane&, const wire::Header&) override { return {Landing::Kind::kSlot, nullptr, 0}; }
  void on_frame(Lane&, const wire::Header&, const Arrival&) override { ++frames; }
  void on_writable(Lane&) override {}
  void on_down(Lane&, const Status&, bool) override { down = true; }

  std::unique_ptr<Lane> lane;
  int frames = 0;
  bool said = false, down = false;

 private:
  std::uint16_t claimed_;
};

TEST(ChannelNewcomers, DoNotTakeThePlaceOfALaneThatSpeaks) {
  SimPair pair(2);
  pair.open(2);
  Newcomer newcomer(pair, 0, 0, 0);
  for (std::uint32_t i = 0; i < 20; ++i) pair.a().send(kFlow, i, 131'072);
  ASSERT_TRUE(pair.until([&] { return newcomer.down; }, 1_s));
  pair.expect_all(1_s);
  pair.pass(2_s);
  EXPECT_TRUE(newcomer.said);
  EXPECT_EQ(newcomer.frames, 0);
  for (int side = 0; side < 2; ++side) {
    EXPECT_EQ(pair.end(side).channel->paths_up(), 2);
    EXPECT_EQ(pair.end(side).channel->paths()[0].failovers, 0u) << pair.end(side).events;
  }
}

TEST(ChannelNewcomers, TakeThePlaceOfALaneThatEndedAtThePeerAlone) {
  SimPair pair(2);
  pair.open(2);
  pair.pass(1_s);
  std::vector<Lane*> lanes;
  pair.fabric.lanes_between(1, 0, &lanes);
  ASSERT_EQ(lanes[0]->rail(), 0);
  pair.fabric.kill_lane(*lanes[0], false);  // nothing comes any more, not even the news that it has ended
  pair.fabric.nic_down(0, 0, NicDeath::kLocal);
  pair.pass(10_ms);
  ASSERT_EQ(pair.a().channel->paths_up(), 1);
  ASSERT_EQ(pair.b().channel->paths_up(), 2) << "it has not heard of it";
  pair.fabric.nic_up(0, 0);
  const Nanos back = pair.now();
  ASSERT_TRUE(pair.until([&] { return pair.b().events.find("rail0>rail0 down") != std::string::npos; }, 2_s));
  EXPECT_GE(pair.now() - back, 150_ms) << "it is heard out: " << pair.b().events;
  EXPECT_LE(pair.now() - back, 500_ms);
  ASSERT_TRUE(pair.until([&] { return pair.a().channel->paths_up() == 2 && pair.b().channel->paths_up() == 2; }, 1_s));
}

TEST(ChannelNewcomers, AreTakenOnlyFromTheRailAndTheAddressThatTheirHelloNames) {
  SimPair pair(2, SimPair::quick(), 3);
  pair.open(2);
  pair.fabric.nic_down(0, 0, NicDeath::kBothEnds);
  pair.pass(10_ms);
  ASSERT_EQ(pair.b().channel->paths()[0].lane, nullptr);
  Newcomer other_rail(pair, 0, 1, 0), other_host(pair, 2, 0, 0);
  pair.until(
      [&] {
        pair.fabric.factory(2).poll(pair.now());
        return false;
      },
      1_s);
  for (const Newcomer* n : {&other_rail, &other_host}) {
    EXPECT_TRUE(n->said);
    EXPECT_EQ(n->frames, 0);
  }
  EXPECT_EQ(pair.b().channel->paths()[0].lane, nullptr);
  EXPECT_EQ(pair.b().channel->paths()[0].candidate, nullptr);
}

TEST(AckState, CountsAcrossTheEndOf32Bits) {
  AckState state;
  state.reset(0xfffffff0);
  wire::AckPayload ack;
  const auto mark = [&](std::uint32_t from, std::uint32_t to) {
    for (std::uint32_t s = from; s != to; ++s) ASSERT_TRUE(state.mark(s)) << s;
  };
  mark(0xfffffff1, 0xfffffff8);
  mark(0xfffffffa, 8);  // two are missing
  EXPECT_EQ(state.encode(&ack), wire::kAckFixedBytes + 8);
  EXPECT_EQ(ack.cumulative, 0xfffffff7);
  EXPECT_EQ(ack.bitmap[0], 0xfffcu);
  mark(0xfffffff8, 0xfffffffa);
  EXPECT_EQ(state.encode(&ack), wire::kAckFixedBytes);
  EXPECT_EQ(ack.cumulative, 7u);
  EXPECT_TRUE(state.mark(0xffffffff)) << "a late copy";
  EXPECT_FALSE(state.mark(8 + AckState::kWindow)) << "beyond the window";
  mark(8, 3000);
  state.encode(&ack);
  EXPECT_EQ(ack.cumulative, 2999u);
}

}  // namespace
}  // namespace canarynet
