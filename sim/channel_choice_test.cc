// One channel chooses between two lanes, in virtual time: by which of them a piece goes, and how much the trial of a
// lane keeps under way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "sim/channel_test_util.h"

namespace canarynet {
namespace {

constexpr std::uint32_t kPiece = 131'072;

// A channel with two lanes, whose rates it knows from a long exchange.
class TwoLanes {
 public:
  TwoLanes(std::int64_t first_mbit, std::int64_t second_mbit) {
    for (int host = 0; host < 2; ++host) {
      pair.fabric.nic(host, 0) = NicOptions::link(50_us, BytesPerSec::from_mbit(first_mbit));
      pair.fabric.nic(host, 1) = NicOptions::link(50_us, BytesPerSec::from_mbit(second_mbit));
    }
    pair.open(2, {}, &rates);
    for (int i = 0; i < 160; ++i) {
      // No more than a few wait: this is no long operation.
      send();
      EXPECT_TRUE(pair.until([&] { return pair.a().sent.size() - pair.a().done() < 3; }, 1_s));
    }
    pair.expect_all(1_s);
    for (int rail = 0; rail < 2; ++rail) EXPECT_TRUE(lane(rail).estimator.was_busy()) << rail;
  }
  const Path& lane(int rail) { return pair.a().channel->paths()[static_cast<std::size_t>(rail)]; }
  void send() { pair.a().send(kFlow, next_++, kPiece); }
  // Sends pieces that a plan gives to the second rail, one at a time. Returns how many went there.
  int of_the_second(int pieces) {
    pair.a().rail = 1;
    int there = 0;
    for (int i = 0; i < pieces; ++i) {
      send();
      pair.expect_all(1_s);
      there += lane(1).chosen_at > lane(0).chosen_at;
      pair.pass(20_ms);
    }
    return there;
  }

  RailRates rates;  // of the sending end
  SimPair pair{2};

 private:
  std::uint32_t next_ = 0;
};

TEST(ChannelChoice, APieceGoesByTheRailOfItsPlanUnlessThatTakesHalfAsLongAgain) {
  // A trial on its lane may send one or two pieces round.
  EXPECT_GE(TwoLanes(200, 200).of_the_second(20), 18);
  EXPECT_GE(TwoLanes(200, 155).of_the_second(20), 18) << "takes 1.3 times as long";
  EXPECT_LE(TwoLanes(200, 120).of_the_second(20), 2) << "takes 1.7 times as long";
}

// What other channels have given to a NIC goes before the piece.
TEST(ChannelChoice, APieceGoesRoundANicThatOthersKeepBusy) {
  TwoLanes lanes(200, 200);
  for (const int busy : {0, 1, 0}) {
    EXPECT_GT(lanes.lane(busy).estimator.capacity().count, 0);
    lanes.rates.join(busy, 1 << 20, lanes.pair.now());
    lanes.send();
    lanes.pair.expect_all(1_s);
    EXPECT_GT(lanes.lane(1 - busy).chosen_at, lanes.lane(busy).chosen_at) << busy;
    lanes.rates.leave(busy, 1 << 20);
    lanes.pair.pass(100_ms);
  }
}

// The piece is given to the NIC that others keep busy for some 60 ms, since the other one is busy for longer. It takes
// that long, and is not late when the other one is free sooner than was to be expected.
TEST(ChannelChoice, APieceThatTakesAsLongAsItsNicsQueueIsNotSentTwice) {
  TwoLanes lanes(200, 200);
  const auto hedged = [&](int rail) { return lanes.lane(rail).resends.back(); };
  const std::uint64_t before = hedged(0) + hedged(1);
  const std::size_t pieces = lanes.pair.a().done() + 1;
  lanes.rates.join(0, 3 << 19, lanes.pair.now());
  lanes.rates.join(1, 3 << 20, lanes.pair.now());
  lanes.pair.fabric.nic(0, 0) = NicOptions::link(50_us, BytesPerSec::from_mbit(17));
  lanes.send();
  lanes.pair.pass(57_ms);
  ASSERT_EQ(lanes.lane(0).unacked_bytes, kPiece + sizeof(wire::Header));
  lanes.rates.leave(1, 3 << 20);
  lanes.pair.a().channel->wake();
  lanes.pair.pass(10_ms);
  EXPECT_EQ(lanes.pair.a().done(), pieces);
  EXPECT_EQ(hedged(0) + hedged(1), before);
  lanes.rates.leave(0, 3 << 19);
}

// What went before the piece was given up, so it is there sooner than it was due.
TEST(ChannelChoice, APieceIsNotSentTwiceForWhatItsNicNeedNotSend) {
  TwoLanes lanes(200, 200);
  const auto hedged = [&](int rail) { return lanes.lane(rail).resends.back(); };
  const std::uint64_t before = hedged(0) + hedged(1);
  lanes.rates.join(0, 6 << 20, lanes.pair.now());
  lanes.rates.join(1, 8 << 20, lanes.pair.now());
  lanes.send();
  lanes.pair.pass(1_ms);
  ASSERT_EQ(lanes.lane(0).unacked_bytes, kPiece + sizeof(wire::Header));
  lanes.rates.leave(0, 6 << 20);
  lanes.rates.leave(1, 8 << 20);
  lanes.pair.a().channel->wake();
  lanes.pair.expect_all(20_ms);
  EXPECT_EQ(hedged(0) + hedged(1), before);
}

// Single pieces never prove what a NIC carries, but how long they take shows that it carries less.
TEST(ChannelChoice, ALinkThatBecameSlowIsLeftBySinglePieces) {
  TwoLanes lanes(400, 300);
  lanes.of_the_second(4);
  lanes.pair.a().rail = -1;
  for (int host = 0; host < 2; ++host)
    lanes.pair.fabric.nic(host, 0) = NicOptions::link(50_us, BytesPerSec::from_mbit(20));
  int round_it = 0;
  for (int i = 0; i < 20; ++i) {
    lanes.send();
    lanes.pair.expect_all(1_s);
    if (i >= 10) round_it += lanes.lane(1).chosen_at > lanes.lane(0).chosen_at;
    lanes.pair.pass(20_ms);
  }
  EXPECT_GE(round_it, 9);
}

TEST(ChannelChoice, ATrialOfALaneWhoseRateIsKnownKeepsLittleMoreUnderWayThanItCarries) {
  TwoLanes lanes(400, 400);
  const Path& tried = lanes.lane(1);
  lanes.pair.a().rail = 0;
  std::int64_t most = 0;
  int trials = 0;
  Nanos began;
  for (int i = 0; i < 400; ++i) {
    lanes.send();
    lanes.pair.until(
        [&] {
          if (tried.trial.began != Nanos::max() && tried.trial.known.count != 0) {
            trials += tried.trial.began != began;
            began = tried.trial.began;
            most = std::max(most, static_cast<std::int64_t>(tried.probes_unacked));
          }
          return false;
        },
        20_ms);
  }
  EXPECT_GE(trials, 2);
  const std::int64_t carries = BytesPerSec::from_mbit(400).bytes_in(tried.estimator.rtt_min() * 2).count;
  std::printf("%d trials, %lld bytes under way at most\n", trials, static_cast<long long>(most));
  EXPECT_GE(most, carries);
  EXPECT_LE(most, carries + BytesPerSec::from_mbit(400).bytes_in(4_ms).count);
}

}  // namespace
}  // namespace canarynet
