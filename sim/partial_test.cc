// Partial all-reduces: some ranks of a group, many at once, and nobody forms a group for them.
#include "engine/partial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"
#include "compress/spec.h"
#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

constexpr double kPlain = -1;  // weights do not count

// The call of one rank.
struct Call {
  int rank = 0;
  std::vector<std::uint64_t> numbers;
  std::vector<float> input, output;
  OpTicket ticket;
};

// A partial all-reduce with the calls of those who make them.
class Partial {
 public:
  Partial(Cluster& cluster, std::uint64_t number, std::vector<int> ranks, std::size_t count)
      : cluster_(cluster), number_(number), ranks_(std::move(ranks)), count_(count) {}
  // Of its calls from here on.
  void use(const std::string& codec, std::uint64_t tensor) {
    codec_ = codec_number(parse_codec(codec).value()).value();
    tensor_ = tensor;
  }
  void give_zeros() { zeros_ = true; }

  // Its list may differ from the others'.
  Call& call(int rank, double weight = kPlain, ReduceOp redop = CANARY_AVG, std::vector<int> list = {},
             Nanos limit = {}) {
    Call& c = *calls_.emplace_back(std::make_unique<Call>());
    c.rank = rank;
    c.input.resize(count_);
    for (std::size_t i = 0; i < count_ && !zeros_; ++i) c.input[i] = value(rank, i);
    c.output.resize(count_);
    c.numbers = {number_, std::bit_cast<std::uint64_t>(weight), codec_, tensor_, 0};
    for (const int r : list.empty() ? ranks_ : list) c.numbers.push_back(static_cast<std::uint64_t>(r));
    submit(c, weight, redop, limit);
    return c;
  }
  void call_all(ReduceOp redop = CANARY_AVG) {
    for (const int r : ranks_) call(r, kPlain, redop);
  }
  bool done() const {
    return std::all_of(calls_.begin(), calls_.end(), [](const auto& c) { return c->ticket.done(); });
  }
  const std::vector<std::unique_ptr<Call>>& calls() const { return calls_; }
  static float value(int rank, std::size_t i) { return static_cast<float>((rank + 1) * 3 + static_cast<int>(i % 7)); }
  // `scale` of the sum of weight x value.
  void expect_exact(double scale, const std::vector<double>& weights = {}) {
    for (const auto& c : calls_) {
      ASSERT_EQ(c->ticket.code, CANARY_OK) << c->ticket.status.to_string();
      for (std::size_t i = 0; i < count_; ++i) {
        double sum = 0;
        for (std::size_t r = 0; r < ranks_.size(); ++r)
          sum += (weights.empty() ? 1 : weights[r]) * static_cast<double>(value(ranks_[r], i));
        ASSERT_NEAR(c->output[i], sum * scale, 1e-5 * std::abs(sum * scale)) << "rank " << c->rank << ", element " << i;
        ASSERT_EQ(c->output[i], calls_.front()->output[i]) << "bits differ at rank " << c->rank;
      }
    }
  }
  void expect_error(canary_status code, const std::string& word) {
    for (const auto& c : calls_) {
      EXPECT_EQ(c->ticket.code, code) << "rank " << c->rank << ": " << c->ticket.status.to_string();
      EXPECT_NE(c->ticket.status.text().find(word), std::string::npos) << c->ticket.status.to_string();
    }
  }

 private:
  void submit(Call& c, double weight, ReduceOp redop, Nanos limit) {
    const GroupMember* const m = cluster_.world(c.rank);
    OpRequest request{.collective = Collective::kAllReduce,
                      .input = c.input.data(),
                      .output = c.output.data(),
                      .count = count_,
                      .type = CANARY_F32,
                      .redop = redop,
                      .time_limit = limit};
    cluster_.submit(c.rank, port::partial(m->id, request, c.numbers, weight != kPlain, cluster_.id(m, &c.ticket)));
  }

  Cluster& cluster_;
  std::uint64_t number_;
  std::vector<int> ranks_;
  std::size_t count_;
  std::uint32_t codec_ = 0;
  std::uint64_t tensor_ = 0;
  bool zeros_ = false;
  std::vector<std::unique_ptr<Call>> calls_;
};

void expect_world_lives(Cluster& c) {
  AllRanks op(c, sum(c.ranks(), 1000));
  op.submit_all();
  op.expect_exact();
}

