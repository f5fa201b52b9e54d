// Endpoints whose peers refuse, stop, or answer without anything moving: every wait is bounded, and its end says who is
// to blame and why. Virtual time.
#include "base/duration_text.h"
#include "sim/endpoint_test_util.h"
#include "sim/warnings_test_util.h"

namespace canarynet {
namespace {

using State = Connection::State;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Settings with_exchange_limit(Nanos limit) {
  Settings s = Settings::defaults();
  s.exchange_limit = limit;
  return s;
}

TEST(EndpointStall, AProcessThatHasEndedIsNamedSoonByWhoConnectsToIt) {
  for (const int rails : {1, 2}) {
    Net net(2, rails);
    Pair p(net);
    net.kill(1, CrashKind::kHangup);
    Connection& c = p.connect();
    const Nanos began = net.fabric.now();
    ASSERT_TRUE(net.until([&] { return c.state == State::kFailed; }, 3_s)) << "CANARY_JOIN_TIMEOUT is a minute";
    EXPECT_GT(net.fabric.now() - began, 1_s) << "it may be about to come back";
    EXPECT_EQ(c.failure.code(), CANARY_PEER_DIED);
    EXPECT_TRUE(has(c.failure.text(), "the peer at " + decode_handle(p.handle).value().text() + " has ended"))
        << c.failure.text();
    EXPECT_TRUE(has(c.failure.text(), "refuses every connection")) << c.failure.text();
    ASSERT_NO_FATAL_FAILURE(p.close(0, c));
    net.pass(200_ms);
    EXPECT_EQ(net.at(0).links(), 0u);
  }
}

TEST(EndpointStall, APauseOfItsOwnIsNobodysSilence) {
  Net net(2, 1);
  Pair p(net);
  ASSERT_NO_FATAL_FAILURE(p.open());
  Half& waits = p.receive(*p.accepted[0], 100);
  net.pass(10_ms);
  // Nobody runs for three times the limit, as on a machine that was suspended.
  net.fabric.advance_to(net.fabric.now() + 3_s);
  net.pass(500_ms);
  EXPECT_FALSE(waits.ticket.done()) << waits.ticket.status.to_string();
  p.send(*p.connecting[0], 100);
  ASSERT_NO_FATAL_FAILURE(p.expect_all(2_s));
}

TEST(EndpointStall, APauseOfItsOwnIsNoTimeOfRefusals) {
  Net net(2, 1);
  Pair p(net);
  net.kill(1, CrashKind::kHangup);
  Connection& c = p.connect();
  net.pass(300_ms);
  net.fabric.freeze(0);
  net.pass(3_s);
  net.fabric.thaw(0);
  net.pass(300_ms);
  EXPECT_EQ(c.state, State::kOpening) << "refused for 600 ms that anybody saw, and it may be about to come back";
  ASSERT_TRUE(net.until([&] { return c.state == State::kFailed; }, 1_s));
  EXPECT_EQ(c.failure.code(), CANARY_PEER_DIED) << c.failure.text();
}

TEST(EndpointStall, WhereOneRailMerelyDoesNotAnswerItIsWaitedFor) {
  Settings s = Settings::defaults();
  s.join_timeout = 6_s;
  Net net(2, 2, Net::quick(), s);
  Pair p(net);
  net.kill(1, CrashKind::kHangup);
  net.fabric.nic_down(1, 1, NicDeath::kSilent);
  Connection& c = p.connect();
  net.pass(5_s);
  EXPECT_EQ(c.state, State::kOpening) << "one rail refuses, the other says nothing";
  ASSERT_TRUE(net.until([&] { return c.state == State::kFailed; }, 2_s));
  EXPECT_EQ(c.failure.code(), CANARY_NO_PATH) << c.failure.text();
}

TEST(EndpointStall, AnotherProcessAtTheSameAddressIsNotTakenForIt) {
  Net net(2, 2);
  Pair p(net);
  net.kill(1, CrashKind::kHangup);
  net.fabric.restart(1);
  EndpointOptions e;
  e.settings = Settings::defaults();
  e.secret = [random = Random(77)]() mutable { return random.next(); };
  net.endpoints[1] = std::make_unique<Endpoint>(std::move(e), net.fabric.factory(1));
  Connection& c = p.connect();
  ASSERT_TRUE(net.until([&] { return c.state == State::kFailed; }, 3_s));
  EXPECT_EQ(c.failure.code(), CANARY_PEER_DIED) << c.failure.text();
  EXPECT_EQ(net.at(1).links(), 0u);
}

TEST(EndpointStall, ClosingIsBoundedWhileTheConnectIsUnderWay) {
  for (const CrashKind kind : {CrashKind::kHangup, CrashKind::kSilent}) {
    Net net(2, 2);
    Pair p(net);
    net.kill(1, kind);
    Connection& c = p.connect();
    for (const Nanos wait : {Nanos{}, 50_us, 150_ms, 500_ms}) {
      net.pass(wait);
      Connection& other = p.connect();
      ASSERT_NO_FATAL_FAILURE(p.close(0, other));
    }
    EXPECT_EQ(c.state, State::kOpening);
    ASSERT_NO_FATAL_FAILURE(p.close(0, c));
  }
}

TEST(EndpointStall, AMessageThatDoesNotMoveThoughItsPeerAnswersEndsItsConnection) {
  for (const int rails : {1, 2}) {
    SCOPED_TRACE(rails);
    FabricOptions o = Net::quick();
    o.stream = false;
    Net net(2, rails, o, with_exchange_limit(4_s));
    Pair p(net);
    ASSERT_NO_FATAL_FAILURE(p.open());
    // From now on long frames get lost, as behind a tunnel of which the NICs know nothing; heartbeats pass.
    for (int host = 0; host < 2; ++host) {
      for (int rail = 0; rail < rails; ++rail) net.fabric.nic(host, rail).out.frame_bytes_max = 2000;
    }
    Half& receive = p.receive(*p.accepted[0], 100'000);
    Half& idle = p.receive(*p.accepted[0], 100'000);
    Half& send = p.send(*p.connecting[0], 100'000);
    const Nanos began = net.fabric.now();
    ASSERT_TRUE(net.until([&] { return send.ticket.done(); }, 10_s));
    const Nanos took = net.fabric.now() - began;
    EXPECT_GT(took, 4_s);
    EXPECT_LT(took, 4500_ms);
    const std::string text = send.ticket.status.to_string();
    EXPECT_EQ(send.ticket.code, CANARY_EXCHANGE_TIMEOUT) << text;
    EXPECT_TRUE(has(text, "host-1 (pid 1001) answers")) << text;
    EXPECT_TRUE(has(text, "1 messages with 100000 bytes outstanding, links nic0>")) << text;
    EXPECT_TRUE(has(text, "has not moved for 40")) << text;
    // Nothing has begun there, but the other end says that it has given up, and why.
    ASSERT_TRUE(net.until([&] { return receive.ticket.done() && idle.ticket.done(); }, 1_s));
    EXPECT_EQ(receive.ticket.code, CANARY_ABORTED) << receive.ticket.status.to_string();
    EXPECT_TRUE(has(receive.ticket.status.text(), "has not moved for 40")) << receive.ticket.status.text();
    ASSERT_NO_FATAL_FAILURE(p.close(0, *p.connecting[0]));
  }
}

TEST(EndpointStall, AConnectThatALivePeerNeverAnswersEndsAndLeavesNothingWhenItIsHeardAfterAll) {
  Settings s = Settings::defaults();
  s.join_timeout = 3_s;
  FabricOptions o = Net::quick();
  o.stream = false;
  Net net(2, 1, o, s);
  Pair p(net);
  net.fabric.nic(0, 0).out.frame_bytes_max = 130;  // hellos, heartbeats and acks pass; the request is longer
  Connection& c = p.connect();
  ASSERT_TRUE(net.until([&] { return c.state == State::kFailed; }, 4_s));
  EXPECT_EQ(c.failure.code(), CANARY_NO_PATH);
  EXPECT_TRUE(has(c.failure.text(), "answers, but not to this connection")) << c.failure.text();
  ASSERT_NO_FATAL_FAILURE(p.close(0, c));
  p.connecting.clear();
  net.fabric.nic(0, 0).out.frame_bytes_max = 0;
  net.pass(3_s);
  while (Connection* got = p.accept()) {
    Half& h = p.receive(*got, 10);
    ASSERT_TRUE(net.until([&] { return h.ticket.done(); }, 10_ms)) << "somebody is still there";
    EXPECT_EQ(h.ticket.code, CANARY_CLOSED);
    ASSERT_NO_FATAL_FAILURE(p.close(1, *got));
  }
  p.accepted.clear();
  net.pass(7_s);
  EXPECT_EQ(net.at(0).links() + net.at(1).links(), 0u);
}

TEST(EndpointStall, WhatWaitsForItsReceiveOrItsSendIsNoStall) {
  Net net(2, 2, Net::quick(), with_exchange_limit(1_s));
  Pair p(net);
  ASSERT_NO_FATAL_FAILURE(p.open(2));
  Half& large = p.send(*p.connecting[0], 500'000);  // nobody receives it yet
  Half& early = p.receive(*p.accepted[1], 500'000);
  p.send(*p.connecting[0], 10);
  net.pass(20_s);
  EXPECT_FALSE(large.ticket.done() || early.ticket.done());
  Connection& other = **std::find_if(p.accepted.begin(), p.accepted.end(),
                                     [&](const auto& c) { return c->end.flow == p.connecting[0]->end.flow; });
  if (early.end == &other.end) {
    p.receive(other, 500'000);
  } else {
    p.receive(other, 500'000);
    p.receive(other, 500'000);
    p.send(*p.connecting[1], 500'000);
  }
  ASSERT_TRUE(net.until([&] { return large.ticket.done(); }, 1_s)) << "a long wait before does not count";
  EXPECT_EQ(large.ticket.code, CANARY_OK) << large.ticket.status.to_string();
}

// The dialler closes one connection and makes the next, which gets the same number, while the other end's user has not
// closed the first yet.
TEST(EndpointStall, AConnectionThatANewerOneDisplacedMayBeClosedAfterEverythingElse) {
  Net net(2, 1);
  auto p = std::make_unique<Pair>(net);
  ASSERT_NO_FATAL_FAILURE(p->open());
  for (int i = 0; i < 3; ++i) {
    ASSERT_NO_FATAL_FAILURE(p->close(0, *p->connecting.back()));
    p->connect();
    ASSERT_TRUE(net.until([&] { return p->connecting.back()->state == State::kUp && p->accept() != nullptr; }, 2_s));
  }
  ASSERT_NO_FATAL_FAILURE(p->close(0, *p->connecting.back()));
  net.pass(10_ms);
  net.at(0).leave(net.fabric.now());
  net.pass(10_s);
  Half& late = p->receive(*p->accepted.front(), 10);
  ASSERT_TRUE(net.until([&] { return late.ticket.done(); }, 10_ms));
  EXPECT_EQ(late.ticket.code, CANARY_CLOSED) << late.ticket.status.to_string();
  for (auto& c : p->accepted) ASSERT_NO_FATAL_FAILURE(p->close(1, *c));
  net.pass(10_s);
  EXPECT_EQ(net.at(1).links(), 0u);
}

TEST(EndpointStall, WhoGivesAConnectionUpTellsTheOtherEndWhy) {
  for (const int gives_up : {0, 1}) {
    SCOPED_TRACE(gives_up);
    Net net(2, 2);
    Pair p(net);
    ASSERT_NO_FATAL_FAILURE(p.open(2));
    Half& send = p.send(*p.connecting[0], 500'000);  // nobody receives it
    Half& receive = p.receive(*std::find_if(p.accepted.begin(), p.accepted.end(),
                                            [&](const auto& c) { return c->end.flow == p.connecting[0]->end.flow; })
                                   ->get(),
                              100);
    Connection& mine = gives_up == 0 ? *p.connecting[0] : *static_cast<Connection*>(receive.end->owner);
    const std::string why(5000, 'x');
    p.abort(gives_up, mine, "rank 7 died" + why);
    ASSERT_NO_FATAL_FAILURE(p.close(gives_up, mine)) << "an ordinary end right behind it is not what is heard";
    Half& there = gives_up == 0 ? receive : send;
    ASSERT_TRUE(net.until([&] { return there.ticket.done(); }, 100_ms));
    EXPECT_EQ(there.ticket.code, CANARY_ABORTED) << there.ticket.status.to_string();
    EXPECT_TRUE(has(there.ticket.status.text(), "rank 7 diedxxx")) << there.ticket.status.text();
    EXPECT_TRUE(has(there.ticket.status.text(), "host-" + std::to_string(gives_up))) << there.ticket.status.text();
    Half& here = gives_up == 0 ? send : receive;
    EXPECT_EQ(here.ticket.code, CANARY_ABORTED) << here.ticket.status.to_string();
    // The other connection goes on.
    p.send(*p.connecting[1], 300'000, 0, 5);
    Half& got = p.receive(*std::find_if(p.accepted.begin(), p.accepted.end(),
                                        [&](const auto& c) { return c->end.flow == p.connecting[1]->end.flow; })
                               ->get(),
                          300'000);
    got.seed = 5;
    ASSERT_TRUE(net.until([&] { return got.ticket.done(); }, 1_s));
    EXPECT_EQ(got.ticket.code, CANARY_OK);
  }
}

// The sender waits for credits, small frames on lanes that carry nothing else that way. They must not wait on the dead
// lane for long.
TEST(EndpointStall, ADyingNicHoldsAStreamUpForLessThanATenthOfASecond) {
  for (const int host : {0, 1}) {
    for (const NicDeath kind : {NicDeath::kSilent, NicDeath::kLocal}) {
      SCOPED_TRACE(host);
      Net net(2, 2);
      for (int h = 0; h < 2; ++h) {
        for (int r = 0; r < 2; ++r) net.fabric.nic(h, r) = NicOptions::link(50_us, BytesPerSec::from_mbit(500));
      }
      Pair p(net);
      ASSERT_NO_FATAL_FAILURE(p.open());
      constexpr std::size_t kMessages = 300, kDepth = 8;
      std::vector<Half*> sends, receives;
      Nanos last = net.fabric.now(), longest;
      while (receives.empty() || !receives.back()->ticket.done() || receives.size() < kMessages) {
        const auto behind = [](const std::vector<Half*>& all) {
          return all.size() < kMessages && (all.size() < kDepth || all[all.size() - kDepth]->ticket.done());
        };
        while (behind(sends)) sends.push_back(&p.send(*p.connecting[0], 128 * 1024));
        const std::size_t before = receives.size();
        while (behind(receives)) receives.push_back(&p.receive(*p.accepted[0], 128 * 1024));
        if (receives.size() != before) {
          longest = std::max(longest, net.fabric.now() - last);
          last = net.fabric.now();
        }
        if (before < 150 && receives.size() >= 150) net.fabric.nic_down(host, 1, kind);
        net.pass(100_us);
        ASSERT_LT(net.fabric.now() - last, 2_s);
      }
      EXPECT_LT(longest, 100_ms);
    }
  }
}

TEST(EndpointStall, SlowIsNotStuckHoweverManyShareTheLink) {
  Net net(2, 1, Net::quick(), with_exchange_limit(500_ms));
  Pair p(net);
  ASSERT_NO_FATAL_FAILURE(p.open(8));
  for (int host = 0; host < 2; ++host) net.fabric.nic(host, 0) = NicOptions::link(50_us, BytesPerSec{1'000'000});
  for (std::size_t i = 0; i < 8; ++i) {
    p.send(*p.connecting[i], 600'000);
    p.receive(*p.accepted[i], 600'000);
  }
  p.expect_all(30_s);  // a piece takes 131 ms, its connection's turn comes every eight
}

TEST(EndpointStall, SixteenConnectionsEightDeepBothWaysOutliveANic) {
  constexpr std::uint64_t kLengths[] = {300 * 1024, 128 * 1024, 64 * 1024, 1000, 0};
  for (const bool stream : {true, false}) {
    FabricOptions o = Net::quick();
    o.stream = stream;
    Net net(2, 3, o);
    Pair p(net);
    ASSERT_NO_FATAL_FAILURE(p.open(16));
    for (int wave = 0; wave < 2; ++wave) {
      for (std::size_t c = 0; c < 16; ++c) {
        Connection& a = *p.connecting[c];
        Connection& b = **std::find_if(p.accepted.begin(), p.accepted.end(),
                                       [&](const auto& other) { return other->end.flow == a.end.flow; });
        for (std::size_t k = 0; k < 8; ++k) {
          const std::uint64_t bytes = kLengths[(c + k) % std::size(kLengths)];
          p.receive(b, bytes);
          p.receive(a, bytes);
          p.send(a, bytes);
          p.send(b, bytes);
        }
      }
      if (wave == 1) {
        net.pass(20_ms);
        net.fabric.nic_down(1, 2, NicDeath::kSilent);
      }
      ASSERT_NO_FATAL_FAILURE(p.expect_all(20_s));
      p.halves.clear();
    }
    net.pass(1_s);  // resent over the others within milliseconds, given up later
    EXPECT_EQ(net.at(0).message_counters().sent, 16u * 8 * 2);
    EXPECT_EQ(net.at(0).message_counters().received, 16u * 8 * 2);
    EXPECT_EQ(net.at(0).message_counters().sending_bytes, 0u);
    EXPECT_EQ(net.at(0).messages_in_flight(), 0u);
    EXPECT_GT(net.at(0).rail_stats(2).failovers + net.at(1).rail_stats(2).failovers, 0u);
  }
}

TEST(EndpointStall, APeerThatIsStoppedForLessThanTheSilenceLimitIsWaitedFor) {
  Net net(2, 2);
  Pair p(net);
  ASSERT_NO_FATAL_FAILURE(p.open(4));
  for (int round = 0; round < 4; ++round) {
    for (std::size_t i = 0; i < 4; ++i) {
      Connection& a = *p.connecting[i];
      Connection& b = **std::find_if(p.accepted.begin(), p.accepted.end(),
                                     [&](const auto& other) { return other->end.flow == a.end.flow; });
      for (int k = 0; k < 4; ++k) {
        p.receive(b, 100'000);
        p.send(a, 100'000);
        p.send(b, 1000);
        p.receive(a, 1000);
      }
    }
    net.pass(3_ms);
    net.fabric.freeze(round % 2);
    net.pass(800_ms);
    net.fabric.thaw(round % 2);
    ASSERT_NO_FATAL_FAILURE(p.expect_all(5_s));
    p.halves.clear();
  }
}

// --- outages ---------------------------------------------------------------------------------------------------------

// Both ends send when everything between them goes dark, or one of them stands still.
TEST(EndpointStall, AnOutageIsWarnedOfOnceAndOverASecondAfterItsEnd) {
  for (const bool stopped : {false, true}) {
    for (const int rails : {1, 2}) {
      for (const Nanos span : {1_s, 3_s, 10_s, 30_s}) {
        SCOPED_TRACE(std::string(stopped ? "stopped" : "dark") + ", rails " + std::to_string(rails) + ", " +
                     milliseconds(span));
        FabricOptions o = Net::quick();
        o.retransmit_backs_off = true;
        Net net(2, rails, o, with_exchange_limit(4_s));
        Pair p(net);
        ASSERT_NO_FATAL_FAILURE(p.open(2));
        net.pass(1_s);
        for (int c = 0; c < 2; ++c) {
          p.send(*p.connecting[static_cast<std::size_t>(c)], 4 << 20);
          p.receive(*p.accepted[static_cast<std::size_t>(c)], 4 << 20);
          p.send(*p.accepted[static_cast<std::size_t>(c)], 4 << 20);
          p.receive(*p.connecting[static_cast<std::size_t>(c)], 4 << 20);
        }
        net.pass(1_ms);
        const Warnings warnings;
        if (stopped) {
          net.fabric.freeze(1);
        } else {
          net.fabric.block(0, 1, kBlockAll);
        }
        net.pass(span);
        if (stopped) {
          net.fabric.thaw(1);
        } else {
          net.fabric.unblock(0, 1, kBlockAll);
        }
        ASSERT_NO_FATAL_FAILURE(p.expect_all(1_s));
        net.pass(500_ms);
        const std::ptrdiff_t observers = span < 2_s ? 0 : stopped ? 1 : 2;
        EXPECT_EQ(warnings.with("silent for 20"), observers);
        EXPECT_EQ(warnings.with("CANARY_SILENCE_LIMIT (60 s)"), observers);
        EXPECT_EQ(warnings.with("heard again after"), observers);
        EXPECT_EQ(warnings.lines.size(), static_cast<std::size_t>(observers) * 2) << warnings.lines.back();
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

TEST(EndpointStall, APeerWithoutPowerIsSilentAfterTheLimitAndTheTextNamesIt) {
  Net net(2, 2);
  Pair p(net);
  ASSERT_NO_FATAL_FAILURE(p.open());
  Half& receive = p.receive(*p.connecting[0], 100);
  net.kill(1, CrashKind::kSilent);
  net.pass(59_s);
  ASSERT_FALSE(receive.ticket.done());
  ASSERT_TRUE(net.until([&] { return receive.ticket.done(); }, 2_s));
  EXPECT_EQ(receive.ticket.code, CANARY_PEER_SILENT) << receive.ticket.status.to_string();
  EXPECT_TRUE(has(receive.ticket.status.text(), "CANARY_SILENCE_LIMIT (60 s)")) << receive.ticket.status.text();
}

}  // namespace
}  // namespace canarynet
