// All-reduces with a codec through engines, channels and lanes: every codec on every plan under faults; what is left
// out, refused, or disagreed upon. Virtual time.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "sim/codec_exchange_test_util.h"
#include "sim/forger_test_util.h"

namespace canarynet {
namespace {

struct Case {
  PlannerId planner;
  int ranks;
  int per_host;
};

class CodecsOnPlans : public testing::TestWithParam<Case> {};

TEST_P(CodecsOnPlans, AllRanksGetTheSameAndNothingIsLost) {
  const auto [planner_id, ranks, per_host] = GetParam();
  const bool quick = std::getenv("CANARY_TEST_QUICK") != nullptr;
  ClusterOptions options;
  options.hosts = ranks / per_host;
  options.ranks_per_host = per_host;
  const bool cube = (planner_id == PlannerId::kBCube || planner_id == PlannerId::kBCubeX) && per_host == 1;
  options.wiring = cube && ranks == 4   ? Wiring::bcube(2, 2)
                   : cube && ranks == 9 ? Wiring::bcube(3, 2)
                                        : Wiring::flat(options.hosts, 2);
  options.fabric.seed = 40 + static_cast<std::uint64_t>(ranks);
  options.fabric.retransmit_delay = 5_ms;
  options.fabric.nic = NicOptions::link(50_us, BytesPerSec::from_mbit(2'000));
  options.fabric.nic.out.jitter = 100_us;
  options.fabric.nic.out.reorder_ppm = 200'000;
  options.fabric.nic.out.duplicate_ppm = 50'000;
  options.fabric.nic.out.loss_ppm = 10'000;
  options.settings.algo = std::string(name_of(planner_id));
  options.settings.piece_bytes = Bytes{1024};
  Cluster c(options);
  ASSERT_TRUE(c.join()) << c.engine(0).join_status().to_string();
  const std::size_t count = 12'001;
  const Values input = gradients(ranks, count, 5);
  const std::vector<std::string> all = {"fp16",     "bf16",         "int8",         "sketch:8", "sketch:8,mean",
                                        "sketch:4", "topk:0.05",    "mstopk:0.05",  "onebit",   "signsgd",
                                        "terngrad", "randomk:0.25", "int8,or-dense"};
  std::size_t at = 0;
  for (const std::string& codec : all) {
    ++at;
    if (quick && ranks != 4 && at % 4 != 0) continue;
    const bool average = at % 2 == 0;
    const std::string what = codec + " by " + std::string(name_of(planner_id)) + ", " + std::to_string(ranks) +
                             " ranks, seed " + std::to_string(options.fabric.seed);
    Values before(input.size(), std::vector<float>(count));
    for (int r = 0; r < ranks; ++r) c.world(r)->feedback.forget(kTensor);
    for (int step = 0; step < 2; ++step) {
      Exchange e(c, input, codec, kTensor, average ? CANARY_AVG : CANARY_SUM);
      ASSERT_NO_FATAL_FAILURE(e.expect_equal(what));
      ASSERT_EQ(e.in, input) << what << ": an input was written";
      Values after;
      for (int r = 0; r < ranks; ++r) after.push_back(residual(c, r));
      ASSERT_NO_FATAL_FAILURE(expect_conserved(e, before, after, average ? ranks : 1, what));
      before = after;
    }
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Planner& p : planners()) {
    for (const int n : {2, 4, 5}) all.push_back({p.id, n, 1});
  }
  all.push_back({PlannerId::kBCube, 9, 1});
  all.push_back({PlannerId::kHierarchical, 6, 2});
  all.push_back({PlannerId::kMesh, 6, 3});
  all.push_back({PlannerId::kRing, 8, 4});
  std::erase_if(all, [](const Case& c) {
    return c.planner == PlannerId::kBCubeX || !planner(c.planner).defines(Collective::kAllReduce, c.ranks);
  });
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, CodecsOnPlans, testing::ValuesIn(cases()), [](const auto& one) {
  return std::string(name_of(one.param.planner)) + "_" + std::to_string(one.param.ranks) + "_" +
         std::to_string(one.param.per_host);
});

// A sparsifier of pieces, whose sums are sparsified again: what is sent and what is left are the inputs with momentum.
TEST(Codecs, WithMomentumNothingIsLostEither) {
  constexpr float kMomentum = 0.5F;
  const std::size_t count = 5'000;
  for (const std::string codec : {"topk:0.05", "mstopk:0.05", "randomk:0.25", "topk:0.05,or-dense"}) {
    Cluster c(flat_cluster(4));
    ASSERT_TRUE(c.join());
    Values carried(4, std::vector<float>(count)), after = carried, speed = carried;
    for (std::uint64_t step = 0; step < 4; ++step) {
      const Values input = gradients(4, count, 70 + step);
      Exchange e(c, input, codec, kTensor, CANARY_SUM, kMomentum);
      ASSERT_NO_FATAL_FAILURE(e.expect_equal(codec));
      for (std::size_t r = 0; r < 4; ++r) {
        for (std::size_t i = 0; i < count; ++i) carried[r][i] = after[r][i] + kMomentum * speed[r][i];
        after[r] = residual(c, static_cast<int>(r));
        const std::vector<float> before = speed[r];
        speed[r] = velocity(c, static_cast<int>(r));
        ASSERT_EQ(speed[r].size(), count) << codec;
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_EQ(speed[r][i], after[r][i] != 0 ? kMomentum * before[i] + input[r][i] : 0) << codec << ", " << i;
      }
      ASSERT_NO_FATAL_FAILURE(expect_conserved(e, carried, after, 1, codec));
    }
  }
}

TEST(Codecs, ResultsAreAsCloseAsTheCodecIs) {
  Cluster c(flat_cluster(4));
  ASSERT_TRUE(c.join());
  const std::size_t count = 200'000;
  const Values input = gradients(4, count, 11);
  for (const auto& [codec, most] : {std::pair<std::string, double>{"fp16", 1e-3},
                                    {"bf16", 5e-3},
                                    {"int8", 0.03},
                                    {"sketch:8,mean", 0.06},
                                    {"sketch:8", 0.25},
                                    {"onebit", 0.9}}) {
    Exchange e(c, input, codec, 0);
    ASSERT_NO_FATAL_FAILURE(e.expect_equal(codec));
    double error = 0, energy = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double exact = sum_of(input, i);
      error += (e.out[0][i] - exact) * (e.out[0][i] - exact);
      energy += exact * exact;
    }
    EXPECT_LT(std::sqrt(error / energy), most) << codec;
    EXPECT_GT(error, 0) << codec << " did not travel encoded";
  }
}

TEST(Codecs, FeedbackMakesTheSumOfManyStepsRight) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  const std::size_t count = 3'000;
  const Values input = gradients(3, count, 3);
  const int steps = 60;
  for (const std::uint64_t tensor : {kTensor, std::uint64_t{0}}) {
    std::vector<double> total(count);
    for (int s = 0; s < steps; ++s) {
      Exchange e(c, input, "topk:0.1", tensor);
      ASSERT_NO_FATAL_FAILURE(e.expect_equal("topk:0.1"));
      for (std::size_t i = 0; i < count; ++i) total[i] += e.out[0][i];
    }
    double error = 0, energy = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double exact = steps * sum_of(input, i);
      error += (total[i] - exact) * (total[i] - exact);
      energy += exact * exact;
    }
    const double off = std::sqrt(error / energy);
    if (tensor != 0) {
      EXPECT_LT(off, 0.3);
    } else {
      EXPECT_GT(off, 0.5) << "without feedback the small ones never travel";
    }
  }
}

TEST(Codecs, WhatIsNotFiniteIsNamedOnEveryRankAndTheGroupLivesOn) {
  Cluster c(flat_cluster(4));
  ASSERT_TRUE(c.join());
  const std::size_t count = 50'000;
  for (const std::string& codec : std::vector<std::string>{"int8", "sketch:8", "topk:0.01", "fp16"}) {
    Exchange good(c, gradients(4, count, 1), codec);
    ASSERT_NO_FATAL_FAILURE(good.expect_equal(codec));
    const std::vector<float> kept = residual(c, 2);
    Values input = gradients(4, count, 2);
    input[2][5'234] = std::numeric_limits<float>::quiet_NaN();
    input[1][40'000] = std::numeric_limits<float>::infinity();
    Exchange bad(c, input, codec);
    ASSERT_NO_FATAL_FAILURE(bad.expect_refused("tensor 7, element 5234 of rank 2 is nan, which codec " + codec));
    EXPECT_EQ(residual(c, 2), kept) << "nothing was sent";
    Exchange again(c, gradients(4, count, 3), codec);
    ASSERT_NO_FATAL_FAILURE(again.expect_equal(codec));
  }
}

TEST(Codecs, WhatIsNotFiniteTravelsDenseOnRequest) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  Values input = gradients(3, 20'000, 2);
  input[2][123] = std::numeric_limits<float>::quiet_NaN();
  Exchange e(c, input, "int8,or-dense");
  ASSERT_NO_FATAL_FAILURE(e.expect_equal("int8,or-dense"));
  EXPECT_TRUE(std::isnan(e.out[1][123]));
  EXPECT_NEAR(e.out[1][124], sum_of(input, 124), 5e-4) << "its segment travels dense, those of others as int8";
  for (int r = 0; r < 3; ++r) {
    for (const float v : residual(c, r)) ASSERT_TRUE(std::isfinite(v));
  }
}

TEST(Codecs, RanksThatDisagreeAboutThemAreNamed) {
  struct Change {
    const char* says;
    void (*apply)(OpRequest*);
  };
  const Change changes[] = {
      {"codec=sketch:4", [](OpRequest* r) { r->codec = number_of("sketch:4"); }},
      {"codec=int8", [](OpRequest* r) { r->codec = number_of("int8"); }},
      {"codec=sketch:8,mean", [](OpRequest* r) { r->codec = number_of("sketch:8,mean"); }},
      {"tensor=8", [](OpRequest* r) { r->tensor = 8; }},
      {"rank 1 called all_reduce f32 n=50000 sum mesh", [](OpRequest* r) { r->codec = 0, r->tensor = 0; }},
  };
  for (const Change& change : changes) {
    Cluster c(flat_cluster(3));
    ASSERT_TRUE(c.join());
    Exchange e(c, gradients(3, 50'000, 1), "sketch:8");
    change.apply(&e.request[1]);
    e.submit_all();
    ASSERT_TRUE(e.finish(1_s)) << change.says;
    for (const auto& ticket : e.tickets) {
      EXPECT_EQ(ticket->code, CANARY_MISMATCH) << change.says;
      const std::string text = ticket->status.text();
      EXPECT_NE(text.find("codec=sketch:8 tensor=7"), std::string::npos) << text;
      EXPECT_NE(text.find(change.says), std::string::npos) << text;
      EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    }
  }
}

// Most elements are of one rank alone and a tenth of its largest, which is a quarter of the largest sum. With the same
// dice the owner of a sum would round up all that is up already.
TEST(Codecs, SumsOfRandomRoundingAreRightOnAverage) {
  Cluster c(flat_cluster(4));
  ASSERT_TRUE(c.join());
  constexpr std::size_t kCount = 2'000;
  Values in(4, std::vector<float>(kCount, 0));
  for (std::size_t i = 0; i < kCount; ++i) {
    in[i % 4][i] = 0.1F;
    for (std::size_t r = 0; r < 4 && i % 100 == 0; ++r) in[r][i] = 1;
  }
  double sum = 0;
  constexpr int kTimes = 20;
  for (int t = 0; t < kTimes; ++t) {
    Exchange e(c, in, "terngrad", 0);
    e.expect_equal("operation " + std::to_string(t));
    for (std::size_t i = 0; i < kCount; ++i) sum += i % 100 != 0 ? e.out[0][i] : 0;
  }
  EXPECT_NEAR(sum / (kTimes * kCount * 0.99), 0.1, 0.015);
}

TEST(Codecs, OperationsOfOneTensorFollowEachOther) {
  const std::size_t count = 30'000;
  std::vector<float> last_alone;
  for (const bool at_once : {false, true}) {
    Cluster c(flat_cluster(3));
    ASSERT_TRUE(c.join());
    std::vector<std::unique_ptr<Exchange>> all;
    for (std::uint64_t i = 0; i < 4; ++i) {
      all.push_back(std::make_unique<Exchange>(c, gradients(3, count, i), "sketch:4"));
      all.back()->submit_all();
      if (!at_once) {
        ASSERT_TRUE(all.back()->finish());
      }
    }
    for (auto& e : all) ASSERT_TRUE(e->finish());
    EXPECT_EQ(all.back()->tickets[0]->code, CANARY_OK);
    if (at_once) {
      EXPECT_EQ(all.back()->out[0], last_alone) << "each begins with what the one before left out";
    } else {
      last_alone = all.back()->out[0];
    }
  }
}

TEST(Codecs, ASavedStateGoesOnWhereItWas) {
  const std::size_t count = 9'000;
  const auto step = [&](Cluster& c, std::uint64_t seed) {
    Exchange e(c, gradients(2, count, seed), "topk:0.05");
    e.expect_equal("topk:0.05");
    return e.out[0];
  };
  const auto ask = [](Cluster& c, int rank, const auto& make) {
    OpTicket ticket;
    c.submit(rank, make(c.world(rank)->id, c.id(c.world(rank), &ticket)));
    EXPECT_TRUE(c.run_until([&] { return ticket.done(); }, 1_s));
    return ticket.code.load();
  };
  std::vector<std::vector<std::byte>> saved(2);
  std::vector<float> wanted;
  {
    Cluster c(flat_cluster(2));
    ASSERT_TRUE(c.join());
    step(c, 1);
    for (int r = 0; r < 2; ++r) {
      std::uint64_t size = 0;
      auto& bytes = saved[static_cast<std::size_t>(r)];
      EXPECT_EQ(ask(c, r, [&](auto m, auto t) { return port::save_feedback(m, {}, &size, t); }), CANARY_OK);
      ASSERT_GT(size, count * sizeof(float));
      bytes.resize(size - 1);
      EXPECT_EQ(ask(c, r, [&](auto m, auto t) { return port::save_feedback(m, bytes, &size, t); }), CANARY_LIMIT);
      bytes.resize(size);
      EXPECT_EQ(ask(c, r, [&](auto m, auto t) { return port::save_feedback(m, bytes, &size, t); }), CANARY_OK);
    }
    wanted = step(c, 2);
  }
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  float one = 1;
  OpTicket tickets[2];
  for (int r = 0; r < 2; ++r) c.all_reduce(r, &one, &one, 1, CANARY_F32, CANARY_MAX, &tickets[r]);
  ASSERT_TRUE(c.run_until([&] { return tickets[0].done() && tickets[1].done(); }, 1_s));
  for (int r = 0; r < 2; ++r) {
    auto bytes = saved[static_cast<std::size_t>(r)];
    bytes[100] ^= std::byte{1};
    EXPECT_EQ(ask(c, r, [&](auto m, auto t) { return port::restore_feedback(m, bytes, t); }), CANARY_MISMATCH);
    bytes[100] ^= std::byte{1};
    EXPECT_EQ(ask(c, r, [&](auto m, auto t) { return port::restore_feedback(m, bytes, t); }), CANARY_OK);
    port::FeedbackGain told;
    EXPECT_EQ(ask(c, r, [&](auto m, auto t) { return port::feedback_gain(m, kTensor, &told, t); }), CANARY_OK);
    EXPECT_GT(told.gain, 0.05);
    EXPECT_LT(told.gain, 0.9);
    EXPECT_GT(told.residual_norm, 0);
    EXPECT_EQ(ask(c, r, [&](auto m, auto t) { return port::feedback_gain(m, 99, &told, t); }), CANARY_INVALID_ARGUMENT);
  }
  EXPECT_EQ(step(c, 2), wanted);
}

TEST(Codecs, AStateOfAnotherLengthEndsTheGroupAndNamesTheTensor) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  Exchange first(c, gradients(2, 1000, 1), "int8");
  ASSERT_NO_FATAL_FAILURE(first.expect_equal("int8"));
  c.world(1)->feedback.forget(kTensor);
  Exchange other(c, gradients(2, 2000, 1), "int8");
  other.submit_all();
  ASSERT_TRUE(other.finish(1_s));
  for (const auto& ticket : other.tickets) {
    EXPECT_EQ(ticket->code, CANARY_MISMATCH);
    EXPECT_NE(ticket->status.text().find("tensor 7 has 1000 elements in the error feedback, not 2000"),
              std::string::npos)
        << ticket->status.text();
  }
}

// Whole and valid frames of a peer whose encoder is broken, or hostile.
TEST(Codecs, APieceThatDoesNotDecodeEndsTheGroupAndNamesItsSender) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  Exchange first(c, gradients(2, 4000, 1), "sketch:8");
  ASSERT_NO_FATAL_FAILURE(first.expect_equal("sketch:8"));
  Exchange second(c, gradients(2, 4000, 1), "sketch:8");
  second.submit(0);
  wire::Header h = Forger::piece_of(c, 2, 100);
  h.signature = signature_hash(c.world(0)->history[2]);
  const std::vector<std::byte> garbage(100, std::byte{0});
  Forger forger(c);
  for (h.step = 0; h.step < 4; ++h.step) forger.send(h, garbage.data());
  ASSERT_TRUE(c.run_until([&] { return second.tickets[0]->done(); }, 1_s));
  EXPECT_EQ(second.tickets[0]->code, CANARY_MISMATCH);
  EXPECT_NE(second.tickets[0]->status.text().find("rank 1 sent a piece that does not decode: codec sketch:8"),
            std::string::npos)
      << second.tickets[0]->status.text();
}

TEST(Codecs, AForcedPlanThatCompletesSumsTwiceIsRefused) {
  ClusterOptions options = flat_cluster(4);
  options.settings.algo = "halving_doubling";
  Cluster c(options);
  ASSERT_TRUE(c.join());
  Exchange e(c, gradients(4, 100, 1), "int8");
  e.submit_all();
  ASSERT_TRUE(e.finish(1_s));
  EXPECT_EQ(e.tickets[3]->code, CANARY_INVALID_ARGUMENT);
  EXPECT_NE(e.tickets[3]->status.text().find("forced planner halving_doubling"), std::string::npos)
      << e.tickets[3]->status.text();
  Exchange large(c, gradients(4, 100'000, 1), "int8");
  ASSERT_NO_FATAL_FAILURE(large.expect_equal("int8"));
}

}  // namespace
}  // namespace canarynet
