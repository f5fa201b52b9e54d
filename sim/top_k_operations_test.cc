// All-reduces by artopk and agtopk: which indices travel, what stays behind, and what ends a call in any of its phases.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "compress/top_k.h"
#include "sim/codec_exchange_test_util.h"
#include "sim/forger_test_util.h"

namespace canarynet {
namespace {

constexpr std::size_t kCount = 5'003;

// The indices of its k largest, ascending; ties to the lower one.
std::vector<std::size_t> largest(const std::vector<float>& v, std::size_t k) {
  std::vector<std::size_t> at(v.size());
  std::iota(at.begin(), at.end(), std::size_t{0});
  std::stable_sort(at.begin(), at.end(), [&](auto a, auto b) { return std::abs(v[a]) > std::abs(v[b]); });
  at.resize(k);
  std::sort(at.begin(), at.end());
  return at;
}

double norm_at(const std::vector<float>& v, const std::vector<std::size_t>& indices) {
  double sum = 0;
  for (const std::size_t i : indices) sum += static_cast<double>(v[i]) * v[i];
  return sum;
}

// What every rank should take out, by the paper's words.
std::vector<std::vector<std::size_t>> taken_by(const std::string& codec, const Values& g, std::size_t step) {
  const std::size_t n = g.size(), k = kept_of(g[0].size(), 20'000);
  std::vector<std::vector<std::size_t>> own;
  for (const auto& of_rank : g) own.push_back(largest(of_rank, k));
  if (codec.starts_with("agtopk")) return own;
  std::size_t root = step % n;
  if (codec.starts_with("artopk:var")) {
    root = 0;
    for (std::size_t r = 1; r < n; ++r) {
      if (norm_at(g[r], own[r]) > norm_at(g[root], own[root])) root = r;
    }
  }
  return std::vector<std::vector<std::size_t>>(n, own[root]);
}

struct Case {
  int ranks;
  int per_host;
};

class TopKOperations : public testing::TestWithParam<Case> {};

TEST_P(TopKOperations, TakeTheRootsIndicesAndLeaveAllElseExactly) {
  const auto [ranks, per_host] = GetParam();
  ClusterOptions options = flat_cluster(ranks / per_host, 2, per_host);
  options.fabric.seed = static_cast<std::uint64_t>(ranks);
  options.fabric.retransmit_delay = 5_ms;
  options.fabric.nic = NicOptions::link(50_us, BytesPerSec::from_mbit(2'000));
  options.fabric.nic.out.jitter = 100_us;
  options.fabric.nic.out.reorder_ppm = 200'000;
  options.fabric.nic.out.duplicate_ppm = 50'000;
  options.fabric.nic.out.loss_ppm = 10'000;
  Cluster c(options);
  ASSERT_TRUE(c.join());
  const auto n = static_cast<std::size_t>(ranks);
  for (const std::string codec : {"artopk:star:0.02", "artopk:var:0.02", "agtopk:0.02"}) {
    for (int r = 0; r < ranks; ++r) c.world(r)->feedback.forget(kTensor);
    Values left(n, std::vector<float>(kCount));
    for (std::size_t step = 0; step < n + 1; ++step) {
      const std::string what = codec + ", " + std::to_string(ranks) + " ranks, step " + std::to_string(step);
      const Values input = gradients(ranks, kCount, 5 + step);
      Values g = input;
      for (std::size_t r = 0; r < n; ++r) {
        for (std::size_t i = 0; i < kCount; ++i) g[r][i] += left[r][i];
      }
      const bool average = step % 2 == 0;
      Exchange e(c, input, codec, kTensor, average ? CANARY_AVG : CANARY_SUM);
      ASSERT_NO_FATAL_FAILURE(e.expect_equal(what));
      ASSERT_EQ(e.in, input) << what << ": an input was written";
      const auto taken = taken_by(codec, g, step);
      std::vector<double> sum(kCount), size(kCount);
      for (std::size_t r = 0; r < n; ++r) {
        left[r] = residual(c, static_cast<int>(r));
        std::vector<float> wanted = g[r];
        for (const std::size_t i : taken[r]) {
          sum[i] += g[r][i];
          size[i] += std::abs(g[r][i]);
          wanted[i] = 0;
        }
        ASSERT_EQ(left[r], wanted) << what << ", rank " << r;  // so sent + residual = gradient + residual, exactly
      }
      for (std::size_t i = 0; i < kCount; ++i) {
        ASSERT_NEAR(e.out[0][i] * (average ? static_cast<float>(ranks) : 1), sum[i], 1e-6 * size[i])
            << what << ", element " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TopKOperations,
                         testing::Values(Case{2, 1}, Case{3, 1}, Case{4, 1}, Case{5, 1}, Case{6, 2}, Case{7, 1},
                                         Case{8, 4}),
                         [](const auto& one) {
                           return std::to_string(one.param.ranks) + "_" + std::to_string(one.param.per_host);
                         });

TEST(TopKOperation, MomentumIsGatheredBeforeTheChoiceAndEndsWhereValuesAreTaken) {
  constexpr float kMomentum = 0.5F;
  for (const std::string codec : {"artopk:star:0.02", "artopk:var:0.02", "agtopk:0.02"}) {
    Cluster c(flat_cluster(3));
    ASSERT_TRUE(c.join());
    Values left(3, std::vector<float>(kCount)), speed = left;
    for (std::size_t step = 0; step < 5; ++step) {
      const Values input = gradients(3, kCount, 50 + step);
      Values g = input, wanted_speed = speed;
      for (std::size_t r = 0; r < 3; ++r) {
        for (std::size_t i = 0; i < kCount; ++i) {
          g[r][i] = input[r][i] + (kMomentum * speed[r][i] + left[r][i]);
          wanted_speed[r][i] = kMomentum * speed[r][i] + input[r][i];
        }
      }
      Exchange e(c, input, codec, kTensor, CANARY_SUM, kMomentum);
      ASSERT_NO_FATAL_FAILURE(e.expect_equal(codec));
      ASSERT_EQ(e.in, input) << codec << ": an input was written";
      const auto taken = taken_by(codec, g, step);
      for (std::size_t r = 0; r < 3; ++r) {
        Values wanted{g[r], wanted_speed[r]};
        for (const std::size_t i : taken[r]) wanted[0][i] = wanted[1][i] = 0;
        left[r] = residual(c, static_cast<int>(r));
        speed[r] = velocity(c, static_cast<int>(r));
        ASSERT_EQ(left[r], wanted[0]) << codec << ", step " << step << ", rank " << r;
        ASSERT_EQ(speed[r], wanted[1]) << codec << ", step " << step << ", rank " << r;
      }
    }
    // A call that is refused has no part in it.
    Values bad = gradients(3, kCount, 99);
    bad[1][77] = std::numeric_limits<float>::infinity();
    Exchange refused(c, bad, codec, kTensor, CANARY_SUM, kMomentum);
    refused.expect_refused("element 77 of rank 1");
    for (int r = 0; r < 3; ++r) ASSERT_EQ(velocity(c, r), speed[static_cast<std::size_t>(r)]) << codec;
  }
}

TEST(TopKOperation, RootsTakeTurnsPerTensor) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  // Two tensors in turns: counted over both, each would have one root for ever.
  for (std::size_t step = 0; step < 4; ++step) {
    for (const std::uint64_t tensor : {11, 12}) {
      const Values input = gradients(2, kCount, 9 * step + tensor);
      for (int r = 0; r < 2; ++r) c.world(r)->feedback.forget(tensor);
      Exchange e(c, input, "artopk:star:0.02", tensor);
      ASSERT_NO_FATAL_FAILURE(e.expect_equal("step"));
      for (const std::size_t i : largest(input[step % 2], kept_of(kCount, 20'000))) {
        ASSERT_EQ(e.out[0][i], input[0][i] + input[1][i]) << "tensor " << tensor << ", step " << step;
      }
    }
  }
}

TEST(TopKOperation, ItIsToldHowOftenEachRankWasRoot) {
  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  const auto roots = [&](int rank) {
    std::vector<std::uint64_t> counts(3, 99);
    OpTicket ticket;
    c.submit(rank, port::top_k_roots(c.world(rank)->id, counts, c.id(c.world(rank), &ticket)));
    EXPECT_TRUE(c.run_until([&] { return ticket.done(); }, 1_s));
    EXPECT_EQ(ticket.code, CANARY_OK) << ticket.status.to_string();
    return counts;
  };
  using Counts = std::vector<std::uint64_t>;
  EXPECT_EQ(roots(1), (Counts{0, 0, 0})) << "before the first";
  for (std::size_t step = 0; step < 5; ++step) {
    Values input = gradients(3, kCount, step);
    for (float& v : input[1]) v *= 2;
    ASSERT_NO_FATAL_FAILURE(Exchange(c, input, "artopk:star:0.02").expect_equal("star"));
  }
  for (int r = 0; r < 3; ++r) EXPECT_EQ(roots(r), (Counts{2, 2, 1}));
  for (int r = 0; r < 3; ++r) c.world(r)->feedback.forget(kTensor);
  for (std::size_t step = 0; step < 3; ++step) {
    Values input = gradients(3, kCount, step);
    for (float& v : input[1]) v *= 9;
    ASSERT_NO_FATAL_FAILURE(Exchange(c, input, "artopk:var:0.02", 0).expect_equal("var"));
    ASSERT_NO_FATAL_FAILURE(Exchange(c, input, "agtopk:0.02", 0).expect_equal("none is root"));
  }
  for (int r = 0; r < 3; ++r) EXPECT_EQ(roots(r), (Counts{2, 5, 1}));
}

TEST(TopKOperation, WhatIsNotFiniteIsNamedOnEveryRankAndTheGroupLivesOn) {
  for (const std::string codec : {"artopk:star:0.01", "artopk:var:0.01", "agtopk:0.01"}) {
    Cluster c(flat_cluster(4));
    ASSERT_TRUE(c.join());
    constexpr std::size_t count = 200'000;  // an element beyond 16 bits is told in two parts
    Exchange good(c, gradients(4, count, 1), codec);
    ASSERT_NO_FATAL_FAILURE(good.expect_equal(codec));
    const std::vector<float> kept = residual(c, 2);
    for (int times = 0; times < 4; ++times) {  // whoever is root
      Values input = gradients(4, count, 2);
      input[2][123'456] = -std::numeric_limits<float>::infinity();
      input[1][123'457] = std::numeric_limits<float>::quiet_NaN();
      Exchange bad(c, input, codec);
      ASSERT_NO_FATAL_FAILURE(bad.expect_refused("tensor 7, element 123456 of rank 2 is -inf, which codec " + codec));
      EXPECT_EQ(residual(c, 2), kept) << "nothing was sent";
    }
    Exchange again(c, gradients(4, count, 3), codec);
    ASSERT_NO_FATAL_FAILURE(again.expect_equal(codec));
  }
}

// A value that is not finite must not decide whether a call fails where dense was asked for instead.
TEST(TopKOperation, WhatIsNotFiniteGoesDenseIfAskedAndTakesWhatWasLeftOutWithIt) {
  for (const std::string codec : {"artopk:star:0.02,or-dense", "artopk:var:0.02,or-dense", "agtopk:0.02,or-dense"}) {
    Cluster c(flat_cluster(3));
    ASSERT_TRUE(c.join());
    for (const bool in_place : {false, true}) {
      Exchange before(c, gradients(3, kCount, 1), codec);
      ASSERT_NO_FATAL_FAILURE(before.expect_equal(codec));
      const Values left = {residual(c, 0), residual(c, 1), residual(c, 2)};
      Values input = gradients(3, kCount, 2);
      input[1][77] = std::numeric_limits<float>::infinity();
      input[2][78] = std::numeric_limits<float>::quiet_NaN();
      Exchange e(c, input, codec, kTensor, CANARY_AVG);
      for (std::size_t r = 0; in_place && r < 3; ++r) e.request[r].output = e.in[r].data();
      e.submit_all();
      ASSERT_TRUE(e.finish());
      for (std::size_t r = 0; r < 3; ++r) {
        ASSERT_EQ(e.tickets[r]->code, CANARY_OK) << codec << ": " << e.tickets[r]->status.to_string();
        const std::vector<float>& out = in_place ? e.in[r] : e.out[r];
        EXPECT_EQ(out[77], std::numeric_limits<float>::infinity());
        EXPECT_TRUE(std::isnan(out[78]));
        for (std::size_t i = 0; i < kCount; ++i) {
          if (i == 77 || i == 78) continue;
          ASSERT_NEAR(3 * out[i], sum_of(input, i) + sum_of(left, i), 1e-6) << codec << ", element " << i;
        }
        EXPECT_EQ(residual(c, static_cast<int>(r)), std::vector<float>(kCount)) << codec << ": all of it was sent";
        EXPECT_EQ(c.world(static_cast<int>(r))->entered, c.world(0)->entered);
      }
    }
    Exchange again(c, gradients(3, kCount, 3), codec);
    ASSERT_NO_FATAL_FAILURE(again.expect_equal(codec));
    Exchange plain(c, gradients(3, kCount, 3), "", 0);
    ASSERT_NO_FATAL_FAILURE(plain.expect_equal("dense"));
  }
}

TEST(TopKOperation, RanksThatDisagreeAboutItAreNamed) {
  struct Change {
    const char* says;
    void (*apply)(OpRequest*);
  };
  const Change changes[] = {
      {"codec=artopk:var:0.01", [](OpRequest* r) { r->codec = number_of("artopk:var:0.01"); }},
      {"codec=artopk:star:0.02", [](OpRequest* r) { r->codec = number_of("artopk:star:0.02"); }},
      {"codec=agtopk:0.01", [](OpRequest* r) { r->codec = number_of("agtopk:0.01"); }},
      {"codec=artopk:star:0.01,or-dense", [](OpRequest* r) { r->codec = number_of("artopk:star:0.01,or-dense"); }},
      {"codec=artopk:star:0.01,auto", [](OpRequest* r) { r->codec = number_of("artopk:star:0.01,auto"); }},
      {"codec=int8", [](OpRequest* r) { r->codec = number_of("int8"); }},
      {"avg codec=artopk:star:0.01", [](OpRequest* r) { r->redop = CANARY_AVG; }},
      {"n=4999", [](OpRequest* r) { r->count = 4'999; }},
      {"tensor=8", [](OpRequest* r) { r->tensor = 8; }},
      {"rank 1 called all_reduce f32 n=5003 sum", [](OpRequest* r) { r->codec = 0, r->tensor = 0; }},
  };
  for (const Change& change : changes) {
    Cluster c(flat_cluster(3));
    ASSERT_TRUE(c.join());
    Exchange e(c, gradients(3, kCount, 1), "artopk:star:0.01");
    change.apply(&e.request[1]);
    e.submit_all();
    ASSERT_TRUE(e.finish(1_s)) << change.says;
    for (const auto& ticket : e.tickets) {
      EXPECT_EQ(ticket->code, CANARY_MISMATCH) << change.says;
      const std::string text = ticket->status.text();
      EXPECT_NE(text.find("all_reduce f32 n=5003 sum codec=artopk:star:0.01 tensor=7"), std::string::npos) << text;
      EXPECT_NE(text.find(change.says), std::string::npos) << text;
    }
  }
}

// All sorts of calls one behind the other, submitted at once: numbers mean the same on all ranks.
TEST(TopKOperation, CallsThatWaitBehindItEndAsIfTheyHadComeOneByOne) {
  std::vector<Values> wanted;
  for (const bool at_once : {false, true}) {
    Cluster c(flat_cluster(3));
    ASSERT_TRUE(c.join());
    std::vector<std::unique_ptr<Exchange>> all;
    std::uint64_t i = 0;
    for (const std::string codec : {"artopk:var:0.02", "", "artopk:star:0.02", "artopk:star:0.02", "int8",
                                    "agtopk:0.02", "", "artopk:var:0.02"}) {
      all.push_back(std::make_unique<Exchange>(c, gradients(3, kCount, ++i), codec, codec.empty() ? 0 : kTensor));
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

TEST(TopKOperation, GroupsOfOneNoElementsNoTensorAndOneBufferWork) {
  Cluster alone(flat_cluster(1));
  ASSERT_TRUE(alone.join());
  Exchange one(alone, gradients(1, 100, 1), "artopk:var:0.1");
  ASSERT_NO_FATAL_FAILURE(one.expect_equal("alone"));
  EXPECT_EQ(one.out[0], one.in[0]) << "nothing travels, so nothing is lost";

  Cluster c(flat_cluster(3));
  ASSERT_TRUE(c.join());
  for (const std::string codec : {"artopk:star:0.02", "artopk:var:0.02", "agtopk:0.02"}) {
    Exchange none(c, Values(3), codec);
    ASSERT_NO_FATAL_FAILURE(none.expect_equal("no elements"));
    const Values input = gradients(3, kCount, 4);
    Exchange apart(c, input, codec, 0);
    ASSERT_NO_FATAL_FAILURE(apart.expect_equal("no tensor"));
    // Three calls make the same rank root again.
    for (int i = 0; i < 2; ++i) ASSERT_NO_FATAL_FAILURE(Exchange(c, input, codec, 0).expect_equal("between"));
    Exchange inside(c, input, codec, 0);
    for (std::size_t r = 0; r < 3; ++r) inside.request[r].output = inside.in[r].data();
    inside.submit_all();
    ASSERT_TRUE(inside.finish());
    for (std::size_t r = 0; r < 3; ++r) EXPECT_EQ(inside.in[r], apart.out[0]) << codec;
  }
}

// A rank's death, an abort, or a deadline at any moment of a call: every caller hears of it, and none hangs.
TEST(TopKOperation, WhatEndsAGroupEndsACallInAnyPhase) {
  enum class How : std::uint8_t { kDeath, kAbort, kDeadline };
  for (const std::string codec : {"artopk:star:0.02", "artopk:var:0.02", "agtopk:0.02", "agtopk:0.02,or-dense"}) {
    Values input = gradients(4, 40'000, 1);
    if (codec.ends_with("or-dense")) input[3][39'999] = std::numeric_limits<float>::quiet_NaN();  // a phase more
    for (const How how : {How::kDeath, How::kAbort, How::kDeadline}) {
      int ended = 0;
      for (Nanos at{}; at < 160_ms; at += 14_ms) {
        ClusterOptions options = flat_cluster(4);
        options.fabric.nic =
            NicOptions::link(20_ms, BytesPerSec::from_mbit(1'000));  // a phase takes some of these steps
        Cluster c(options);
        ASSERT_TRUE(c.join());
        Exchange e(c, input, codec);
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
          EXPECT_FALSE(c.world(static_cast<int>(r))->pending());
        }
      }
      EXPECT_GT(ended, 3) << codec;
    }
  }
}

// Whole and valid frames of a peer that is broken, or hostile.
TEST(TopKOperation, IndicesThatCannotBeEndTheGroupAndNameTheirSender) {
  Cluster c(flat_cluster(2));
  ASSERT_TRUE(c.join());
  const std::size_t k = kept_of(kCount, 20'000);
  Exchange first(c, gradients(2, kCount, 1), "artopk:star:0.02");
  ASSERT_NO_FATAL_FAILURE(first.expect_equal("first"));
  const std::uint32_t number = c.world(0)->entered + 1;
  Exchange second(c, gradients(2, kCount, 1), "artopk:star:0.02");
  second.submit(0);  // rank 1 is root
  wire::Header h = Forger::piece_of(c, number, static_cast<std::uint32_t>(k * sizeof(std::uint32_t)));
  h.signature = signature_hash(c.world(0)->history[number % GroupMember::kHistory]);
  std::vector<std::uint32_t> indices(k);
  std::iota(indices.begin(), indices.end(), 0u);
  indices.back() = kCount;
  Forger forger(c);
  for (h.step = 0; h.step < 4; ++h.step) forger.send(h, indices.data());
  ASSERT_TRUE(c.run_until([&] { return second.tickets[0]->done(); }, 1_s));
  EXPECT_EQ(second.tickets[0]->code, CANARY_MISMATCH);
  EXPECT_NE(second.tickets[0]->status.text().find("rank 1 sent what does not decode: index 5003"), std::string::npos)
      << second.tickets[0]->status.text();
}

}  // namespace
}  // namespace canarynet
