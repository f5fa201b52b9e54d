// The engine's behaviour in scripted scenarios on virtual time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

oracle::Shape sum(int ranks, std::uint64_t count, std::uint64_t salt = 1) {
  oracle::Shape s;
  s.ranks = ranks;
  s.count = count;
  s.salt = salt;
  return s;
}

TEST(Engine, AllReduceUsesAllRails) {
  Cluster c(flat_cluster(4, 2));
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(4, 1 << 20));
  op.submit_all();
  op.expect_exact();
  const auto a = c.fabric().nic_counters(0, 0).tx_bytes, b = c.fabric().nic_counters(0, 1).tx_bytes;
  EXPECT_GT(std::min(a, b) * 10, std::max(a, b) * 8) << a << " and " << b;
}

TEST(Engine, UnequalRailsCarryByTheirRates) {
  ClusterOptions o = flat_cluster(2, 2);
  Cluster c(o);
  for (int h = 0; h < 2; ++h) {
    c.fabric().nic(h, 0) = NicOptions::link(100_us, BytesPerSec::from_mbit(800));
    c.fabric().nic(h, 1) = NicOptions::link(100_us, BytesPerSec::from_mbit(200));
  }
  ASSERT_TRUE(c.join());
  AllRanks warm(c, sum(2, 1 << 20));
  warm.submit_all();
  warm.expect_exact();
  const Nanos began = c.now();
  AllRanks op(c, sum(2, 4 << 20));
  op.submit_all();
  op.expect_exact();
  // 2(n-1)/n * 16 MiB over 1000 Mbit/s = 134 ms.
  EXPECT_LT((c.now() - began).seconds(), 0.134 / 0.9);
}

TEST(Engine, FollowsRatesThatAreSwapped) {
  Cluster c(flat_cluster(2, 2));
  const auto set = [&](int fast, int slow) {
    for (int h = 0; h < 2; ++h) {
      c.fabric().nic(h, fast) = NicOptions::link(100_us, BytesPerSec::from_mbit(800));
      c.fabric().nic(h, slow) = NicOptions::link(100_us, BytesPerSec::from_mbit(200));
    }
  };
  set(0, 1);
  ASSERT_TRUE(c.join());
  AllRanks warm(c, sum(2, 4 << 20));
  warm.submit_all();
  warm.expect_exact();
  set(1, 0);
  const Nanos began = c.now();
  AllRanks op(c, sum(2, 8 << 20));
  op.submit_all();
  op.expect_exact();
  EXPECT_LT((c.now() - began).seconds(), 0.268 / 0.8);
}

TEST(Engine, ASilentNicDeathCostsAStallAndNoResult) {
  Cluster c(flat_cluster(4, 2));
  for (int h = 0; h < 4; ++h) {
    for (int r = 0; r < 2; ++r) c.fabric().nic(h, r) = NicOptions::link(50_us, BytesPerSec::from_mbit(1000));
  }
  ASSERT_TRUE(c.join());
  AllRanks warm(c, sum(4, 1 << 20));
  warm.submit_all();
  warm.expect_exact();
  AllRanks op(c, sum(4, 4 << 20));
  op.submit_all();
  c.run_for(20_ms);
  ASSERT_FALSE(op.all_done());
  c.fabric().nic_down(1, 1, NicDeath::kSilent);
  op.expect_exact(2_s);
  // Given up on both sides of the dead NIC, and used again after its return.
  c.run_for(500_ms);
  c.fabric().nic_up(1, 1);
  c.run_for(2_s);
  const auto before = c.fabric().nic_counters(1, 1).tx_bytes;
  AllRanks after(c, sum(4, 4 << 20));
  after.submit_all();
  after.expect_exact();
  const auto carried = c.fabric().nic_counters(1, 1).tx_bytes - before;
  EXPECT_GT(carried, (2 * 3 * (std::uint64_t{16} << 20) / 4) / 2 * 8 / 10) << "80 % of its share";
  EXPECT_GT(c.engine(1).rail_stats(1).failovers, 0u);
}

