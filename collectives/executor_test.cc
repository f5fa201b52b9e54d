// Executors of all ranks against each other without a network: any order of arrival, duplicates, acks that come late.
#include "collectives/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>

#include "base/random.h"
#include "collectives/schedule.h"
#include "kernels/crc32c.h"

namespace canarynet {
namespace {

constexpr std::uint32_t kPieceBytes = 1024;
constexpr std::uint64_t kCount = 1500;  // of floats: pieces of a full and of a broken length

struct Message {
  int from = 0, to = 0;
  Executor::ReadyPiece ready;
  std::vector<std::byte> bytes;
  std::uint32_t crc = 0;
};

enum class Zeros : std::uint8_t {
  kNone,
  kSome,       // most leaves of each rank's input, one of everybody's; they travel as null pieces
  kSomeWhole,  // likewise, but ranks with an odd number send them as any other values
};

class Ranks {
 public:
  Ranks(PlannerId id, Collective collective, int ranks, ReduceOp op, std::uint64_t seed, Zeros zeros = Zeros::kNone)
      : collective_(collective), op_(op), zeros_(zeros), random_(seed), reach_(Reachability::full(ranks, 2)) {
    const PlanRequest request{.collective = collective,
                              .ranks = ranks,
                              .count = kCount,
                              .root = ranks - 1,
                              .reach = &reach_,
                              .bcube = find_bcube(reach_, 2)};
    EXPECT_TRUE(planner(id).check(request).ok());
    for (int r = 0; r < ranks; ++r) {
      programs_.push_back(std::make_unique<Program>(compile(id, request, r, kPieceBytes)));
      executors_.push_back(std::make_unique<Executor>(*programs_.back()));
      const std::size_t n = static_cast<std::size_t>(ranks);
      const bool is_root = r == request.root;
      const std::size_t in = input_in_blocks(collective) ? kCount * n : kCount;
      const std::size_t out = output_in_blocks(collective) ? kCount * n : kCount;
      inputs_.emplace_back(reads_input(collective, is_root) ? in : 0);
      outputs_.emplace_back(writes_output(collective, is_root) ? out : 0, -1.0F);
    }
    for (int r = 0; r < ranks; ++r) {
      for (std::size_t i = 0; i < inputs_[r].size(); ++i) inputs_[r][i] = value(r, i);
      const bool null_pieces = zeros == Zeros::kSome || (zeros == Zeros::kSomeWhole && r % 2 == 0);
      executors_[r]->bind(inputs_[r].data(), outputs_[r].data(), CANARY_F32, op, nullptr, null_pieces);
    }
  }

  // Runs to the end in random order. `forged` is added to every CRC that is told with a piece, to see which CRCs are
  // used again.
  void run(std::uint32_t forged = 0) {
    std::deque<Message> flying;
    for (int steps = 0; steps < 100'000; ++steps) {
      std::vector<std::pair<std::size_t, std::uint32_t>> sendable;
      for (std::size_t r = 0; r < executors_.size(); ++r) {
        for (std::uint32_t s = 0; s < programs_[r]->peers.size(); ++s) {
          if (executors_[r]->has_send(s)) sendable.push_back({r, s});
        }
      }
      if (sendable.empty() && flying.empty()) return;
      if (!sendable.empty() && (flying.empty() || random_.below(2) == 0)) {
        const auto [r, peer] = sendable[random_.below(sendable.size())];
        flying.push_back(send(static_cast<int>(r), peer));
        continue;
      }
      const std::size_t pick = random_.below(flying.size());
      const Message m = flying[pick];
      flying.erase(flying.begin() + static_cast<std::ptrdiff_t>(pick));
      deliver(m, m.crc + forged);
      if (random_.below(4) == 0) deliver(m, m.crc + forged);  // once more: nothing may change
      EXPECT_TRUE(std::equal(m.bytes.begin(), m.bytes.end(), m.ready.data)) << "overwritten before the ack";
      executors_[m.from]->sent(m.ready.task);
    }
    FAIL() << "no end";
  }