TEST(PartialAllReduce, DisjointSetsOfRanksRunAtOnceBesideTheirGroup) {
  Cluster c(flat_cluster(6));
  ASSERT_TRUE(c.join());
  Partial pair(c, 1, {4, 1}, 100'000), three(c, 1, {5, 0, 2}, 3), alone(c, 1, {3}, 10);
  AllRanks op(c, sum(6, 50'000));
  op.submit_all();
  for (Partial* p : {&pair, &three, &alone}) p->call_all();
  ASSERT_TRUE(c.run_until([&] { return pair.done() && three.done() && alone.done(); }, 5_s));
  op.expect_exact();
  pair.expect_exact(1.0 / 2);
  three.expect_exact(1.0 / 3);
  alone.expect_exact(1);
}

TEST(PartialAllReduce, WaitsForRanksThatCallLaterWhileOthersGoOn) {
  Cluster c(flat_cluster(4));
  ASSERT_TRUE(c.join());
  // Rank 0's calls reach the others long before they call: more than fits ahead of them, too.
  Partial late(c, 7, {0, 1, 2, 3}, 3'000'000);
  late.call(0, kPlain, CANARY_SUM);
  for (std::uint64_t i = 0; i < 200; ++i) {
    Partial others(c, 100 + i, {1, 2, 3}, 1000);
    others.call_all(CANARY_SUM);
    ASSERT_TRUE(c.run_until([&] { return others.done(); }, 5_s)) << i;
    others.expect_exact(1);
  }
  for (const int r : {3, 1, 2}) late.call(r, kPlain, CANARY_SUM);
  ASSERT_TRUE(c.run_until([&] { return late.done(); }, 5_s));
  late.expect_exact(1);
}

TEST(PartialAllReduce, WeightsMakeAMeanOfUnequalBatches) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  const std::vector<double> weights{256, 0, 32.5};
  Partial mean(c, 1, {0, 1, 2}, 5000), total(c, 2, {0, 1, 2}, 5000), none(c, 3, {0, 1}, 10);
  for (int r = 0; r < 3; ++r) {
    mean.call(r, weights[static_cast<std::size_t>(r)]);
    total.call(r, weights[static_cast<std::size_t>(r)], CANARY_SUM);
    if (r < 2) none.call(r, 0);
  }
  ASSERT_TRUE(c.run_until([&] { return mean.done() && total.done() && none.done(); }, 5_s));
  mean.expect_exact(1 / (256 + 32.5), weights);
  total.expect_exact(1, weights);
  none.expect_error(CANARY_INVALID_ARGUMENT, "the weights sum to 0");
  expect_world_lives(c);
}

TEST(PartialAllReduce, AMeanOf16BitsDoesNotOverflow) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  // 4096 in f16; times the weight it would be infinite.
  std::vector<std::uint16_t> x(300, 0x6C00);
  std::vector<std::vector<std::uint16_t>> out(2, std::vector<std::uint16_t>(x.size()));
  std::vector<std::vector<std::uint64_t>> numbers;
  OpTicket tickets[2];
  for (int r = 0; r < 2; ++r) numbers.push_back({1, std::bit_cast<std::uint64_t>(256.0 * (r + 1)), 0, 0, 0, 0, 1});
  for (std::size_t r = 0; r < 2; ++r) {
    const GroupMember* const m = c.world(static_cast<int>(r));
    const OpRequest request{.collective = Collective::kAllReduce,
                            .input = x.data(),
                            .output = out[r].data(),
                            .count = x.size(),
                            .type = CANARY_F16,
                            .redop = CANARY_AVG};
    c.submit(static_cast<int>(r), port::partial(m->id, request, numbers[r], true, c.id(m, &tickets[r])));
  }
  ASSERT_TRUE(c.run_until([&] { return tickets[0].done() && tickets[1].done(); }, 1_s));
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(tickets[r].code, CANARY_OK);
    for (const std::uint16_t bits : out[r]) EXPECT_NEAR(bits, 0x6C00, 2) << "4096 but for rounding";
  }
}

TEST(PartialAllReduce, RanksOfOneProcessTakePartInSeveral) {
  Cluster c(flat_cluster(2, 2, 4));  // ranks 0 to 3, and 4 to 7
  ASSERT_TRUE(c.join());
  Partial across(c, 1, {0, 1, 4, 6}, 20'000), inside(c, 1, {2, 3}, 20'000), other(c, 1, {5, 7}, 999);
  for (Partial* p : {&across, &inside, &other}) p->call_all();
  ASSERT_TRUE(c.run_until([&] { return across.done() && inside.done() && other.done(); }, 5_s));
  across.expect_exact(1.0 / 4);
  inside.expect_exact(1.0 / 2);
  other.expect_exact(1.0 / 2);
}