TEST(Engine, ADeadRankIsNamedByEverySurvivor) {
  for (const int victim : {0, 2}) {
    for (const CrashKind kind : {CrashKind::kHangup, CrashKind::kSilent}) {
      Cluster c(flat_cluster(4, 2));
      ASSERT_TRUE(c.join());
      AllRanks op(c, sum(4, 4 << 20));
      op.submit_all();
      c.run_for(300_us);
      ASSERT_FALSE(op.all_done());
      c.kill(victim, kind);
      const Nanos died = c.now();
      const auto survivors_done = [&] {
        for (int r = 0; r < 4; ++r) {
          if (r != victim && !op.done(r)) return false;
        }
        return true;
      };
      ASSERT_TRUE(c.run_until(survivors_done, kind == CrashKind::kHangup ? 500_ms : 1500_ms)) << "victim " << victim;
      for (int r = 0; r < 4; ++r) {
        if (r == victim) continue;
        EXPECT_EQ(op.ticket(r).status.detail().rank, victim) << op.ticket(r).status.to_string();
        EXPECT_EQ(op.ticket(r).code, kind == CrashKind::kHangup ? CANARY_PEER_DIED : CANARY_PEER_SILENT);
        EXPECT_NE(op.ticket(r).status.text().find("host-" + std::to_string(victim)), std::string::npos);
      }
      EXPECT_LE(c.now() - died, kind == CrashKind::kHangup ? 100_ms : 1500_ms);
      // The group is dead on all, with the same verdict.
      AllRanks next(c, sum(4, 10));
      const int r = victim == 0 ? 1 : 0;
      next.submit(r);
      ASSERT_TRUE(next.done(r));
      EXPECT_EQ(next.ticket(r).status.detail().rank, victim);
    }
  }
}

TEST(Engine, MismatchesAreNamedOnEveryRank) {
  struct Change {
    const char* name;
    void (*apply)(OpRequest*);
  };
  const Change changes[] = {
      {"count", [](OpRequest* r) { r->count -= 24; }},
      {"type", [](OpRequest* r) { r->type = CANARY_I32; }},
      {"redop", [](OpRequest* r) { r->redop = CANARY_MAX; }},
      {"collective", [](OpRequest* r) { r->collective = Collective::kBroadcast, r->root = 0; }},
      {"empty", [](OpRequest* r) { r->count = 0; }},
      {"barrier", [](OpRequest* r) { *r = OpRequest{}; }},
  };
  for (const std::uint64_t count : {std::uint64_t{1000}, std::uint64_t{1} << 20}) {
    for (const Change& change : changes) {
      for (const int odd : {0, 3, 4}) {
        constexpr int n = 5;
        Cluster c(flat_cluster(n));
        ASSERT_TRUE(c.join());
        AllRanks op(c, sum(n, count));
        for (int r = 0; r < n; ++r) {
          if (r == odd) continue;
          op.submit(r);
        }
        c.run_for(5_ms);
        std::vector<float> in(count), out(count);
        OpTicket ticket;
        Submission s;
        s.member = c.world(odd);
        s.ticket = &ticket;
        s.request = {.collective = Collective::kAllReduce,
                     .input = in.data(),
                     .output = out.data(),
                     .count = count,
                     .type = CANARY_F32,
                     .redop = CANARY_SUM};
        change.apply(&s.request);
        c.submit(odd, std::move(s));
        const auto all = [&] {
          for (int r = 0; r < n; ++r) {
            if (r != odd && !op.done(r)) return false;
          }
          return ticket.done();
        };
        ASSERT_TRUE(c.run_until(all, 250_ms)) << change.name << " odd rank " << odd;
        for (int r = 0; r < n; ++r) {
          const Status& st = r == odd ? ticket.status : op.ticket(r).status;
          const int code = r == odd ? ticket.code.load() : op.ticket(r).code.load();
          // An empty or one-sided call may have completed before anybody disagreed: its next call fails.
          if (code == CANARY_OK) {
            OpTicket next;
            float one = 1;
            c.all_reduce(r, &one, &one, 1, CANARY_F32, CANARY_SUM, &next);
            ASSERT_TRUE(c.run_until([&] { return next.done(); }, 250_ms));
            EXPECT_EQ(next.code, CANARY_MISMATCH);
            continue;
          }
          ASSERT_EQ(code, CANARY_MISMATCH) << change.name << ": " << st.to_string();
          EXPECT_NE(st.text().find("rank " + std::to_string(odd)), std::string::npos) << st.text();
          EXPECT_NE(st.text().find("n=" + std::to_string(count)), std::string::npos) << st.text();
        }
      }
    }
  }
}

