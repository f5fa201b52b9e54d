// One channel chooses between two lanes, in virtual time: by which of them the piece of a plan goes, and how much the
// trial of a lane keeps under way.
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
    pair.open(2);
    for (int i = 0; i < 160; ++i) send();
    pair.expect_all(20_s);
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
