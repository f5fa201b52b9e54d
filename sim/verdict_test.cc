// How a group ends, and what a rank may do ahead of the others, in clusters in virtual time.
#include <gtest/gtest.h>

#include <cstring>

#include "sim/cluster_test_util.h"
#include "sim/forger_test_util.h"

namespace canarynet {
namespace {

// Ranks 0 and 3 of BCube(2, 2) share no rail: without control they hear of each other by 1 and 2 alone.
TEST(Verdict, PassesFromLaneToLaneWhereControlIsGone) {
  ClusterOptions o;
  o.hosts = 4;
  o.wiring = Wiring::bcube(2, 2);
  o.fabric.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(1000));
  Cluster c(o);
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(4, 1000));
  for (const int r : {0, 1, 2}) op.submit(r);
  c.run_for(1_ms);
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < a; ++b) c.fabric().block(a, b, kBlockControl);
  }
  abort_world(c, 3, "enough");
  ASSERT_TRUE(c.run_until([&] { return op.done(0) && op.done(1) && op.done(2); }, 100_ms));
  for (const int r : {0, 1, 2}) {
    EXPECT_EQ(op.ticket(r).code, CANARY_ABORTED);
    EXPECT_NE(op.ticket(r).status.text().find("enough"), std::string::npos) << op.ticket(r).status.text();
  }
}

// A verdict passes from one rank to another by way of rank 0: the coordinator passes on what it hears.
TEST(Verdict, PassesOverTheCoordinatorWhereLanesAreCut) {
  Cluster c(flat_cluster(4));
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(4, 1000));
  for (const int r : {0, 1, 3}) op.submit(r);
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < a; ++b) c.fabric().block(a, b, kBlockRails);
  }
  abort_world(c, 2, "enough");
  ASSERT_TRUE(c.run_until([&] { return op.done(0) && op.done(1) && op.done(3); }, 100_ms));
  for (const int r : {0, 1, 3}) EXPECT_EQ(op.ticket(r).code, CANARY_ABORTED) << op.ticket(r).status.text();
}

TEST(Verdict, TheFirstOneStands) {
  Cluster c(flat_cluster(4));
  ASSERT_TRUE(c.join());
  abort_world(c, 1, "the first");
  c.run_for(100_ms);
  abort_world(c, 2, "the second");
  c.kill(3, CrashKind::kHangup);
  c.run_for(100_ms);
  AllRanks op(c, sum(4, 1000));
  for (const int r : {0, 1, 2}) {
    op.submit(r);
    ASSERT_TRUE(op.done(r));
    EXPECT_EQ(op.ticket(r).code, CANARY_ABORTED) << op.ticket(r).status.text();
    EXPECT_NE(op.ticket(r).status.text().find("the first"), std::string::npos) << op.ticket(r).status.text();
  }
}

// A rank that runs only inside its calls may be away for as long as it likes, but not in the middle of an operation.
TEST(ExchangeLimit, NamesTheRankThatCalledAndWentAway) {
  ClusterOptions o = flat_cluster(3);
  o.settings.exchange_limit = 3_s;
  o.amend = [](int host, EngineOptions* e) { e->settings.progress_thread = host != 1; };
  Cluster c(o);
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(3, 4 << 20));
  op.submit_all();
  c.run_for(1_ms);
  ASSERT_FALSE(op.done(0));
  c.fabric().freeze(1);
  c.run_for(2_s);
  EXPECT_FALSE(op.done(0) || op.done(2)) << op.ticket(0).status.text();
  ASSERT_TRUE(c.run_until([&] { return op.done(0) && op.done(2); }, 2_s));
  for (const int r : {0, 2}) {
    EXPECT_EQ(op.ticket(r).code, CANARY_EXCHANGE_TIMEOUT) << op.ticket(r).status.text();
    EXPECT_NE(op.ticket(r).status.text().find("waiting for rank"), std::string::npos) << op.ticket(r).status.text();
    EXPECT_NE(op.ticket(r).status.text().find(" 1"), std::string::npos) << op.ticket(r).status.text();
  }
}

TEST(ExchangeLimit, NamesNoRankOfTheSameProcessThatHasGivenWhatItHad) {
  ClusterOptions o = flat_cluster(2, 2, 2);
  o.settings.exchange_limit = 3_s;
  o.settings.algo = "mesh";
  o.amend = [](int host, EngineOptions* e) { e->settings.progress_thread = host != 1; };
  Cluster c(o);
  ASSERT_TRUE(c.join());
  oracle::Shape shape = sum(4, 1 << 20);
  shape.collective = Collective::kAllGather;
  AllRanks op(c, shape);
  op.submit_all();
  c.run_for(1_ms);
  ASSERT_FALSE(op.done(0) || op.done(1));
  c.fabric().freeze(1);
  ASSERT_TRUE(c.run_until([&] { return op.done(0) && op.done(1); }, 4_s));
  for (const int r : {0, 1}) {
    EXPECT_EQ(op.ticket(r).code, CANARY_EXCHANGE_TIMEOUT) << op.ticket(r).status.text();
    EXPECT_NE(op.ticket(r).status.text().find("waiting for ranks 2, 3"), std::string::npos)
        << op.ticket(r).status.text();
  }
}

