// Operations that let their codec be chosen, in virtual time: dense first, then what is faster, from the same operation
// on everywhere, and nothing that a codec left out is lost on the way.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "sim/codec_exchange_test_util.h"

namespace canarynet {
namespace {

constexpr std::size_t kCount = 100'000;

// An engine takes no virtual time to encode, so what it would take is said here, and must be believed before a codec
// has run.
ClusterOptions cluster(double codec_seconds, std::uint64_t mbit = 100, int hosts = 4, Nanos latency = 100_us) {
  ClusterOptions o = flat_cluster(hosts);
  o.fabric.nic = NicOptions::link(latency, BytesPerSec::from_mbit(static_cast<std::int64_t>(mbit)));
  o.amend = [codec_seconds](int, EngineOptions* e) {
    e->codec_speed = [codec_seconds](const CodecSpec&) {
      const double each = codec_seconds / (kCount * sizeof(float));
      return CodecSpeed{each, each};
    };
  };
  return o;
}

const CodecUse::Cell& cell(Cluster& c, int rank) {
  const auto& cells = c.world(rank)->group->codec_use.cells();
  EXPECT_EQ(cells.size(), 1u);
  return *cells.at(0);
}
std::uint64_t ran(Cluster& c, std::size_t candidate, int rank = 0) {
  return cell(c, rank).took.at(candidate).operations;
}

// What all ranks gave and got, so far.
struct Balance {
  std::vector<double> given = std::vector<double>(kCount), got = std::vector<double>(kCount);
  void expect_even(Cluster& c, double within = 3e-5) const {
    std::vector<std::vector<float>> residuals;
    for (int r = 0; r < c.ranks(); ++r) {
      if (c.world(r)->feedback.knows(kTensor)) residuals.push_back(residual(c, r));
    }
    for (std::size_t i = 0; i < kCount; i += 7) {
      double left = 0;
      for (const std::vector<float>& of_rank : residuals) left += of_rank[i];
      ASSERT_NEAR(given[i], got[i] + left, within) << "element " << i;
    }
  }
};

// One after the other for so long, or until `enough`. All ranks get the same.
void exchange(
    Cluster& c, Nanos span, const std::string& codec, Balance* balance,
    const std::function<bool()>& enough = [] { return false; }) {
  const Values input = gradients(c.ranks(), kCount, 4);
  for (const Nanos end = c.now() + span; c.now() < end && !enough();) {
    Exchange e(c, input, codec);
    ASSERT_NO_FATAL_FAILURE(e.expect_equal(codec));
    for (std::size_t i = 0; i < kCount; ++i) {
      balance->given[i] += sum_of(input, i);
      balance->got[i] += e.out[0][i];
    }
    for (int r = 1; r < c.ranks(); ++r) {
      ASSERT_EQ(c.world(r)->history[c.world(r)->entered % GroupMember::kHistory].table,
                c.world(0)->history[c.world(0)->entered % GroupMember::kHistory].table);
    }
    c.run_for(1_ms);
  }
}

// Whenever it is that the links change.
class ChangeOfTheRate : public ::testing::TestWithParam<Nanos> {};
TEST_P(ChangeOfTheRate, SlowLinksGetTheCodecThatSendsLeastAndFastOnesDense) {
  if (GetParam() > Nanos{} && quick()) GTEST_SKIP() << "CANARY_TEST_QUICK: one phase does";
  Cluster c(cluster(6e-3, 20));
  ASSERT_TRUE(c.join());
  Balance balance;
  ASSERT_NO_FATAL_FAILURE(exchange(c, 6_s + GetParam(), "auto", &balance));
  EXPECT_GE(ran(c, 0), 2u) << "dense shows what the links carry";
  for (int r = 0; r < 4; ++r) EXPECT_GE(ran(c, 2, r), 20u) << "int8 at rank " << r;
  ASSERT_NO_FATAL_FAILURE(balance.expect_even(c));
  const Engine::Counters counted = c.engine(1).counters();
  EXPECT_GT(counted.codec_value_bytes, 10 * kCount * sizeof(float));
  EXPECT_NEAR(static_cast<double>(counted.codec_encoded_bytes) / static_cast<double>(counted.codec_value_bytes), 0.25,
              0.01);
  EXPECT_NEAR(counted.codec_gain, 1, 0.1);
  double norm = 0;
  for (const float v : residual(c, 1)) norm += static_cast<double>(v) * v;
  EXPECT_NEAR(c.world(1)->feedback.left_energy(), norm, 1e-3 * norm) << "kept beside what is left out, piece by piece";
  EXPECT_GT(counted.codec_residual, 0);
  EXPECT_LT(counted.codec_residual, 0.1);
  const std::string why = c.engine(2).explain(c.world(2)->id, Collective::kAllReduce, kCount * 4);
  EXPECT_NE(why.find("; with codec auto int8, chosen by table "), std::string::npos) << why;
  EXPECT_NE(why.find("each by dense"), std::string::npos) << why;

  // Now the links are fast: what int8 takes leaves little for its bytes, so dense is tried, and what int8 left out goes
  // with the first of them.
  for (int host = 0; host < 4; ++host)
    c.fabric().nic(host, 0) = NicOptions::link(20_us, BytesPerSec::from_mbit(10'000));
  const std::uint64_t dense = ran(c, 0);
  ASSERT_NO_FATAL_FAILURE(exchange(c, 8_s, "auto", &balance, [&] { return ran(c, 0) > dense; }));
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(ran(c, 0, r), dense + 1) << c.engine(r).explain(c.world(r)->id, Collective::kAllReduce,
                                                              kCount * sizeof(float));
  }
  for (int r = 0; r < 4; ++r) EXPECT_FALSE(c.world(r)->feedback.leaves(kTensor));
  ASSERT_NO_FATAL_FAILURE(balance.expect_even(c));
}
INSTANTIATE_TEST_SUITE_P(Phases, ChangeOfTheRate, ::testing::Values(0_us, 1700_us, 5100_us, 11900_us));

TEST(CodecChoice, EncodingThatTakesLongerThanItSavesIsNotTried) {
  Cluster c(cluster(0.2));
  ASSERT_TRUE(c.join());
  Balance balance;
  ASSERT_NO_FATAL_FAILURE(exchange(c, 2500_ms, "sketch:8,auto", &balance));
  EXPECT_GT(ran(c, 0), 20u);
  EXPECT_EQ(ran(c, 1), 0u);
  const std::string why = c.engine(0).explain(c.world(0)->id, Collective::kAllReduce, kCount * 4);
  EXPECT_NE(why.find("; with codec sketch:8,auto dense, chosen by table "), std::string::npos) << why;
}

TEST(CodecChoice, TheCodecThatOperationsNameIsTheirOwn) {
  Cluster c(cluster(0));
  ASSERT_TRUE(c.join());
  Balance balance;
  const auto enough = [&] {
    const auto& cells = c.world(0)->group->codec_use.cells();
    return !cells.empty() && cells[0]->took[1].operations > 30;
  };
  ASSERT_NO_FATAL_FAILURE(exchange(c, 3_s, "topk:0.01,auto", &balance, enough));
  EXPECT_GT(ran(c, 1), 20u);
  ASSERT_NO_FATAL_FAILURE(balance.expect_even(c, 1e-3));
  Exchange plain(c, gradients(4, kCount, 5), "", 0);
  ASSERT_NO_FATAL_FAILURE(plain.expect_equal("no codec"));
  EXPECT_NEAR(plain.out[0][17], sum_of(plain.in, 17), 1e-6) << "others stay dense";
}

constexpr std::size_t kDense = 0, kArTopK = 1, kAgTopK = 2;

// FlexComm's switch: an all-gather has one start-up time and n shares of the bytes, AR-Topk more of the one and fewer
// of the other.
TEST(CodecChoice, TopKIsGatheredWhereWaysAreLongAndReducedWhereBytesCount) {
  struct Case {
    Nanos latency;
    const char* codec;
    std::size_t chosen, other;
  };
  for (const Case& one :
       {Case{100_us, "artopk:star:0.1,auto", kArTopK, kAgTopK}, Case{100_us, "artopk:var:0.1,auto", kArTopK, kAgTopK},
        Case{5_ms, "artopk:star:0.001,auto", kAgTopK, kArTopK}}) {
    if (quick() && one.chosen == kArTopK) continue;  // under sanitizers, where each takes a minute
    Cluster c(cluster(6e-3, 20, 8, one.latency));
    ASSERT_TRUE(c.join());
    Balance balance;
    const auto enough = [&] {
      const auto& cells = c.world(0)->group->codec_use.cells();
      return !cells.empty() && cells[0]->took[one.chosen].operations >= 20;
    };
    ASSERT_NO_FATAL_FAILURE(exchange(c, 12_s, one.codec, &balance, enough));
    const std::string why = c.engine(7).explain(c.world(7)->id, Collective::kAllReduce, kCount * 4);
    EXPECT_GE(ran(c, kDense), 2u) << why;
    for (int r = 0; r < 8; ++r) {
      EXPECT_GE(ran(c, one.chosen, r), 20u) << why;
      EXPECT_LE(ran(c, one.other, r), 8u) << why;
    }
    EXPECT_NE(why.find(std::string("; with codec ") + one.codec), std::string::npos) << why;
    ASSERT_NO_FATAL_FAILURE(balance.expect_even(c, 1e-3));
  }
}

// Whether values are gathered or reduced follows from rates. Long links that are never busy show none.
TEST(CodecChoice, TopKWaitsForARateButNotForEver) {
  ClusterOptions o = cluster(0, 10'000, 4, 5_ms);
  o.settings.probes = false;
  Cluster c(o);
  ASSERT_TRUE(c.join());
  Balance balance;
  const auto expect_no_rate = [&] {
    for (int host = 0; host < 4; ++host) {
      c.engine(host).for_each_link([&](const LinkView& view) {
        EXPECT_EQ(view.path.link.beta().count, 0) << "host " << host << " knows a rate, so this test shows nothing";
      });
    }
  };
  ASSERT_NO_FATAL_FAILURE(exchange(c, 3500_ms, "artopk:star:0.01,auto", &balance));
  expect_no_rate();
  EXPECT_GE(ran(c, kDense), 20u);
  EXPECT_EQ(ran(c, kArTopK) + ran(c, kAgTopK), 0u);
  ASSERT_NO_FATAL_FAILURE(
      exchange(c, 4_s, "artopk:star:0.01,auto", &balance, [&] { return ran(c, kArTopK) + ran(c, kAgTopK) > 0; }));
  expect_no_rate();
  EXPECT_GT(ran(c, kArTopK) + ran(c, kAgTopK), 0u);
  ASSERT_NO_FATAL_FAILURE(balance.expect_even(c, 1e-3));
}

TEST(CodecChoice, TopKGoesBackToDenseWithAllThatItLeftOut) {
  if (quick()) GTEST_SKIP() << "CANARY_TEST_QUICK: where ways are long and where bytes count, the same code runs";
  Cluster c(cluster(60e-3, 20));
  ASSERT_TRUE(c.join());
  Balance balance;
  const auto enough = [&] {
    const auto& cells = c.world(0)->group->codec_use.cells();
    return !cells.empty() &&
           cells[0]->took[kArTopK].operations + cells[0]->took[kAgTopK].operations >= (quick() ? 22u : 40u);
  };
  ASSERT_NO_FATAL_FAILURE(exchange(c, 12_s, "artopk:star:0.01,auto", &balance, enough));
  EXPECT_GE(ran(c, kArTopK) + ran(c, kAgTopK), 20u);
  for (int host = 0; host < 4; ++host)
    c.fabric().nic(host, 0) = NicOptions::link(20_us, BytesPerSec::from_mbit(10'000));
  const std::uint64_t dense = ran(c, kDense);
  ASSERT_NO_FATAL_FAILURE(exchange(c, 8_s, "artopk:star:0.01,auto", &balance, [&] { return ran(c, kDense) > dense; }));
  EXPECT_EQ(ran(c, kDense), dense + 1) << c.engine(0).explain(c.world(0)->id, Collective::kAllReduce, kCount * 4);
  for (int r = 0; r < 4; ++r) EXPECT_FALSE(c.world(r)->feedback.leaves(kTensor));
  ASSERT_NO_FATAL_FAILURE(balance.expect_even(c, 1e-3));
}

// The first phase of a chosen chain, a broadcast here, tells the time of the whole call. Nobody waits for its own.
TEST(CodecChoice, APhaseThatTellsTheTimeOfItsCallIsNotWaitedFor) {
  Cluster c(cluster(6e-3, 20));
  ASSERT_TRUE(c.join());
  Balance balance;
  const auto enough = [&] {
    const auto& cells = c.world(0)->group->codec_use.cells();
    return !cells.empty() && cells[0]->took[kArTopK].operations >= 40;
  };
  ASSERT_NO_FATAL_FAILURE(exchange(c, 12_s, "artopk:star:0.01,auto", &balance, enough));
  ASSERT_GE(ran(c, kArTopK), 40u);
  int broadcasts = 0, waited_for = 0;
  c.world(0)->group->use.for_each_used([&](Collective what, int, const ChoiceUse::Cell& use) {
    const bool idle = use.idle(c.world(0)->entered);
    if (what == Collective::kBroadcast) {
      ++broadcasts;
      EXPECT_TRUE(idle);
    }
    waited_for += !idle;
  });
  EXPECT_EQ(broadcasts, 1);
  EXPECT_EQ(waited_for, 1) << "the phase that carries the values";
}

TEST(CodecChoice, WhoDoesNotAskIsNamed) {
  Cluster c(cluster(0));
  ASSERT_TRUE(c.join());
  Exchange e(c, gradients(4, 50'000, 1), "auto:0.01");
  e.request[2].codec = 0;
  e.request[2].tensor = 0;
  e.submit_all();
  ASSERT_TRUE(e.finish(1_s));
  for (const auto& ticket : e.tickets) {
    EXPECT_EQ(ticket->code, CANARY_MISMATCH);
    EXPECT_NE(ticket->status.text().find("codec=auto:0.01 tensor=7"), std::string::npos) << ticket->status.text();
  }
}

TEST(CodecChoice, APlanThatTakesNoCodecStaysDense) {
  ClusterOptions o = cluster(0);
  o.settings.algo = "halving_doubling";
  Cluster c(o);
  ASSERT_TRUE(c.join());
  const Values input = gradients(4, 30'000, 1);
  for (int i = 0; i < 60; ++i) {
    Exchange e(c, input, "auto");
    ASSERT_NO_FATAL_FAILURE(e.expect_equal("auto"));
    c.run_for(50_ms);
  }
  EXPECT_EQ(c.engine(0).algorithm(c.world(0)->id), std::string("halving_doubling"));
}

// Nobody measures there, and memory is faster than any codec.
TEST(CodecChoice, WithinOneHostItIsDense) {
  ClusterOptions o = cluster(0);
  o.hosts = 1;
  o.ranks_per_host = 3;
  o.wiring = Wiring::flat(1, 1);
  Cluster c(o);
  ASSERT_TRUE(c.join());
  Exchange e(c, gradients(3, kCount, 1), "auto");
  ASSERT_NO_FATAL_FAILURE(e.expect_equal("auto"));
  const std::string why = c.engine(0).explain(c.world(0)->id, Collective::kAllReduce, kCount * 4);
  EXPECT_NE(why.find("with codec auto dense, since nothing is measured"), std::string::npos) << why;
}

}  // namespace
}  // namespace canarynet