TEST(PartialAllReduce, EndsWithADeadMembersNameAndTheOthersGoOnWithoutIt) {
  for (const int dead : {0, 2}) {
    Cluster c(flat_cluster(4));
    ASSERT_TRUE(c.join());
    const int lone = dead == 0 ? 2 : 0;
    Partial with(c, 1, {std::min(dead, 1), std::max(dead, 1)}, 100), running(c, 1, {lone, 3}, 4'000'000);
    running.call_all();
    with.call(1);
    c.kill(dead, CrashKind::kHangup);
    ASSERT_TRUE(c.run_until([&] { return with.done() && running.done(); }, 10_s)) << dead;
    with.expect_error(CANARY_PEER_DIED, "rank " + std::to_string(dead));
    EXPECT_EQ(with.calls()[0]->ticket.status.detail().rank, dead);
    running.expect_exact(1.0 / 2);
    // The world is over, but not the exchanges of those who live.
    Partial next(c, 2, {lone, 1, 3}, 100), again(c, 3, {1, dead}, 100);
    next.call_all();
    again.call(1);
    ASSERT_TRUE(c.run_until([&] { return next.done() && again.done(); }, 10_s)) << dead;
    next.expect_exact(1.0 / 3);
    again.expect_error(CANARY_PEER_DIED, "rank " + std::to_string(dead));
  }
}

// Whoever leaves the dead out counts on one who had not seen the death.
TEST(PartialAllReduce, WhoSawADeathFirstHearsOfThoseWhoCalledTheDead) {
  for (const bool survivors_first : {true, false}) {
    Cluster c(flat_cluster(4));
    ASSERT_TRUE(c.join());
    Partial with(c, 1, {0, 1, 2}, 100), without(c, 1, {1, 2}, 100), others(c, 1, {3}, 100);
    if (survivors_first) without.call(1);
    c.kill(0, CrashKind::kHangup);
    c.run_for(1_s);
    with.call(2);
    ASSERT_TRUE(c.run_until([&] { return with.done(); }, 1_s));
    with.expect_error(CANARY_PEER_DIED, "rank 0");
    if (!survivors_first) without.call(1);
    others.call_all();
    ASSERT_TRUE(c.run_until([&] { return without.done() && others.done(); }, 1_s)) << survivors_first;
    without.expect_error(CANARY_MISMATCH, "rank 2 called partial_all_reduce #1 among ranks 0, 1, 2, which has failed");
    EXPECT_EQ(without.calls()[0]->ticket.status.detail().rank, 2);
    others.expect_exact(1);
    Partial next(c, 2, {1, 2}, 100);
    next.call_all();
    ASSERT_TRUE(c.run_until([&] { return next.done(); }, 1_s));
    next.expect_exact(1.0 / 2);
  }
}

