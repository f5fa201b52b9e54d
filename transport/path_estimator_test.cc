#include "transport/path_estimator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>

namespace canarynet {
namespace {

constexpr std::uint64_t kPiece = 128 * 1024;
constexpr auto kRate = BytesPerSec::from_mbit(200);

// A link that carries pieces one behind the other, and the estimator of who sends over it.
class Link {
 public:
  explicit Link(Nanos round_trip) : round_trip_(round_trip) { estimator.sample_rtt(now_, round_trip); }

  void send(Nanos carried_for = kRate.time_for(Bytes{kPiece})) {
    unacked_ += piece;
    const bool idle = in_flight_.empty();
    free_ = std::max(free_, now_) + carried_for;
    in_flight_.push_back(
        {estimator.depart(now_, idle, unacked_ <= piece, prompt, bytes(unacked_)), free_ + round_trip_});
    in_flight_.back().departure.nic = nic;
    in_flight_.back().departure.queue = {nic_before, nic_queue, {}, nic_proves};
  }
  // The oldest is acknowledged, so much later than it could be.
  void acknowledge(Nanos late = {}) {
    now_ = std::max(now_, in_flight_.front().acked + late);
    unacked_ -= piece;
    estimator.on_acked(now_, piece, in_flight_.front().departure, true, nic);
    in_flight_.pop_front();
  }
  // Keeps `window` pieces under way until `count` have been acknowledged.
  void carry(int count, std::size_t window) {
    for (int i = 0; i < count; ++i) {
      while (in_flight_.size() < window) send();
      acknowledge();
    }
  }
  void run_dry() {
    while (!dry()) acknowledge();
  }
  bool dry() const { return in_flight_.empty(); }
  void pause(Nanos time) { now_ += time; }

  PathEstimator estimator;
  PathEstimator::NicBytes nic;   // what it carried for others
  Bytes nic_before;              // what it has under way when a piece leaves
  Bytes nic_queue;               // with the piece
  bool nic_proves = true;        // behind a burst
  bool prompt = true;            // acks are not held back for company
  std::uint64_t piece = kPiece;  // bytes of each; to be changed while nothing is under way

 private:
  struct Piece {
    PathEstimator::Departure departure;
    Nanos acked;
  };
  static Bytes bytes(std::uint64_t n) { return Bytes{static_cast<std::int64_t>(n)}; }