  // The same with all executors in one engine: pieces are read from where they lie. Counts the pieces that had to wait
  // for their turn.
  int run_as_neighbours() {
    int waited = 0;
    for (auto& e : executors_) e->expect_neighbours();
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& e : executors_) {
        for (Executor::Sender sender; e->next_applied(&sender); moved = true) sender.executor->sent(sender.task);
      }
      std::vector<std::pair<std::size_t, std::uint32_t>> sendable;
      for (std::size_t r = 0; r < executors_.size(); ++r) {
        for (std::uint32_t s = 0; s < programs_[r]->peers.size(); ++s) {
          if (executors_[r]->has_send(s)) sendable.push_back({r, s});
        }
      }
      if (sendable.empty()) continue;
      moved = true;
      const auto [from, peer] = sendable[random_.below(sendable.size())];
      Executor& e = *executors_[from];
      const Executor::ReadyPiece ready = e.peek_send(peer);
      e.pop_send(peer);
      Executor& to = *executors_[static_cast<std::size_t>(programs_[from]->peers[peer].rank)];
      if (to.offer(static_cast<int>(from), ready.step->tag, ready.in_step(), ready.data, ready.bytes,
                   {&e, ready.task})) {
        e.sent(ready.task);
      } else {
        ++waited;
      }
    }
    return waited;
  }

  void expect_right() {
    const int n = static_cast<int>(executors_.size());
    for (int r = 0; r < n; ++r) {
      ASSERT_TRUE(executors_[r]->complete()) << "rank " << r << " has " << executors_[r]->remaining() << " tasks left";
      for (std::size_t i = 0; i < outputs_[r].size(); ++i) ASSERT_EQ(outputs_[r][i], wanted(r, i)) << r << " " << i;
    }
  }

  int sends = 0;
  int forged_sends = 0;  // pieces whose CRC did not fit their bytes
  int null_sends = 0;

 private:
  float value(int rank, std::size_t i) const {
    const std::size_t leaf = i / (kCount / 4) % 4;
    if (zeros_ != Zeros::kNone && (leaf == 3 || (leaf + static_cast<std::size_t>(rank)) % 3 != 0)) return 0;
    return static_cast<float>((i % 97) * 8 + 4 * static_cast<unsigned>(rank));
  }
  float wanted(int rank, std::size_t i) const {
    const int n = static_cast<int>(executors_.size());
    if (collective_ == Collective::kBroadcast) return value(n - 1, i);
    if (is_pairwise(collective_))
      return value(static_cast<int>(i / kCount), i % kCount + kCount * static_cast<std::size_t>(rank));
    if (output_in_blocks(collective_)) return value(static_cast<int>(i / kCount), i % kCount);
    float sum = 0;
    const std::size_t at = input_in_blocks(collective_) ? i + kCount * static_cast<std::size_t>(rank) : i;
    if (collective_ == Collective::kScatter) return value(n - 1, at);
    for (int r = 0; r < n; ++r) sum += value(r, at);
    return op_ == CANARY_AVG ? sum / static_cast<float>(n) : sum;
  }

  Message send(int from, std::uint32_t peer) {
    Executor& e = *executors_[from];
    Message m{from, programs_[from]->peers[peer].rank, e.peek_send(peer), {}, 0};
    e.pop_send(peer);
    m.bytes.assign(m.ready.data, m.ready.data + m.ready.bytes);
    m.crc = e.crc_of(m.ready);
    ++sends;
    null_sends += m.ready.null;
    EXPECT_EQ(m.ready.null, m.bytes.empty());
    forged_sends += m.crc != crc32c(0, m.bytes.data(), m.bytes.size());
    return m;
  }