TEST(PartialAllReduce, WithACodecAllGetTheSameBits) {
  Cluster c(flat_cluster(5));
  ASSERT_TRUE(c.join());
  for (const ReduceOp redop : {CANARY_AVG, CANARY_SUM}) {
    Partial p(c, 1 + static_cast<std::uint64_t>(redop), {0, 2, 3}, 50'000);
    p.use("int8", 0);
    for (const int rank : {0, 2, 3}) p.call(rank, redop == CANARY_SUM ? 0.5 : kPlain, redop);
    ASSERT_TRUE(c.run_until([&] { return p.done(); }, 5_s));
    bool rounded = false;
    for (const auto& call : p.calls()) {
      ASSERT_EQ(call->ticket.code, CANARY_OK) << call->ticket.status.to_string();
      for (std::size_t i = 0; i < call->output.size(); ++i) {
        const float exact =
            (Partial::value(0, i) + Partial::value(2, i) + Partial::value(3, i)) / (redop == CANARY_SUM ? 2.0f : 3.0f);
        ASSERT_NEAR(call->output[i], exact, 0.4);
        ASSERT_EQ(call->output[i], p.calls()[0]->output[i]) << "rank " << call->rank << ", element " << i;
        rounded |= call->output[i] != exact;
      }
    }
    EXPECT_TRUE(rounded) << "it has travelled by the codec";
  }
  expect_world_lives(c);
}

// A tenth of the elements travels at a time. The next exchange of the tensor takes the rest along, whichever ranks it
// is among, and one of the group's own as well.
TEST(PartialAllReduce, WhatACodecLeavesOutStaysWithTheRank) {
  constexpr std::size_t kCount = 1000;
  Cluster c(flat_cluster(4));
  ASSERT_TRUE(c.join());
  std::vector<double> sum(kCount);
  std::uint64_t number = 0;
  std::size_t sent = 0;
  for (const std::vector<int>& ranks : {std::vector{0, 1, 2}, {1, 2}, {0, 1, 2}, {0, 2}}) {
    Partial p(c, ++number, ranks, kCount);
    p.use("topk:0.1", 7);
    if (number > 1) p.give_zeros();
    p.call_all(CANARY_SUM);
    ASSERT_TRUE(c.run_until([&] { return p.done(); }, 5_s));
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(p.calls()[0]->ticket.code, CANARY_OK) << p.calls()[0]->ticket.status.to_string();
      sum[i] += p.calls()[0]->output[i];
      sent += p.calls()[0]->output[i] != 0 ? 1 : 0;
    }
  }
  EXPECT_GT(sent, 4 * kCount / 10 - 1);
  EXPECT_LT(sent, kCount);
  std::vector<float> zeros(kCount), rest[4];
  OpTicket tickets[4];
  for (int rank = 0; rank < 4; ++rank) {
    rest[rank].resize(kCount);
    const GroupMember* const m = c.world(rank);
    const OpRequest request{.collective = Collective::kAllReduce,
                            .input = zeros.data(),
                            .output = rest[rank].data(),
                            .count = kCount,
                            .type = CANARY_F32,
                            .redop = CANARY_SUM,
                            .codec = codec_number(parse_codec("topk:1").value()).value(),
                            .tensor = 7};
    c.submit(rank, port::operation(m->id, m->shape(), request, c.id(m, &tickets[rank])));
  }
  ASSERT_TRUE(
      c.run_until([&] { return std::all_of(tickets, tickets + 4, [](const auto& t) { return t.done(); }); }, 5_s));
  for (std::size_t i = 0; i < kCount; ++i) {
    const double all = Partial::value(0, i) + Partial::value(1, i) + Partial::value(2, i);
    ASSERT_NEAR(sum[i] + static_cast<double>(rest[3][i]), all, 1e-3) << "element " << i;
  }
}

TEST(PartialAllReduce, RanksThatNameDifferentCodecsAreTold) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  Partial p(c, 1, {0, 1}, 1000);
  p.use("int8", 0);
  p.call(0);
  p.use("bf16", 0);
  p.call(1);
  ASSERT_TRUE(c.run_until([&] { return p.done(); }, 5_s));
  p.expect_error(CANARY_MISMATCH, "codec=");
  expect_world_lives(c);
}

TEST(PartialAllReduce, ListsThatDifferAreToldWithoutACoordinatorToo) {
  Cluster c(flat_cluster(4));
  ASSERT_TRUE(c.join());
  c.kill(0, CrashKind::kHangup);
  c.run_for(1_s);
  Partial p(c, 1, {2, 3}, 100);
  p.call(2);
  p.call(1, kPlain, CANARY_AVG, {1, 2});
  ASSERT_TRUE(c.run_until([&] { return p.done(); }, 1_s));
  p.expect_error(CANARY_MISMATCH, "called partial_all_reduce #1 among ranks");
}

