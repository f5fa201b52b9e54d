// Connections without a group, in virtual time: endpoints that meet by handles only, messages of every size, faults,
// deaths, misuse.
#include "base/log.h"
#include "engine/endpoint_link.h"
#include "sim/endpoint_test_util.h"
#include "sim/sim_test_util.h"
#include "sim/warnings_test_util.h"

namespace canarynet {
namespace {

using State = Connection::State;

constexpr std::uint64_t kSizes[] = {0, 1, 100, 8192, 64 * 1024, 600 * 1024, (1 << 20) + 3};

TEST(Endpoint, MessagesOfEverySizeArriveInBothDirectionsWhoeverCallsFirst) {
  for (const bool receive_first : {true, false}) {
    Net net(2, 2);
    Pair p(net);
    ASSERT_NO_FATAL_FAILURE(p.open());
    Connection &a = *p.connecting[0], &b = *p.accepted[0];
    for (const std::uint64_t bytes : kSizes) {
      if (receive_first) p.receive(b, bytes + 10);  // room to spare: the real length is told
      p.send(a, bytes);
      p.send(b, bytes);
      net.pass(1_ms);
      if (!receive_first) p.receive(b, bytes);
      p.receive(a, bytes);
    }
    p.expect_all(5_s);
    for (const Half& h : p.halves) {
      if (!h.sends && receive_first && h.end == &b.end) {
        EXPECT_EQ(h.ticket.bytes + 10, h.data.size());
      }
    }
  }
}

TEST(Endpoint, OneConnectionFillsAllRailsByTheirRates) {
  Net net(2, 2);
  for (int h = 0; h < 2; ++h) net.fabric.nic(h, 1) = NicOptions::link(50_us, BytesPerSec::from_mbit(250));
  Pair p(net);
  ASSERT_NO_FATAL_FAILURE(p.open());
  const auto stream = [&](int messages) {  // eight deep
    for (int i = 0; i < messages; ++i) {
      p.receive(*p.accepted[0], 1 << 20);
      p.send(*p.connecting[0], 1 << 20);
    }
  };
  stream(8);
  p.expect_all(5_s);
  const Nanos began = net.fabric.now();
  stream(32);
  p.expect_all(5_s);
  // 32 MiB at 1250 Mbit/s: 215 ms.
  EXPECT_LT((net.fabric.now() - began).seconds(), 0.215 / 0.85);
}

TEST(Endpoint, ConnectionsShareALinkAndAreOpenedAndClosedByTheHundreds) {
  Net net(2, 2);
  Pair p(net);
  for (int round = 0; round < 6; ++round) {
    ASSERT_NO_FATAL_FAILURE(p.open(50));
    EXPECT_EQ(net.at(0).links(), 1u);
    for (std::size_t i = 0; i < 50; ++i) {
      p.send(*p.connecting[i], 5000 * i);
      Connection& b = **std::find_if(p.accepted.begin(), p.accepted.end(),
                                     [&](const auto& c) { return c->end.flow == p.connecting[i]->end.flow; });
      p.receive(b, 5000 * i);
    }
    p.expect_all(5_s);
    for (std::size_t i = 0; i < 50; ++i) {
      ASSERT_NO_FATAL_FAILURE(p.close(round % 2, round % 2 == 0 ? *p.connecting[i] : *p.accepted[i]));
      ASSERT_NO_FATAL_FAILURE(p.close(1 - round % 2, round % 2 == 0 ? *p.accepted[i] : *p.connecting[i]));
    }
    p.connecting.clear();
    p.accepted.clear();
    p.halves.clear();
  }
  net.pass(8_s);  // a link that nobody uses goes
  EXPECT_EQ(net.at(0).links(), 0u);
  EXPECT_EQ(net.at(1).links(), 0u);
  ASSERT_NO_FATAL_FAILURE(p.open());  // and comes again
  p.send(*p.connecting[0], 100);
  p.receive(*p.accepted[0], 100);
  p.expect_all(1_s);
}

TEST(Endpoint, AConnectionClosedBeforeItWasAnsweredLeavesNothingAtThePeer) {
  for (const Nanos wait : {Nanos{}, 60_us, 150_us, 250_us, 350_us}) {
    Net net(2, 2);
    Pair p(net);
    Connection& c = p.connect();
    net.pass(wait);
    ASSERT_NO_FATAL_FAILURE(p.close(0, c));
    p.connecting.clear();
    net.pass(50_ms);
    while (Connection* got = p.accept()) {
      Half& h = p.receive(*got, 10);
      ASSERT_TRUE(net.until([&] { return h.ticket.done(); }, 10_ms));
      EXPECT_EQ(h.ticket.code, CANARY_CLOSED) << "after " << wait.count << " ns";
      ASSERT_NO_FATAL_FAILURE(p.close(1, *got));
    }
    p.accepted.clear();
    net.pass(6_s);
    EXPECT_EQ(net.at(0).links() + net.at(1).links(), 0u);
  }
}

TEST(Endpoint, BothEndsMayConnectToEachOtherAndToThemselves) {
  Net net(2, 2);
  Pair there(net, 0, 1), back(net, 1, 0), self(net, 0, 0);
  for (Pair* p : {&there, &back, &self}) p->connect();
  for (Pair* p : {&there, &back, &self}) {
    ASSERT_TRUE(net.until([&] { return p->connecting[0]->state == State::kUp; }, 2_s)) << "nobody has accepted yet";
    p->connecting.clear();
  }
}

TEST(Endpoint, LossDuplicatesReorderingAndFlippedBitsCostTimeOnly) {
  for (const bool stream : {false, true}) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + (stream ? ", streams" : ", packets"));
      FabricOptions o = Net::quick();
      o.seed = seed;
      o.stream = stream;
      o.bad_header_resets = false;
      o.retransmit_delay = 5_ms;
      Net net(2, 2, o);
      Pair p(net);
      for (int host = 0; host < 2; ++host) {
        for (int rail = 0; rail < 2; ++rail) {
          DirectionOptions& out = net.fabric.nic(host, rail).out;
          out.loss_ppm = 30'000;
          out.duplicate_ppm = 50'000;
          out.reorder_ppm = 50'000;
          out.corrupt_ppm = 20'000;
        }
      }
      ASSERT_NO_FATAL_FAILURE(p.open(3));
      Random r(seed);
      for (int i = 0; i < 60; ++i) {
        Connection& a = *p.connecting[r.below(3)];
        Connection& b = **std::find_if(p.accepted.begin(), p.accepted.end(),
                                       [&](const auto& c) { return c->end.flow == a.end.flow; });
        const bool back = r.below(3) == 0;
        Connection &from = back ? b : a, &to = back ? a : b;
        const std::uint64_t bytes = kSizes[r.below(std::size(kSizes))];
        const bool first = r.below(2) == 0;
        if (first) p.receive(to, bytes + r.below(100));
        p.send(from, bytes);
        if (r.below(3) == 0) net.pass(Nanos{static_cast<std::int64_t>(r.below(5'000'000))});
        if (!first) p.receive(to, bytes);
      }
      p.expect_all(60_s);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Endpoint, ADeadNicCostsAStallAndItsReturnIsUsed) {
  for (const NicDeath death : {NicDeath::kSilent, NicDeath::kLocal, NicDeath::kBothEnds}) {
    Net net(2, 2);
    Pair p(net);
    ASSERT_NO_FATAL_FAILURE(p.open());
    const auto stream = [&](int messages) {
      for (int i = 0; i < messages; ++i) {
        p.receive(*p.accepted[0], 1 << 20);
        p.send(*p.connecting[0], 1 << 20);
      }
    };
    stream(8);
    net.pass(10_ms);
    net.fabric.nic_down(1, 0, death);
    p.expect_all(1_s);
    net.pass(500_ms);
    net.fabric.nic_up(1, 0);
    net.pass(2_s);
    const auto before = net.fabric.nic_counters(0, 0).tx_bytes;
    stream(16);
    p.expect_all(1_s);
    EXPECT_GT(net.fabric.nic_counters(0, 0).tx_bytes - before, 4u << 20);
  }
}

// Each return of a link is a lane from another port.
TEST(Endpoint, APeerWhoseLinksFlapForLongIsStillToldInOneLine) {
  Net net(2, 2);
  Pair p(net);
  ASSERT_NO_FATAL_FAILURE(p.open());
  for (int flap = 0; flap < 40; ++flap) {
    net.fabric.nic_down(0, flap % 2, NicDeath::kLocal);
    net.pass(300_ms);
    net.fabric.nic_up(0, flap % 2);
    net.pass(700_ms);
  }
  Half& receive = p.receive(*p.accepted[0], 1000);
  net.kill(0, CrashKind::kHangup);
  ASSERT_TRUE(net.until([&] { return receive.ticket.done(); }, 3_s));
  const std::string text = receive.ticket.status.to_string();
  EXPECT_NE(text.find("1 messages with 1000 bytes outstanding"), std::string::npos) << text;
  EXPECT_LT(text.size(), 400u) << text;
}

TEST(Endpoint, ADeadPeerIsNamedWithItsLinksAndWhatWasOutstanding) {
  for (const CrashKind kind : {CrashKind::kHangup, CrashKind::kSilent}) {
    for (const bool dialler_dies : {true, false}) {
      Net net(2, 2, Net::quick(), impatient());
      Pair p(net);
      ASSERT_NO_FATAL_FAILURE(p.open(2));
      Connection& alive = dialler_dies ? *p.accepted[0] : *p.connecting[0];
      Half& send = p.send(alive, 8 << 20);
      Half& receive = p.receive(alive, 1000);
      net.pass(5_ms);
      net.kill(dialler_dies ? 0 : 1, kind);
      ASSERT_TRUE(net.until([&] { return send.ticket.done() && receive.ticket.done(); }, 1500_ms));
      for (const Half* h : {&send, &receive}) {
        const std::string text = h->ticket.status.to_string();
        EXPECT_EQ(h->ticket.code, kind == CrashKind::kHangup ? CANARY_PEER_DIED : CANARY_PEER_SILENT) << text;
        EXPECT_NE(text.find(dialler_dies ? "host-0 (pid 1000) " : "host-1 (pid 1001) "), std::string::npos) << text;
        EXPECT_NE(text.find("links "), std::string::npos) << text;
        EXPECT_NE(text.find("2 messages with "), std::string::npos) << text;
        EXPECT_NE(text.find("last heard "), std::string::npos) << text;
        EXPECT_LT(text.find(" outstanding"), text.find("; at ")) << "what is long comes last: " << text;
      }
      Half& later = p.send(alive, 10);
      ASSERT_TRUE(net.until([&] { return later.ticket.done(); }, 10_ms));
      EXPECT_EQ(later.ticket.code, send.ticket.code);
      net.pass(200_ms);
      ASSERT_NO_FATAL_FAILURE(p.close(dialler_dies ? 1 : 0, alive));
    }
  }
}

TEST(Endpoint, ClosingIsBoundedFreesTheBuffersAndIsToldToThePeer) {
  for (const int closer : {0, 1}) {
    Net net(2, 2);
    Pair p(net);
    ASSERT_NO_FATAL_FAILURE(p.open());
    Connection& mine = closer == 0 ? *p.connecting[0] : *p.accepted[0];
    Connection& other = closer == 0 ? *p.accepted[0] : *p.connecting[0];
    // Halfway in both directions, and one on either side that has not begun.
    std::vector<Half*> pending{&p.send(mine, 8 << 20), &p.send(mine, 500'000), &p.receive(mine, 8 << 20)};
    Half& incoming = p.receive(other, 8 << 20);
    p.send(other, 8 << 20);
    Half& no_room = p.send(other, 100'000);
    net.pass(10_ms);
    ASSERT_NO_FATAL_FAILURE(p.close(closer, mine));
    for (Half* h : pending) {
      EXPECT_EQ(h->ticket.code, CANARY_CLOSED) << h->ticket.status.to_string();
      h->data.assign(h->data.size(), std::byte{0x55});
    }
    ASSERT_TRUE(net.until([&] { return incoming.ticket.done() && no_room.ticket.done(); }, 100_ms));
    EXPECT_EQ(incoming.ticket.code, CANARY_CLOSED) << incoming.ticket.status.to_string();
    EXPECT_NE(incoming.ticket.status.text().find("has closed the connection"), std::string::npos);
    for (const Half* h : pending) {
      for (const std::byte b : h->data) ASSERT_EQ(b, std::byte{0x55}) << "written after its request had ended";
    }
  }
}

TEST(Endpoint, WhatWasDoneBeforeACloseIsThereAfterIt) {
  Net net(2, 2);
  Pair p(net);
  ASSERT_NO_FATAL_FAILURE(p.open());
  Connection &a = *p.connecting[0], &b = *p.accepted[0];
  std::vector<Half*> sends;
  for (int i = 0; i < 5; ++i) sends.push_back(&p.send(a, 3000 * static_cast<std::uint64_t>(i)));
  ASSERT_TRUE(net.until(
      [&] { return std::all_of(sends.begin(), sends.end(), [](Half* h) { return h->ticket.done(); }); }, 1_s));
  ASSERT_NO_FATAL_FAILURE(p.close(0, a));
  net.pass(100_ms);
  net.at(0).leave(net.fabric.now());  // the whole process, even
  net.pass(300_ms);
  std::vector<Half*> receives;
  for (int i = 0; i < 6; ++i) receives.push_back(&p.receive(b, 20'000));
  net.pass(10_ms);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(receives[static_cast<std::size_t>(i)]->ticket.code, CANARY_OK);
  EXPECT_EQ(receives[5]->ticket.code, CANARY_CLOSED);
  p.expect_bytes();
}

TEST(Endpoint, AMessageLongerThanItsReceiveEndsTheConnectionWithBothLengths) {
  for (const std::uint64_t bytes : {std::uint64_t{2000}, std::uint64_t{1} << 20}) {
    for (const bool receive_first : {true, false}) {
      Net net(2, 2);
      Pair p(net);
      ASSERT_NO_FATAL_FAILURE(p.open(2));
      Connection& a = *p.connecting[0];
      Connection& b = **std::find_if(p.accepted.begin(), p.accepted.end(),
                                     [&](const auto& c) { return c->end.flow == a.end.flow; });
      Half* receive = receive_first ? &p.receive(b, 1999) : nullptr;
      Half& send = p.send(a, bytes);
      Half& behind = p.receive(a, 10);
      net.pass(5_ms);
      if (!receive_first) receive = &p.receive(b, 1999);
      ASSERT_TRUE(net.until([&] { return receive->ticket.done() && behind.ticket.done() && send.ticket.done(); }, 1_s));
      for (const Half* h : {const_cast<const Half*>(receive), const_cast<const Half*>(&behind)}) {
        EXPECT_EQ(h->ticket.code, CANARY_MISMATCH);
        EXPECT_NE(
            h->ticket.status.text().find(std::to_string(bytes) + " bytes were sent, the receive has room for 1999"),
            std::string::npos)
            << h->ticket.status.text();
      }
      // Another connection on the same link lives on.
      Connection& c = *p.connecting[1];
      Half& fine = p.send(c, 100);
      ASSERT_TRUE(net.until([&] { return fine.ticket.done(); }, 1_s));
      EXPECT_EQ(fine.ticket.code, CANARY_OK);
    }
  }
}

TEST(Endpoint, GroupedReceivesAreFilledByTagAndEqualTagsInOrder) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    FabricOptions o = Net::quick();
    o.seed = seed;
    o.stream = false;
    Net net(2, 2, o);
    for (int rail = 0; rail < 2; ++rail) net.fabric.nic(0, rail).out.reorder_ppm = 300'000;
    Pair p(net);
    ASSERT_NO_FATAL_FAILURE(p.open());
    Connection &a = *p.connecting[0], &b = *p.accepted[0];
    Random r(seed), priorities(seed + 1000);
    struct Expected {
      Half* half;
      std::uint64_t seed, bytes;
    };
    std::vector<Expected> expected;
    for (int round = 0; round < 8; ++round) {
      std::vector<std::pair<std::uint64_t, std::uint32_t>> entries;
      const std::uint64_t n = 1 + r.below(6);
      for (std::uint64_t i = 0; i < n; ++i) entries.push_back({200'000, static_cast<std::uint32_t>(r.below(3))});
      // The sends: the same tags in another order.
      std::vector<std::uint32_t> tags;
      for (const auto& e : entries) tags.push_back(e.second);
      for (std::size_t i = tags.size(); i > 1; --i) std::swap(tags[i - 1], tags[r.below(i)]);
      const bool receive_first = r.below(2) == 0;
      std::vector<Half*> group;
      if (receive_first) group = p.receive_group(b, entries);
      std::vector<std::pair<std::uint64_t, std::uint64_t>> sent;  // seed, bytes
      for (const std::uint32_t tag : tags) {
        const std::uint64_t s = r.next() | 1, bytes = r.below(2) == 0 ? r.below(3000) : r.below(200'000);
        p.priority = priorities.below(3) == 0 ? CANARY_PRIORITY_URGENT : CANARY_PRIORITY_NORMAL;
        p.send(a, bytes, tag, s);
        sent.push_back({s, bytes});
      }
      if (r.below(2) == 0) net.pass(3_ms);
      if (!receive_first) group = p.receive_group(b, entries);
      std::vector<bool> used(group.size());
      for (std::size_t i = 0; i < tags.size(); ++i) {
        for (std::size_t g = 0; g < group.size(); ++g) {
          const bool fits = !used[g] && (group.size() == 1 || entries[g].second == tags[i]);
          if (!fits) continue;
          used[g] = true;
          expected.push_back({group[g], sent[i].first, sent[i].second});
          group[g]->seed = sent[i].first;
          break;
        }
      }
    }
    p.expect_all(20_s);
    for (const Expected& e : expected) EXPECT_EQ(e.half->ticket.bytes, e.bytes);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Endpoint, AGroupWithoutTheMessagesTagEndsTheConnection) {
  Net net(2, 1);
  Pair p(net);
  ASSERT_NO_FATAL_FAILURE(p.open());
  const auto group = p.receive_group(*p.accepted[0], {{100, 1}, {100, 2}});
  p.send(*p.connecting[0], 10, 3);
  ASSERT_TRUE(net.until([&] { return group[0]->ticket.done() && group[1]->ticket.done(); }, 1_s));
  EXPECT_EQ(group[0]->ticket.code, CANARY_MISMATCH);
  EXPECT_NE(group[0]->ticket.status.text().find("tag 3"), std::string::npos) << group[0]->ticket.status.text();
}

TEST(Endpoint, TwoHundredMessagesAheadOfTheirReceivesNeedNoMoreThanTheirBudget) {
  Settings s = Settings::defaults();
  s.eager_bytes = Bytes{16384};
  Net net(2, 2, Net::quick(), s);
  Pair p(net);
  ASSERT_NO_FATAL_FAILURE(p.open(2));
  for (int i = 0; i < 200; ++i) p.send(*p.connecting[0], static_cast<std::uint64_t>(i * 50));
  net.pass(20_ms);
  // The other connection is not stuck behind.
  Connection& other = **std::find_if(p.accepted.begin(), p.accepted.end(),
                                     [&](const auto& c) { return c->end.flow == p.connecting[1]->end.flow; });
  Half& through = p.send(*p.connecting[1], 500'000);
  p.receive(other, 500'000);
  ASSERT_TRUE(net.until([&] { return through.ticket.done(); }, 100_ms));
  Connection& slow = &other == p.accepted[0].get() ? *p.accepted[1] : *p.accepted[0];
  for (int i = 0; i < 200; ++i) p.receive(slow, static_cast<std::uint64_t>(i * 50));
  p.expect_all(5_s);
}

// The acceptor may have a place for the first message before the dialler hears that it was accepted.
TEST(Endpoint, ACreditThatOvertakesTheAnswerToAConnectCounts) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    FabricOptions o = Net::quick();
    o.seed = seed;
    o.stream = false;
    o.nic.out.loss_ppm = 200'000;
    Net net(2, 2, o);
    Pair pair(net);
    Connection& dialled = pair.connect();
    Connection* accepted = nullptr;
    ASSERT_TRUE(net.until([&] { return (accepted = pair.accept()) != nullptr; }, 5_s));
    pair.receive(*accepted, 1 << 20);
    ASSERT_TRUE(net.until([&] { return dialled.state == Connection::State::kUp; }, 5_s));
    pair.send(dialled, 1 << 20);
    ASSERT_NO_FATAL_FAILURE(pair.expect_all(5_s));
  }
}

TEST(Endpoint, AHandleOfAListenerThatHasGoneIsRefused) {
  Net net(2, 1);
  Pair p(net);
  ASSERT_NO_FATAL_FAILURE(p.open());
  Connection& never_accepted = p.connect();
  ASSERT_TRUE(net.until([&] { return never_accepted.state == State::kUp; }, 1_s));
  Half& waits = p.receive(never_accepted, 10);
  ASSERT_NO_FATAL_FAILURE(p.close_listener());
  ASSERT_TRUE(net.until([&] { return waits.ticket.done(); }, 1_s));
  EXPECT_EQ(waits.ticket.code, CANARY_CLOSED);
  Connection& late = p.connect();
  ASSERT_TRUE(net.until([&] { return late.state == State::kFailed; }, 1_s));
  EXPECT_EQ(late.failure.code(), CANARY_CLOSED);
  EXPECT_NE(late.failure.text().find("does not listen"), std::string::npos) << late.failure.text();
}

TEST(Endpoint, APeerThatDoesNotAnswerEndsTheConnectInTime) {
  Settings s = Settings::defaults();
  s.join_timeout = 2_s;
  Net net(2, 1, Net::quick(), s);
  Pair p(net);
  net.kill(1, CrashKind::kSilent);
  Connection& c = p.connect();
  ASSERT_TRUE(net.until([&] { return c.state == State::kFailed; }, 2500_ms));
  EXPECT_EQ(c.failure.code(), CANARY_NO_PATH);
  EXPECT_NE(c.failure.text().find(decode_handle(p.handle).value().text()), std::string::npos) << c.failure.text();
}

TEST(Endpoint, AConnectToAProcessThatHasEndedFailsWithinItsSilence) {
  Net net(2, 2);
  Pair p(net);
  net.kill(1, CrashKind::kHangup);
  Connection& c = p.connect();
  ASSERT_TRUE(net.until([&] { return c.state == State::kFailed; }, 1500_ms));
  EXPECT_EQ(c.failure.code(), CANARY_PEER_DIED);
  EXPECT_NE(c.failure.text().find("refuses every connection"), std::string::npos) << c.failure.text();
  EXPECT_NE(c.failure.text().find("never heard"), std::string::npos) << c.failure.text();
}

TEST(Endpoint, AStallIsToldWithWhatItWaitsForAndSeldomer) {
  Settings s = Settings::defaults();
  s.stall_warning = 2_s;
  Net net(2, 1, Net::quick(), s);
  Pair p(net);
  ASSERT_NO_FATAL_FAILURE(p.open(3));
  const Warnings warnings;
  for (int c = 0; c < 2; ++c) p.send(*p.connecting[static_cast<std::size_t>(c)], 1 << 20);
  net.pass(1900_ms);
  EXPECT_TRUE(warnings.lines.empty()) << warnings.lines[0];
  net.pass(3_s);  // at 2 s and at 4 s; the next one at 8 s
  ASSERT_EQ(warnings.lines.size(), 2u);
  const std::string text = warnings.lines[0];
  for (const char* part : {"send #1 of 1048576 bytes (0 done)", "the peer has not posted its receive",
                           "host-1 (pid 1001)", "links ", "1 more connections"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
  for (int c = 0; c < 2; ++c) {
    for (const auto& a : p.accepted) {
      if (a->end.flow == p.connecting[static_cast<std::size_t>(c)]->end.flow) p.receive(*a, 1 << 20);
    }
  }
  p.expect_all(5_s);
  net.pass(10_s);
  EXPECT_EQ(warnings.lines.size(), 2u) << "an idle connection is nothing unusual";
  p.receive(*p.accepted[0], 10);
  net.pass(2100_ms);
  ASSERT_EQ(warnings.lines.size(), 3u);
  EXPECT_NE(warnings.lines[2].find("receive #"), std::string::npos) << warnings.lines[2];
  EXPECT_NE(warnings.lines[2].find("the peer has not sent it"), std::string::npos) << warnings.lines[2];
}

TEST(Endpoint, NoNetworkInCommonIsTold) {
  Net net(2, 1);
  Pair p(net);
  auto h = decode_handle(p.handle).value();
  h.rails = {Address::ipv4(192, 168, 7, 1, 24, 4000)};
  encode(h, p.handle);
  Connection& c = p.connect();
  ASSERT_TRUE(net.until([&] { return c.state == State::kFailed; }, 10_ms));
  EXPECT_EQ(c.failure.code(), CANARY_UNREACHABLE);
  EXPECT_NE(c.failure.text().find("192.168.7.1"), std::string::npos) << c.failure.text();
}

bool say_hello(Lane& lane, const wire::HelloPayload& hello, Nanos now) {
  wire::Header h;
  h.kind = wire::Kind::kHello;
  h.payload_bytes = sizeof hello;
  h.payload_crc32 = wire::payload_crc(&hello, sizeof hello);
  wire::seal(h);
  if (!lane.send(h, reinterpret_cast<const std::byte*>(&hello), 0)) return false;
  lane.flush(now);
  return true;
}

TEST(Endpoint, AStrangerIsTurnedAwayAndDisturbsNobody) {
  const Warnings warnings;
  Net net(3, 1);
  Pair p(net);
  ASSERT_NO_FATAL_FAILURE(p.open());
  net.endpoints[2].reset();
  TestHost stranger(net.fabric, 2);
  const Address to = decode_handle(p.handle).value().rails[0];
  const auto say = [&](const wire::HelloPayload& hello) {
    Lane& lane = stranger.dial(0, to);
    const int downs = stranger.downs;
    net.until(
        [&] {
          stranger.poll();
          return lane.up();
        },
        100_ms);
    ASSERT_TRUE(say_hello(lane, hello, net.fabric.now()));
    ASSERT_TRUE(net.until(
        [&] {
          stranger.poll();
          return stranger.downs > downs;
        },
        1_s))
        << "it was not turned away";
  };
  wire::HelloPayload hello;
  hello.purpose = wire::kHelloEndpoint;
  hello.paths = 1;
  hello.job = decode_handle(p.handle).value().token ^ 1;  // a guess
  ASSERT_NO_FATAL_FAILURE(say(hello));
  hello.job ^= 1;
  hello.purpose = wire::kHelloChannel;
  ASSERT_NO_FATAL_FAILURE(say(hello));
  hello.purpose = wire::kHelloEndpoint;
  hello.paths = 1'000'000;
  ASSERT_NO_FATAL_FAILURE(say(hello));
  for (std::uint16_t wire::HelloPayload::*number :
       {&wire::HelloPayload::peer_rail, &wire::HelloPayload::rail, &wire::HelloPayload::lane}) {
    hello = {};
    hello.purpose = wire::kHelloEndpoint;
    hello.job = decode_handle(p.handle).value().token;
    hello.paths = 1;
    hello.*number = 16;
    ASSERT_NO_FATAL_FAILURE(say(hello));
  }
  EXPECT_EQ(net.at(1).links(), 1u);
  EXPECT_EQ(warnings.lines.size(), 1u) << "one in ten seconds: " << warnings.lines.back();
  p.send(*p.connecting[0], 100'000);
  p.receive(*p.accepted[0], 100'000);
  p.expect_all(1_s);
}

TEST(Endpoint, PathsThatNeverComeCostNoWindow) {
  Net net(3, 1);
  Pair p(net);
  net.endpoints[2].reset();
  TestHost stranger(net.fabric, 2);
  const EndpointHandle handle = decode_handle(p.handle).value();
  Lane& lane = stranger.dial(0, handle.rails[0]);
  const auto poll_until = [&](const std::function<bool()>& condition) {
    return net.until([&] { return stranger.poll(), condition(); }, 100_ms);
  };
  ASSERT_TRUE(poll_until([&] { return lane.up(); }));
  wire::HelloPayload hello;
  hello.purpose = wire::kHelloEndpoint;
  hello.job = handle.token;
  hello.paths = 256;
  ASSERT_TRUE(say_hello(lane, hello, net.fabric.now()));
  ASSERT_TRUE(poll_until([&] { return net.at(1).links() == 1; }));
  int paths = 0, windows = 0;
  net.at(1).for_each_link([&](const LinkView& link) {
    ++paths;
    windows += link.path.in_flight.reserved();
  });
  EXPECT_EQ(paths, 256);
  EXPECT_EQ(windows, 1);
}

TEST(Endpoint, LinksBeyondTheLimitAreTurnedAwayUntilOneEnds) {
  const Warnings warnings;
  Net net(4, 2, Net::quick(), Settings::defaults(), 2);
  Pair a(net, 0), b(net, 2), c(net, 3);
  ASSERT_NO_FATAL_FAILURE(a.open(3));  // many connections, one link
  ASSERT_NO_FATAL_FAILURE(b.open());
  Connection& refused = c.connect();
  ASSERT_TRUE(net.until([&] { return refused.state == State::kFailed; }, 20_s));
  EXPECT_EQ(net.at(1).links(), 2u);
  const auto told = [](const std::string& line) {
    return line.find("a stranger (2 peers have a link to this endpoint already) was turned away") != std::string::npos;
  };
  EXPECT_EQ(std::count_if(warnings.lines.begin(), warnings.lines.end(), told), 1) << "once in ten seconds";
  for (Pair* p : {&a, &b}) {
    p->send(*p->connecting[0], 100'000);
    p->receive(*p->accepted[0], 100'000);
    p->expect_all(1_s);
  }
  net.kill(2, CrashKind::kHangup);
  ASSERT_TRUE(net.until([&] { return !b.accepted[0]->end.failure.ok(); }, 5_s));
  ASSERT_NO_FATAL_FAILURE(c.close(3, refused));
  c.connecting.clear();
  ASSERT_NO_FATAL_FAILURE(c.open());
  c.send(*c.connecting[0], 100'000);
  c.receive(*c.accepted[0], 100'000);
  c.expect_all(1_s);
}

TEST(Endpoint, AFrozenPeerThatComesBackFindsItsConnectionsEnded) {
  Net net(2, 2, Net::quick(), impatient());
  Pair p(net);
  ASSERT_NO_FATAL_FAILURE(p.open());
  Half& first = p.receive(*p.accepted[0], 100);
  net.fabric.freeze(0);
  ASSERT_TRUE(net.until([&] { return first.ticket.done(); }, 1500_ms));
  EXPECT_EQ(first.ticket.code, CANARY_PEER_SILENT);
  net.fabric.thaw(0);
  Half& second = p.send(*p.connecting[0], 100);
  ASSERT_TRUE(net.until([&] { return second.ticket.done(); }, 2_s));
  EXPECT_NE(second.ticket.code, CANARY_OK);
  // A new connection works.
  ASSERT_NO_FATAL_FAILURE(p.close(0, *p.connecting[0]));
  ASSERT_NO_FATAL_FAILURE(p.close(1, *p.accepted[0]));
  p.connecting.clear();
  p.accepted.clear();
  p.halves.clear();
  ASSERT_NO_FATAL_FAILURE(p.open());
  p.send(*p.connecting[0], 100'000);
  p.receive(*p.accepted[0], 100'000);
  p.expect_all(1_s);
}

TEST(EndpointHandle, IsReadBackAndForeignOrCutBytesAreNamed) {
  EndpointHandle h;
  h.token = 0x0123456789abcdef;
  h.listener = 7;
  for (int i = 0; i < 20; ++i)
    h.rails.push_back(Address::ipv4(10, 0, static_cast<std::uint8_t>(i), 1, 24, static_cast<std::uint16_t>(4000 + i)));
  std::array<std::byte, kHandleBytes> bytes{};
  EXPECT_EQ(encode(h, bytes), 16u);
  auto back = decode_handle(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back.value().token, h.token);
  EXPECT_EQ(back.value().listener, 7u);
  ASSERT_EQ(back.value().rails.size(), 16u);
  EXPECT_EQ(back.value().rails[15], h.rails[15]);

  h.rails = {Address::parse("[fd00::1]:5000").value(), Address::parse("10.1.2.3/16:6000").value()};
  EXPECT_EQ(encode(h, bytes), 2u);
  EXPECT_EQ(decode_handle(bytes).value().rails, h.rails);

  const auto refused = [&](std::size_t at, int value, canary_status code, const char* word) {
    auto broken = bytes;
    broken[at] = static_cast<std::byte>(value);
    const auto got = decode_handle(broken);
    ASSERT_FALSE(got.ok()) << word;
    EXPECT_EQ(got.status().code(), code);
    EXPECT_NE(got.status().text().find(word), std::string::npos) << got.status().text();
  };
  refused(0, 0x42, CANARY_INVALID_ARGUMENT, "none of Canary's");
  refused(2, 9, CANARY_VERSION, "version 9");
  refused(3, 0, CANARY_INVALID_ARGUMENT, "0 rails");
  refused(3, 17, CANARY_INVALID_ARGUMENT, "17 rails");
  refused(3, 1, CANARY_INVALID_ARGUMENT, "something follows");
  refused(16, 40, CANARY_INVALID_ARGUMENT, "no such subnet");
  refused(127, 1, CANARY_INVALID_ARGUMENT, "something follows");
  const std::array<std::byte, kHandleBytes> zero{};
  EXPECT_FALSE(decode_handle(zero).ok());
}

}  // namespace
}  // namespace canarynet
