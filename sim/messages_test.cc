// Send and receive in a group, in virtual time: every size, both orders of posting, faults, deaths, and messages that
// do not fit together.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <map>
#include <tuple>

#include "base/random.h"
#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

constexpr std::uint64_t kSizes[] = {0, 1, 100, 8192, 8193, 65'536, 600 * 1024, (1 << 20) + 3};

// The bytes of a message follow from its sender, its receiver, and its number.
void fill(std::vector<std::byte>* data, int from, int to, std::uint64_t k) {
  Random r(static_cast<std::uint64_t>(from) << 40 | static_cast<std::uint64_t>(to) << 32 | k);
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < data->size(); ++i) {
    if (i % 8 == 0) word = r.next();
    (*data)[i] = static_cast<std::byte>(word >> (i % 8 * 8));
  }
}

struct Half {
  std::vector<std::byte> data;
  OpTicket ticket;
  bool sends = false;
  int from = 0, to = 0;
  std::uint64_t k = 0;
};

// Sends and receives of a cluster's world; keeps their memory.
class Traffic {
 public:
  explicit Traffic(Cluster& cluster) : cluster_(cluster) {}

  Half& send(int from, int to, std::uint64_t bytes) { return post(from, to, bytes, true, CANARY_U8); }
  Half& receive(int to, int from, std::uint64_t bytes) { return post(from, to, bytes, false, CANARY_U8); }
  Half& post(int from, int to, std::uint64_t bytes, bool sends, DataType type) {
    Half& h = halves_.emplace_back();
    h.from = from;
    h.to = to;
    h.k = count_[{from, to, sends}]++;
    h.data.resize(bytes, std::byte{0xEE});
    if (sends) fill(&h.data, from, to, h.k);
    h.sends = sends;
    const std::uint64_t count = bytes / size_of(type);
    const port::Terms terms{priority, {}};
    if (sends) {
      cluster_.send(cluster_.world(from), to, h.data.data(), count, &h.ticket, type, terms);
    } else {
      cluster_.receive(cluster_.world(to), from, h.data.data(), count, &h.ticket, type, terms);
    }
    return h;
  }
  bool all_done() const {
    return std::all_of(halves_.begin(), halves_.end(), [](const Half& h) { return h.ticket.done(); });
  }
  void expect_exact(Nanos limit = 20_s) {
    ASSERT_TRUE(cluster_.run_until([this] { return all_done(); }, limit)) << "messages did not end";
    for (const Half& h : halves_) {
      ASSERT_EQ(h.ticket.code, CANARY_OK) << h.ticket.status.to_string();
      if (h.sends) continue;
      std::vector<std::byte> expected(h.data.size());
      fill(&expected, h.from, h.to, h.k);
      ASSERT_EQ(h.ticket.bytes, h.data.size());
      ASSERT_TRUE(h.data == expected) << h.from << " to " << h.to << ", message " << h.k << " of " << h.data.size();
    }
  }
  std::deque<Half>& halves() { return halves_; }
  canary_priority priority = CANARY_PRIORITY_NORMAL;  // for messages posted from now on

 private:
  Cluster& cluster_;
  std::deque<Half> halves_;
  std::map<std::tuple<int, int, bool>, std::uint64_t> count_;
};

class GroupMessages : public testing::TestWithParam<int> {};  // ranks per host

TEST_P(GroupMessages, OfEverySizeArriveWhoeverCallsFirst) {
  for (const bool receive_first : {true, false}) {
    Cluster c(flat_cluster(2, 2, GetParam()));
    ASSERT_TRUE(c.join());
    Traffic t(c);
    const int last = c.ranks() - 1;
    for (const std::uint64_t bytes : kSizes) {
      if (receive_first) t.receive(last, 0, bytes);
      t.send(0, last, bytes);
      t.send(last, 0, bytes);
      c.run_for(300_us);
      if (!receive_first) t.receive(last, 0, bytes);
      t.receive(0, last, bytes);
    }
    t.expect_exact();
  }
}