TEST(PartialAllReduce, OneThatDoesNotCallIsNamedAndTheGroupLivesOn) {
  ClusterOptions o = flat_cluster(4);
  o.settings.entry_limit = 500_ms;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  Partial waits(c, 1, {0, 1, 2}, 100'000), runs(c, 1, {3}, 100);
  waits.call(0);
  waits.call(2);
  runs.call_all();
  ASSERT_TRUE(c.run_until([&] { return waits.done(); }, 5_s));
  waits.expect_error(CANARY_ENTRY_TIMEOUT, "rank 1");
  EXPECT_EQ(waits.calls()[0]->ticket.status.detail().rank, 1);
  // It hears of it when it calls, at once.
  Call& late = waits.call(1);
  c.run_for(1_ms);
  EXPECT_EQ(late.ticket.code, CANARY_ENTRY_TIMEOUT) << late.ticket.status.to_string();
  runs.expect_exact(1);
  expect_world_lives(c);
}

TEST(PartialAllReduce, ASilentMemberIsNamed) {
  Cluster c(impatient(flat_cluster(4)));
  ASSERT_TRUE(c.join());
  Partial waits(c, 1, {1, 2}, 100), runs(c, 2, {0, 3}, 100);
  c.kill(2, CrashKind::kSilent);
  waits.call(1);
  ASSERT_TRUE(c.run_until([&] { return waits.done(); }, 10_s));
  waits.expect_error(CANARY_PEER_SILENT, "rank 2");
  runs.call_all();
  ASSERT_TRUE(c.run_until([&] { return runs.done(); }, 5_s));
  runs.expect_exact(1.0 / 2);
}

TEST(PartialAllReduce, ListsThatDifferAreToldByNameAtOnce) {
  struct Case {
    int first;
    std::vector<int> its_list;
    int second;
    std::vector<int> other_list;
  };
  // Equal and different lowest ranks; one list within the other; whoever is first.
  const std::vector<Case> cases = {
      {0, {0, 1}, 1, {0, 1, 2}}, {0, {0, 1, 2}, 2, {1, 2}}, {1, {1, 2}, 0, {0, 1, 2}}, {0, {0, 1}, 1, {1, 2}}};
  for (const Case& lists : cases) {
    for (const bool together : {true, false}) {
      Cluster c(flat_cluster(3));
      ASSERT_TRUE(c.join());
      Partial p(c, 9, lists.its_list, 1000);
      p.call(lists.first);
      if (!together) c.run_for(10_ms);
      p.call(lists.second, kPlain, CANARY_AVG, lists.other_list);
      ASSERT_TRUE(c.run_until([&] { return p.done(); }, 1_s)) << lists.first << (together ? " together" : "");
      p.expect_error(CANARY_MISMATCH, "called partial_all_reduce #9 among ranks");
      expect_world_lives(c);
    }
  }
}

TEST(PartialAllReduce, ArgumentsThatDifferAreToldByName) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  Partial weighted(c, 1, {0, 1}, 100), reduction(c, 2, {0, 1}, 100), sum(c, 3, {0, 1}, 100);
  sum.call(0, 2.0, CANARY_SUM);  // differs in nothing but that
  sum.call(1, kPlain, CANARY_SUM);
  weighted.call(0, 2.0);
  weighted.call(1);
  reduction.call(0, kPlain, CANARY_SUM);
  reduction.call(1, kPlain, CANARY_MAX);
  ASSERT_TRUE(c.run_until([&] { return weighted.done() && reduction.done() && sum.done(); }, 1_s));
  sum.expect_error(CANARY_MISMATCH, "weighted");
  weighted.expect_error(CANARY_MISMATCH, "mean by weights");
  reduction.expect_error(CANARY_MISMATCH, "max");
  expect_world_lives(c);
}

TEST(PartialAllReduce, ANumberIsTakenOnce) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  Partial first(c, 1, {0, 1}, 10);
  first.call_all();
  ASSERT_TRUE(c.run_until([&] { return first.done(); }, 1_s));
  first.expect_exact(0.5);
  Partial again(c, 1, {0, 1}, 10), twice(c, 2, {0, 1}, 10);
  again.call(0);
  twice.call(0);
  Call& second = twice.call(0);
  Call& elsewhere = twice.call(0, kPlain, CANARY_AVG, {0});
  c.run_for(10_ms);
  EXPECT_EQ(elsewhere.ticket.code, CANARY_INVALID_ARGUMENT) << elsewhere.ticket.status.to_string();
  again.expect_error(CANARY_INVALID_ARGUMENT, "has been run");
  EXPECT_EQ(second.ticket.code, CANARY_INVALID_ARGUMENT) << second.ticket.status.to_string();
  twice.call(1);
  ASSERT_TRUE(c.run_until([&] { return twice.done(); }, 1_s));
  EXPECT_EQ(twice.calls()[0]->ticket.code, CANARY_OK);
}

TEST(PartialAllReduce, AnAbortOfTheGroupEndsThem) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  Partial waits(c, 1, {0, 1}, 10), later(c, 2, {0, 1}, 10);
  waits.call(0);
  c.run_for(1_ms);
  abort_world(c, 2, "enough");
  ASSERT_TRUE(c.run_until([&] { return waits.done(); }, 1_s));
  later.call_all();
  ASSERT_TRUE(c.run_until([&] { return later.done(); }, 1_s));
  waits.expect_error(CANARY_ABORTED, "enough");
  later.expect_error(CANARY_ABORTED, "enough");
}

