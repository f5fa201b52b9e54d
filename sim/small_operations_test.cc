// Small operations: a rank's signature travels with its first piece, so they cost one frame per peer and direction.
// Pieces are compared, parked, charged and told in the same way as with frames of their own. Virtual time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "sim/cluster_test_util.h"
#include "sim/forger_test_util.h"

namespace canarynet {
namespace {

// With one lane per peer: nothing is probed or sent twice.
// Frames are counted: of operations alone.
ClusterOptions narrow(int hosts) { return unmeasured(flat_cluster(hosts, 1)); }

// Sequenced frames: pieces and signatures, whichever way they travel.
std::uint64_t frames_of(Cluster& c, int host) {
  std::uint64_t frames = 0;
  c.engine(host).for_each_link([&](const LinkView& link) { frames += link.path.next_sequence - 1; });
  return frames;
}

void warm_up(Cluster& c, const oracle::Shape& shape) {
  AllRanks first(c, shape);
  first.submit_all();
  first.expect_exact();
}

TEST(SmallOperations, ATinyAllReduceIsOneFramePerPeerAndDirection) {
  for (const std::uint64_t count : {1u, 2u, 1000u}) {
    Cluster c(narrow(2));
    ASSERT_TRUE(c.join());
    warm_up(c, sum(2, count));
    const std::uint64_t before[2] = {frames_of(c, 0), frames_of(c, 1)};
    constexpr int kOperations = 20;
    for (int i = 0; i < kOperations; ++i) warm_up(c, sum(2, count));
    for (const int host : {0, 1}) EXPECT_EQ(frames_of(c, host) - before[host], kOperations) << count << " elements";
  }
}

// What a rank sends, at most, in an all-reduce of the planner that the selector takes. In a group of four the second
// partner's piece waits for the first one's; in a mesh, one element's owner has nothing for anybody before its sum.
TEST(SmallOperations, ASignatureWaitsForTheFirstPieceToItsPartner) {
  struct Case {
    int ranks;
    std::uint64_t count;
    std::uint64_t frames;  // of the rank that sends most
  };
  for (const Case& all : {Case{2, 1, 1},
                          {2, 256, 1},
                          {3, 1, 2},
                          {3, 256, 4},
                          {4, 1, 2},
                          {4, 1024, 2},
                          {5, 1, 4},
                          {5, 256, 8},
                          {8, 1, 7},
                          {8, 256, 14}}) {
    Cluster c(narrow(all.ranks));
    ASSERT_TRUE(c.join());
    warm_up(c, sum(all.ranks, all.count));
    std::vector<std::uint64_t> before;
    for (int h = 0; h < all.ranks; ++h) before.push_back(frames_of(c, h));
    warm_up(c, sum(all.ranks, all.count));
    std::uint64_t most = 0;
    for (int h = 0; h < all.ranks; ++h) most = std::max(most, frames_of(c, h) - before[static_cast<std::size_t>(h)]);
    EXPECT_EQ(most, all.frames) << all.ranks << " ranks, " << all.count << " elements";
  }
}

// Ranks of no two neighbours have called, so no piece becomes ready after the first ones.
TEST(SmallOperations, WhoWaitsForAnotherIsHeardOfAllTheSame) {
  for (const bool thread : {true, false}) {
    ClusterOptions options = narrow(4);
    options.settings.progress_thread = thread;
    Cluster c(options);
    ASSERT_TRUE(c.join());
    warm_up(c, sum(4, 1));
    AllRanks op(c, sum(4, 1));
    op.submit(0);
    op.submit(2);
    c.run_for(1_ms);
    EXPECT_EQ(c.world(2)->group->entered[0], thread ? 1u : 2u) << "callers who drive may not look for long";
    c.run_for(kLooksEvery);
    EXPECT_EQ(c.world(2)->group->entered[0], 2u);
    EXPECT_EQ(c.world(0)->group->entered[2], 2u);
    op.submit(1);
    op.submit(3);
    op.expect_exact();
  }
}

TEST(SmallOperations, RanksThatDisagreeHearOfItThoughAnotherHasNotCalled) {
  Cluster c(narrow(4));
  ASSERT_TRUE(c.join());
  warm_up(c, sum(4, 1));
  const float mine = 1;
  float out[4] = {};
  OpTicket tickets[4];
  c.all_reduce(0, &mine, &out[0], 1, CANARY_F32, CANARY_SUM, &tickets[0]);
  c.all_reduce(2, &mine, &out[2], 1, CANARY_F32, CANARY_MAX, &tickets[2]);
  ASSERT_TRUE(c.run_until([&] { return tickets[0].done() && tickets[2].done(); }, kLooksEvery + 1_ms));
  for (const int r : {0, 2}) {
    EXPECT_EQ(tickets[r].code, CANARY_MISMATCH);
    const std::string text = tickets[r].status.text();
    EXPECT_NE(text.find("rank 0 called all_reduce f32 n=1 sum"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 2 called all_reduce f32 n=1 max"), std::string::npos) << text;
  }
}

TEST(SmallOperations, WhoWaitsForTheOneThatHasNotCalledIsNotBlamed) {
  ClusterOptions options = narrow(4);
  options.settings.entry_limit = 300_ms;
  Cluster c(options);
  ASSERT_TRUE(c.join());
  warm_up(c, sum(4, 1));
  AllRanks op(c, sum(4, 1));
  op.submit_all_but(1);
  ASSERT_TRUE(c.run_until([&] { return op.all_done_but(1); }, 1_s));
  for (const int r : {0, 2, 3}) {
    EXPECT_EQ(op.ticket(r).code, CANARY_ENTRY_TIMEOUT);
    const std::string text = op.ticket(r).status.text();
    EXPECT_NE(text.find("rank 1 did not call operation #2"), std::string::npos) << text;
  }
}

// The piece that a signature waits for is ready at once where what makes it ready came before the call.
TEST(SmallOperations, WhoCallsLastWaitsForNobody) {
  for (const oracle::Shape& shape : {sum(4, 1), broadcast(4, 3)}) {
    Cluster c(narrow(4));
    ASSERT_TRUE(c.join());
    warm_up(c, shape);
    AllRanks op(c, shape);
    op.submit_all_but(1);
    c.run_for(kLooksEvery * 2 + 1_ms);
    op.submit(1);
    op.expect_exact(1_ms);
  }
}

// Ranks 2 and 3 are 0's child in the tree and that one's child. By default room is not short before some thousand
// pieces.
ClusterOptions short_of_room() {
  ClusterOptions options = narrow(4);
  options.settings.algo = "tree";
  options.settings.eager_bytes = Bytes{4 * 1024};
  return options;
}

TEST(SmallOperations, PiecesThatFillTheRoomOfAnOlderOneMakeItsSignatureGo) {
  Cluster c(short_of_room());
  ASSERT_TRUE(c.join());
  warm_up(c, sum(4, 1));
  AllRanks oldest(c, sum(4, 1));
  oldest.submit_all_but(3);
  std::vector<std::unique_ptr<AllRanks>> ops;
  for (std::uint64_t i = 0; i < 8; ++i) {
    ops.push_back(std::make_unique<AllRanks>(c, broadcast(4, 3, 2, i)));
    ops.back()->submit(2);
  }
  c.run_for(1_ms);
  oldest.submit(3);
  oldest.expect_exact(1_ms);
  for (auto& op : ops) {
    for (const int r : {0, 1, 3}) op->submit(r);
  }
  for (auto& op : ops) op->expect_exact(1_ms);
}

TEST(SmallOperations, OperationsThatWaitForARankLeaveRoomForOthers) {
  Cluster c(short_of_room());
  ASSERT_TRUE(c.join());
  warm_up(c, sum(4, 1));
  const std::vector<GroupMember*> without_1 = form_group(c, {0, 2, 3});
  std::vector<std::unique_ptr<AllRanks>> ops;
  for (std::uint64_t i = 0; i < 8; ++i) {
    ops.push_back(std::make_unique<AllRanks>(c, sum(4, 1, i)));
    ops.back()->submit_all_but(1);
  }
  c.run_for(1_ms);
  AllRanks other(c, sum(3, 1));
  for (int r = 0; r < 3; ++r) other.submit(r, without_1[static_cast<std::size_t>(r)]);
  other.expect_exact(1_ms);
  for (auto& op : ops) op->submit(1);
  for (auto& op : ops) op->expect_exact();
}

TEST(SmallOperations, WhoHasNothingToSendAnnouncesItselfAllTheSame) {
  Cluster c(narrow(2));
  ASSERT_TRUE(c.join());
  warm_up(c, sum(2, 1));
  const std::uint64_t before[2] = {frames_of(c, 0), frames_of(c, 1)};
  AllRanks op(c, broadcast(2, 1));
  op.submit_all();
  op.expect_exact();
  c.run_for(5_ms);
  EXPECT_EQ(frames_of(c, 0) - before[0], 1u) << "the root's element and its signature";
  EXPECT_EQ(frames_of(c, 1) - before[1], 1u) << "the other's signature";
}

TEST(SmallOperations, ALargePieceTravelsWithoutItsSignature) {
  Cluster c(narrow(2));
  ASSERT_TRUE(c.join());
  // Sizes run from the last one that is copied with a signature to the first one that is not.
  const std::uint64_t fits = (kCopiedPieceBytes - sizeof(wire::SignaturePayload)) / sizeof(float);
  for (const auto& [count, frames] : {std::pair{fits, 1u}, {fits + 1, 2u}}) {
    warm_up(c, broadcast(2, count));
    const std::uint64_t before = frames_of(c, 0);
    warm_up(c, broadcast(2, count));
    EXPECT_EQ(frames_of(c, 0) - before, frames) << count << " elements";
  }
}

TEST(SmallOperations, WhatComesBeforeItsOperationIsCalledWaitsInOneFrame) {
  Cluster c(narrow(2));
  ASSERT_TRUE(c.join());
  warm_up(c, sum(2, 3));
  const std::uint64_t before = frames_of(c, 0);
  std::vector<std::unique_ptr<AllRanks>> ops;
  for (int i = 0; i < 8; ++i) {
    ops.push_back(std::make_unique<AllRanks>(c, sum(2, 3, static_cast<std::uint64_t>(i))));
    ops.back()->submit(0);
  }
  c.run_for(5_ms);
  EXPECT_EQ(c.world(1)->group->entered[0], c.world(0)->entered) << "rank 1 knows what rank 0 has called";
  for (auto& op : ops) op->submit(1);
  for (auto& op : ops) op->expect_exact();
  EXPECT_EQ(frames_of(c, 0) - before, 8u) << "nothing was sent again";
}

// Pieces that go ahead of their receiver are bounded; a piece beyond the bound is announced by its signature alone.
TEST(SmallOperations, ASignatureNeedsNoRoomAtThePeer) {
  ClusterOptions options = narrow(2);
  options.settings.eager_bytes = Bytes{4 * 1024};
  Cluster c(options);
  ASSERT_TRUE(c.join());
  std::vector<std::unique_ptr<AllRanks>> ops;
  for (int i = 0; i < 8; ++i) {
    ops.push_back(std::make_unique<AllRanks>(c, sum(2, 3, static_cast<std::uint64_t>(i))));
    ops.back()->submit(0);
  }
  c.run_for(5_ms);
  EXPECT_EQ(c.world(1)->group->entered[0], 8u);
  EXPECT_EQ(frames_of(c, 0), 8u) << "four with their pieces, four without";
  for (auto& op : ops) op->submit(1);
  for (auto& op : ops) op->expect_exact();
  EXPECT_EQ(frames_of(c, 0), 12u);
}

// Their pieces have the same names and sizes, so only the signature tells them apart.
TEST(SmallOperations, ElementsOfAnotherOperationNeverReachTheCallersMemory) {
  for (const bool late : {false, true}) {
    Cluster c(narrow(2));
    ASSERT_TRUE(c.join());
    const ReduceOp redops[2] = {CANARY_SUM, CANARY_MAX};
    const float mine[2][2] = {{1, 2}, {30, 40}};
    float out[2][2] = {{-1, -1}, {-1, -1}};
    OpTicket tickets[2];
    for (const int r : {0, 1}) {
      c.all_reduce(r, mine[r], out[r], 2, CANARY_F32, redops[r], &tickets[r]);
      if (late) c.run_for(1_ms);
    }
    ASSERT_TRUE(c.run_until([&] { return tickets[0].done() && tickets[1].done(); }, 250_ms));
    for (const int r : {0, 1}) {
      EXPECT_EQ(tickets[r].code, CANARY_MISMATCH);
      const std::string text = tickets[r].status.text();
      EXPECT_NE(text.find("rank 0 called all_reduce f32 n=2 sum"), std::string::npos) << text;
      EXPECT_NE(text.find("rank 1 called all_reduce f32 n=2 max"), std::string::npos) << text;
      EXPECT_EQ(out[r][0], -1) << "rank " << r << (late ? ", late" : "");
      EXPECT_EQ(out[r][1], -1);
    }
  }
}

TEST(SmallOperations, LostRepeatedAndReorderedFramesChangeNothing) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    ClusterOptions options = flat_cluster(3, 2);
    options.fabric.seed = seed;
    options.fabric.nic.out.loss_ppm = 30'000;
    options.fabric.nic.out.duplicate_ppm = 100'000;
    options.fabric.nic.out.reorder_ppm = 100'000;
    options.fabric.nic.out.reorder_delay = 300_us;
    Cluster c(options);
    ASSERT_TRUE(c.join());
    for (int i = 0; i < 20; ++i) {
      std::vector<std::unique_ptr<AllRanks>> ops;
      for (std::uint64_t k = 0; k < 6; ++k) ops.push_back(std::make_unique<AllRanks>(c, sum(3, 1 + 300 * k, k)));
      // The first caller differs, so the first piece is parked here and lands there.
      for (int r = 0; r < 3; ++r) {
        for (auto& op : ops) op->submit((r + i) % 3);
        c.run_for(20_us * (i % 4));
      }
      for (auto& op : ops) op->expect_exact();
    }
  }
}

// A group's first operation may be there before the group is.
TEST(SmallOperations, TheFirstOneOfAGroupMayComeBeforeTheGroup) {
  ClusterOptions options = flat_cluster(2, 1, 2);
  Cluster c(options);
  ASSERT_TRUE(c.join());
  wire::Header h = Forger::piece_of(c, 1, 0);
  h.flow = c.world(0)->group->flow + 1;  // the next one's, which engine 0 waits for
  h.epoch = 77;
  OpTicket ticket;
  ask_for_group(c, 0, {0, 2}, &ticket);
  wire::SignaturePayload signature;
  signature.members = 2;
  signature.world_rank = 2;
  std::vector<std::byte> payload(8 + sizeof signature, std::byte{0x42});
  std::memcpy(payload.data() + 8, &signature, sizeof signature);
  h.flags = wire::kSigned;
  h.payload_bytes = static_cast<std::uint32_t>(payload.size());
  Forger forger(c);
  EXPECT_TRUE(forger.send(h, payload.data())) << "kept";
  h.flags = 0;
  h.payload_bytes = 8;
  const Landing again = c.engine(0).mux(1)->landing_for(forger.channel, h);
  EXPECT_EQ(again.kind, Landing::Kind::kDiscard) << "the elements wait without their signature, as any piece does";
}

TEST(SmallOperations, ASignedPieceWithoutRoomForASignatureIsForgotten) {
  Cluster c(narrow(2));
  ASSERT_TRUE(c.join());
  warm_up(c, sum(2, 2));
  AllRanks op(c, sum(2, 2));
  op.submit(0);
  wire::Header h = Forger::piece_of(c, 2, 0);
  h.signature = signature_hash(c.world(0)->history[1]);
  h.flags = wire::kSigned;
  const std::vector<std::byte> garbage(4096, std::byte{0x42});
  Forger forger(c);
  for (const std::uint32_t bytes : {0u, 8u, 119u}) {
    h.payload_bytes = bytes;
    for (h.step = 0; h.step < 8; ++h.step) EXPECT_TRUE(forger.send(h, garbage.data())) << bytes;
  }
  op.submit(1);
  op.expect_exact();
}

// A frame whose elements find no room comes again and again: each time it leaves nothing behind.
TEST(SmallOperations, ASignedPieceWithoutRoomForItsElementsLeavesNoSignature) {
  ClusterOptions options = narrow(2);
  options.settings.eager_bytes = Bytes{4 * 1024};
  Cluster c(options);
  ASSERT_TRUE(c.join());
  warm_up(c, sum(2, 2));
  wire::SignaturePayload signature = c.world(0)->history[1];
  signature.world_rank = 1;
  std::vector<std::byte> payload(8 + sizeof signature, std::byte{0x42});
  std::memcpy(payload.data() + 8, &signature, sizeof signature);
  Forger forger(c);
  const auto send = [&](std::uint32_t op) {
    wire::Header h = Forger::piece_of(c, op, static_cast<std::uint32_t>(payload.size()));
    h.signature = signature_hash(signature);
    h.flags = wire::kSigned;
    return forger.send(h, payload.data());
  };
  std::uint32_t op = 2;
  while (send(op)) ASSERT_LT(++op, 100u);
  const std::size_t kept = op - 2;
  ASSERT_GT(kept, 0u);
  for (int again = 0; again < 10; ++again) EXPECT_FALSE(send(op));
  EXPECT_EQ(c.world(0)->early.size(), kept);
}

// A right signature does not make a wrong length right.
TEST(SmallOperations, ASignedPieceOfAForgedLengthIsNotBelieved) {
  for (const bool early : {false, true}) {
    Cluster c(narrow(2));
    ASSERT_TRUE(c.join());
    warm_up(c, sum(2, 2));
    AllRanks op(c, sum(2, 2));
    if (!early) op.submit(0);
    wire::SignaturePayload signature = c.world(0)->history[1];
    signature.world_rank = 1;
    wire::Header h = Forger::piece_of(c, 2, 0);
    h.signature = signature_hash(signature);
    h.flags = wire::kSigned;
    Forger forger(c);
    for (const std::size_t bytes : {4u, 12u, 4000u}) {
      std::vector<std::byte> payload(bytes + sizeof signature, std::byte{0x42});
      std::memcpy(payload.data() + bytes, &signature, sizeof signature);
      h.payload_bytes = static_cast<std::uint32_t>(payload.size());
      for (h.step = 0; h.step < 8; ++h.step) EXPECT_TRUE(forger.send(h, payload.data())) << bytes;
    }
    if (early) op.submit(0);
    op.submit(1);
    op.expect_exact();
  }
}

}  // namespace
}  // namespace canarynet