TEST_P(GroupMessages, BetweenAllPairsAndOneselfBesideCollectives) {
  Cluster c(flat_cluster(2, 2, GetParam()));
  ASSERT_TRUE(c.join());
  Traffic t(c);
  oracle::Shape shape;
  shape.ranks = c.ranks();
  shape.count = 100'000;
  AllRanks before(c, shape), between(c, shape), after(c, shape);
  before.submit_all();
  for (int a = 0; a < c.ranks(); ++a) {
    for (int b = 0; b < c.ranks(); ++b) {
      for (const std::uint64_t bytes : {std::uint64_t{40'000}, std::uint64_t{0}, std::uint64_t{300'000}}) {
        if ((a + b) % 2 == 0) t.send(a, b, bytes);
        t.receive(b, a, bytes);
        if ((a + b) % 2 != 0) t.send(a, b, bytes);
      }
      // Ranks call the next collective after different messages, which disturbs neither.
      if (b == a) between.submit(a);
    }
  }
  after.submit_all();
  t.expect_exact();
  before.expect_exact();
  between.expect_exact();
  after.expect_exact();
}

INSTANTIATE_TEST_SUITE_P(RanksPerHost, GroupMessages, testing::Values(1, 4));

TEST(GroupMessages, ASenderRunsAheadBy256KiBWhateverOperationsMay) {
  Cluster c(flat_cluster(2, 2));
  ASSERT_TRUE(c.join());
  Traffic t(c);
  for (int i = 0; i < 100; ++i) t.send(0, 1, 4096);
  c.run_for(100_ms);
  const auto done = [](const Half& h) { return h.ticket.done(); };
  EXPECT_EQ(std::count_if(t.halves().begin(), t.halves().end(), done), 256 / 4);
  for (int i = 0; i < 100; ++i) t.receive(1, 0, 4096);
  t.expect_exact();
}