void expect_given_up(Cluster& c, const Call& late) {
  ASSERT_TRUE(c.run_until([&] { return late.ticket.done(); }, 2_s));
  EXPECT_EQ(late.ticket.code, CANARY_PEER_SILENT) << late.ticket.status.to_string();
  EXPECT_EQ(c.host_of(late.ticket.status.detail().rank), 2) << late.ticket.status.to_string();
}

// Rank 2's process stands still when the others are done, with the result on its way to it: they have nothing left that
// could end, not even the world, and won't send the result again.
TEST(PartialAllReduce, AMemberThatWasGivenUpIsToldWhereTheOthersAreDone) {
  Cluster* cluster = nullptr;
  ClusterOptions o = neighbours(4, 1, &cluster);
  o.settings.algo = "parameter_server";
  Cluster c(o);
  cluster = &c;
  ASSERT_TRUE(c.join());
  c.kill(3, CrashKind::kHangup);
  Partial exchange(c, 1, {0, 1, 2}, 100);
  const Call& late = exchange.call(2);
  c.run_for(10_ms);
  c.fabric().freeze(2);
  const Call *const first = &exchange.call(0), *const second = &exchange.call(1);
  ASSERT_TRUE(c.run_until([&] { return first->ticket.done() && second->ticket.done(); }, 1_s));
  EXPECT_EQ(first->ticket.code, CANARY_OK) << first->ticket.status.to_string();
  EXPECT_EQ(second->ticket.code, CANARY_OK) << second->ticket.status.to_string();
  give_up(c, 2);
  expect_given_up(c, late);
}

// Rank 4 has the result and waits for acknowledgements, which come to it late. What it has to do with rank 5, of its
// own process, goes on.
TEST(PartialAllReduce, AMemberThatWasGivenUpWaitsForNoAcknowledgement) {
  Cluster* cluster = nullptr;
  ClusterOptions o = neighbours(3, 2, &cluster);
  o.settings.algo = "ring";
  Cluster c(o);
  cluster = &c;
  ASSERT_TRUE(c.join());
  c.fabric().path(0, 2).latency = 2_ms;  // no data goes there
  Partial exchange(c, 1, {0, 2, 4}, 200'000), within(c, 2, {4, 5}, 1000);
  within.call(5);
  for (const int r : {0, 2}) exchange.call(r);
  const Call& late = exchange.call(4);
  const auto& calls = exchange.calls();
  ASSERT_TRUE(c.run_until([&] { return calls[0]->ticket.done() && calls[1]->ticket.done(); }, 1_s));
  ASSERT_FALSE(late.ticket.done());
  give_up(c, 2);
  expect_given_up(c, late);
  within.call(4);
  ASSERT_TRUE(c.run_until([&] { return within.done(); }, 1_s));
  within.expect_exact(1.0 / 2);
}

// Rank 0 has given rank 3 up when it calls, and rank 1, which has not, has called before: there is one list, and rank 3
// is what is wrong with it. Frames overtake each other, so it matters whether rank 0 says anything else besides.
TEST(PartialAllReduce, WhoKnowsOfALossEndsTheSameListForNothingElse) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ClusterOptions o = impatient(flat_cluster(4));
    o.fabric.seed = seed;
    o.fabric.nic.out.reorder_ppm = 500'000;
    Cluster c(o);
    ASSERT_TRUE(c.join());
    c.fabric().block(3, 0);
    c.run_for(1500_ms);
    Partial exchange(c, 1, {0, 1, 2, 3}, 100);
    for (const int r : {1, 2}) exchange.call(r);
    c.run_for(20_ms);
    exchange.call(0);
    ASSERT_TRUE(c.run_until([&] { return exchange.done(); }, 1_s)) << seed;
    exchange.expect_error(CANARY_PEER_SILENT, "rank 3");
    if (HasFailure()) return;
  }
}

// Hosts on two machines, which stand beside each other in the rings of groups that are formed, and not in those of
// partial all-reduces.
ClusterOptions two_machines() {
  ClusterOptions o = flat_cluster(5);
  o.settings.algo = "ring";
  o.wiring.machine = {0, 1, 0, 1, 0};
  o.amend = [machine = o.wiring.machine](int host, EngineOptions* e) {
    e->host_id = "machine-" + std::to_string(machine[static_cast<std::size_t>(host)]);
  };
  return o;
}