  void deliver(const Message& m, std::uint32_t crc) {
    Executor& e = *executors_[m.to];
    const std::uint32_t piece = m.ready.in_step();
    const auto place = e.place_for(m.from, m.ready.step->tag, piece, m.ready.bytes);
    if (place.kind == Executor::PlaceKind::kDuplicate) return;
    ASSERT_NE(place.kind, Executor::PlaceKind::kUnknown);
    const std::byte* payload = m.bytes.data();
    if (place.kind == Executor::PlaceKind::kSpan) {
      if (random_.below(8) == 0) {  // that landing breaks off; the piece comes again
        e.landing_lost(place.task);
        return deliver(m, crc);
      }
      if (random_.below(8) == 0) return overtake(m, crc, place.data);
      std::memcpy(place.data, m.bytes.data(), m.bytes.size());
      payload = place.data;
    }
    bool other_landing = false;
    EXPECT_TRUE(e.arrived(place.task, {payload, m.bytes.size()}, &other_landing, crc));
    EXPECT_FALSE(other_landing);
    if (random_.below(8) == 0) {  // from another lane, which had asked for a place before it was there
      EXPECT_FALSE(e.arrived(place.task, m.bytes, &other_landing, crc)) << "added twice";
    }
  }

  // Another lane brings the piece whole while the first is still writing it to `landing`.
  void overtake(const Message& m, std::uint32_t crc, const std::byte* landing) {
    Executor& e = *executors_[m.to];
    const std::uint16_t tag = m.ready.step->tag;
    const std::uint32_t piece = m.ready.in_step();
    const auto place = e.place_for(m.from, tag, piece, m.ready.bytes);
    EXPECT_EQ(place.kind, Executor::PlaceKind::kSlot);
    bool other_landing = false;
    EXPECT_TRUE(e.arrived(place.task, m.bytes, &other_landing, crc));
    EXPECT_TRUE(other_landing) << "the first lane has to be turned away";
    EXPECT_FALSE(e.arrived(place.task, {landing, m.bytes.size()}, &other_landing, crc)) << "it was there already";
    EXPECT_FALSE(other_landing);
  }

  const Collective collective_;
  const ReduceOp op_;
  const Zeros zeros_;
  Random random_;
  const Reachability reach_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<std::vector<float>> inputs_, outputs_;
};

constexpr Collective kMoving[] = {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                                  Collective::kBroadcast, Collective::kReduce,        Collective::kGather,
                                  Collective::kScatter,   Collective::kAllToAll,      Collective::kAllGatherV};

TEST(Executor, AnyOrderOfArrivalsGivesTheSumAndEveryPieceItsCrc) {
  for (const Planner& one : planners()) {
    for (const Collective collective : kMoving) {
      if (!one.defines(collective, 4)) continue;
      for (const ReduceOp op : {CANARY_SUM, CANARY_AVG}) {
        for (std::uint64_t seed = 1; seed <= 5; ++seed) {
          SCOPED_TRACE(std::string(name_of(one.id)) + " " + std::string(name_of(collective)) + " seed " +
                       std::to_string(seed));
          Ranks ranks(one.id, collective, 4, op, seed);
          ranks.run();
          ASSERT_NO_FATAL_FAILURE(ranks.expect_right());
          EXPECT_GT(ranks.sends, 0);
          EXPECT_EQ(ranks.forged_sends, 0) << "a CRC outlived the bytes it was of";
        }
      }
    }
  }
}

TEST(Executor, SumsOfARanksOwnBuffersHaveTheirTurn) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Ranks ranks(PlannerId::kBCubeX, Collective::kAllReduce, 9, CANARY_AVG, seed);  // (3, 2): digit 2 needs one
    ranks.run();
    ASSERT_NO_FATAL_FAILURE(ranks.expect_right()) << "seed " << seed;
    EXPECT_EQ(ranks.forged_sends, 0) << "seed " << seed;
  }
}