  Nanos round_trip_;
  Nanos now_ = 1_s;
  Nanos free_;  // when the link is
  std::uint64_t unacked_ = 0;
  std::deque<Piece> in_flight_;
};

double of_the_rate(const Link& link) {
  return static_cast<double>(link.estimator.rate().count) / static_cast<double>(kRate.count);
}

TEST(PathEstimator, AFullLinkShowsItsRate) {
  Link link(80_ms);
  link.carry(200, 40);
  EXPECT_NEAR(of_the_rate(link), 1, 0.05);
}

TEST(PathEstimator, ALinkThatBecameSlowIsFelt) {
  Link link(1_ms);
  link.carry(200, 8);
  link.run_dry();
  for (int i = 0; i < 20; ++i) {
    link.send();
    link.acknowledge(20_ms);
  }
  EXPECT_LT(of_the_rate(link), 0.35) << "five milliseconds became twenty-five";
}

TEST(PathEstimator, PiecesThatTakeLongSpeakAgainstALaneBeforeItProvesAnything) {
  Link link(100_us);
  link.carry(1, 1);
  EXPECT_GT(link.estimator.ceiling().count, 100 * kRate.count) << "one late piece may be a late wake-up";
  for (int i = 0; i < 12; ++i) link.carry(1, 1);
  EXPECT_LT(link.estimator.ceiling().count, 2 * kRate.count);
  EXPECT_GT(link.estimator.ceiling(), kRate);
}

// Others' pieces before each of its own explain why it took so long, but that is no sign that its way is fast.
TEST(PathEstimator, OthersBytesAllowALaneMoreAndAreNoLoadOfIts) {
  Link link(2_ms);
  for (int i = 0; i < 60; ++i) {
    link.send(kRate.time_for(Bytes{10 * static_cast<std::int64_t>(kPiece)}));
    link.nic.acked += Bytes{10 * static_cast<std::int64_t>(kPiece)};
    link.run_dry();
    link.pause(20_ms);
  }
  EXPECT_GT(link.estimator.ceiling().count, kRate.count * 9 / 10);
  EXPECT_LT(link.estimator.load().count, kRate.count / 8);
  EXPECT_GT(link.estimator.load().count, kRate.count / 12);
}

// In no time, that is: a late wake-up is all that was seen.
TEST(PathEstimator, ALoadThatIsCarriedInNoTimeIsBoundByAWakeUp) {
  Link link(100_us);
  for (int i = 0; i < 60; ++i) {
    link.send(Nanos{});
    link.run_dry();
    link.pause(20_ms);
  }
  const auto bound = BytesPerSec::of(Bytes{kPiece}, PathEstimator::kWakeUp);
  EXPECT_NEAR(static_cast<double>(link.estimator.load().count), static_cast<double>(bound.count),
              static_cast<double>(bound.count) / 20);
}

TEST(PathEstimator, OnALongPathAFewMillisecondsMoreProveNothing) {
  Link link(80_ms);
  link.carry(200, 40);
  for (int i = 0; i < 20; ++i) {
    link.run_dry();
    link.pause(5_ms);
    link.send();
    link.acknowledge(8_ms);
  }
  EXPECT_GT(of_the_rate(link), 0.9);
}

TEST(PathEstimator, TimeInWhichTheNicCarriedOthersBytesSaysNothingAgainstTheLane) {
  for (const bool received : {false, true}) {
    Link link(1_ms);
    link.carry(200, 8);
    for (int i = 0; i < 20; ++i) {
      link.run_dry();
      link.pause(5_ms);
      link.send();
      (received ? link.nic.received : link.nic.acked) += Bytes{5 * kPiece};
      link.acknowledge(20_ms);
    }
    EXPECT_GT(of_the_rate(link), 0.9);
  }
}

TEST(PathEstimator, AcksThatWereHeldUpAndComeAtOnceProveNoFasterLink) {
  Link link(1_ms);
  link.carry(200, 8);
  double most = 0;
  for (int i = 0; i < 50; ++i) {
    for (int k = 0; k < 8; ++k) link.send();
    link.acknowledge(35_ms);
    link.run_dry();
    most = std::max(most, of_the_rate(link));
  }
  EXPECT_LT(most, 1.1);
}

// The first ack comes alone, and a piece leaves. Its own ack, a round trip later, tells of all that was acknowledged
// meanwhile: ten pieces, which had left over ten times as long.
TEST(PathEstimator, PiecesThatLeftApartProveNoFasterLinkThoughTheirAcksComeTogether) {
  const Nanos apart = kRate.time_for(Bytes{kPiece});
  Link link(1_ms);
  link.carry(200, 8);
  link.run_dry();
  double most = 0;
  for (int i = 0; i < 50; ++i) {
    for (int k = 0; k < 10; ++k) {
      link.send();
      link.pause(apart);
    }
    link.acknowledge();
    link.send();
    while (!link.dry()) {
      link.acknowledge();
      most = std::max(most, of_the_rate(link));
    }
  }
  EXPECT_LT(most, 1.1);
}

TEST(PathEstimator, ABucketThatFilledWhileAcksWereHeldUpIsNotTheRate) {
  constexpr Nanos kAtOnce = 50_us;
  Link link(100_us);
  link.carry(200, 3);
  link.acknowledge(60_ms);
  link.send(kAtOnce);
  link.send(kAtOnce);
  link.acknowledge();
  link.acknowledge();
  for (int i = 0; i < 2; ++i) {
    link.send(kAtOnce);
    link.acknowledge();
  }
  EXPECT_LT(of_the_rate(link), 2.5) << "four pieces at the speed of the wire";
  link.carry(200, 3);
  EXPECT_NEAR(of_the_rate(link), 1, 0.1);
}

// Each piece of the lane takes as long as four. Its NIC carries `others` of other lanes meanwhile, and has `queue`
// under way.
void share(Link* link, int pieces, int others, int queue) {
  constexpr std::int64_t kFour = 4 * static_cast<std::int64_t>(kPiece);
  link->nic_queue = Bytes{static_cast<std::int64_t>(kPiece) * queue};
  link->send(kRate.time_for(Bytes{kFour}));
  for (int i = 0; i < pieces; ++i) {
    link->send(kRate.time_for(Bytes{kFour}));
    link->nic.acked += Bytes{static_cast<std::int64_t>(kPiece) * (others + 1)};
    link->acknowledge();
  }
}
double capacity_of_the_rate(const Link& link) {
  return static_cast<double>(link.estimator.capacity().count) / static_cast<double>(kRate.count);
}

TEST(PathEstimator, ALaneThatSharesItsNicShowsWhatItWouldCarryAlone) {
  Link link(100_us);
  share(&link, 40, 3, 8);
  EXPECT_NEAR(capacity_of_the_rate(link), 1, 0.05);
  EXPECT_LT(of_the_rate(link), 0.3);
}

// The NIC has carried much more than went before the piece: the peer, or the way to it, is slow.
TEST(PathEstimator, ALaneThatOthersOvertakeShowsItsOwnRate) {
  Link link(100_us);
  share(&link, 40, 19, 8);
  EXPECT_NEAR(capacity_of_the_rate(link), 0.25, 0.02);
}

TEST(PathEstimator, LittleThatWasLongUnderWaySaysNothingAgainstACapacity) {
  Link link(100_us);
  link.nic_queue = Bytes{1000};
  link.send();
  link.nic.acked += Bytes{1000};
  link.acknowledge(50_ms);
  EXPECT_EQ(link.estimator.capacity().count, 0);
  share(&link, 40, 3, 8);
  link.run_dry();
  const BytesPerSec before = link.estimator.capacity();
  EXPECT_GT(before.count, kRate.count / 2);
  link.nic_queue = Bytes{1000};
  for (int i = 0; i < 40; ++i) {
    link.send();
    link.nic.acked += Bytes{1000};
    link.acknowledge(50_ms);
  }
  EXPECT_EQ(link.estimator.capacity(), before);
}

// Of two small pieces the first was nearly through when the second left: both together carry more in that one's time
// than the link does. Little counts upwards only, so what is too high would stay.
TEST(PathEstimator, WhatWasNearlyThroughRaisesNoCapacity) {
  Link link(100_us);
  share(&link, 40, 3, 8);
  link.run_dry();
  const BytesPerSec before = link.estimator.capacity();
  link.piece = 8192;
  const auto carry = [&](int others, Nanos took) {
    link.nic_before = Bytes{8192 * others};
    link.nic_queue = Bytes{8192 * (others + 1)};
    for (int i = 0; i < 40; ++i) {
      link.send(took);
      link.nic.acked += link.nic_queue;
      link.acknowledge();
    }
  };
  carry(1, kRate.time_for(Bytes{11'000}));
  EXPECT_EQ(link.estimator.capacity(), before);
  carry(0, kRate.time_for(Bytes{2'000}));
  EXPECT_GT(link.estimator.capacity().count, before.count * 5 / 4);
}

// As for the rate: what was under way before had left over a longer time.
TEST(PathEstimator, AcksThatComeTogetherShowNoHigherCapacity) {
  const Nanos apart = kRate.time_for(Bytes{kPiece});
  Link link(1_ms);
  link.nic_queue = Bytes{10 * static_cast<std::int64_t>(kPiece)};
  const auto acknowledge = [&] {
    link.nic.acked += Bytes{static_cast<std::int64_t>(kPiece)};
    link.acknowledge();
  };
  double most = 0;
  for (int i = 0; i < 50; ++i) {
    for (int k = 0; k < 10; ++k) {
      link.send();
      link.pause(apart);
    }
    while (!link.dry()) acknowledge();
    if (i > 0) most = std::max(most, capacity_of_the_rate(link));
  }
  EXPECT_GT(most, 0.5);
  EXPECT_LT(most, 1.1);
}

TEST(PathEstimator, WhatIsLessThanALongPathHoldsSaysNothingAgainstACapacity) {
  Link link(400_ms);
  share(&link, 40, 159, 200);
  const BytesPerSec before = link.estimator.capacity();
  EXPECT_GT(before.count, 0);
  share(&link, 40, 0, 8);
  EXPECT_EQ(link.estimator.capacity(), before);
}

TEST(PathEstimator, PiecesBeforeABurstAndThoseWhoseAcksWaitForCompanyShowNoCapacity) {
  Link early(100_us);
  early.nic_proves = false;
  share(&early, 40, 3, 8);
  EXPECT_EQ(early.estimator.capacity().count, 0);
  Link held_back(100_us);
  held_back.prompt = false;
  share(&held_back, 40, 3, 8);
  EXPECT_EQ(held_back.estimator.capacity().count, 0);
}

// Either end wakes up late at times. Where pieces take less than that, only those would count that were held up.
TEST(PathEstimator, ALateWakeUpIsNotTheFirstToShowACapacity) {
  Link link(100_us);
  link.nic_queue = Bytes{1 << 20};
  for (int i = 0; i < 40; ++i) {
    link.send(10_us);
    link.nic.acked += Bytes{static_cast<std::int64_t>(kPiece)};
    link.acknowledge(i % 8 == 7 ? 800_us : 0_us);
  }
  EXPECT_EQ(link.estimator.capacity().count, 0);
}

TEST(PathEstimator, AProcessThatWasStoppedBelievesInItsCapacityAllTheSame) {
  Link link(100_us);
  share(&link, 40, 3, 8);
  const std::int64_t before = link.estimator.capacity().count;
  link.nic.acked += Bytes{4 * static_cast<std::int64_t>(kPiece)};
  link.acknowledge(20_s);
  EXPECT_GT(link.estimator.capacity().count, before * 2 / 3);
  // A peer that acknowledges everything at once carries no more for that.
  Link at_once(100_us);
  share(&at_once, 40, 3, 64);
  at_once.run_dry();
  const std::int64_t known = at_once.estimator.capacity().count;
  at_once.send(0_ns);
  at_once.nic.acked += Bytes{64 * static_cast<std::int64_t>(kPiece)};
  at_once.acknowledge();
  EXPECT_LT(at_once.estimator.capacity().count, known * 3 / 2);
}

TEST(PathEstimator, WhileTheRateGrowsTheWindowIsTwiceWhatTheRateNeeds) {
  const Nanos round_trip = 40_ms;
  Link link(round_trip);
  const auto held = [&] {
    return static_cast<double>(link.estimator.window()) / static_cast<double>(link.estimator.rate().count);
  };
  const double needed = (round_trip * 2 + 20_ms).seconds();
  while (link.estimator.rate().count == 0) link.carry(1, 4);
  EXPECT_NEAR(held(), 2 * needed, 0.01 * needed) << "nothing says yet that it has stopped growing";
  link.carry(200, 4);
  EXPECT_LT(held(), 1.3 * needed) << "four pieces in a round trip, whatever the window";
}

// When a frame is sent again, those behind it are acknowledged a round trip later; meanwhile others must leave.
TEST(PathEstimator, TheWindowHoldsTwoRoundTripsAndLateWakeUps) {
  for (const Nanos round_trip : {1_ms, 40_ms, 160_ms}) {
    Link link(round_trip);
    link.carry(600, 80);
    const Nanos held = kRate.time_for(Bytes{static_cast<std::int64_t>(link.estimator.window())});
    EXPECT_GE(held.seconds(), (round_trip * 2 + 15_ms).seconds());
    EXPECT_LE(held.seconds(), (round_trip * 2 + 25_ms).seconds() * 1.35) << "a change of the rate is felt soon";
  }
}

}  // namespace
}  // namespace canarynet
