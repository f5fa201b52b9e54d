// Simulated shared memory: payloads without CRC, read from the sender's memory as late as possible, in rings that can
// be full. Whole engines run on it whose operations end half way: results of those that succeeded have the right bytes,
// and buffers of those that are done are not written any more.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/random.h"
#include "sim/cluster_test_util.h"
#include "sim/sim_test_util.h"

namespace canarynet {
namespace {

constexpr std::uint32_t kLarge = 1 << 20;

std::vector<std::byte> filled(std::size_t bytes, int value) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(value));
}

wire::Header unchecked_header(std::uint32_t piece, std::uint32_t bytes) {
  wire::Header header;
  header.flow = 1;
  header.piece = piece;
  header.payload_bytes = bytes;
  header.flags = wire::kUnchecked | wire::kSequenced;
  header.lane_sequence = piece + 1;
  wire::seal(header);
  return header;
}

// Two hosts that share memory and have no NIC.
struct Machine {
  explicit Machine(std::int64_t ring_bytes = 4 << 20)
      : fabric(options(ring_bytes), {.networks = {{}, {}}, .machine = {7, 7}}) {
    sender = &a.dial(0, fabric.factory(1).rails()[0].address);
    run(fabric, {&a, &b}, 1_ms);
  }
  static FabricOptions options(std::int64_t ring_bytes) {
    FabricOptions o;
    o.ring_bytes = ring_bytes;
    return o;
  }
  SimFabric fabric;
  TestHost a{fabric, 0}, b{fabric, 1};
  Lane* sender = nullptr;
};

TEST(MemoryLanes, AreFoundBehindTheNicsByHostsOfOneMachine) {
  Wiring wiring = Wiring::flat(3, 2);
  wiring.machine = {0, 0, 1};
  SimFabric fabric(FabricOptions{}, wiring);
  ASSERT_EQ(fabric.factory(0).rails().size(), 3u);
  EXPECT_EQ(fabric.factory(0).rails()[2].device, "shm");
  EXPECT_EQ(pair_rails(fabric.factory(0).rails(), fabric.factory(1).rails(), RailPairing::kAuto),
            (std::vector<RailPair>{{2, 2}}));
  EXPECT_EQ(pair_rails(fabric.factory(0).rails(), fabric.factory(2).rails(), RailPairing::kAuto),
            (std::vector<RailPair>{{0, 0}, {1, 1}}));
}

TEST(MemoryLanes, ReadASendersMemoryUntilTheFrameIsWhole) {
  Machine m;
  auto memory = filled(kLarge, 1);
  auto place = filled(kLarge, 0);
  m.b.landing = {Landing::Kind::kSpan, place.data(), 0};
  ASSERT_TRUE(m.sender->send(unchecked_header(0, kLarge), memory.data(), 5));
  m.sender->flush(m.fabric.now());
  run(m.fabric, {&m.a, &m.b}, m.fabric.now() + 100_us);
  ASSERT_EQ(m.b.landings, 1);
  ASSERT_TRUE(m.b.got.empty()) << "a frame of this size takes longer";
  std::fill(memory.begin(), memory.end(), std::byte{2});  // too early: it is neither acknowledged nor taken back
  run(m.fabric, {&m.a, &m.b}, m.fabric.now() + 1_ms);
  ASSERT_EQ(m.b.got.size(), 1u);
  EXPECT_TRUE(m.b.got[0].intact) << "nothing protects the payload";
  EXPECT_EQ(place.front(), std::byte{1});
  EXPECT_EQ(place.back(), std::byte{2}) << "the change went unnoticed";
}

