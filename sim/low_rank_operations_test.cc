// All-reduces of a matrix by power and svd: which directions travel, what stays behind, and what ends a call in any of
// its phases.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>

#include "sim/codec_exchange_test_util.h"
#include "sim/forger_test_util.h"

namespace canarynet {
namespace {

struct Shape {
  std::size_t rows, columns;
  std::size_t count() const { return rows * columns; }
};

// One all-reduce of a matrix by all ranks.
struct MatrixExchange : Exchange {
  MatrixExchange(Cluster& c, const Values& input, const std::string& codec, std::size_t rows,
                 std::uint64_t tensor = kTensor, ReduceOp op = CANARY_SUM)
      : Exchange(c, input, codec, tensor, op, 0, rows) {}
};

// Matrices whose sum has this rank: each rank's is the product of a left factor of its own and a right one of all.
Values products(int ranks, const Shape& shape, std::size_t rank, std::uint64_t seed) {
  const Values left = gradients(ranks, shape.rows * rank, seed), right = gradients(1, shape.columns * rank, seed + 1);
  Values out(static_cast<std::size_t>(ranks), std::vector<float>(shape.count()));
  for (std::size_t r = 0; r < out.size(); ++r) {
    for (std::size_t at = 0; at < shape.count(); ++at) {
      double sum = 0;
      for (std::size_t i = 0; i < rank; ++i) {
        sum += static_cast<double>(left[r][i * shape.rows + at / shape.columns]) *
               right[0][i * shape.columns + at % shape.columns];
      }
      out[r][at] = static_cast<float>(100 * sum);
    }
  }
  return out;
}

double norm(const std::vector<float>& v) {
  double sum = 0;
  for (const float x : v) sum += static_cast<double>(x) * x;
  return std::sqrt(sum);
}

// The sum of what all ranks give, less what came out of it.
double error_of(const Exchange& e, const Values& given, double times) {
  double sum = 0;
  for (std::size_t i = 0; i < given[0].size(); ++i) {
    const double apart = sum_of(given, i) - times * e.out[0][i];
    sum += apart * apart;
  }
  return std::sqrt(sum);
}

double energy_of_sum(const Values& given) {
  double sum = 0;
  for (std::size_t i = 0; i < given[0].size(); ++i) sum += sum_of(given, i) * sum_of(given, i);
  return std::sqrt(sum);
}

struct Case {
  int ranks;
  int per_host;
  Shape shape;
};

class LowRankOperations : public testing::TestWithParam<Case> {};

// Input + what was left out before = result + what is left out now, over all ranks; and over many steps of one
// gradient the sum of the results comes to the sum of the inputs, which no single result of so low a rank does.
TEST_P(LowRankOperations, LoseNothingAndGiveAllRanksTheSameBits) {
  const auto [ranks, per_host, shape] = GetParam();
  ClusterOptions options = flat_cluster(ranks / per_host, 2, per_host);
  options.fabric.seed = static_cast<std::uint64_t>(ranks);
  SCOPED_TRACE("seed " + std::to_string(options.fabric.seed));
  options.fabric.retransmit_delay = 5_ms;
  options.fabric.nic = NicOptions::link(50_us, BytesPerSec::from_mbit(2'000));
  options.fabric.nic.out.jitter = 100_us;
  options.fabric.nic.out.reorder_ppm = 200'000;
  options.fabric.nic.out.duplicate_ppm = 50'000;
  options.fabric.nic.out.loss_ppm = 10'000;
  Cluster c(options);
  ASSERT_TRUE(c.join());
  const auto n = static_cast<std::size_t>(ranks);
  for (const std::string codec : {"power:3", "power:3+sketch:8", "svd:3", "svd:3+sketch:8,mean"}) {
    for (int r = 0; r < ranks; ++r) c.world(r)->feedback.forget(kTensor);
    Values before(n, std::vector<float>(shape.count()));
    for (std::size_t step = 0; step < 4; ++step) {
      const std::string what = codec + ", " + std::to_string(ranks) + " ranks, step " + std::to_string(step);
      const Values input = gradients(ranks, shape.count(), 5 + step);
      const bool average = step % 2 == 0;
      MatrixExchange e(c, input, codec, shape.rows, kTensor, average ? CANARY_AVG : CANARY_SUM);
      ASSERT_NO_FATAL_FAILURE(e.expect_equal(what));
      ASSERT_EQ(e.in, input) << what << ": an input was written";
      Values after;
      for (int r = 0; r < ranks; ++r) after.push_back(residual(c, r));
      ASSERT_NO_FATAL_FAILURE(expect_conserved(e, before, after, average ? ranks : 1, what));
      before = after;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LowRankOperations,
                         testing::Values(Case{2, 1, {61, 83}}, Case{3, 1, {100, 40}}, Case{4, 1, {2, 700}},
                                         Case{5, 1, {700, 2}}, Case{6, 2, {64, 64}}, Case{7, 1, {1, 300}},
                                         Case{8, 4, {33, 65}}),
                         [](const auto& one) {
                           return std::to_string(one.param.ranks) + "_" + std::to_string(one.param.per_host) + "_" +
                                  std::to_string(one.param.shape.rows) + "x" + std::to_string(one.param.shape.columns);
                         });

TEST(LowRankOperation, AMatrixOfItsRankComesThroughToRounding) {
  const Shape shape{90, 130};
  for (const std::string codec : {"power:4", "svd:4"}) {
    for (const std::uint64_t tensor : {std::uint64_t{0}, kTensor}) {
      Cluster c(flat_cluster(4));
      ASSERT_TRUE(c.join());
      const Values input = products(4, shape, 4, 21);
      MatrixExchange e(c, input, codec, shape.rows, tensor);
      ASSERT_NO_FATAL_FAILURE(e.expect_equal(codec));
      EXPECT_LT(error_of(e, input, 1), 2e-6 * energy_of_sum(input)) << codec;
    }
  }
}

// The best approximation of a matrix cannot be had in one step, but warm starts come close to it.
TEST(LowRankOperation, PowerBeginsWithWhatItEndedWith) {
  const Shape shape{80, 60};
  Values input = products(3, shape, 2, 3);
  const Values noise = gradients(3, shape.count(), 4);
  for (std::size_t r = 0; r < 3; ++r) {
    for (std::size_t i = 0; i < shape.count(); ++i) input[r][i] += 0.3F * noise[r][i];
  }
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  double first = 0, last = 0;
  for (int step = 0; step < 6; ++step) {
    for (int r = 0; r < 3; ++r) {
      // Without what was left out, so that all steps have the same matrix.
      auto& feedback = c.world(r)->feedback;
      if (feedback.knows(kTensor)) feedback.commit_all_sent(kTensor);
    }
    MatrixExchange e(c, input, "power:2", shape.rows);
    ASSERT_NO_FATAL_FAILURE(e.expect_equal("power"));
    (step == 0 ? first : last) = error_of(e, input, 1);
    for (int r = 1; r < 3; ++r) {
      const auto mine = c.world(r)->feedback.right_factor(kTensor, 2 * shape.columns);
      const auto theirs = c.world(0)->feedback.right_factor(kTensor, 2 * shape.columns);
      ASSERT_TRUE(std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end()));
    }
  }
  EXPECT_LT(last, 0.8 * first);

  // What was saved begins where it left off.
  const std::vector<std::uint8_t> saved = c.world(0)->feedback.save();
  ErrorFeedback restored;
  ASSERT_TRUE(restored.restore(saved).ok());
  const auto kept = restored.right_factor(kTensor, 2 * shape.columns);
  const auto was = c.world(0)->feedback.right_factor(kTensor, 2 * shape.columns);
  EXPECT_TRUE(std::equal(kept.begin(), kept.end(), was.begin(), was.end()));
  EXPECT_GT(norm({kept.begin(), kept.end()}), 0);
}

TEST(LowRankOperation, OneGradientAfterTheOtherArrivesInTheEnd) {
  const Shape shape{30, 20};
  for (const std::string codec : {"power:4", "power:4+sketch:8,mean", "svd:4"}) {
    Cluster c(flat_cluster(3));
    ASSERT_TRUE(c.join());
    const Values input = gradients(3, shape.count(), 7);
    std::vector<double> arrived(shape.count());
    constexpr int kSteps = 40;
    for (int step = 0; step < kSteps; ++step) {
      MatrixExchange e(c, input, codec, shape.rows);
      ASSERT_NO_FATAL_FAILURE(e.expect_equal(codec));
      for (std::size_t i = 0; i < shape.count(); ++i) arrived[i] += e.out[0][i];
    }
    double apart = 0;
    for (std::size_t i = 0; i < shape.count(); ++i) {
      const double missing = arrived[i] / kSteps - sum_of(input, i);
      apart += missing * missing;
    }
    EXPECT_LT(std::sqrt(apart), 0.15 * energy_of_sum(input)) << codec;
  }
}

// What counters tell, and what lanes carry: dense sends 2 (n - 1) / n of the matrix from each rank, power that share of
// the factors, svd all of its factors to every other rank.
TEST(LowRankOperation, ItsBytesAreThoseOfTheFactors) {
  constexpr Shape kShape{1024, 512};
  constexpr std::size_t kRanks = 4, kFactors = 4 * (kShape.rows + kShape.columns) * sizeof(float);
  Values input(kRanks, std::vector<float>(kShape.count()));
  for (std::size_t r = 0; r < kRanks; ++r) {
    for (std::size_t i = 0; i < kShape.count(); ++i) input[r][i] = static_cast<float>((i * 31 + r) % 101) - 50;
  }
  struct One {
    const char* codec;
    double share;  // of the factors' f32 values, encoded
    double wire;   // of what dense sends of factors
  };
  // A sketch has a codebook of 1 KiB for every piece, of which there are about two per rank.
  for (const auto& [codec, share, wire] :
       {One{"power:4", 1, 1}, One{"power:4+sketch:8", 0.6, 0.6}, One{"svd:4", 1, kRanks / 2.0}}) {
    Cluster c(flat_cluster(kRanks));
    ASSERT_TRUE(c.join());
    const std::uint64_t before = sent_bytes(c);
    MatrixExchange e(c, input, codec, kShape.rows);
    ASSERT_NO_FATAL_FAILURE(e.expect_equal(codec));
    const double sent = static_cast<double>(sent_bytes(c) - before);
    const double dense = 2.0 * (kRanks - 1) * static_cast<double>(kShape.count() * sizeof(float));
    std::cout << codec << " of " << kShape.rows << " x " << kShape.columns << ": " << 100 * sent / dense
              << " % of the least that dense sends\n";
    EXPECT_LT(sent, 1.15 * wire * dense * kFactors / static_cast<double>(kShape.count() * sizeof(float))) << codec;
    for (std::size_t r = 0; r < kRanks; ++r) {
      const Engine::Counters counted = c.engine(static_cast<int>(r)).counters();
      EXPECT_EQ(counted.codec_value_bytes, kShape.count() * sizeof(float)) << codec;
      EXPECT_GE(counted.codec_encoded_bytes, share == 1 ? kFactors : kFactors / 4) << codec;
      EXPECT_LE(static_cast<double>(counted.codec_encoded_bytes), share * kFactors) << codec;
    }
  }
}

TEST(LowRankOperation, WhatIsNotFiniteIsNamedOnEveryRankAndTheGroupLivesOn) {
  const Shape shape{300, 250};  // an element beyond 16 bits is told in two parts
  for (const std::string codec : {"power:2", "power:2+sketch:8", "svd:1", "svd:1+sketch:8"}) {
    Cluster c(flat_cluster(4));
    ASSERT_TRUE(c.join());
    MatrixExchange good(c, gradients(4, shape.count(), 1), codec, shape.rows);
    ASSERT_NO_FATAL_FAILURE(good.expect_equal(codec));
    const std::vector<float> kept = residual(c, 2);
    Values input = gradients(4, shape.count(), 2);
    input[2][70'001] = -std::numeric_limits<float>::infinity();
    input[1][70'002] = std::numeric_limits<float>::quiet_NaN();
    MatrixExchange bad(c, input, codec, shape.rows);
    ASSERT_NO_FATAL_FAILURE(bad.expect_refused("tensor 7, element 70001 of rank 2 is -inf, which codec " + codec));
    EXPECT_EQ(residual(c, 2), kept) << "nothing was sent";
    MatrixExchange again(c, gradients(4, shape.count(), 3), codec, shape.rows);
    ASSERT_NO_FATAL_FAILURE(again.expect_equal(codec));
  }
}

TEST(LowRankOperation, WhatIsNotFiniteGoesDenseIfAskedAndTakesWhatWasLeftOutWithIt) {
  const Shape shape{40, 50};
  for (const std::string codec : {"power:2,or-dense", "power:2+sketch:8,or-dense", "svd:2,or-dense"}) {
    Cluster c(flat_cluster(3));
    ASSERT_TRUE(c.join());
    for (const std::uint64_t tensor : {kTensor, std::uint64_t{0}}) {
      MatrixExchange before(c, gradients(3, shape.count(), 1), codec, shape.rows, tensor);
      ASSERT_NO_FATAL_FAILURE(before.expect_equal(codec));
      Values left(3, std::vector<float>(shape.count()));
      for (int r = 0; r < 3 && tensor != 0; ++r) left[static_cast<std::size_t>(r)] = residual(c, r);
      Values input = gradients(3, shape.count(), 2);
      input[1][77] = std::numeric_limits<float>::infinity();
      MatrixExchange e(c, input, codec, shape.rows, tensor, CANARY_AVG);
      for (std::size_t r = 0; r < 3; ++r) e.request[r].output = e.in[r].data();
      e.submit_all();
      ASSERT_TRUE(e.finish());
      for (std::size_t r = 0; r < 3; ++r) {
        ASSERT_EQ(e.tickets[r]->code, CANARY_OK) << codec << ": " << e.tickets[r]->status.to_string();
        EXPECT_EQ(e.in[r][77], std::numeric_limits<float>::infinity());
        for (std::size_t i = 0; i < shape.count(); ++i) {
          if (i == 77) continue;
          ASSERT_NEAR(3 * e.in[r][i], sum_of(input, i) + sum_of(left, i), 1e-6) << codec << ", element " << i;
        }
        if (tensor != 0) {
          EXPECT_EQ(residual(c, static_cast<int>(r)), std::vector<float>(shape.count())) << codec;
        }
        EXPECT_EQ(c.world(static_cast<int>(r))->entered, c.world(0)->entered);
      }
    }
    MatrixExchange again(c, gradients(3, shape.count(), 3), codec, shape.rows);
    ASSERT_NO_FATAL_FAILURE(again.expect_equal(codec));
    Exchange plain(c, gradients(3, shape.count(), 3), "", 0);
    ASSERT_NO_FATAL_FAILURE(plain.expect_equal("dense"));
  }
}

// Extreme elements neither overflow on the way, nor spoil what is left out. The second operation begins with their
// direction, along which all of them add up.
TEST(LowRankOperation, ExtremeElementsStayFinite) {
  const Shape shape{24, 40};
  for (const std::string codec : {"power:2", "svd:2"}) {
    for (const float factor : {0.3F * std::numeric_limits<float>::max(), 1e-20F, 0.0F}) {
      Cluster c(flat_cluster(3));
      ASSERT_TRUE(c.join());
      Values input = gradients(3, shape.count(), 9);
      for (auto& of_rank : input) {
        for (float& v : of_rank) v = factor * (0.9F + v);
      }
      for (int step = 0; step < 2; ++step) {
        MatrixExchange e(c, input, codec, shape.rows, kTensor, CANARY_AVG);
        ASSERT_NO_FATAL_FAILURE(e.expect_equal(codec));
        for (const float v : e.out[0]) ASSERT_TRUE(std::isfinite(v)) << codec;
        for (const float v : residual(c, 1)) ASSERT_TRUE(std::isfinite(v)) << codec;
        if (factor != 0) {
          EXPECT_GT(norm(e.out[0]), 0) << codec << " of " << factor;
        }
      }
    }
  }
}

TEST(LowRankOperation, RanksThatDisagreeAboutItAreNamed) {
  struct Change {
    const char* says;
    void (*apply)(OpRequest*);
  };
  const Change changes[] = {
      {"rows=40", [](OpRequest* r) { r->rows = 40; }},
      {"codec=power:3 tensor=7 rows=50", [](OpRequest* r) { r->codec = number_of("power:3"); }},
      {"codec=power:2+sketch:8", [](OpRequest* r) { r->codec = number_of("power:2+sketch:8"); }},
      {"codec=svd:2", [](OpRequest* r) { r->codec = number_of("svd:2"); }},
      {"codec=power:2,or-dense", [](OpRequest* r) { r->codec = number_of("power:2,or-dense"); }},
      {"codec=artopk:star:0.1", [](OpRequest* r) { r->codec = number_of("artopk:star:0.1"), r->rows = 0; }},
      {"avg codec=power:2", [](OpRequest* r) { r->redop = CANARY_AVG; }},
      {"n=1950", [](OpRequest* r) { r->count = 1'950; }},
      {"tensor=8", [](OpRequest* r) { r->tensor = 8; }},
      {"rank 1 called all_reduce f32 n=2000 sum", [](OpRequest* r) { r->codec = 0, r->tensor = 0, r->rows = 0; }},
  };
  for (const Change& change : changes) {
    Cluster c(flat_cluster(3));
    ASSERT_TRUE(c.join());
    MatrixExchange e(c, gradients(3, 2'000, 1), "power:2", 50);
    change.apply(&e.request[1]);
    e.submit_all();
    ASSERT_TRUE(e.finish(1_s)) << change.says;
    for (const auto& ticket : e.tickets) {
      EXPECT_EQ(ticket->code, CANARY_MISMATCH) << change.says;
      const std::string text = ticket->status.text();
      EXPECT_NE(text.find("all_reduce f32 n=2000 sum codec=power:2 tensor=7 rows=50"), std::string::npos) << text;
      EXPECT_NE(text.find(change.says), std::string::npos) << text;
    }
  }
}

// All sorts of calls one behind the other, submitted at once: numbers mean the same on all ranks.
TEST(LowRankOperation, CallsThatWaitBehindItEndAsIfTheyHadComeOneByOne) {
  std::vector<Values> wanted;
  for (const bool at_once : {false, true}) {
    Cluster c(flat_cluster(3));
    ASSERT_TRUE(c.join());
    std::vector<std::unique_ptr<Exchange>> all;
    std::uint64_t i = 0;
    for (const std::string codec :
         {"power:2", "", "artopk:var:0.02", "svd:2", "power:2+sketch:8", "int8", "", "artopk:star:0.02", "power:2"}) {
      const bool shaped = codec.starts_with("power") || codec.starts_with("svd");
      all.push_back(std::make_unique<MatrixExchange>(c, gradients(3, 2'000, ++i), codec, shaped ? 40 : 0,
                                                     codec.empty() ? 0 : kTensor));
      if (!at_once) {
        all.back()->submit_all();
        ASSERT_TRUE(all.back()->finish());
      }
    }
    for (std::size_t r = 0; r < 3 && at_once; ++r) {  // and one rank after the other
      for (auto& e : all) e->submit(r);
      c.run_for(3_ms);
    }
    for (std::size_t call = 0; call < all.size(); ++call) {
      ASSERT_TRUE(all[call]->finish());
      for (const auto& t : all[call]->tickets) ASSERT_EQ(t->code, CANARY_OK) << t->status.to_string();
      if (at_once) {
        EXPECT_EQ(all[call]->out, wanted[call]) << "call " << call;
      } else {
        wanted.push_back(all[call]->out);
      }
    }
  }
}

TEST(LowRankOperation, GroupsOfOneNoElementsNoTensorAndOneBufferWork) {
  Cluster alone(flat_cluster(1));
  ASSERT_TRUE(alone.join());
  MatrixExchange one(alone, gradients(1, 100, 1), "power:1", 10);
  ASSERT_NO_FATAL_FAILURE(one.expect_equal("alone"));
  EXPECT_EQ(one.out[0], one.in[0]) << "nothing travels, so nothing is lost";

  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  for (const std::string codec : {"power:2", "power:2+sketch:8", "svd:2"}) {
    MatrixExchange none(c, Values(3), codec, 0);
    ASSERT_NO_FATAL_FAILURE(none.expect_equal("no elements"));
    const Values input = products(3, {40, 50}, 2, 4);
    MatrixExchange apart(c, input, codec, 40, 0);
    ASSERT_NO_FATAL_FAILURE(apart.expect_equal("no tensor"));
    MatrixExchange inside(c, input, codec, 40, 0);
    for (std::size_t r = 0; r < 3; ++r) inside.request[r].output = inside.in[r].data();
    inside.submit_all();
    ASSERT_TRUE(inside.finish());
    for (std::size_t r = 0; r < 3; ++r) {
      ASSERT_EQ(inside.in[r], inside.in[0]);
      for (std::size_t i = 0; i < 2'000; ++i) {
        // Sketches differ with the start, and keep about two digits.
        const double slack = codec == "power:2+sketch:8" ? 0.1 : 1e-6;
        ASSERT_NEAR(inside.in[r][i], apart.out[0][i], slack) << codec << ", element " << i;
      }
    }
  }
}

TEST(LowRankOperation, CodecsThatNeedAShapeAreRefusedWithoutOneAndOthersWithIt) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  const Values input = gradients(2, 200, 1);
  const auto says = [&](const std::string& codec, std::size_t rows, const std::string& words) {
    MatrixExchange e(c, input, codec, rows);
    const Status refused = c.engine(0).submit(c.operation(c.world(0), e.request[0], e.tickets[0].get()));
    EXPECT_EQ(refused.code(), CANARY_INVALID_ARGUMENT) << codec;
    EXPECT_NE(refused.text().find(words), std::string::npos) << refused.text();
  };
  says("power:2", 0, "all_reduce: codec power:2 needs the shape of a matrix: give its rows");
  says("svd:2+sketch:8", 0, "all_reduce: codec svd:2+sketch:8 needs the shape of a matrix: give its rows");
  says("int8", 10, "all_reduce: codec int8 has no use for rows");
  says("auto", 10, "all_reduce: codec auto has no use for rows");
  says("power:2", 30, "all_reduce: 200 elements are no matrix of 30 rows");
}

// The engine's thread would do nothing else, and peers would take the rank for dead.
TEST(LowRankOperation, MatricesThatWouldTakeMinutesAreRefused) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  const Values input = gradients(2, 200, 1);
  const auto answer = [&](const std::string& codec, std::uint64_t count) {
    MatrixExchange e(c, input, codec, 4096);
    e.request[0].count = count;  // refused before it is touched
    e.request[0].input = e.request[0].output;
    return c.engine(0).submit(c.operation(c.world(0), e.request[0], e.tickets[0].get()));
  };
  const Status svd = answer("svd:4", 4096 * 4096);
  EXPECT_EQ(svd.code(), CANARY_INVALID_ARGUMENT);
  EXPECT_NE(svd.text().find("codec svd:4 of 16777216 elements would hold up everything else"), std::string::npos)
      << svd.text();
  const Status power = answer("power:1024", 4096 * 4096);
  EXPECT_EQ(power.code(), CANARY_INVALID_ARGUMENT);
  EXPECT_NE(power.text().find("take fewer directions"), std::string::npos) << power.text();
}

// A rank's death, an abort, or a deadline at any moment of a call: every caller hears of it, and none hangs.
TEST(LowRankOperation, WhatEndsAGroupEndsACallInAnyPhase) {
  enum class How : std::uint8_t { kDeath, kAbort, kDeadline };
  for (const std::string codec : {"power:2", "power:2+sketch:8", "svd:2", "power:2,or-dense"}) {
    Values input = gradients(4, 40'000, 1);
    if (codec.ends_with("or-dense")) input[3][39'999] = std::numeric_limits<float>::quiet_NaN();  // more phases
    for (const How how : {How::kDeath, How::kAbort, How::kDeadline}) {
      int ended = 0;
      for (Nanos at{}; at < 160_ms; at += quick() ? 20_ms : 14_ms) {
        ClusterOptions options = flat_cluster(4);
        options.fabric.nic =
            NicOptions::link(20_ms, BytesPerSec::from_mbit(1'000));  // a phase takes some of these steps
        Cluster c(options);
        ASSERT_TRUE(c.join());
        MatrixExchange e(c, input, codec, 200);
        Exchange behind(c, gradients(4, 100, 2), "", 0);
        e.submit_all();
        behind.submit_all();
        if (how == How::kDeadline) c.set_deadline(c.world(1), e.tickets[1].get(), at + 1_ns);
        c.run_for(at);
        if (how == How::kDeath) c.kill(2, CrashKind::kHangup);
        if (how == How::kAbort) abort_world(c, 2, "enough");
        const auto done = [&] {
          for (std::size_t r = 0; r < 4; ++r) {
            if (how == How::kDeath && r == 2) continue;
            if (!e.tickets[r]->done() || !behind.tickets[r]->done()) return false;
          }
          return true;
        };
        ASSERT_TRUE(c.run_until(done, 10_s)) << codec << " at " << at.count << " ns";
        const canary_status wanted = how == How::kDeath   ? CANARY_PEER_DIED
                                     : how == How::kAbort ? CANARY_ABORTED
                                                          : CANARY_DEADLINE;
        for (std::size_t r = 0; r < 4; ++r) {
          if (how == How::kDeath && r == 2) continue;
          if (e.tickets[r]->code == CANARY_OK) continue;
          ++ended;
          EXPECT_EQ(e.tickets[r]->code, wanted) << e.tickets[r]->status.to_string();
          EXPECT_EQ(e.tickets[r]->status.text().find("all_reduce #"), 0u) << e.tickets[r]->status.text();
          if (how == How::kDeath) {
            EXPECT_EQ(e.tickets[r]->status.detail().rank, 2) << e.tickets[r]->status.to_string();
          }
          EXPECT_FALSE(c.world(static_cast<int>(r))->pending());
        }
      }
      EXPECT_GT(ended, 3) << codec;
    }
  }
}

// Whole and valid frames of a peer that is broken, or hostile.
TEST(LowRankOperation, FactorsThatCannotBeEndTheGroupAndNameTheirSender) {
  const Shape shape{40, 50};
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  MatrixExchange first(c, gradients(2, shape.count(), 1), "svd:1", shape.rows);
  ASSERT_NO_FATAL_FAILURE(first.expect_equal("first"));
  const std::uint32_t number = c.world(0)->entered + 1;
  MatrixExchange second(c, gradients(2, shape.count(), 1), "svd:1", shape.rows);
  second.submit(0);
  std::vector<float> record(3 + shape.rows + shape.columns, 3);  // no vector of length 1 has such an element
  std::fill_n(record.begin(), 3, 0.0F);                          // and no refusal
  wire::Header h = Forger::piece_of(c, number, static_cast<std::uint32_t>(record.size() * sizeof(float)));
  h.signature = signature_hash(c.world(0)->history[number % GroupMember::kHistory]);
  Forger forger(c);
  for (h.step = 0; h.step < 4; ++h.step) forger.send(h, record.data());
  ASSERT_TRUE(c.run_until([&] { return second.tickets[0]->done(); }, 1_s));
  EXPECT_EQ(second.tickets[0]->code, CANARY_MISMATCH);
  EXPECT_NE(second.tickets[0]->status.text().find("rank 1 sent what does not decode: "), std::string::npos)
      << second.tickets[0]->status.text();
}

}  // namespace
}  // namespace canarynet