TEST(Executor, NeighboursPiecesAreAddedFromWhereTheyLieInTheFixedOrder) {
  int waited = 0;
  for (const Planner& one : planners()) {
    for (const Collective collective : kMoving) {
      if (!one.defines(collective, 4)) continue;
      for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        SCOPED_TRACE(std::string(name_of(one.id)) + " " + std::string(name_of(collective)) + " seed " +
                     std::to_string(seed));
        Ranks ranks(one.id, collective, 4, CANARY_AVG, seed);
        waited += ranks.run_as_neighbours();
        ASSERT_NO_FATAL_FAILURE(ranks.expect_right());
      }
    }
  }
  EXPECT_GT(waited, 100) << "no piece had to wait: the order was not put to the test";
}

TEST(Executor, NullPiecesAreZerosInAnyOrder) {
  for (const Planner& one : planners()) {
    for (const Collective collective : kMoving) {
      if (!one.defines(collective, 4)) continue;
      for (const ReduceOp op : {CANARY_SUM, CANARY_AVG}) {
        for (std::uint64_t seed = 1; seed <= 6; ++seed) {
          SCOPED_TRACE(std::string(name_of(one.id)) + " " + std::string(name_of(collective)) + " seed " +
                       std::to_string(seed));
          Ranks ranks(one.id, collective, 4, op, seed, seed % 2 == 0 ? Zeros::kSome : Zeros::kSomeWhole);
          ranks.run();
          ASSERT_NO_FATAL_FAILURE(ranks.expect_right());
          EXPECT_EQ(ranks.forged_sends, 0) << "a CRC outlived the bytes it was of";
          if (seed % 2 == 0) {
            EXPECT_GT(ranks.null_sends, ranks.sends / 8);
          }
          EXPECT_LT(ranks.null_sends, ranks.sends);
          Ranks neighbours(one.id, collective, 4, op, seed, Zeros::kSome);
          neighbours.run_as_neighbours();
          ASSERT_NO_FATAL_FAILURE(neighbours.expect_right());
        }
      }
    }
  }
}

// Two ranks that exchange halves of 300 floats, in pieces of 256 bytes.
class TwoRanks : public testing::Test {
 protected:
  Executor& bound(std::vector<float>& values, ReduceOp op, bool null_pieces) {
    executor_.bind(values.data(), values.data(), CANARY_F32, op, nullptr, null_pieces);
    return executor_;
  }
  const ProgramStep& first_receive() const { return program_.steps[program_.receives.front()]; }

  const Reachability reach_ = Reachability::full(2, 1);
  const Program program_ =
      compile(PlannerId::kMesh, {.ranks = 2, .count = 300, .element_bytes = 4, .reach = &reach_}, 0, 256);
  Executor executor_{program_};
};

TEST_F(TwoRanks, OnlyBytesThatAreAllZeroStayBehind) {
  std::vector<float> values(300);
  EXPECT_TRUE(bound(values, CANARY_SUM, true).peek_send(0).null);
  EXPECT_EQ(executor_.peek_send(0).bytes, 0u);
  EXPECT_EQ(bound(values, CANARY_SUM, false).peek_send(0).bytes, 256u) << "unless the caller says so";
  const auto piece = bound(values, CANARY_SUM, true).peek_send(0);
  auto* const sent = reinterpret_cast<float*>(const_cast<std::byte*>(piece.data));
  for (std::size_t i = 0; i < 64; ++i) {
    for (const float value : {-0.0F, 1e-45F}) {
      sent[i] = value;
      EXPECT_EQ(executor_.peek_send(0).bytes, 256u) << i;
      EXPECT_FALSE(executor_.peek_send(0).null) << i;
    }
    sent[i] = 0;
  }
  for (ReduceOp op : {CANARY_MIN, CANARY_MAX, CANARY_PROD}) EXPECT_FALSE(bound(values, op, true).peek_send(0).null);
}