// Counts that only two ranks know of, and lists longer than what a signature shows of them; ranks of one engine and of several.
TEST(Engine, CountsThatDifferAreNamedOnEveryRank) {
  for (const int per_host : {1, 4}) {
    constexpr int n = 12;
    for (const bool pairs : {true, false}) {
      for (const auto& [odd, place] : {std::pair{5, 6}, std::pair{0, 11}, std::pair{11, 1}}) {
        Cluster c(flat_cluster(n / per_host, 2, per_host));
        ASSERT_TRUE(c.join());
        std::vector<std::vector<std::uint64_t>> counts(n);
        std::vector<std::vector<float>> in(n, std::vector<float>(1000)), out(n, std::vector<float>(1000));
        std::vector<std::unique_ptr<OpTicket>> tickets;
        for (int r = 0; r < n; ++r) {
          for (int i = 0; i < n; ++i) counts[r].push_back(7);
          if (r == odd) counts[r][place] = 9;
          if (pairs) {
            for (int i = 0; i < n; ++i) counts[r].push_back(10 * i);
            for (int i = 0; i < n; ++i) counts[r].push_back(7);
            for (int i = 0; i < n; ++i) counts[r].push_back(10 * i);
          }
          tickets.push_back(std::make_unique<OpTicket>());
        }
        for (int r = 0; r < n; ++r) {
          std::uint64_t total = 0;
          for (const std::uint64_t one : counts[r]) total += pairs ? 0 : one;
          Submission s;
          s.member = c.world(r);
          s.ticket = tickets[r].get();
          s.request = {.collective = pairs ? Collective::kAllToAllV : Collective::kAllGatherV,
                       .input = in[r].data(),
                       .output = out[r].data(),
                       .count = total,
                       .type = CANARY_F32,
                       .counts = counts[r]};
          c.submit(r, std::move(s));
        }
        const auto all = [&] { return std::all_of(tickets.begin(), tickets.end(), [](auto& t) { return t->done(); }); };
        ASSERT_TRUE(c.run_until(all, 250_ms)) << per_host << " " << pairs << " " << odd;
        const std::string a = "rank " + std::to_string(odd), b = "rank " + std::to_string(place);
        for (int r = 0; r < n; ++r) {
          // Two ranks whose counts differ are not through before they know; another hears of it with its next call at the latest.
          if (tickets[r]->code == CANARY_OK) {
            EXPECT_TRUE(pairs && r != odd && r != place) << "rank " << r;
            float one = 1;
            tickets[r]->reset();
            c.all_reduce(r, &one, &one, 1, CANARY_F32, CANARY_SUM, tickets[r].get());
            ASSERT_TRUE(c.run_until([&] { return tickets[r]->done(); }, 250_ms));
          }
          const std::string text = tickets[r]->status.text();
          EXPECT_EQ(tickets[r]->code, CANARY_MISMATCH) << "rank " << r;
          EXPECT_NE(text.find(a + " called"), std::string::npos) << text;
          if (pairs) {
            EXPECT_NE(text.find("with 9 elements for " + b), std::string::npos) << text;
            EXPECT_NE(text.find(b + " called"), std::string::npos) << text;
            EXPECT_NE(text.find("with 7 elements from " + a), std::string::npos) << text;
          } else if (place < 8) {
            EXPECT_NE(text.find(place == 6 ? "[7,7,7,7,7,7,9,7,...]" : "[7,9,7,7,7,7,7,7,...]"), std::string::npos)
                << text;
            EXPECT_NE(text.find("[7,7,7,7,7,7,7,7,...]"), std::string::npos) << text;
          } else {
            EXPECT_NE(text.find("only counts[11] differs, by "), std::string::npos) << text;
          }
        }
      }
    }
  }
}

