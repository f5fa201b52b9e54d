// Frames that no well-behaved peer sends, or that come twice: an engine must not believe them. Virtual time.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "sim/cluster_test_util.h"
#include "sim/forger_test_util.h"

namespace canarynet {
namespace {

TEST(ForgedFrames, AForgedLengthIsNotBelieved) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  AllRanks first(c, sum(2, 1000));
  first.submit_all();
  first.expect_exact();
  wire::Header h = Forger::piece_of(c, 2, 16);
  h.signature = signature_hash(c.world(0)->history[1]);  // the arguments the next call will have, too
  const std::byte garbage[16] = {std::byte{0x42}};
  Forger forger(c);
  for (h.step = 0; h.step < 8; ++h.step) forger.send(h, garbage);  // parked: operation 2 is not entered yet
  AllRanks op(c, sum(2, 1000));
  op.submit_all();
  op.expect_exact();
}

TEST(ForgedFrames, APieceThatFoundNoPlaceIsNotAcknowledged) {
  // The piece is landing over one lane when another brings it as well. The first may yet break: only what has arrived
  // whole may be acknowledged.
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  wire::Header h = Forger::piece_of(c, 1, 16);
  Forger forger(c);
  Engine& engine = c.engine(0);
  const Landing first = engine.mux(1)->landing_for(forger.channel, h);
  ASSERT_EQ(first.kind, Landing::Kind::kSpan) << "parked until operation 1 is called";
  const Landing second = engine.mux(1)->landing_for(forger.channel, h);
  ASSERT_EQ(second.kind, Landing::Kind::kDiscard);
  Arrival discarded;
  discarded.discarded = true;
  discarded.cookie = second.cookie;
  discarded.owner = second.owner;
  EXPECT_FALSE(engine.mux(1)->on_arrival(forger.channel, h, discarded));
  engine.mux(1)->on_landing_lost(forger.channel, h, first.owner, first.cookie);
  const Landing third = engine.mux(1)->landing_for(forger.channel, h);
  ASSERT_EQ(third.kind, Landing::Kind::kSpan);
  Arrival whole;
  whole.intact = true;
  whole.cookie = third.cookie;
  whole.owner = third.owner;
  whole.payload = {third.data, h.payload_bytes};
  EXPECT_TRUE(engine.mux(1)->on_arrival(forger.channel, h, whole));
  const Landing fourth = engine.mux(1)->landing_for(forger.channel, h);
  discarded.cookie = fourth.cookie;
  discarded.owner = fourth.owner;
  EXPECT_TRUE(engine.mux(1)->on_arrival(forger.channel, h, discarded)) << "now it is a duplicate";
}

TEST(ForgedFrames, APeerSpeaksForItsOwnRanksOnly) {
  Cluster c(flat_cluster(2, 2, 2));
  ASSERT_TRUE(c.join());
  AllRanks first(c, sum(4, 1000));
  first.submit_all();
  first.expect_exact();
  AllRanks op(c, sum(4, 1000));
  op.submit(0);
  Forger forger(c);
  wire::Header h = Forger::piece_of(c, 2, 0);  // from engine 0's other rank, which has not called yet
  h.kind = wire::Kind::kSignature;
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
  // Likewise with their signature behind them.
  std::vector<std::byte> both(4000 + sizeof signature, std::byte{0x42});
  std::memcpy(both.data() + 4000, &signature, sizeof signature);
  h.flags = wire::kSigned;
  for (const std::uint32_t bytes : {1000u, 1024u, 4000u}) {
    h.payload_bytes = bytes + sizeof signature;
    for (h.step = 0; h.step < 8; ++h.step) forger.send(h, both.data() + 4000 - bytes);
  }
  c.run_for(1_ms);
  for (const int r : {1, 2, 3}) op.submit(r);
  op.expect_exact();
}

// By itself, with its signature behind it, and ahead of its operation.
TEST(ForgedFrames, APieceWithoutBytesIsNotBelievedWhereZerosCount) {
  for (const ReduceOp op : {CANARY_MIN, CANARY_MAX, CANARY_PROD}) {
    Cluster c(flat_cluster(2));
    ASSERT_TRUE(c.join());
    oracle::Shape shape = sum(2, 1000);
    shape.redop = op;
    AllRanks first(c, shape);
    first.submit_all();
    first.expect_exact();
    const wire::SignaturePayload mine = c.world(0)->history[1];  // as the next call's
    wire::SignaturePayload signature = mine;
    signature.world_rank = 1;
    Forger forger(c);
    const auto forge = [&] {
      wire::Header h = Forger::piece_of(c, 2, 0);
      h.signature = signature_hash(mine);
      for (h.step = 0; h.step < 8; ++h.step) forger.send(h, &signature);
      h.flags = wire::kSigned;
      h.payload_bytes = sizeof signature;
      for (h.step = 0; h.step < 8; ++h.step) forger.send(h, &signature);
    };
    forge();
    AllRanks second(c, shape);
    second.submit(0);
    forge();
    c.run_for(1_ms);
    second.submit(1);
    second.expect_exact();
  }
}

}  // namespace
}  // namespace canarynet
