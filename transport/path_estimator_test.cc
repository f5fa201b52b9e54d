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
    unacked_ += kPiece;
    const bool idle = in_flight_.empty();
    free_ = std::max(free_, now_) + carried_for;
    in_flight_.push_back(
        {estimator.depart(now_, idle, unacked_ <= kPiece, true, bytes(unacked_)), free_ + round_trip_});
    in_flight_.back().departure.nic = nic;
  }
  // The oldest is acknowledged, so much later than it could be.
  void acknowledge(Nanos late = {}) {
    now_ = std::max(now_, in_flight_.front().acked + late);
    unacked_ -= kPiece;
    estimator.on_acked(now_, kPiece, in_flight_.front().departure, true, nic);
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
  PathEstimator::NicBytes nic;  // what it carried for others

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