// An engine may not hear of a rank for long; then it is named, as for every other collective.
TEST(Engine, AllToAllVWithNothingToMoveStillWaitsForTheRankThatDoesNotCall) {
  ClusterOptions o = flat_cluster(3);
  o.settings.entry_limit = 2_s;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  const std::vector<std::uint64_t> none(12, 0);
  OpTicket tickets[2];
  for (int r = 0; r < 2; ++r) {
    Submission s;
    s.member = c.world(r);
    s.ticket = &tickets[r];
    s.request = {.collective = Collective::kAllToAllV, .counts = none};
    c.submit(r, std::move(s));
  }
  c.run_for(1_s);
  EXPECT_FALSE(tickets[0].done() || tickets[1].done());
  ASSERT_TRUE(c.run_until([&] { return tickets[0].done() && tickets[1].done(); }, 2_s));
  EXPECT_EQ(tickets[0].code, CANARY_ENTRY_TIMEOUT);
  EXPECT_EQ(tickets[1].status.detail().rank, 2);
}

TEST(Engine, ALateRankIsWaitedForAndOneThatNeverCallsIsNamed) {
  ClusterOptions o = flat_cluster(3);
  o.settings.entry_limit = 5_s;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  AllRanks late(c, sum(3, 1 << 20));
  late.submit(0);
  late.submit(2);
  c.run_for(3_s);
  EXPECT_FALSE(late.done(0));
  late.submit(1);
  late.expect_exact();

  AllRanks never(c, sum(3, 1000));
  never.submit(0);
  never.submit(2);
  ASSERT_TRUE(c.run_until([&] { return never.done(0) && never.done(2); }, 6_s));
  EXPECT_EQ(never.ticket(0).code, CANARY_ENTRY_TIMEOUT);
  EXPECT_EQ(never.ticket(0).status.detail().rank, 1);
  EXPECT_EQ(never.ticket(2).code, CANARY_ENTRY_TIMEOUT);
}

TEST(Engine, TheCallersDeadlineEndsTheOperation) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  float v = 1;
  OpTicket t;
  Submission s;
  s.member = c.world(0);
  s.ticket = &t;
  s.request = {.collective = Collective::kAllReduce,
               .input = &v,
               .output = &v,
               .count = 1,
               .type = CANARY_F32,
               .redop = CANARY_SUM,
               .time_limit = 100_ms};
  c.submit(0, std::move(s));
  ASSERT_TRUE(c.run_until([&] { return t.done(); }, 300_ms));
  EXPECT_EQ(t.code, CANARY_DEADLINE);
  EXPECT_NE(t.status.text().find("not entered by rank 1"), std::string::npos) << t.status.text();
}

TEST(Engine, APartitionErrsOnBothSides) {
  Cluster c(flat_cluster(4, 2));
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(4, 4 << 20));
  op.submit_all();
  c.run_for(300_us);
  for (const int a : {0, 1}) {
    for (const int b : {2, 3}) c.fabric().block(a, b);
  }
  ASSERT_TRUE(c.run_until([&] { return op.all_done(); }, 3_s));
  for (int r = 0; r < 4; ++r) EXPECT_NE(op.ticket(r).code, CANARY_OK);
}

TEST(Engine, RailsCutWhileControlLivesIsNoPath) {
  Cluster c(flat_cluster(2, 2));
  ASSERT_TRUE(c.join());
  c.run_for(2_s);
  AllRanks op(c, sum(2, 16 << 20));
  op.submit_all();
  c.run_for(300_us);
  c.fabric().block(0, 1, kBlockRails);
  ASSERT_TRUE(c.run_until([&] { return op.all_done(); }, 3_s));
  EXPECT_EQ(op.ticket(0).code, CANARY_NO_PATH) << op.ticket(0).status.to_string();
  EXPECT_NE(op.ticket(0).status.text().find("nic0>nic0, nic1>nic1"), std::string::npos) << op.ticket(0).status.text();
}

TEST(Engine, SeveralOperationsInFlightKeepTheirOrderAndResults) {
  ClusterOptions o = flat_cluster(3, 2);
  o.settings.ops_in_flight = 8;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  std::vector<std::unique_ptr<AllRanks>> ops;
  for (std::uint64_t i = 0; i < 40; ++i) ops.push_back(std::make_unique<AllRanks>(c, sum(3, i * 997 % 5000, i)));
  for (auto& op : ops) op->submit(0);
  for (auto& op : ops) op->submit(2);
  c.run_for(10_ms);
  for (auto& op : ops) op->submit(1);
  for (auto& op : ops) op->expect_exact();
}

