// Tests of the things that acknowledgements tell of a link that carries pieces one behind the other, and of how a
// change of a measured level is noticed.
#include "transport/link_estimate.h"

#include <gtest/gtest.h>

#include <deque>

#include "base/random.h"

namespace canarynet {
namespace {

constexpr std::uint64_t kPiece = 128 * 1024;

// A link, and what its sender learns of it.
class Link {
 public:
  Link(BytesPerSec its_rate, Nanos its_round_trip) : rate(its_rate), round_trip(its_round_trip) { echo(); }

  // A heartbeat on the idle link.
  void echo() {
    estimate.on_echo(now, round_trip, {});
    estimate.note_way(now, now - round_trip, peers_clock(now - round_trip / 2));
  }
  // One that takes so long, and a pause.
  void beat(Nanos its_round_trip, Nanos pause) {
    round_trip = its_round_trip;
    echo();
    estimate.look(now);
    now += pause;
  }
  // A piece, which a shaper's bucket lets pass sooner.
  void send(std::uint64_t bytes = kPiece, Nanos sooner = {}) {
    const bool idle = pieces_.empty();
    unacked_ += bytes;
    free_ = std::max(free_, now) + rate.time_for(count(bytes)) - sooner;
    auto departure = shaper_.depart(now, idle, unacked_ <= kPiece, true, count(unacked_));
    departure.nic = nic;
    pieces_.push_back({departure, free_ + round_trip / 2, free_ + round_trip, bytes});
  }
  // The oldest is acknowledged; the NIC carried so much for others meanwhile, and the peer's received so much.
  void acknowledge(Nanos late = {}, Bytes others = {}) {
    const Piece p = pieces_.front();
    pieces_.pop_front();
    now = std::max(now, p.acked + late);
    unacked_ -= p.bytes;
    nic.acked += count(p.bytes) + others;
    const Nanos read = stands_still ? now - round_trip / 2 : p.arrived;
    const Nanos queued = estimate.queued(now, p.departure, peers_clock(read));
    peer_received += p.bytes + crowd;
    estimate.on_acked(now, p.bytes, p.departure, {queued, peer_received, nic});
    changes += estimate.look(now);
  }
  void acknowledge_what_has_come() {
    while (!pieces_.empty() && pieces_.front().acked <= now) acknowledge();
  }
  // Keeps `window` pieces under way for so long.
  void saturate(Nanos span, std::size_t window, Bytes others = {}) {
    for (const Nanos began = now; now - began < span;) {
      while (pieces_.size() < window) send();
      acknowledge({}, others);
    }
  }
  // And then runs dry.
  void carry(Nanos span, std::size_t window, Bytes others = {}) {
    saturate(span, window, others);
    while (!pieces_.empty()) acknowledge();
  }

  LinkEstimate estimate;
  BytesPerSec rate;
  Nanos round_trip;
  Nanos now = 1_s;
  PathEstimator::NicBytes nic;
  std::uint64_t peer_received = 0, crowd = 0;  // others' bytes with each piece
  int changes = 0;
  bool stands_still = false;  // the peer, so it reads what has arrived just before it acknowledges it