TEST(PartialAllReduce, RunsTheSameWayWhereAGroupOfItsRanksIsAndWhereThereIsNoneAnyMore) {
  Cluster c(two_machines());
  ASSERT_TRUE(c.join());
  const std::vector<int> ranks{0, 1, 2, 3};
  const auto formed = form_group(c, ranks);
  ASSERT_TRUE(c.engine(1).forget(formed[1]->id));
  Partial exchange(c, 1, ranks, 1000);
  exchange.call_all();
  ASSERT_TRUE(c.run_until([&] { return exchange.done(); }, 1_s));
  exchange.expect_exact(1.0 / 4);
}

TEST(PartialAllReduce, AGroupOfItsRanksRunsTheSameWayWhereItIsUnderWayAndWhereItIsNot) {
  Cluster c(two_machines());
  ASSERT_TRUE(c.join());
  const std::vector<int> ranks{0, 1, 2, 3};
  Partial exchange(c, 1, ranks, 1000);
  exchange.call(2);
  const auto formed = form_group(c, ranks);
  AllRanks op(c, sum(4, 1000));
  for (int r = 0; r < 4; ++r) op.submit(r, formed[static_cast<std::size_t>(r)]);
  op.expect_exact(1_s);
  for (const int r : {0, 1, 3}) exchange.call(r);
  ASSERT_TRUE(c.run_until([&] { return exchange.done(); }, 1_s));
  exchange.expect_exact(1.0 / 4);
}

TEST(PartialAllReduce, ADeadlineEndsItAndNothingElse) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  Partial waits(c, 1, {0, 1}, 10), set(c, 2, {0, 1}, 10);
  waits.call(0, kPlain, CANARY_AVG, {}, 50_ms);
  Call& later = set.call(0, 1.0);
  c.set_deadline(c.world(0), &later.ticket, 100_ms);
  EXPECT_FALSE(c.engine(0).forget(c.world(0)->id)) << "some are under way";
  ASSERT_TRUE(c.run_until([&] { return waits.done() && set.done(); }, 1_s));
  waits.expect_error(CANARY_DEADLINE, "rank 1");
  set.expect_error(CANARY_DEADLINE, "rank 1");
  expect_world_lives(c);
}

// Ripples with random groups: every step's matrix is doubly stochastic, so that the mean of all ranks stays, and they
// draw near to each other. Each rank goes on when its own groups are done: they overlap in time.
TEST(PartialAllReduce, RandomSetsOfSixtyFourRanksKeepTheMeanAndDrawNear) {
  constexpr int kRanks = 64, kRounds = 12;
  ClusterOptions o = flat_cluster(kRanks, 1);
  o.settings.connect_at_join = 4;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  Random random(5);
  std::vector<double> x(kRanks);
  for (int r = 0; r < kRanks; ++r) x[static_cast<std::size_t>(r)] = r;
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / kRanks;
  struct Mine {
    std::vector<std::uint64_t> numbers;
    OpTicket ticket;
  };
  std::vector<std::vector<std::vector<int>>> division(kRounds);  // by round and rank: the rank's set
  for (auto& round : division) {
    std::vector<int> order(kRanks);
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = kRanks - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
    round.resize(kRanks);
    for (std::size_t at = 0; at < kRanks;) {
      const std::size_t size = std::min<std::size_t>(1 + random.below(5), kRanks - at);
      const std::vector<int> set(order.begin() + static_cast<std::ptrdiff_t>(at),
                                 order.begin() + static_cast<std::ptrdiff_t>(at + size));
      for (const int r : set) round[static_cast<std::size_t>(r)] = set;
      at += size;
    }
  }
  std::vector<std::unique_ptr<Mine>> mine(kRanks);
  std::vector<int> next(kRanks, 0);
  const auto go_on = [&] {
    bool all = true;
    for (std::size_t r = 0; r < kRanks; ++r) {
      if (mine[r] && !mine[r]->ticket.done()) {
        all = false;
        continue;
      }
      if (mine[r]) {
        EXPECT_EQ(mine[r]->ticket.code, CANARY_OK) << mine[r]->ticket.status.to_string();
      }
      mine[r].reset();
      if (next[r] == kRounds || testing::Test::HasFailure()) continue;
      all = false;
      const int rank = static_cast<int>(r);
      mine[r] = std::make_unique<Mine>();
      mine[r]->numbers = {static_cast<std::uint64_t>(next[r]), 0, 0, 0, 0};
      for (const int other : division[static_cast<std::size_t>(next[r])][r])
        mine[r]->numbers.push_back(static_cast<std::uint64_t>(other));
      ++next[r];
      const GroupMember* const m = c.world(rank);
      const OpRequest request{.collective = Collective::kAllReduce,
                              .input = &x[r],
                              .output = &x[r],
                              .count = 1,
                              .type = CANARY_F64,
                              .redop = CANARY_AVG};
      c.submit(rank, port::partial(m->id, request, mine[r]->numbers, false, c.id(m, &mine[r]->ticket)));
    }
    return all;
  };
  ASSERT_TRUE(c.run_until(go_on, 30_s));
  EXPECT_NEAR(std::accumulate(x.begin(), x.end(), 0.0) / kRanks, mean, 1e-9);
  const auto [least, most] = std::minmax_element(x.begin(), x.end());
  EXPECT_LT(*most - *least, 20) << "from 63";
}