TEST(Engine, FourRanksPerEngineEnteringInAnyOrder) {
  ClusterOptions o = flat_cluster(2, 2, 4);
  Cluster c(o);
  ASSERT_TRUE(c.join());
  for (int round = 0; round < 4; ++round) {
    AllRanks op(c, sum(8, 100'000, static_cast<std::uint64_t>(round)));
    for (int i = 0; i < 8; ++i) {
      op.submit((i * 5 + round) % 8);
      c.run_for(100_us);
    }
    op.expect_exact();
  }
}

TEST(Engine, GroupsOfAnySubsetRunBesideTheWorld) {
  Cluster c(flat_cluster(4, 2));
  ASSERT_TRUE(c.join());
  const std::vector<std::vector<int>> lists = {{3, 1}, {0, 1, 2}};
  std::vector<std::vector<GroupMember*>> groups;
  for (const auto& list : lists) {
    std::vector<std::unique_ptr<OpTicket>> tickets;
    for (const int rank : list) {
      tickets.push_back(std::make_unique<OpTicket>());
      Submission s;
      s.kind = Submission::Kind::kGroup;
      s.ticket = tickets.back().get();
      s.local_rank = rank;
      s.members = std::make_shared<std::vector<int>>(list);
      c.submit(rank, std::move(s));
    }
    ASSERT_TRUE(c.run_until(
        [&] { return std::all_of(tickets.begin(), tickets.end(), [](auto& t) { return t->done(); }); }, 5_s));
    groups.emplace_back();
    for (auto& t : tickets) {
      ASSERT_EQ(t->code, CANARY_OK) << t->status.to_string();
      groups.back().push_back(static_cast<GroupMember*>(t->group));
    }
  }
  EXPECT_NE(groups[0][0]->group->flow, groups[1][0]->group->flow);
  AllRanks world(c, sum(4, 50'000, 1));
  AllRanks pair(c, sum(2, 50'000, 2));
  AllRanks three(c, sum(3, 50'000, 3));
  world.submit_all();
  for (int i = 0; i < 2; ++i) pair.submit(i, groups[0][static_cast<std::size_t>(i)]);
  for (int i = 0; i < 3; ++i) three.submit(i, groups[1][static_cast<std::size_t>(i)]);
  world.expect_exact();
  pair.expect_exact();
  three.expect_exact();
}

TEST(Engine, AnAbortReachesEveryMemberWithItsReason) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(3, 1000));
  op.submit(0);
  op.submit(1);
  c.run_for(1_ms);
  Submission s;
  s.kind = Submission::Kind::kAbort;
  s.member = c.world(2);
  s.text = std::make_shared<std::string>("loss is NaN");
  c.submit(2, std::move(s));
  ASSERT_TRUE(c.run_until([&] { return op.done(0) && op.done(1); }, 500_ms));
  for (const int r : {0, 1}) {
    EXPECT_EQ(op.ticket(r).code, CANARY_ABORTED);
    EXPECT_NE(op.ticket(r).status.text().find("loss is NaN"), std::string::npos);
  }
}

TEST(Engine, LeavingIsNoDeath) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(3, 100'000));
  op.submit_all();
  op.expect_exact();
  c.engine(2).leave(c.now());
  ASSERT_TRUE(c.run_until([&] { return c.engine(2).left(); }, 2_s));
  c.run_for(5_ms);
  c.kill(2, CrashKind::kHangup);
  c.run_for(3_s);
  OpTicket t;
  float v = 1;
  c.all_reduce(0, &v, &v, 1, CANARY_F32, CANARY_SUM, &t);
  ASSERT_TRUE(c.run_until([&] { return t.done(); }, 5_s));
  EXPECT_EQ(t.code, CANARY_PEER_DIED);
  EXPECT_NE(t.status.text().find("left the job"), std::string::npos) << t.status.text();
}

TEST(Engine, AForcedPlannerWhoseRanksCannotMeetIsRefusedByName) {
  ClusterOptions o;
  o.hosts = 4;
  o.wiring = Wiring::bcube(2, 2);
  o.settings.algo = "mesh";
  Cluster c(o);
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(4, 100));
  op.submit_all();
  ASSERT_TRUE(op.all_done());
  EXPECT_EQ(op.ticket(1).code, CANARY_UNREACHABLE) << op.ticket(1).status.to_string();
  EXPECT_NE(op.ticket(1).status.text().find("rank"), std::string::npos);
}

TEST(Engine, ASmallEagerBudgetOnlyDelays) {
  ClusterOptions o = flat_cluster(4, 2);
  o.settings.eager_bytes = Bytes{16384};
  Cluster c(o);
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(4, 1 << 20));
  for (const int r : {1, 2, 3}) op.submit(r);
  c.run_for(50_ms);
  EXPECT_FALSE(op.done(1));
  op.submit(0);
  op.expect_exact();
}

// What a peer's bytes may say: a channel from "engine 1" that no lane stands behind, and the frames it would bring.
struct Forger {
  explicit Forger(Cluster& cluster)
      : engine(cluster.engine(0)), channel(options(), cluster.fabric().factory(0), engine) {}
  static ChannelOptions options() {
    ChannelOptions o;
    o.peer_engine = 1;
    return o;
  }
  void send(const wire::Header& h, const void* payload) {
    const Landing landing = engine.landing_for(channel, h);
    Arrival arrival;
    arrival.cookie = landing.cookie;
    arrival.discarded = landing.kind == Landing::Kind::kDiscard;
    arrival.intact = !arrival.discarded;
    if (arrival.intact) arrival.payload = {static_cast<const std::byte*>(payload), h.payload_bytes};
    if (landing.kind == Landing::Kind::kSpan) {
      std::memcpy(landing.data, payload, h.payload_bytes);
      arrival.payload = {landing.data, h.payload_bytes};
    }
    engine.on_arrival(channel, h, arrival);
  }
  Engine& engine;
  Channel channel;
};

TEST(Engine, AForgedLengthIsNotBelieved) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  AllRanks first(c, sum(2, 1000));
  first.submit_all();
  first.expect_exact();
  wire::Header h;
  h.flow = c.world(0)->group->flow;
  h.epoch = 1;
  h.op = 2;
  h.signature = signature_hash(c.world(0)->history[1]);  // the arguments the next call will have, too
  h.source = 1;
  h.payload_bytes = 16;
  const std::byte garbage[16] = {std::byte{0x42}};
  Forger forger(c);
  for (h.step = 0; h.step < 8; ++h.step) forger.send(h, garbage);  // parked: operation 2 is not entered yet
  AllRanks op(c, sum(2, 1000));
  op.submit_all();
  op.expect_exact();
}

TEST(Engine, APeerSpeaksForItsOwnRanksOnly) {
  Cluster c(flat_cluster(2, 2, 2));
  ASSERT_TRUE(c.join());
  AllRanks first(c, sum(4, 1000));
  first.submit_all();
  first.expect_exact();
  AllRanks op(c, sum(4, 1000));
  op.submit(0);
  Forger forger(c);
  wire::Header h;
  h.kind = wire::Kind::kSignature;
  h.flow = c.world(0)->group->flow;
  h.epoch = 1;
  h.op = 2;
  h.source = 1;  // engine 0's other rank, which has not called yet
  wire::SignaturePayload signature = c.world(0)->history[2];
  signature.world_rank = 1;
  h.payload_bytes = sizeof signature;
  forger.send(h, &signature);
  h.kind = wire::Kind::kPiece;
  h.signature = signature_hash(signature);
  const std::vector<std::byte> garbage(4096, std::byte{0x42});
  for (const std::uint32_t bytes : {1000u, 1024u, 4000u}) {
    h.payload_bytes = bytes;
    for (h.step = 0; h.step < 8; ++h.step) forger.send(h, garbage.data());
  }
  c.run_for(1_ms);
  for (const int r : {1, 2, 3}) op.submit(r);
  op.expect_exact();
}

TEST(Engine, OperationsAgainstARankThatHasLeftStillEnd) {
  // A root's small broadcasts are done once they are sent: it may leave long before the others call.
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  std::vector<std::unique_ptr<AllRanks>> ops;
  for (std::uint64_t i = 0; i < 6; ++i) {
    oracle::Shape s = sum(2, 100, i);
    s.collective = Collective::kBroadcast;
    s.root = 1;
    ops.push_back(std::make_unique<AllRanks>(c, s));
    ops.back()->submit(1);
  }
  ASSERT_TRUE(c.run_until([&] { return ops.back()->done(1); }, 1_s));
  c.engine(1).leave(c.now());
  ASSERT_TRUE(c.run_until([&] { return c.engine(1).left(); }, 2_s));
  c.run_for(5_ms);
  c.kill(1, CrashKind::kHangup);
  c.run_for(100_ms);
  for (auto& op : ops) op->submit(0);
  for (auto& op : ops) op->expect_exact(2_s);
}

TEST(Engine, WhatARankHadEnteredIsKnownAfterItLeft) {
  // Rank 2 has nothing to do with the root of a ring's broadcast, and beats have yet to tell that it called: it must not be held to have
  // left without, while rank 9 takes its time.
  ClusterOptions o = flat_cluster(12, 1);
  o.settings.algo = "ring";
  o.settings.heartbeat_interval = 300_ms;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  oracle::Shape s = sum(12, 100);
  s.collective = Collective::kBroadcast;
  s.root = 6;
  AllRanks op(c, s);
  for (int r = 0; r < 12; ++r) {
    if (r != 9) op.submit(r);
  }
  ASSERT_TRUE(c.run_until([&] { return op.done(6); }, 1_s));
  c.engine(6).leave(c.now());
  ASSERT_TRUE(c.run_until([&] { return c.engine(6).left(); }, 2_s));
  c.run_for(5_ms);
  c.kill(6, CrashKind::kHangup);
  c.run_for(3_s);
  op.submit(9);
  op.expect_exact(2_s);
}

TEST(Engine, ARootThatRunsAheadKeepsToTheEagerBudget) {
  // What the receiver has parked stays charged after the root's operations are done: nothing is sent only to be refused.
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  std::vector<std::unique_ptr<AllRanks>> ops;
  for (std::uint64_t i = 0; i < 300; ++i) {
    oracle::Shape s = sum(2, 1000, i);
    s.collective = Collective::kBroadcast;
    ops.push_back(std::make_unique<AllRanks>(c, s));
    ops.back()->submit(0);
  }
  c.run_for(2_s);
  EXPECT_FALSE(ops.back()->done(0));
  RailStats sent = c.engine(0).rail_stats(0);
  EXPECT_EQ(sent.retransmits + c.engine(0).rail_stats(1).retransmits, 0u);
  for (auto& op : ops) op->submit(1);
  for (auto& op : ops) op->expect_exact(2_s);
}

TEST(Engine, AnAbortPassesOperationsThatWaitForASlot) {
  ClusterOptions o = flat_cluster(2);
  o.settings.ops_in_flight = 2;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  std::vector<std::unique_ptr<AllRanks>> ops;
  for (std::uint64_t i = 0; i < 5; ++i) {
    ops.push_back(std::make_unique<AllRanks>(c, sum(2, 1000, i)));
    ops.back()->submit(0);
  }
  Submission s;
  s.kind = Submission::Kind::kAbort;
  s.member = c.world(0);
  s.text = std::make_shared<std::string>("enough");
  c.submit(0, std::move(s));
  ASSERT_TRUE(c.run_until([&] { return ops.back()->done(0); }, 500_ms));
  for (auto& op : ops) EXPECT_EQ(op->ticket(0).code, CANARY_ABORTED);
}

TEST(Engine, TheCoordinatorsSilenceIsNotTakenForThatOfRanksKnownByItAlone) {
  // Ranks 1 and 3 of BCube(3, 2) share no rail; each knows of the other by rank 0's beats, which are a little older than rank 0's own lanes.
  for (int phase = 0; phase < 10; ++phase) {
    ClusterOptions o;
    o.hosts = 9;
    o.wiring = Wiring::bcube(3, 2);
    o.fabric.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(10'000));
    Cluster c(o);
    ASSERT_TRUE(c.join());
    c.run_for(1_s + 20_ms * phase);
    AllRanks op(c, sum(9, 1000));
    for (int r = 0; r < 8; ++r) op.submit(r);
    c.run_for(1_ms);  // its lanes were heard just now
    c.kill(0, CrashKind::kSilent);
    ASSERT_TRUE(c.run_until(
        [&] {
          for (int r = 1; r < 8; ++r) {
            if (!op.done(r)) return false;
          }
          return true;
        },
        2_s));
    for (int r = 1; r < 8; ++r)
      EXPECT_EQ(op.ticket(r).status.detail().rank, 0) << phase << ": " << op.ticket(r).status.to_string();
  }
}

}  // namespace
}  // namespace canarynet