TEST(MemoryLanes, OfAStreamTheCrcFindsMemoryThatChangesTooEarly) {
  FabricOptions o;
  o.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(10'000));
  SimFabric fabric(o, Wiring::flat(2, 1));
  TestHost a(fabric, 0), b(fabric, 1);
  Lane& lane = a.dial(0, fabric.factory(1).rails()[0].address);
  run(fabric, {&a, &b}, 1_ms);
  auto memory = filled(kLarge, 1);
  for (int early = 0; early < 2; ++early) {
    ASSERT_TRUE(lane.send(piece_header(0, memory.data(), kLarge), memory.data(), 5));
    lane.flush(fabric.now());
    if (early == 0) run(fabric, {&a, &b}, fabric.now() + 2_ms);
    std::fill(memory.begin(), memory.end(), static_cast<std::byte>(2 + early));
    run(fabric, {&a, &b}, fabric.now() + 2_ms);
    ASSERT_EQ(b.got.size(), static_cast<std::size_t>(1 + early));
    EXPECT_EQ(b.got.back().intact, early == 0);
  }
}

TEST(MemoryLanes, WaitForAReaderWithAFrameThatDoesNotFit) {
  for (const bool taken_back : {false, true}) {
    Machine m(64 << 10);
    auto memory = filled(kLarge, 1);
    for (std::uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(m.sender->send(unchecked_header(i, kLarge), memory.data(), i));
    m.sender->flush(m.fabric.now());
    m.fabric.freeze(1);
    run(m.fabric, {&m.a, &m.b}, m.fabric.now() + 1_s);
    EXPECT_EQ(m.b.landings, 0);
    if (taken_back) {
      EXPECT_TRUE(m.sender->cancel(0)) << "half written";
      std::fill(memory.begin(), memory.end(), std::byte{2});
    }
    m.fabric.thaw(1);
    run(m.fabric, {&m.a, &m.b}, m.fabric.now() + 10_ms);
    ASSERT_EQ(m.b.got.size(), 3u) << "the lane stopped";
    EXPECT_EQ(m.b.got[0].intact, !taken_back);
    EXPECT_TRUE(m.b.got[1].intact);
    EXPECT_EQ(m.fabric.counters().given_up, taken_back ? 1u : 0u);
    EXPECT_EQ(m.fabric.frames_in_use(), 0u);
  }
}

TEST(MemoryLanes, ThatEndWithAFrameHalfWrittenDeliverNothingOfIt) {
  for (const bool frozen : {false, true}) {
    Machine m(64 << 10);
    auto memory = filled(kLarge, 1);
    auto place = filled(kLarge, 0);
    m.b.landing = {Landing::Kind::kSpan, place.data(), 0};
    ASSERT_TRUE(m.sender->send(unchecked_header(0, kLarge), memory.data(), 0));
    m.sender->flush(m.fabric.now());
    if (frozen) m.fabric.freeze(1);
    run(m.fabric, {&m.a, &m.b}, m.fabric.now() + 50_us);
    EXPECT_EQ(m.b.landings, frozen ? 0 : 1);
    m.a.lanes.clear();
    memory.clear();
    memory.shrink_to_fit();
    m.fabric.thaw(1);
    run(m.fabric, {&m.a, &m.b}, m.fabric.now() + 10_ms);
    EXPECT_TRUE(m.b.got.empty());
    EXPECT_EQ(m.b.downs, 1);
    EXPECT_EQ(m.fabric.frames_in_use(), 0u);
  }
}

// --- engines ---------------------------------------------------------------------------------------------------------

ClusterOptions one_machine(int ranks, std::uint64_t seed) {
  ClusterOptions c = flat_cluster(ranks, 1);
  c.wiring.machine.assign(static_cast<std::size_t>(ranks), 0);
  c.fabric.seed = seed;
  c.amend = [](int, EngineOptions* e) { e->host_id = "one"; };
  return c;
}

// A broadcast whose root overwrites its input as soon as it is done. The results are looked at when they are told and
// at the end.
class Broadcast {
 public:
  Broadcast(Cluster& cluster, int root, std::size_t bytes, std::uint64_t seed) : cluster_(cluster), root_(root) {
    for (std::size_t i = 0; i < bytes; ++i)
      want_.push_back(static_cast<std::byte>((seed + i * 31 + i / 4096) % 251 + 1));
    input_ = want_;
    for (int r = 0; r < cluster.ranks(); ++r) {
      ranks_.push_back(std::make_unique<Rank>());
      ranks_.back()->output.resize(bytes);
    }
  }
  void submit(int rank) {
    Rank& mine = *ranks_[static_cast<std::size_t>(rank)];
    cluster_.submit(cluster_.world(rank),
                    {.collective = Collective::kBroadcast,
                     .input = input_.data(),
                     .output = mine.output.data(),
                     .count = want_.size(),
                     .type = CANARY_U8,
                     .root = root_},
                    &mine.ticket);
  }
  // Call it after every step. Returns true when all are done.
  bool look() {
    bool all = true;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = *ranks_[r];
      if (!cluster_.alive(static_cast<int>(r))) continue;
      all &= rank.ticket.done();
      if (!rank.ticket.done() || rank.seen) continue;
      rank.seen = true;
      rank.told = rank.output;
      if (rank.ticket.code == CANARY_OK) {
        ++succeeded;
        EXPECT_TRUE(rank.output == want_) << "rank " << r << " was told OK and has wrong bytes";
      }
      if (static_cast<int>(r) == root_) std::fill(input_.begin(), input_.end(), std::byte{0xee});
    }
    return all;
  }
  void look_again() {
    for (const auto& rank : ranks_)
      EXPECT_TRUE(!rank->seen || rank->output == rank->told) << "written after it was done";
  }
  void kill(int rank) {
    cluster_.kill(rank, CrashKind::kHangup);
    if (rank == root_) std::fill(input_.begin(), input_.end(), std::byte{0xee});
  }
  int succeeded = 0;

 private:
  struct Rank {
    OpTicket ticket;
    std::vector<std::byte> output, told;
    bool seen = false;
  };
  Cluster& cluster_;
  const int root_;
  std::vector<std::byte> want_, input_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST(MemoryLanes, AReceiverThatDoesNotReadForLongGetsTheRightBytes) {
  for (const Nanos until : {10_us, 100_us, 300_us, 900_us}) {
    ClusterOptions o = one_machine(2, 1);
    o.settings.piece_bytes = Bytes{kLarge};  // as large as the ring
    Cluster c(o);
    ASSERT_TRUE(c.join());
    Broadcast op(c, 0, 8 * std::size_t{kLarge}, 1);
    op.submit(0);
    op.submit(1);
    c.run_for(until);
    c.fabric().freeze(1);
    c.run_for(200_ms);
    c.fabric().thaw(1);
    ASSERT_TRUE(c.run_until([&] { return op.look(); }, 10_s));
    EXPECT_EQ(op.succeeded, 2);
    EXPECT_GT(c.fabric().counters().given_up, 0u) << "nothing was half written: nothing is tested";
    c.run_for(1_s);
    op.look_again();
  }
}

TEST(MemoryLanes, WhatSucceedsBesideAnAbortOrADeathHasTheRightBytes) {
  int succeeded = 0, failed = 0;
  std::uint64_t given_up = 0;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    ClusterOptions o = one_machine(3, seed);
    o.fabric.ring_bytes = 64 << (10 + random.below(3));
    Cluster c(o);
    ASSERT_TRUE(c.join());
    const int root = static_cast<int>(random.below(3));
    // If an operation has only one piece, half of it passing for the whole would end the operation.
    const std::size_t bytes = seed % 2 == 0 ? 1'100'000 : 120'000;
    Broadcast op(c, root, bytes, seed);
    const Nanos span{static_cast<std::int64_t>(random.below(bytes * 4 / 5)) + 1};
    for (int r = 0; r < 3; ++r) op.submit(r);
    const Nanos end = c.now() + span;
    c.run_until([&] { return op.look() || c.now() >= end; }, span);
    if (random.below(3) == 0) {
      op.kill(static_cast<int>(random.below(3)));
    } else {
      abort_world(c, static_cast<int>(random.below(3)), "enough");
    }
    ASSERT_TRUE(c.run_until([&] { return op.look(); }, 10_s));
    c.run_for(300_ms);
    op.look_again();
    succeeded += op.succeeded;
    failed += 3 - op.succeeded;
    given_up += c.fabric().counters().given_up;
  }
  EXPECT_GT(succeeded, 20);
  EXPECT_GT(failed, 20);
  EXPECT_GT(given_up, 20u) << "hardly any frame was half written";
}

TEST(MemoryLanes, ThatBreakInTheMiddleOfAFrameAreMadeAgainAndEveryByteIsRight) {
  int broken = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    ClusterOptions o = one_machine(3, seed);
    o.fabric.ring_bytes = 64 << 10;
    Cluster c(o);
    ASSERT_TRUE(c.join());
    Broadcast op(c, 0, 1'100'000, seed);
    for (int r = 0; r < 3; ++r) op.submit(r);
    for (int cuts = 0; cuts < 3; ++cuts) {
      c.run_for(Nanos{static_cast<std::int64_t>(random.below(400'000))});
      op.look();
      std::vector<Lane*> lanes;
      c.fabric().lanes_between(0, 1 + static_cast<int>(random.below(2)), &lanes);
      std::erase_if(lanes, [](const Lane* lane) { return lane->rail() == kControlRail; });
      if (lanes.empty()) continue;
      c.fabric().kill_lane(*lanes[random.below(lanes.size())], true);
      ++broken;
    }
    ASSERT_TRUE(c.run_until([&] { return op.look(); }, 10_s));
    EXPECT_EQ(op.succeeded, 3);
    c.run_for(300_ms);
    op.look_again();
  }
  EXPECT_GT(broken, 40);
}

}  // namespace
}  // namespace canarynet