TEST(PastPartials, TheNewestAreKnownWithTheirFirstWord) {
  Random random(17);
  PastPartials past;
  std::vector<GroupEpoch> all;
  const auto word = [](std::size_t i) { return "end of " + std::to_string(i); };
  for (std::size_t i = 0; i < 5 * PastPartials::kKept; ++i) {
    const GroupEpoch group{static_cast<std::uint32_t>(random.next()), static_cast<std::uint32_t>(i)};
    all.push_back(group);
    past.add(group, Status(CANARY_ABORTED, word(i)));
    past.add(group, Status(CANARY_ABORTED, "a later word"));
    if (i % 97 != 0) continue;
    for (std::size_t j = 0; j <= i; ++j) {
      const Status* const found = past.find(all[j]);
      ASSERT_EQ(found != nullptr, i - j < PastPartials::kKept) << j << " of " << i;
      if (found == nullptr) continue;
      ASSERT_NE(found->text().find(word(j)), std::string::npos) << found->text();
    }
    ASSERT_EQ(past.find({group.flow, group.epoch + 1}), nullptr);
  }
}

TEST(PastPartials, ANumberThatFailedIsKnownByItsCallers) {
  PastPartials past;
  const auto number_of_caller = [&](int rank) {
    const SpentNumber* const found = past.find_failed([&](const SpentNumber& spent) {
      return std::find(spent.callers.begin(), spent.callers.end(), rank) != spent.callers.end();
    });
    return found != nullptr ? static_cast<int>(found->number) : -1;
  };
  past.add({1, 1}, Status(), {7, {1, 1}, {2, 3}, {2}});
  EXPECT_EQ(number_of_caller(2), -1) << "it went well";
  past.add({2, 1}, Status(CANARY_PEER_DIED, "gone"), {8, {1, 1}, {2, 3, 4}, {2, 4}});
  EXPECT_EQ(number_of_caller(2), 8);
  EXPECT_EQ(number_of_caller(4), 8);
  EXPECT_EQ(number_of_caller(3), -1) << "it is elsewhere";
  for (std::uint32_t i = 0; i < PastPartials::kKept - 1; ++i) past.add({3 + i, 1}, Status());
  EXPECT_EQ(number_of_caller(2), 8);
  past.add({1000, 1}, Status());
  EXPECT_EQ(number_of_caller(2), -1) << "others are newer";
  past.add({1001, 1}, Status(CANARY_PEER_DIED, "gone"), {9, {1, 1}, {2, 3}, {2}});
  EXPECT_EQ(number_of_caller(2), 9);
}

TEST(PartialAllReduce, LeavesNothingBehind) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  const std::size_t flows = c.engine(0).flows().size();
  for (std::uint64_t i = 0; i < 2000; ++i) {
    Partial p(c, i, i % 2 == 0 ? std::vector<int>{0, 1, 2} : std::vector<int>{0, 2}, 16);
    p.call_all(CANARY_SUM);
    ASSERT_TRUE(c.run_until([&] { return p.done(); }, 1_s));
    p.expect_exact(1);
    EXPECT_EQ(c.engine(0).flows().size(), flows);
  }
}

}  // namespace
}  // namespace canarynet