 private:
  struct Piece {
    PathEstimator::Departure departure;
    Nanos arrived, acked;
    std::uint64_t bytes;
  };
  // It began somewhere else.
  static std::uint64_t peers_clock(Nanos t) { return static_cast<std::uint64_t>(t.count) - 123'456'789'000; }
  static Bytes count(std::uint64_t n) { return Bytes{static_cast<std::int64_t>(n)}; }
  PathEstimator shaper_;  // for departures only
  std::deque<Piece> pieces_;
  std::uint64_t unacked_ = 0;
  Nanos free_;
};

constexpr auto kRate = BytesPerSec::from_mbit(200);

void expect_rate(const Link& link, BytesPerSec rate) {
  EXPECT_NEAR(static_cast<double>(link.estimate.beta().count), static_cast<double>(rate.count),
              static_cast<double>(rate.count) / 20);
}

TEST(LinkEstimate, KnowsNothingUntilSomethingCame) {
  const LinkEstimate e;
  EXPECT_EQ(e.alpha(), Nanos{});
  EXPECT_EQ(e.beta().count, 0);
  EXPECT_EQ(e.sampled_at(), Nanos{});
}

TEST(LinkEstimate, SaturatedWindowsTellTheRateAndTheQueueDoesNotLengthenTheWay) {
  Link link(kRate, 10_ms);
  link.carry(2_s, 12);
  expect_rate(link, kRate);
  EXPECT_EQ(link.estimate.alpha(), 5_ms);
}

// Three pieces under way fill a third of this link: each flight is dense, and so is what is told of it.
TEST(LinkEstimate, ALinkThatIsFilledAtTimesTellsItsRateAllTheSame) {
  Link link(kRate, 40_ms);
  for (int i = 0; i < 20; ++i) {
    for (int k = 0; k < 6; ++k) link.send();
    for (int k = 0; k < 6; ++k) link.acknowledge();
    link.now += 20_ms;
  }
  expect_rate(link, kRate);
}

TEST(LinkEstimate, PiecesThatLeaveOneByOneTellNoRate) {
  Link link(kRate, 10_ms);
  link.carry(2_s, 1);
  EXPECT_EQ(link.estimate.beta().count, 0);
}

TEST(LinkEstimate, ARateThatFallsOrRisesIsFollowedWithinASecond) {
  for (const auto& [from, to] : {std::pair{200, 100}, {100, 200}, {100, 10}, {1000, 700}}) {
    Link link(BytesPerSec::from_mbit(from), 2_ms);
    link.carry(2_s, 6);
    link.rate = BytesPerSec::from_mbit(to);
    link.carry(800_ms, 6);
    expect_rate(link, link.rate);
  }
}

// Operations of 125 KB, two pieces each.
TEST(LinkEstimate, AFallOfASlowLinkIsFoundWithinASecondToo) {
  Link link(BytesPerSec::from_mbit(10), 2_ms);
  const auto operation = [&] {
    link.send(62'500);
    link.send(62'500);
    link.acknowledge();
    link.acknowledge();
    link.now += 5_ms;
  };
  while (link.now < 4_s) operation();
  expect_rate(link, BytesPerSec::from_mbit(10));
  link.rate = BytesPerSec::from_mbit(5);
  const Nanos fell = link.now;
  while (link.estimate.beta() > BytesPerSec::from_mbit(6) && link.now < 10_s) operation();
  EXPECT_LE(link.now - fell, 900_ms);
}

// A bucket lets a part of the second piece of each operation pass at once, so no window with bursts tells the rate.
TEST(LinkEstimate, AfterAFallWhatComesWithoutBurstsTellsTheRate) {
  Link link(BytesPerSec::from_mbit(100), 2_ms);
  const auto operation = [&](Nanos sooner) {
    for (int i = 0; i < 8; ++i) link.send(kPiece, i == 1 ? sooner : Nanos{});
    for (int i = 0; i < 8; ++i) link.acknowledge();
    link.now += 5_ms;
  };
  while (link.now < 4_s) operation(5_ms);
  link.rate = BytesPerSec::from_mbit(50);
  const Nanos fell = link.now;
  while (link.now - fell < 1_s) operation(11_ms);
  expect_rate(link, BytesPerSec::from_mbit(50));
}

// One ack of two stands behind a piece that comes the other way, and comes together with the one after it.
TEST(LinkEstimate, AcksThatAreHeldUpNowAndThenTellTheRateAllTheSame) {
  Link link(BytesPerSec::from_mbit(50), 2_ms);
  for (const int mbit : {50, 25}) {
    link.rate = BytesPerSec::from_mbit(mbit);
    for (int flight = 0; flight < 6; ++flight) {
      for (int k = 0; k < 8; ++k) link.send();
      for (int k = 0; k < 8; ++k) {
        if (k % 2 == 0) link.nic.received += Bytes{kPiece};
        link.acknowledge(k % 2 == 0 ? 15_ms : 0_ms);
      }
    }
    expect_rate(link, link.rate);
  }
}

// The peer sends as much: acks wait behind three pieces of it at an exchange's beginning, and behind none at its end.
TEST(LinkEstimate, WhatThePeerSendsBeforeItsAcksMakesNoLinkFaster) {
  Link link(BytesPerSec::from_mbit(100), 2_ms);
  for (int flight = 0; flight < 20; ++flight, link.now += 10_ms) {
    for (int k = 0; k < 10; ++k) link.send();
    for (int k = 0; k < 10; ++k) {
      link.nic.received += Bytes{kPiece};
      link.acknowledge(30_ms / 9 * (9 - k));
    }
  }
  expect_rate(link, link.rate);
}

// Every other piece passes sooner by the two milliseconds in which the bucket was filled.
TEST(LinkEstimate, ALinkThatIsBrieflyIdleNowAndThenIsNoFasterForThat) {
  Link link(BytesPerSec::from_mbit(100), 2_ms);
  link.carry(1_s, 6);
  for (int i = 0; i < 80; ++i) {
    link.send();
    link.send(kPiece, 2_ms);
    for (int k = 0; k < 2; ++k) link.acknowledge();  // two milliseconds after the link was done with it
  }
  EXPECT_NEAR(static_cast<double>(link.estimate.beta().count) / static_cast<double>(link.rate.count), 1, 0.1);
}

// After a pause the first pieces leave slowly, and the bucket is as full as before when the third comes.
TEST(LinkEstimate, WhatABucketStillHoldsAfterSlowPiecesProvesNothing) {
  Link link(BytesPerSec::from_mbit(100), 2_ms);
  link.carry(1_s, 6);
  for (int flight = 0; flight < 20; ++flight, link.now += 8_ms) {
    for (int k = 0; k < 6; ++k) link.send(kPiece, k == 2 ? 6_ms : 0_ms);
    for (int k = 0; k < 6; ++k) link.acknowledge();
  }
  expect_rate(link, link.rate);
}

// Otherwise the time beyond what was the least would be taken for queue, and the link for busy in it.
TEST(LinkEstimate, PausesAreNoBusyTimeOnceTheWayIsLonger) {
  Link link(BytesPerSec::from_mbit(100), 2_ms);
  link.carry(1_s, 6);
  link.round_trip = 102_ms;
  for (int i = 0; i < 6; ++i, link.now += 100_ms) link.echo();
  EXPECT_EQ(link.estimate.alpha(), 51_ms);
  for (int flight = 0; flight < 30; ++flight) {
    for (int k = 0; k < 6; ++k) link.send();
    link.now += link.rate.time_for(Bytes{6 * kPiece}) + 20_ms;
    link.acknowledge_what_has_come();
  }
  expect_rate(link, link.rate);
}

// A link that is never idle shows its bare way to nobody, and its queue is not the way.
TEST(LinkEstimate, ARiseIsFoundAmidTrafficThatNeverPauses) {
  Link link(BytesPerSec::from_mbit(100), 2_ms);
  link.saturate(30_s, 6);
  expect_rate(link, link.rate);
  link.rate = BytesPerSec::from_mbit(200);
  link.saturate(2_s, 6);
  expect_rate(link, link.rate);
}

// As after a stall: the ack of the first copy tells of an arrival before the second one left.
TEST(LinkEstimate, AnArrivalThatMayBeAnotherFramesIsNotLookedAt) {
  LinkEstimate estimate;
  estimate.on_echo(1_s, 10_ms, {});
  PathEstimator::Departure first, second;
  first.sent = 1_s;
  second.sent = 1200_ms;
  second.dated = false;
  EXPECT_EQ(estimate.queued(1010_ms, first, 1'005'000'000), 0_ms);
  EXPECT_EQ(estimate.queued(1230_ms, second, 1'005'000'000), 20_ms) << "as its round trip says";
  first.sent = 2_s;
  EXPECT_EQ(estimate.queued(2400_ms, first, 2'005'000'000), 0_ms) << "the least is what it was";
}

TEST(LinkEstimate, OneWindowIsNotTheRate) {
  Link link(BytesPerSec::from_mbit(140), 2_ms);
  link.carry(160_ms, 6);
  const BytesPerSec first = link.estimate.beta();
  ASSERT_GT(first.count, 0);
  link.rate = BytesPerSec::from_mbit(100);
  link.carry(230_ms, 6);
  EXPECT_LT(link.estimate.beta().count, first.count * 85 / 100);
  link.carry(1_s, 6);
  expect_rate(link, link.rate);
}

// Windows that are a little lower now and then are no change, but the mean is.
TEST(LinkEstimate, TheRateIsTheMeanOfWindowsThatDifferALittle) {
  Link link(BytesPerSec::from_mbit(100), 2_ms);
  link.carry(1_s, 6);
  for (int i = 0; i < 30; ++i) {
    link.rate = BytesPerSec::from_mbit(i % 2 == 0 ? 89 : 100);
    link.carry(110_ms, 6);
  }
  EXPECT_NEAR(static_cast<double>(link.estimate.beta().count) / 12.5e6, 0.925, 0.03);
}

// Each flight of 256 KiB is within what a shaper may let pass at the speed of the wire, which makes none slower.
TEST(LinkEstimate, AFallIsFoundByFlightsThatMayAllBeBursts) {
  Link link(kRate, 2_ms);
  link.carry(2_s, 6);
  link.rate = BytesPerSec::from_mbit(100);
  for (const Nanos began = link.now; link.now - began < 800_ms; link.now += 20_ms) {
    for (int k = 0; k < 2; ++k) link.send();
    for (int k = 0; k < 2; ++k) link.acknowledge();
  }
  expect_rate(link, link.rate);
}

TEST(LinkEstimate, WhatOtherChannelsGetOfTheNicIsNoFall) {
  Link link(kRate, 2_ms);
  link.carry(2_s, 6);
  link.rate = kRate;
  link.rate.count /= 2;
  link.carry(3_s, 6, Bytes{kPiece});
  expect_rate(link, kRate);
}

// Others' pieces stand before each of ours, and their acks come before ours or after it.
TEST(LinkEstimate, AShareOfTheNicIsNotTheRate) {
  for (const bool first : {true, false}) {
    Link link(kRate, 2_ms);
    if (!first) {
      link.carry(1_s, 4);
      expect_rate(link, kRate);
      link.now += 100_ms;
    }
    link.rate.count /= 3;  // all the way they get two thirds
    link.carry(2_s, 4, Bytes{2 * static_cast<std::int64_t>(kPiece)});
    expect_rate(link, kRate);
  }
}

// Three of the same speed send to one peer, whose NIC is the slowest of all.
TEST(LinkEstimate, AShareOfThePeersNicIsNotTheRate) {
  for (const bool first : {true, false}) {
    Link link(kRate, 2_ms);
    if (!first) {
      link.carry(1_s, 4);
      expect_rate(link, kRate);
      link.now += 11_s;
    }
    link.rate.count /= 3;
    link.crowd = 2 * kPiece;
    link.carry(2_s, 4);
    expect_rate(link, kRate);
    // And now that NIC is slower, and then faster.
    for (const int part : {2, 1}) {
      link.rate = BytesPerSec{kRate.count / part / 3};
      link.carry(1_s, 4);
      expect_rate(link, BytesPerSec{kRate.count / part});
    }
  }
}

// The peer counts the pieces of others when they are whole, and theirs may be larger.
TEST(LinkEstimate, APeersNicIsSharedByPiecesThatComeRarely) {
  Link link(BytesPerSec{kRate.count / 3}, 2_ms);
  for (int i = 0; i < 400; ++i) {
    link.crowd = i % 4 == 3 ? 8 * kPiece : 0;
    link.saturate(1_ns, 4);
  }
  EXPECT_NEAR(static_cast<double>(link.estimate.beta().count), static_cast<double>(kRate.count),
              static_cast<double>(kRate.count) / 5)
      << "and not a third of it, nor a half";
}

// A way between two fast NICs may be slow.
TEST(LinkEstimate, WhereOthersPauseWhatArrivesMeanwhileIsTheRate) {
  for (const Nanos busy : {600_ms, 1500_ms, 4_s}) {
    Link link(kRate, 2_ms);
    for (int i = 0; i < 8; ++i) {
      link.crowd = 4 * kPiece;
      link.saturate(busy, 4);
      if (i > 2) expect_rate(link, kRate);
      link.crowd = 0;
      link.saturate(200_ms, 4);
      if (i > 1) expect_rate(link, kRate);
    }
  }
}

TEST(LinkEstimate, APeerMayNameAnyNumber) {
  for (const std::uint64_t crowd : {std::uint64_t{1} << 60, ~std::uint64_t{0} - 2 * kPiece, ~std::uint64_t{0} >> 1}) {
    Link link(kRate, 2_ms);
    link.crowd = crowd;
    link.carry(2_s, 4);
    EXPECT_GE(link.estimate.beta().count, kRate.count / 20 * 19);
    link.crowd = 0;
    link.carry(1_s, 4);
    expect_rate(link, kRate);
  }
}

// Its pieces leave one by one, and are never behind one another.
TEST(LinkEstimate, ALinkThatCarriesMoreThanItsRateIsFaster) {
  Link link(BytesPerSec::from_mbit(20), 1_ms);
  link.carry(2_s, 4);
  expect_rate(link, BytesPerSec::from_mbit(20));
  link.rate = BytesPerSec::from_mbit(10'000);
  for (int i = 0; i < 200; ++i) {
    link.send();
    link.acknowledge();
    link.now += 10_ms;
  }
  EXPECT_GT(link.estimate.beta(), BytesPerSec::from_mbit(80)) << "of 95 that a bucket does not explain";
  EXPECT_LT(link.estimate.beta(), BytesPerSec::from_mbit(105));
}

// What a full bucket lets pass at once is no proof.
TEST(LinkEstimate, ABurstAfterAPauseDoesNotCountAsCarried) {
  constexpr auto kSlow = BytesPerSec::from_mbit(2);
  Link link(kSlow, 1_ms);
  link.carry(8_s, 4);
  expect_rate(link, kSlow);
  for (int i = 0; i < 20; ++i) {
    link.now += 1_s;
    for (int k = 0; k < 2; ++k) link.send(kPiece, kSlow.time_for(Bytes{kPiece}) - 1_ms);
    for (int k = 0; k < 2; ++k) link.acknowledge();
  }
  expect_rate(link, kSlow);
}

// A full bucket lets five pieces pass in no time, and all ten pass at twice the rate of the link.
TEST(LinkEstimate, ABurstAfterAPauseThatTheRestFollowsDoesNotCountAsCarried) {
  constexpr auto kSlow = BytesPerSec::from_mbit(2);
  constexpr std::uint64_t kSmaller = PathEstimator::kBurstBytes / 5;
  Link link(kSlow, 1_ms);
  link.carry(8_s, 4);
  expect_rate(link, kSlow);
  for (int i = 0; i < 10; ++i) {
    link.now += 2_s;
    const Nanos each = kSlow.time_for(Bytes{kSmaller});
    for (int k = 0; k < 10; ++k) link.send(kSmaller, k < 5 ? each : Nanos{});
    for (int k = 0; k < 10; ++k) link.acknowledge();
    EXPECT_LT(link.estimate.beta().count, kSlow.count / 20 * 21) << i;
  }
  expect_rate(link, kSlow);
}

TEST(LinkEstimate, ALongerWayIsBelievedOnceItLastsAndAShorterOneAtOnce) {
  Link link(kRate, 2_ms);
  for (int i = 0; i < 5; ++i, link.now += 100_ms) link.echo();
  link.round_trip = 8_ms;
  link.echo();
  EXPECT_EQ(link.estimate.alpha(), 1_ms) << "one late answer";
  link.now += 100_ms;
  for (int i = 0; i < 5; ++i, link.now += 100_ms) link.echo();
  EXPECT_EQ(link.estimate.alpha(), 4_ms);
  link.round_trip = 2_ms;
  link.echo();
  EXPECT_EQ(link.estimate.alpha(), 1_ms);
}

// Samples that differ met the queues of others, which may be gone again.
TEST(LinkEstimate, SamplesOfALongerWayThatAreAlikeMakeItKnownSooner) {
  const auto announced_after = [](Nanos other) {
    Link link(kRate, 2_ms);
    const auto beat = [&](Nanos round_trip) { link.beat(round_trip, 50_ms); };
    for (int i = 0; i < 20; ++i) beat(2_ms);
    EXPECT_EQ(link.estimate.announced_alpha(), 1_ms);
    const Nanos began = link.now;
    for (int i = 0; i < 40 && link.estimate.announced_alpha() == 1_ms; ++i) beat(i % 2 == 0 ? other : 8_ms);
    EXPECT_EQ(link.estimate.announced_alpha(), 4_ms);
    return link.now - began;
  };
  EXPECT_EQ(announced_after(10_ms) - announced_after(8_ms), LevelWatch::kLasts / 2);
}

// As over a real link: of the round trips in a pause of the traffic two meet what is left in the shaper's queue.
TEST(LinkEstimate, WhatSomeFramesMeetInAQueueHidesNoLongerWay) {
  Link link(kRate, 2_ms);
  const auto pause = [&](Nanos way) {
    for (const Nanos queue : {3_ms, 4_ms, 0_ms}) {
      link.round_trip = way + queue;
      link.echo();
      link.now += 1_ms;
    }
    link.estimate.look(link.now);
    link.now += 97_ms;
  };
  for (int i = 0; i < 30; ++i) pause(2_ms);
  EXPECT_EQ(link.estimate.alpha(), 1_ms);
  EXPECT_EQ(link.estimate.jitter(), 0_ms);
  int pauses = 0;
  while (link.estimate.announced_alpha() != 4_ms && pauses < 100) pause(8_ms), ++pauses;
  EXPECT_LE(pauses, 8) << "within a second";
}

// One direction has changed, and a moment later the other does; one heartbeat tells of what was between.
TEST(LinkEstimate, AWayThatGrowsInTwoStepsIsKnownWhole) {
  Link link(kRate, 400_us);
  const auto beat = [&](Nanos round_trip) { link.beat(round_trip, 100_ms); };
  for (int i = 0; i < 50; ++i) beat(400_us);
  beat(3'900_us);
  int beats = 0;
  while (link.estimate.alpha() != 2'300_us && beats < 100) beat(4'600_us), ++beats;
  EXPECT_LE(beats, 3);
  EXPECT_EQ(link.estimate.jitter(), 0_ms) << "a change is none";
}

// A link whose round trips are long sees few frames that meet no queue.
TEST(LinkEstimate, OfTwoRoundTripsTheHalfGrownOneIsNotBelieved) {
  Link link(kRate, 100_ms);
  const auto beat = [&](Nanos round_trip) { link.beat(round_trip, 500_ms); };
  for (int i = 0; i < 20; ++i) beat(100_ms);
  beat(152_ms);
  beat(204_ms);
  EXPECT_EQ(link.estimate.alpha(), 50_ms);
  beat(204_ms);
  EXPECT_EQ(link.estimate.alpha(), 102_ms);
}

TEST(LinkEstimate, SurvivesItsLane) {
  Link link(kRate, 10_ms);
  link.carry(2_s, 12);
  link.estimate.on_lane_down();
  expect_rate(link, kRate);
  EXPECT_EQ(link.estimate.alpha(), 5_ms);
  link.now += 1_s;
  link.carry(1_s, 12);
  expect_rate(link, kRate);
}

// After ten seconds without any the first new window counts.
TEST(LinkEstimate, AnOldOneGivesWayToTheFirstNewWindow) {
  Link link(kRate, 2_ms);
  link.carry(2_s, 12);
  link.now += 20_s;
  link.rate = BytesPerSec::from_mbit(20);
  link.carry(300_ms, 12);
  expect_rate(link, link.rate);
}

TEST(LinkEstimate, AStandstillIsNoRate) {
  Link link(kRate, 2_ms);
  link.carry(2_s, 12);
  for (int i = 0; i < 12; ++i) link.send();
  link.acknowledge();
  link.stands_still = true;
  for (const int acks : {2, 2, 4}) {
    link.now += 12_s;  // the peer was stopped in the middle of it
    for (int i = 0; i < acks; ++i) link.acknowledge();
  }
  expect_rate(link, kRate);
}

TEST(LinkEstimate, ASteadyLinkIsAnnouncedOnceHoweverLateItsAcksAre) {
  Link link(kRate, 10_ms);
  Random random(7);
  for (const Nanos end = link.now + 60_s; link.now < end;) {
    for (int i = 0; i < 12; ++i) link.send();
    for (int i = 0; i < 12; ++i) link.acknowledge(Nanos{static_cast<std::int64_t>(random.below(3'000'000))});
    link.echo();
  }
  expect_rate(link, kRate);
  EXPECT_EQ(link.changes, 2) << "the round trip first, then the rate";
}

// --- the change detector ---------------------------------------------------------------------------------------------

// Announcements of `level(t)` over so many seconds, looked at every 50 ms.
template <typename Level>
int announcements(int seconds, Level level) {
  LevelWatch watch(1);
  int n = 0;
  for (Nanos t = 1_s; t < Nanos{(1 + seconds) * (1_s).count}; t += 50_ms) n += watch.look(t, level(t - 1_s));
  return n;
}

TEST(LevelWatch, AStepIsAnnouncedOnceItLasts) {
  LevelWatch watch(1);
  EXPECT_FALSE(watch.look(1_s, 0)) << "nothing is known";
  EXPECT_FALSE(watch.look(1_s, 100));
  EXPECT_TRUE(watch.look(1200_ms, 100));
  EXPECT_FALSE(watch.look(2_s, 115)) << "too little";
  EXPECT_FALSE(watch.look(3_s, 200));
  EXPECT_FALSE(watch.look(3100_ms, 100)) << "it did not last";
  EXPECT_FALSE(watch.look(3200_ms, 200));
  EXPECT_FALSE(watch.look(3300_ms, 200));
  EXPECT_TRUE(watch.look(3400_ms, 200));
  EXPECT_EQ(watch.announced(), 200);
  EXPECT_EQ(announcements(60, [](Nanos t) { return t < 30_s ? 100 : 50; }), 2);
}

// What is believed only after a while has lasted for that while, as far as samples so few can tell.
TEST(LevelWatch, HalfOfTheTimeMayHavePassedBeforeTheLevelWasBelieved) {
  for (const Nanos seen : {0_ms, 40_ms, 100_ms, 5_s}) {
    LevelWatch watch(1);
    watch.look(1_s, 100);
    EXPECT_TRUE(watch.look(1200_ms, 100));
    EXPECT_FALSE(watch.look(2_s, 200, seen));
    const Nanos left = LevelWatch::kLasts - std::min(seen, LevelWatch::kLasts / 2);
    EXPECT_FALSE(watch.look(2_s + left - 1_ms, 200, seen));
    EXPECT_TRUE(watch.look(2_s + left, 200, seen)) << seen.count;
  }
  for (const Nanos half : {100_ms, 300_ms, 1_s, 3_s}) {
    LevelWatch watch(1);
    int times = 0;
    for (Nanos t = 1_s; t < 600_s; t += 50_ms) {
      const bool longer = t.count / half.count % 2 == 0;
      times += watch.look(t, longer ? 1000 : 500, longer ? 150_ms : 0_ms);
    }
    EXPECT_LE(times, 9) << half.count << ": what alternates is soon ignored";
  }
}

TEST(LevelWatch, NoiseIsNoChange) {
  Random random(3);
  EXPECT_EQ(announcements(600, [&](Nanos) { return 850 + static_cast<std::int64_t>(random.below(300)); }), 1);
}

TEST(LevelWatch, ASawtoothAndAnAlternationAreSoonIgnored) {
  EXPECT_LE(announcements(600, [](Nanos t) { return 700 + t.count / 1'000'000 % 1000 * 6 / 10; }), 8) << "sawtooth";
  for (const Nanos half : {100_ms, 300_ms, 1_s, 3_s}) {
    const auto alternates = [&](Nanos t) { return t.count / half.count % 2 == 0 ? 1000 : 500; };
    EXPECT_LE(announcements(600, alternates), 8) << half.count;
  }
}

TEST(LevelWatch, AfterQuietSecondsAChangeIsBelievedAsSoonAsEver) {
  LevelWatch watch(1);
  Nanos t = 1_s;
  for (; t < 20_s; t += 50_ms) watch.look(t, t.count / (500_ms).count % 2 == 0 ? 1000 : 500);
  const std::int64_t now = watch.announced();
  for (; t < 25_s; t += 50_ms) EXPECT_FALSE(watch.look(t, now));
  EXPECT_FALSE(watch.look(t, now * 2));
  EXPECT_TRUE(watch.look(t + LevelWatch::kLasts, now * 2));
}

}  // namespace
}  // namespace canarynet