TEST(GroupMessages, AHundredDeepInBothDirectionsNeedNoOrderAmongPairs) {
  Cluster c(flat_cluster(2, 2));
  ASSERT_TRUE(c.join());
  Traffic t(c);
  // All sends come before all receives on both sides, and exceed the eager budget.
  for (int i = 0; i < 100; ++i) {
    t.send(0, 1, 60'000);
    t.send(1, 0, 60'000);
  }
  c.run_for(5_ms);
  for (int i = 0; i < 100; ++i) {
    t.receive(0, 1, 60'000);
    t.receive(1, 0, 60'000);
  }
  t.expect_exact();
}

TEST(GroupMessages, UseAllRails) {
  Cluster c(flat_cluster(2, 2));
  ASSERT_TRUE(c.join());
  Traffic t(c);
  std::uint64_t before[2] = {};
  // The first message finds out what the lanes carry, partly with probes.
  for (int i = 0; i < 2; ++i) {
    for (int r = 0; r < 2; ++r) before[r] = c.fabric().nic_counters(0, r).tx_bytes;
    t.send(0, 1, 16 << 20);
    t.receive(1, 0, 16 << 20);
    t.expect_exact();
    const auto used = [&](int r) { return c.fabric().nic_counters(0, r).tx_bytes - before[r]; };
    EXPECT_GT(std::min(used(0), used(1)) * 2, std::max(used(0), used(1))) << used(0) << " and " << used(1);
  }
  const auto a = c.fabric().nic_counters(0, 0).tx_bytes - before[0],
             b = c.fabric().nic_counters(0, 1).tx_bytes - before[1];
  EXPECT_GT(std::min(a, b) * 10, std::max(a, b) * 8) << a << " and " << b;
  EXPECT_LT(a + b, (16u << 20) * 102 / 100) << "sent more than once";
}

// A message sent ahead of its receive is charged until that is posted: nothing goes only to be refused, and the room
// comes back every time.
TEST(GroupMessages, SentAheadKeepToTheirBudgetAgainAndAgain) {
  Cluster c(flat_cluster(2, 2));
  ASSERT_TRUE(c.join());
  Traffic t(c);
  for (int round = 0; round < 20; ++round) {
    std::vector<Half*> ahead;
    for (int i = 0; i < 8; ++i) ahead.push_back(&t.send(0, 1, 10'000));  // a third of the budget
    const auto all_done = [&] {
      return std::all_of(ahead.begin(), ahead.end(), [](Half* h) { return h->ticket.done(); });
    };
    ASSERT_TRUE(c.run_until(all_done, 50_ms)) << "no room is left in round " << round;
    for (int i = 0; i < 8; ++i) t.receive(1, 0, 10'000);
    t.expect_exact();
  }
  for (int i = 0; i < 100; ++i) t.send(0, 1, 10'000);
  c.run_for(100_ms);
  EXPECT_FALSE(t.all_done());
  EXPECT_EQ(c.engine(0).rail_stats(0).retransmits + c.engine(0).rail_stats(1).retransmits, 0u)
      << "refused and sent again";
  for (int i = 0; i < 100; ++i) t.receive(1, 0, 10'000);
  t.expect_exact();
}

// A rail turns so slow that its pieces are sent again over the other. The message is done; the rail crawls on.
TEST(GroupMessages, NothingIsWrittenOnceAMessageIsDone) {
  for (int i = 0; i < 28; ++i) {
    const int rate = std::array{800, 600, 400, 300, 250, 200, 100}[static_cast<std::size_t>(i % 7)];
    const Nanos moment = 500_us * (1 + i / 7);  // at some of them a piece is on its way where it will crawl
    ClusterOptions o = flat_cluster(2, 2);
    o.fabric.nic = NicOptions::link(50_us, BytesPerSec::from_mbit(1000));
    o.settings.piece_bytes = Bytes{64 << 10};
    Cluster c(o);
    ASSERT_TRUE(c.join());
    Traffic t(c);
    t.receive(1, 0, 4 << 20);
    t.send(0, 1, 4 << 20);
    t.expect_exact();
    Half& received = t.receive(1, 0, 4 << 20);
    t.send(0, 1, 4 << 20);
    c.run_for(moment);
    ASSERT_FALSE(received.ticket.done());
    c.fabric().nic(0, 0).out.rate = BytesPerSec{rate * 1000};
    t.expect_exact();
    std::fill(received.data.begin(), received.data.end(), std::byte{0x33});
    c.run_for(2_s);
    const bool untouched =
        std::all_of(received.data.begin(), received.data.end(), [](std::byte b) { return b == std::byte{0x33}; });
    ASSERT_TRUE(untouched) << rate << " kB/s";
  }
}

TEST(GroupMessages, LossDuplicatesReorderingAndFlippedBitsCostTimeOnly) {
  for (const bool stream : {false, true}) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + (stream ? ", streams" : ", packets"));
      ClusterOptions o = flat_cluster(2, 2, seed % 2 == 0 ? 4 : 1);
      o.fabric.seed = seed;
      o.fabric.stream = stream;
      o.fabric.bad_header_resets = stream;
      o.fabric.retransmit_delay = 20_ms;
      o.fabric.nic = NicOptions::link(100_us, BytesPerSec::from_mbit(2000));
      o.fabric.nic.out.loss_ppm = stream ? 5'000 : 30'000;
      o.fabric.nic.out.duplicate_ppm = 100'000;
      o.fabric.nic.out.reorder_ppm = 100'000;
      o.fabric.nic.out.corrupt_ppm = stream ? 1'000 : 20'000;
      o.settings.piece_bytes = Bytes{static_cast<std::int64_t>(16'384 << seed % 3)};
      Cluster c(o);
      ASSERT_TRUE(c.join());
      Traffic t(c);
      Random r(seed);
      for (int i = 0; i < 60; ++i) {
        const int from = static_cast<int>(r.below(static_cast<std::uint64_t>(c.ranks())));
        const int to = static_cast<int>(r.below(static_cast<std::uint64_t>(c.ranks())));
        const std::uint64_t bytes = kSizes[r.below(std::size(kSizes))];
        const bool first = r.below(2) == 0;
        if (first) t.receive(to, from, bytes);
        t.send(from, to, bytes);
        if (r.below(3) == 0) c.run_for(Nanos{static_cast<std::int64_t>(r.below(3'000'000))});
        if (!first) t.receive(to, from, bytes);
      }
      t.expect_exact(60_s);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(GroupMessages, ADeadNicCostsAStallAndItsReturnIsUsed) {
  for (const NicDeath death : {NicDeath::kSilent, NicDeath::kLocal, NicDeath::kBothEnds}) {
    ClusterOptions o = flat_cluster(2, 2);
    o.fabric.nic = NicOptions::link(50_us, BytesPerSec::from_mbit(1000));
    Cluster c(o);
    ASSERT_TRUE(c.join());
    Traffic t(c);
    for (int i = 0; i < 8; ++i) {
      t.receive(1, 0, 1 << 20);
      t.send(0, 1, 1 << 20);
    }
    c.run_for(10_ms);
    c.fabric().nic_down(1, 0, death);
    t.expect_exact(2_s);
    c.run_for(500_ms);
    c.fabric().nic_up(1, 0);
    c.run_for(2_s);
    const auto before = c.fabric().nic_counters(0, 0).tx_bytes;
    t.receive(1, 0, 8 << 20);
    t.send(0, 1, 8 << 20);
    t.expect_exact(2_s);
    EXPECT_GT(c.fabric().nic_counters(0, 0).tx_bytes - before, 2u << 20);
  }
}

TEST(GroupMessages, ADeadPeerIsNamed) {
  for (const CrashKind kind : {CrashKind::kHangup, CrashKind::kSilent}) {
    Cluster c(impatient(flat_cluster(3, 2)));
    ASSERT_TRUE(c.join());
    Traffic t(c);
    Half& send = t.send(0, 2, 8 << 20);
    Half& receive = t.receive(1, 2, 1000);
    c.run_for(1_ms);
    c.kill(2, kind);
    ASSERT_TRUE(c.run_until([&] { return send.ticket.done() && receive.ticket.done(); }, 2_s));
    for (const Half* h : {&send, &receive}) {
      EXPECT_EQ(h->ticket.code, kind == CrashKind::kHangup ? CANARY_PEER_DIED : CANARY_PEER_SILENT);
      EXPECT_EQ(h->ticket.status.detail().rank, 2);
      EXPECT_NE(h->ticket.status.text().find("host-2"), std::string::npos) << h->ticket.status.text();
    }
    Half& later = t.send(0, 1, 10);
    EXPECT_TRUE(c.run_until([&] { return later.ticket.done(); }, 1_s));
    EXPECT_NE(later.ticket.code, CANARY_OK) << "the group is dead";
  }
}

TEST(GroupMessages, DifferentLengthsOrTypesAreNamedOnBothSides) {
  struct {
    std::uint64_t sent, room;
    DataType sent_type, room_type;
    const char *sent_text, *room_text;
  } const cases[] = {{400, 800, CANARY_F32, CANARY_F32, "f32 n=100", "f32 n=200"},
                     {800, 400, CANARY_F32, CANARY_F32, "f32 n=200", "f32 n=100"},
                     {1 << 20, 4096, CANARY_U8, CANARY_U8, "u8 n=1048576", "u8 n=4096"},
                     {400, 400, CANARY_F32, CANARY_I32, "f32 n=100", "i32 n=100"}};
  for (const int ranks_per_host : {1, 2}) {  // 2: the pair is local
    for (const auto& x : cases) {
      for (const bool receive_first : {true, false}) {
        Cluster c(flat_cluster(2, 1, ranks_per_host));
        ASSERT_TRUE(c.join());
        Traffic t(c);
        Half* receive = receive_first ? &t.post(0, 1, x.room, false, x.room_type) : nullptr;
        Half& send = t.post(0, 1, x.sent, true, x.sent_type);
        c.run_for(2_ms);
        if (!receive_first) receive = &t.post(0, 1, x.room, false, x.room_type);
        ASSERT_TRUE(c.run_until([&] { return send.ticket.done() && receive->ticket.done(); }, 2_s));
        EXPECT_EQ(receive->ticket.code, CANARY_MISMATCH);
        for (const Half* h : {&send, receive}) {
          if (h->ticket.code == CANARY_OK) continue;  // a small send may have been done before
          EXPECT_EQ(h->ticket.code, CANARY_MISMATCH);
          EXPECT_NE(h->ticket.status.text().find(x.sent_text), std::string::npos) << h->ticket.status.text();
          EXPECT_NE(h->ticket.status.text().find(x.room_text), std::string::npos) << h->ticket.status.text();
        }
        Half& later = t.send(0, 1, 1);
        EXPECT_TRUE(c.run_until([&] { return later.ticket.done(); }, 1_s));
        EXPECT_EQ(later.ticket.code, CANARY_MISMATCH);
      }
    }
  }
}

TEST(GroupMessages, APeerThatNeverCallsEndsTheWaitAtTheEntryLimit) {
  for (const bool sends : {true, false}) {
    ClusterOptions o = flat_cluster(2, 1);
    o.settings.entry_limit = 3_s;
    Cluster c(o);
    ASSERT_TRUE(c.join());
    Traffic t(c);
    // While other messages of the pair come in time nothing ends, however long ago they were posted.
    Half& waits = sends ? t.send(0, 1, 1 << 20) : t.receive(0, 1, 1000);
    c.run_for(2900_ms);
    EXPECT_FALSE(waits.ticket.done());
    ASSERT_TRUE(c.run_until([&] { return waits.ticket.done(); }, 500_ms));
    EXPECT_EQ(waits.ticket.code, CANARY_ENTRY_TIMEOUT);
    EXPECT_EQ(waits.ticket.status.detail().rank, 1);
    EXPECT_NE(waits.ticket.status.text().find(sends ? "receive message #1" : "send message #1"), std::string::npos)
        << waits.ticket.status.text();
  }
}

TEST(GroupMessages, APeerThatLeftWithoutCallingIsNamed) {
  Cluster c(flat_cluster(2, 1));
  ASSERT_TRUE(c.join());
  Traffic t(c);
  Half& waits = t.receive(0, 1, 1000);
  c.engine(1).leave(c.now());
  ASSERT_TRUE(c.run_until([&] { return waits.ticket.done(); }, 5_s));
  EXPECT_EQ(waits.ticket.code, CANARY_PEER_DIED);
  EXPECT_NE(waits.ticket.status.text().find("left the job"), std::string::npos) << waits.ticket.status.text();
}

TEST(GroupMessages, ACallersDeadlineEndsTheWait) {
  Cluster c(flat_cluster(2, 1));
  ASSERT_TRUE(c.join());
  Traffic t(c);
  Half& waits = t.receive(0, 1, 1000);
  c.set_deadline(c.world(0), &waits.ticket, 500_ms);
  ASSERT_TRUE(c.run_until([&] { return waits.ticket.done(); }, 700_ms));
  EXPECT_EQ(waits.ticket.code, CANARY_DEADLINE);
}

// The k-th send still meets the k-th receive.
TEST(GroupMessages, AnUrgentOneOvertakesThoseBeforeIt) {
  ClusterOptions o = flat_cluster(2, 2);
  o.fabric.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(1000));
  Cluster c(o);
  ASSERT_TRUE(c.join());
  Traffic t(c);
  for (const bool to_other_rank_first : {true, false}) {
    t.priority = CANARY_PRIORITY_NORMAL;
    Half& large = t.send(0, 1, 64 << 20);
    t.receive(1, 0, 64 << 20);
    c.run_for(2_ms);
    t.priority = CANARY_PRIORITY_URGENT;
    if (to_other_rank_first) t.receive(1, 0, 700'000);
    Half& urgent = t.send(0, 1, 700'000);
    if (!to_other_rank_first) t.receive(1, 0, 700'000);
    Half& small = t.send(0, 1, 100);
    Half& last = t.receive(1, 0, 100);
    ASSERT_TRUE(c.run_until([&] { return urgent.ticket.done() && small.ticket.done() && last.ticket.done(); }, 60_ms));
    EXPECT_FALSE(large.ticket.done());
    t.expect_exact();
  }
}

// The number is kept as it changes, since every choice of a lane asks for it.
TEST(GroupMessages, WhatWaitsToBeSentIsCountedAsItChanges) {
  ClusterOptions o = flat_cluster(2, 2, 2);
  o.fabric.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(1000));
  Cluster c(o);
  ASSERT_TRUE(c.join());
  Traffic t(c);
  Group& group = *c.world(0)->group;
  const auto rounds = [&]() -> MessageRounds& { return group.peers.front()->messages; };  // made by the first message
  const auto expect_counted = [&] {
    for (const canary_priority p : {CANARY_PRIORITY_NORMAL, CANARY_PRIORITY_URGENT}) {
      std::uint64_t bytes = 0;
      for (const MessageEnd* end = rounds().of(p).head; end != nullptr; end = end->stand(p).next_ready) {
        const MessageRequest* const r = end->stand(p).cursor;
        if (r != nullptr) bytes += r->length - std::min(r->length, r->next_piece * end->piece_bytes);
      }
      ASSERT_EQ(rounds().of(p).waiting_bytes(), bytes) << "priority " << p;
    }
  };
  for (int k = 0; k < 12; ++k) {
    for (const auto& [from, to] : {std::pair{0, 2}, {1, 2}, {0, 3}}) {
      t.priority = k % 3 == 1 ? CANARY_PRIORITY_URGENT : CANARY_PRIORITY_NORMAL;
      const std::uint64_t bytes = k % 4 == 0 ? 3 << 20 : 100'000 * k;
      t.send(from, to, bytes);
      if (k % 2 == 0) t.receive(to, from, bytes);
      ASSERT_NO_FATAL_FAILURE(expect_counted());
      if (k % 2 != 0) t.receive(to, from, bytes);
    }
    for (int i = 0; i < 20; ++i) {
      c.run_for(50_us);
      ASSERT_NO_FATAL_FAILURE(expect_counted());
    }
  }
  EXPECT_GT(rounds().normal.waiting_bytes(), 1u << 20);
  ASSERT_NO_FATAL_FAILURE(t.expect_exact());
  EXPECT_EQ(rounds().normal.waiting_bytes(), 0u);
  EXPECT_EQ(rounds().urgent.waiting_bytes(), 0u);
  // Messages of a group that has ended wait for nothing.
  t.priority = CANARY_PRIORITY_NORMAL;
  t.send(0, 2, 64 << 20);
  t.receive(2, 0, 64 << 20);
  c.run_for(1_ms);
  EXPECT_GT(rounds().normal.waiting_bytes(), 0u);
  c.submit(0, port::abort(c.world(0)->id, "enough"));
  EXPECT_EQ(rounds().normal.waiting_bytes(), 0u);
}

TEST(GroupMessages, RanksThatShareNoRailAreToldSo) {
  ClusterOptions o = flat_cluster(4, 1);
  o.wiring = Wiring::bcube(2, 2);
  Cluster c(o);
  ASSERT_TRUE(c.join());
  Traffic t(c);
  Half& send = t.send(0, 3, 10);
  ASSERT_TRUE(c.run_until([&] { return send.ticket.done(); }, 1_s));
  EXPECT_EQ(send.ticket.code, CANARY_UNREACHABLE) << send.ticket.status.to_string();
  t.halves().clear();
  Traffic neighbours(c);  // the group lives on
  neighbours.send(0, 1, 5000);
  neighbours.receive(1, 0, 5000);
  neighbours.expect_exact();
}

TEST(ThroughWindow, CountsEachOnceWithinItsReach) {
  ThroughWindow w;
  w.reset(1);
  EXPECT_TRUE(w.through(0));
  EXPECT_FALSE(w.through(1));
  EXPECT_TRUE(w.mark(2));
  EXPECT_FALSE(w.mark(2));
  EXPECT_EQ(w.base(), 1u);
  EXPECT_TRUE(w.in_reach(1024));
  EXPECT_FALSE(w.in_reach(1025));
  EXPECT_TRUE(w.mark(1024));
  EXPECT_TRUE(w.mark(1));
  EXPECT_EQ(w.base(), 3u);
  EXPECT_FALSE(w.through(1026)) << "its place is 2's, which is free again";
  for (std::uint64_t i = 3; i < 1024; ++i) EXPECT_TRUE(w.mark(i));
  EXPECT_EQ(w.base(), 1025u);
  EXPECT_FALSE(w.mark(1024));
}

}  // namespace
}  // namespace canarynet
