// The plans that carry what codecs make, in virtual time: encoded pieces and the values of AR-Topk go by what the links
// make the fastest, the same on all ranks, and whatever carries them, nothing gets lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "sim/codec_exchange_test_util.h"

namespace canarynet {
namespace {

constexpr std::size_t kCount = 100'000;

ClusterOptions cluster(int hosts, Nanos latency, std::int64_t mbit, const std::string& algo = "") {
  ClusterOptions o = flat_cluster(hosts, 1);
  o.fabric.nic = NicOptions::link(latency, BytesPerSec::from_mbit(mbit));
  o.fabric.window_bytes = 16 << 20;
  o.settings.algo = algo;
  // An engine takes no virtual time to encode.
  o.amend = [](int, EngineOptions* e) { e->codec_speed = [](const CodecSpec&) { return CodecSpeed{}; }; };
  return o;
}

std::string planner_now(Cluster& c) { return c.engine(0).algorithm(c.world(0)->id); }
std::string why(Cluster& c) {
  return c.engine(c.hosts() - 1).explain(c.world(c.ranks() - 1)->id, Collective::kAllReduce, kCount * sizeof(float));
}

// Whether the plan that carries the values is on trial.
bool on_trial(Cluster& c) { return why(c).find(", tried by table ") != std::string::npos; }

// Runs one after the other for so long or until `enough`, but at least one. All ranks get the same by the same plans,
// and what is not in the results is left out at some rank. Returns the seconds of the last `timed` ones, each.
double exchange(
    Cluster& c, Nanos span, const std::string& codec, std::size_t timed = 10,
    const std::function<bool()>& enough = [] { return false; }) {
  const Values input = gradients(c.ranks(), kCount, 4);
  std::vector<double> given(kCount), got(kCount);
  for (int r = 0; r < c.ranks(); ++r) c.world(r)->feedback.forget(kTensor);
  std::vector<double> took;
  const Nanos end = c.now() + span;
  do {
    const Nanos began = c.now();
    Exchange e(c, input, codec);
    e.expect_equal(codec);
    if (testing::Test::HasFatalFailure()) return 0;
    took.push_back((c.now() - began).seconds());
    for (std::size_t i = 0; i < kCount; ++i) {
      given[i] += sum_of(input, i);
      got[i] += e.out[0][i];
    }
    for (int r = 1; r < c.ranks(); ++r) {
      const auto& mine = c.world(r)->history[c.world(r)->entered % GroupMember::kHistory];
      const auto& first = c.world(0)->history[c.world(0)->entered % GroupMember::kHistory];
      EXPECT_EQ(mine.planner, first.planner);
      EXPECT_EQ(mine.table, first.table);
    }
    c.run_for(1_ms);
  } while (c.now() < end && !enough());
  std::vector<std::vector<float>> left;
  for (int r = 0; r < c.ranks(); ++r) left.push_back(residual(c, r));
  for (std::size_t i = 0; i < kCount; i += 7) {
    double kept = got[i];
    for (const auto& of_rank : left) kept += of_rank.empty() ? 0 : of_rank[i];
    EXPECT_NEAR(given[i], kept, 2e-6 * (1 + std::abs(given[i])) * static_cast<double>(took.size())) << "element " << i;
    if (testing::Test::HasNonfatalFailure()) break;
  }
  double sum = 0;
  const std::size_t counted = std::min(timed, took.size());
  for (std::size_t i = took.size() - counted; i < took.size(); ++i) sum += took[i];
  return sum / static_cast<double>(counted);
}

TEST(CodecPlans, ValuesOfArTopKGoByWhateverIsForced) {
  for (const std::string codec : {"artopk:star:0.02", "artopk:var:0.02"}) {
    for (const std::string algo : {"ring", "tree", "dbtree", "mesh", "bcube", "halving_doubling"}) {
      Cluster c(cluster(4, 50_us, 2'000, "all_reduce=" + algo));
      ASSERT_TRUE(c.join());
      exchange(c, 20_ms, codec);
      if (HasFailure()) FAIL() << codec << " by " << algo;
      EXPECT_EQ(planner_now(c), algo);
      EXPECT_NE(why(c).find("; values of 8048B by " + codec + " go by " + algo + ", forced by CANARY_ALGO"),
                std::string::npos)
          << why(c);
    }
  }
}

struct Links {
  const char* carrier;
  int hosts;
  Nanos latency;
  std::int64_t mbit;
  const char* codec;
};

class TheCarrierOfValues : public testing::TestWithParam<Links> {
 protected:
  static double forced(const std::string& algo, Nanos span = 500_ms) {
    const Links& links = GetParam();
    Cluster c(cluster(links.hosts, links.latency, links.mbit, algo));
    EXPECT_TRUE(c.join());
    return exchange(c, span, links.codec);
  }
};

TEST_P(TheCarrierOfValues, FollowsFromMeasuredLinks) {
  const Links& links = GetParam();
  if (std::getenv("CANARY_TEST_QUICK") != nullptr && std::string(links.carrier) == "ring")
    GTEST_SKIP() << "CANARY_TEST_QUICK: of the larger group";
  const double by_static = forced("");
  const double best = forced(std::string("all_reduce=") + links.carrier);
  Cluster c(measuring(cluster(links.hosts, links.latency, links.mbit)));
  ASSERT_TRUE(c.join());
  exchange(c, quick() ? 4_s : 14_s, links.codec);
  exchange(c, 10_s, links.codec, 1, [&] { return !on_trial(c); });
  const double chosen = exchange(c, 500_ms, links.codec);
  std::printf("%s: static %.2f ms, best %.2f ms, chosen %.2f ms by %s\n", links.carrier, 1e3 * by_static, 1e3 * best,
              1e3 * chosen, planner_now(c).c_str());
  EXPECT_EQ(planner_now(c), links.carrier) << why(c);
  EXPECT_LT(chosen, 0.97 * by_static);
  EXPECT_LE(chosen, 1.1 * best);
  const std::string text = why(c);
  EXPECT_NE(text.find(std::string(" by ") + links.codec + " go by " + links.carrier), std::string::npos) << text;
  EXPECT_NE(text.find(", chosen by table "), std::string::npos) << text;
}
INSTANTIATE_TEST_SUITE_P(Links, TheCarrierOfValues,
                         testing::Values(Links{"ring", 8, 100_us, 100, "artopk:star:0.1"},
                                         Links{"bcube_x", 4, 5_ms, 1'000, "artopk:star:0.1"}),
                         [](const auto& one) { return std::string(one.param.carrier); });

// Who lets artopk be chosen has its values carried by the fastest plan, too; other operations keep their own.
TEST(CodecPlans, AChoiceOfArTopKChoosesItsCarrierAndNothingElse) {
  if (std::getenv("CANARY_TEST_QUICK") != nullptr) GTEST_SKIP() << "CANARY_TEST_QUICK: it takes a minute";
  Cluster c(unmeasured(cluster(8, 100_us, 100)));
  ASSERT_TRUE(c.join());
  exchange(c, 15_s, "artopk:star:0.1,auto");
  EXPECT_EQ(planner_now(c), "ring") << why(c);
  EXPECT_NE(why(c).find("; with codec artopk:star:0.1,auto artopk:star:0.1, chosen by table "), std::string::npos)
      << why(c);
  EXPECT_NE(why(c).find(" by artopk:star:0.1,or-dense go by ring"), std::string::npos) << why(c);
  // As many values as those, and by the codec itself.
  Exchange plain(c, Values(8, std::vector<float>(10'024, 1)), "", 0);
  ASSERT_NO_FATAL_FAILURE(plain.expect_equal("plain"));
  EXPECT_EQ(planner_now(c), "mesh");
  exchange(c, 100_ms, "artopk:star:0.1");
  EXPECT_EQ(planner_now(c), "mesh") << "nobody asked for a choice";
}

// AR-Topk by its best plan is what gathering is compared with, and once that is chosen, plans that nothing runs by are
// left alone.
TEST(CodecPlans, CarriersAreTriedBeforeAnotherCodecTakesTheirPlaceAndNotBehindIt) {
  if (std::getenv("CANARY_TEST_QUICK") != nullptr) GTEST_SKIP() << "CANARY_TEST_QUICK: it takes a minute";
  Cluster c(measuring(cluster(4, 5_ms, 1'000)));
  ASSERT_TRUE(c.join());
  constexpr std::size_t kAgTopK = 2;
  const auto gathered = [&] {
    const auto& cells = c.world(0)->group->codec_use.cells();
    return cells.empty() ? 0 : cells[0]->took[kAgTopK].operations;
  };
  exchange(c, 20_s, "artopk:star:0.1,auto", 1, [&] { return gathered() > 0; });
  ASSERT_EQ(gathered(), 1u) << why(c);
  const auto& carriers = c.world(0)->group->use.coded_cells();
  ASSERT_EQ(carriers.size(), 1u);
  int tried = 0;
  for (const auto& by : carriers[0]->took) tried += by[0].operations + by[0].before.operations > 0;
  EXPECT_GE(tried, 3) << why(c);
  // Other operations are tried anew when the links change, and what nothing runs by is not.
  const auto before = gathered();
  const Values input = gradients(4, kCount, 5);
  for (int i = 0; i < 250; ++i) {
    if (i == 50) {
      for (int host = 0; host < 4; ++host)
        c.fabric().nic(host, 0) = NicOptions::link(8_ms, BytesPerSec::from_mbit(1'000));
    }
    Exchange plain(c, input, "", 0);
    ASSERT_NO_FATAL_FAILURE(plain.expect_equal("plain"));
    Exchange asked(c, input, "artopk:star:0.1,auto");
    ASSERT_NO_FATAL_FAILURE(asked.expect_equal("asked"));
  }
  EXPECT_GE(gathered(), before + 200) << why(c);
  const std::string text = why(c);
  EXPECT_EQ(text.find(", tried by table", text.find("; values of")), std::string::npos) << text;
}

// By size and topology a mesh carries what codecs encode, since it encodes least. Here one of its ways is bad.
TEST(CodecPlans, EncodedPiecesGoByTheFastestPlan) {
  if (quick()) GTEST_SKIP() << "CANARY_TEST_QUICK: where carriers are tried, the same code runs";
  const auto spoil = [](Cluster& c) {
    for (const auto& [a, b] : {std::pair{3, 4}, {4, 3}}) c.fabric().path(a, b).stream_rate = BytesPerSec::from_mbit(5);
  };
  const auto seconds = [&](const std::string& algo) {
    Cluster c(unmeasured(cluster(8, 100_us, 100, algo)));
    spoil(c);
    EXPECT_TRUE(c.join());
    return exchange(c, 500_ms, "int8");
  };
  const double by_static = seconds("");
  double best = by_static;
  for (const char* algo : {"ring", "tree", "dbtree", "bcube", "halving_doubling"})
    best = std::min(best, seconds(std::string("all_reduce=") + algo));
  Cluster c(measuring(cluster(8, 100_us, 100)));
  spoil(c);
  ASSERT_TRUE(c.join());
  const double chosen = exchange(c, 10_s, "int8");
  std::printf("static %.2f ms, best %.2f ms, chosen %.2f ms by %s\n", 1e3 * by_static, 1e3 * best, 1e3 * chosen,
              planner_now(c).c_str());
  EXPECT_GT(by_static, 1.25 * best);
  EXPECT_LE(chosen, 1.1 * best) << why(c);
  const std::regex told("; pieces by int8 go by " + planner_now(c) +
                        "( with the ranks in the order [0-7 ]+)?, chosen by table ");
  EXPECT_TRUE(std::regex_search(why(c), told)) << why(c);
}

TEST(CodecPlans, WithoutMeasuredChoiceTheyAreChosenBySizeAndTopology) {
  Cluster c(unmeasured(cluster(8, 100_us, 100)));
  ASSERT_TRUE(c.join());
  exchange(c, quick() ? 1_s : 4_s, "int8");
  EXPECT_EQ(planner_now(c), "mesh");
  EXPECT_EQ(c.world(0)->history[c.world(0)->entered % GroupMember::kHistory].table, 0u);
  EXPECT_NE(why(c).find("; pieces by int8 go by mesh, chosen by size and topology; CANARY_MEASURED_CHOICE is off"),
            std::string::npos)
      << why(c);
}

}  // namespace
}  // namespace canarynet