TEST_F(TwoRanks, ProductsAndExtremesTakeNoPieceWithoutBytes) {
  std::vector<float> values(300, 1.0F);
  const ProgramStep& step = first_receive();
  std::uint32_t task = 0;
  for (ReduceOp op : {CANARY_MIN, CANARY_MAX, CANARY_PROD}) {
    bound(values, op, true);
    EXPECT_EQ(executor_.place_for(step.peer, step.tag, 0, 0).kind, Executor::PlaceKind::kUnknown) << op;
    EXPECT_FALSE(executor_.fits(step.peer, step.tag, 0, 0, &task)) << op;
  }
  for (ReduceOp op : {CANARY_SUM, CANARY_AVG}) {
    bound(values, op, false);
    EXPECT_EQ(executor_.place_for(step.peer, step.tag, 0, 0).kind, Executor::PlaceKind::kSlot) << op;
    EXPECT_TRUE(executor_.fits(step.peer, step.tag, 0, 0, &task)) << op;
    EXPECT_FALSE(executor_.fits(step.peer, step.tag, 0, 4, &task)) << "a part of it is no null piece";
  }
}

// As it is on the rank that added it to zeros of its own, where a plan has every sum on several ranks.
TEST_F(TwoRanks, MinusZeroAndANullPieceMakeZero) {
  std::vector<float> values(300, -0.0F);
  bound(values, CANARY_SUM, true);
  const ProgramStep& step = first_receive();
  const auto place = executor_.place_for(step.peer, step.tag, 0, 0);
  bool other_landing = false;
  ASSERT_TRUE(executor_.arrived(place.task, {}, &other_landing));
  EXPECT_FALSE(other_landing);
  const std::size_t first = program_.place[static_cast<std::size_t>(step.dst)][step.piece_begin] / sizeof(float);
  for (std::size_t i = 0; i < 64; ++i) EXPECT_FALSE(std::signbit(values[first + i])) << i;
}

// A whole piece of the same name is landing over another lane, which must be turned away.
TEST_F(TwoRanks, ANullPieceOvertakesOneThatLands) {
  std::vector<float> values(300);
  bound(values, CANARY_SUM, true);
  for (std::uint32_t i : program_.receives) {
    const ProgramStep& step = program_.steps[i];
    const auto landing = executor_.place_for(step.peer, step.tag, 0, 256);
    const auto place = executor_.place_for(step.peer, step.tag, 0, 0);
    ASSERT_EQ(place.kind, Executor::PlaceKind::kSlot);
    bool other_landing = false;
    ASSERT_TRUE(executor_.arrived(place.task, {}, &other_landing));
    EXPECT_EQ(other_landing, landing.kind == Executor::PlaceKind::kSpan);
    EXPECT_EQ(executor_.place_for(step.peer, step.tag, 0, 256).kind, Executor::PlaceKind::kDuplicate);
  }
}

// Its place in the staging may hold what another lane had begun to write there.
TEST(Executor, ANullPieceThatWaitsForItsTurnIsOneWhenThatComes) {
  const auto reach = Reachability::full(3, 1);
  const Program program =
      compile(PlannerId::kMesh, {.ranks = 3, .count = 300, .element_bytes = 4, .reach = &reach}, 0, 512);
  Executor executor(program);
  std::vector<float> values(300, 7.0F);
  executor.bind(values.data(), values.data(), CANARY_F32, CANARY_SUM);
  const ProgramStep* first = nullptr;
  bool other_landing = false;
  int waited = 0;
  for (const std::uint32_t i : program.receives) {
    const ProgramStep& step = program.steps[i];
    if (step.kind != StepKind::kReceiveReduce) continue;
    const auto place = executor.place_for(step.peer, step.tag, 0, program.bytes_of(step.piece_begin));
    if (place.kind == Executor::PlaceKind::kSlot) {
      first = &step;
      continue;
    }
    std::memset(place.data, 0x42, program.bytes_of(step.piece_begin));
    executor.landing_lost(place.task);
    ASSERT_TRUE(executor.arrived(place.task, {}, &other_landing));
    EXPECT_FALSE(other_landing);
    ++waited;
  }
  EXPECT_EQ(waited, 1);
  ASSERT_NE(first, nullptr);
  ASSERT_TRUE(executor.arrived(executor.place_for(first->peer, first->tag, 0, 0).task, {}, &other_landing));
  EXPECT_EQ(values, std::vector<float>(300, 7.0F));
}