// Pieces that a root sent ahead of the others' calls are charged until they call, and not a moment longer: it may run
// ahead again and again.
TEST(EagerBudget, IsWholeAgainWhenTheOthersHaveCalled) {
  for (const bool awaited : {false, true}) {  // whether the root's operations are done before the others call
    ClusterOptions o = flat_cluster(2);
    o.settings.eager_bytes = Bytes{256 * 1024};
    Cluster c(o);
    ASSERT_TRUE(c.join());
    for (std::uint64_t round = 0; round < 20; ++round) {
      std::vector<std::unique_ptr<AllRanks>> ops;
      for (std::uint64_t i = 0; i < 8; ++i) {
        // 16 KB each: half of the budget in a round.
        ops.push_back(std::make_unique<AllRanks>(c, broadcast(2, 4000, 0, 100 * round + i)));
        ops.back()->submit(0);
      }
      if (awaited) {
        ASSERT_TRUE(c.run_until([&] { return ops.back()->done(0); }, 1_s)) << "round " << round;
      }
      for (auto& op : ops) op->submit(1);
      for (auto& op : ops) op->expect_exact(2_s);
    }
    AllRanks last(c, broadcast(2, 4000));
    last.submit(0);
    EXPECT_TRUE(c.run_until([&] { return last.done(0); }, 1_s)) << "nothing is left to run ahead with";
    last.submit(1);
    last.expect_exact(2_s);
  }
}

TEST(EagerBudget, APieceForWhichThereIsNoRoomIsNotAcknowledged) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  wire::Header h = Forger::piece_of(c, c.world(0)->entered + 1, 1000);
  Forger forger(c);
  Arrival arrival;
  for (h.piece = 0; h.piece < 10'000; ++h.piece) {
    const Landing landing = c.engine(0).mux(1)->landing_for(forger.channel, h);
    arrival.cookie = landing.cookie;
    arrival.owner = landing.owner;
    arrival.discarded = landing.kind != Landing::Kind::kSpan;
    if (arrival.discarded) break;
    arrival.intact = true;
    arrival.payload = {landing.data, h.payload_bytes};
    ASSERT_TRUE(c.engine(0).mux(1)->on_arrival(forger.channel, h, arrival));
  }
  EXPECT_EQ(h.piece, static_cast<std::uint32_t>(Settings::defaults().eager_bytes.count / 1024));
  ASSERT_TRUE(arrival.discarded);
  arrival.payload = {};
  EXPECT_FALSE(c.engine(0).mux(1)->on_arrival(forger.channel, h, arrival)) << "it would never come again";
}

// The piece comes as if it had been sent in another life of the group: it lands nowhere and counts for nothing.
TEST(Epoch, APieceOfAnotherOneLandsNowhere) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  AllRanks op(c, sum(2, 1000));
  op.submit(0);
  GroupMember& m = *c.world(0);
  ASSERT_EQ(m.operations.size(), 1u);
  const Program& program = m.operations[0].entry->program;
  const ProgramStep& step = program.steps[program.receives.front()];
  Forger forger(c);
  wire::Header h;
  h.flow = m.group->flow;
  h.epoch = m.group->epoch + 1;
  h.op = m.operations[0].number;
  h.signature = m.operations[0].hash;
  h.source = 1;
  h.step = step.tag;
  h.payload_bytes = program.bytes_of(step.piece_begin);
  const Landing landing = c.engine(0).mux(1)->landing_for(forger.channel, h);
  EXPECT_EQ(landing.kind, Landing::Kind::kDiscard);
  const std::vector<std::byte> garbage(h.payload_bytes, std::byte{0x42});
  Arrival arrival;
  arrival.payload = garbage;
  arrival.intact = true;
  arrival.cookie = 2;  // as if it had been given a slot
  EXPECT_TRUE(c.engine(0).mux(1)->on_arrival(forger.channel, h, arrival)) << "and is not wanted again";
  op.submit(1);
  op.expect_exact();
}

// Pieces that are parked before their operation is entered are compared with it then; these have the right place and
// length, but belong to another call.
TEST(EagerBudget, APieceOfAnotherCallIsNotUsed) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  AllRanks first(c, sum(2, 1000));
  first.submit_all();
  first.expect_exact();
  GroupMember& m = *c.world(0);
  wire::Header h;
  h.flow = m.group->flow;
  h.epoch = m.group->epoch;
  h.op = m.entered + 1;
  h.signature = signature_hash(m.history[m.entered % GroupMember::kHistory]) ^ 1;
  h.source = 1;
  Forger forger(c);
  int parked = 0;
  const Program& program = m.programs.back()->program;
  for (const std::uint32_t step : program.receives) {
    const ProgramStep& s = program.steps[step];
    for (std::uint32_t piece = s.piece_begin; piece < s.piece_end; ++piece) {
      h.step = s.tag;
      h.piece = piece - s.piece_begin;
      h.payload_bytes = program.bytes_of(piece);
      const Landing landing = c.engine(0).mux(1)->landing_for(forger.channel, h);
      ASSERT_EQ(landing.kind, Landing::Kind::kSpan);
      std::memset(landing.data, 0x42, h.payload_bytes);
      Arrival arrival;
      arrival.payload = {landing.data, h.payload_bytes};
      arrival.cookie = landing.cookie;
      arrival.owner = landing.owner;
      arrival.intact = true;
      EXPECT_TRUE(c.engine(0).mux(1)->on_arrival(forger.channel, h, arrival));
      ++parked;
    }
  }
  ASSERT_GT(parked, 0);
  AllRanks op(c, sum(2, 1000, 2));
  op.submit_all();
  op.expect_exact();
}

}  // namespace
}  // namespace canarynet