// A ring hands every block on n - 2 times: those pieces go out with the CRC they came with, so it travels with the data
// and is not computed again.
TEST(Executor, ForwardedPiecesKeepTheCrcTheyCameWith) {
  Ranks gather(PlannerId::kRing, Collective::kAllGather, 4, CANARY_SUM, 1);
  gather.run(1);
  ASSERT_NO_FATAL_FAILURE(gather.expect_right());
  // One of 3 sends of a block is of the rank's own input. Early arrivals wait in staging and lose their CRC.
  EXPECT_GT(gather.forged_sends, gather.sends / 3);
  EXPECT_LE(gather.forged_sends, gather.sends * 2 / 3);
}

// A rank that only hands pieces on needs no memory for those that pass others.
TEST(Executor, AProgramHasPiecesForTheLeavesOfItsOwnStepsOnly) {
  const auto reach = Reachability::full(8, 1);
  const PlanRequest request{
      .collective = Collective::kGather, .ranks = 8, .count = 256, .element_bytes = 4, .root = 2, .reach = &reach};
  const Program leaf = compile(PlannerId::kMesh, request, 5, kPieceBytes);
  EXPECT_EQ(leaf.piece_offset, (std::vector<std::uint64_t>{0, 1024}));
  EXPECT_EQ(leaf.place[0], (std::vector<std::uint64_t>{0})) << "its input is its own block";
  EXPECT_EQ(leaf.scratch_bytes, 0u);
  const Program root = compile(PlannerId::kMesh, request, 2, kPieceBytes);
  EXPECT_EQ(root.piece_offset.size(), 9u);
  EXPECT_EQ(root.place[1][7], 7u * 1024);
}

// A rank knows only its own row and column, and has memory only for those.
TEST(Executor, AllToAllHasPiecesForTheOwnRowAndColumn) {
  const auto reach = Reachability::full(3, 1);
  // Elements to 0, 1, 2; they begin at 0, 40, 10; elements from 0, 1, 2; they begin at 5, 0, 3000.
  const std::vector<std::uint64_t> counts = {10, 0, 600, 0, 40, 10, 1, 0, 600, 5, 0, 3000};
  const PlanRequest request{
      .collective = Collective::kAllToAllV, .ranks = 3, .element_bytes = 4, .counts = counts, .reach = &reach};
  const Program p = compile(PlannerId::kMesh, request, 2, kPieceBytes);
  EXPECT_EQ(p.counts, counts);
  // Leaves 0>2, 1>2 (empty), 2>0, 2>1 (empty), 2>2: the last in three pieces.
  EXPECT_EQ(p.piece_offset, (std::vector<std::uint64_t>{0, 4, 44, 1068, 2092, 2444}));
  EXPECT_EQ(p.place[1][0], 5u * 4) << "from 0";
  EXPECT_EQ(p.place[0][1], 0u) << "to 0";
  EXPECT_EQ(p.place[0][2], 10u * 4) << "to itself";
  EXPECT_EQ(p.place[1][4], 3000u * 4 + 2048);
  EXPECT_EQ(p.peers.size(), 2u) << "also who gets nothing hears of the call";
}

TEST(Executor, SumsGetACrcOfTheirOwn) {
  Ranks scatter(PlannerId::kRing, Collective::kReduceScatter, 4, CANARY_SUM, 1);
  scatter.run(1);
  ASSERT_NO_FATAL_FAILURE(scatter.expect_right());
  EXPECT_EQ(scatter.forged_sends, 0);
}

}  // namespace
}  // namespace canarynet
