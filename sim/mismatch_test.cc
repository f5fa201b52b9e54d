// Ranks whose calls differ: every rank is told which differ, and what each had called. Virtual time.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/cluster_test_util.h"

namespace canarynet {
namespace {

TEST(Mismatch, IsNamedOnEveryRank) {
  struct Change {
    const char* name;
    void (*apply)(OpRequest*);
  };
  const Change changes[] = {
      {"count", [](OpRequest* r) { r->count -= 24; }},
      {"type", [](OpRequest* r) { r->type = CANARY_I32; }},
      {"redop", [](OpRequest* r) { r->redop = CANARY_MAX; }},
      {"collective", [](OpRequest* r) { r->collective = Collective::kBroadcast, r->root = 0; }},
      {"empty", [](OpRequest* r) { r->count = 0; }},
      {"barrier", [](OpRequest* r) { *r = OpRequest{}; }},
  };
  for (const std::uint64_t count : {std::uint64_t{1000}, std::uint64_t{1} << 20}) {
    for (const Change& change : changes) {
      for (const int odd : {0, 3, 4}) {
        constexpr int n = 5;
        Cluster c(flat_cluster(n));
        ASSERT_TRUE(c.join());
        AllRanks op(c, sum(n, count));
        op.submit_all_but(odd);
        c.run_for(5_ms);
        std::vector<float> in(count), out(count);
        OpTicket ticket;
        OpRequest request{.collective = Collective::kAllReduce,
                          .input = in.data(),
                          .output = out.data(),
                          .count = count,
                          .type = CANARY_F32,
                          .redop = CANARY_SUM};
        change.apply(&request);
        c.submit(c.world(odd), request, &ticket);
        const auto all = [&] { return op.all_done_but(odd) && ticket.done(); };
        ASSERT_TRUE(c.run_until(all, 250_ms)) << change.name << " odd rank " << odd;
        for (int r = 0; r < n; ++r) {
          const Status& st = r == odd ? ticket.status : op.ticket(r).status;
          const int code = r == odd ? ticket.code.load() : op.ticket(r).code.load();
          // An empty or one-sided call may have completed before anybody disagreed: its next call fails.
          if (code == CANARY_OK) {
            OpTicket next;
            float one = 1;
            c.all_reduce(r, &one, &one, 1, CANARY_F32, CANARY_SUM, &next);
            ASSERT_TRUE(c.run_until([&] { return next.done(); }, 250_ms));
            EXPECT_EQ(next.code, CANARY_MISMATCH);
            continue;
          }
          ASSERT_EQ(code, CANARY_MISMATCH) << change.name << ": " << st.to_string();
          EXPECT_NE(st.text().find("rank " + std::to_string(odd)), std::string::npos) << st.text();
          EXPECT_NE(st.text().find("n=" + std::to_string(count)), std::string::npos) << st.text();
        }
      }
    }
  }
}

// The differing counts are known to two ranks only, or stand in lists longer than what a signature shows of them; ranks
// belong to one engine and to several.
TEST(Mismatch, CountsThatDifferAreNamedOnEveryRank) {
  for (const int per_host : {1, 4}) {
    constexpr int n = 12;
    for (const bool pairs : {true, false}) {
      for (const auto& [odd, place] : {std::pair{5, 6}, std::pair{0, 11}, std::pair{11, 1}}) {
        Cluster c(flat_cluster(n / per_host, 2, per_host));
        ASSERT_TRUE(c.join());
        std::vector<std::vector<std::uint64_t>> counts(n);
        std::vector<std::vector<float>> in(n, std::vector<float>(1000)), out(n, std::vector<float>(1000));
        Tickets tickets;
        for (int r = 0; r < n; ++r) {
          for (int i = 0; i < n; ++i) counts[r].push_back(7);
          if (r == odd) counts[r][place] = 9;
          if (pairs) {
            for (int i = 0; i < n; ++i) counts[r].push_back(10 * i);
            for (int i = 0; i < n; ++i) counts[r].push_back(7);
            for (int i = 0; i < n; ++i) counts[r].push_back(10 * i);
          }
          tickets.push_back(std::make_unique<OpTicket>());
        }
        for (int r = 0; r < n; ++r) {
          std::uint64_t total = 0;
          for (const std::uint64_t one : counts[r]) total += pairs ? 0 : one;
          c.submit(c.world(r),
                   {.collective = pairs ? Collective::kAllToAllV : Collective::kAllGatherV,
                    .input = in[r].data(),
                    .output = out[r].data(),
                    .count = total,
                    .type = CANARY_F32,
                    .counts = counts[r]},
                   tickets[r].get());
        }
        ASSERT_TRUE(c.run_until([&] { return all_done(tickets); }, 250_ms)) << per_host << " " << pairs << " " << odd;
        const std::string a = "rank " + std::to_string(odd), b = "rank " + std::to_string(place);
        for (int r = 0; r < n; ++r) {
          // Two ranks whose counts differ are not done before they know it; another hears of it with its next call at
          // the latest.
          if (tickets[r]->code == CANARY_OK) {
            EXPECT_TRUE(pairs && r != odd && r != place) << "rank " << r;
            float one = 1;
            tickets[r]->reset();
            c.all_reduce(r, &one, &one, 1, CANARY_F32, CANARY_SUM, tickets[r].get());
            ASSERT_TRUE(c.run_until([&] { return tickets[r]->done(); }, 250_ms));
          }
          const std::string text = tickets[r]->status.text();
          EXPECT_EQ(tickets[r]->code, CANARY_MISMATCH) << "rank " << r;
          EXPECT_NE(text.find(a + " called"), std::string::npos) << text;
          if (pairs) {
            EXPECT_NE(text.find("with 9 elements for " + b), std::string::npos) << text;
            EXPECT_NE(text.find(b + " called"), std::string::npos) << text;
            EXPECT_NE(text.find("with 7 elements from " + a), std::string::npos) << text;
          } else if (place < 8) {
            EXPECT_NE(text.find(place == 6 ? "[7,7,7,7,7,7,9,7,...]" : "[7,9,7,7,7,7,7,7,...]"), std::string::npos)
                << text;
            EXPECT_NE(text.find("[7,7,7,7,7,7,7,7,...]"), std::string::npos) << text;
          } else {
            EXPECT_NE(text.find("only counts[11] differs, by "), std::string::npos) << text;
          }
        }
      }
    }
  }
}

// By one rank's call nothing passes between the two: only the other's call tells whether that is so.
TEST(Mismatch, WhoExchangesNothingIsNotThroughBeforeItKnowsThatTheOtherAgrees) {
  for (const std::uint64_t theirs : {0, 5}) {
    Cluster c(flat_cluster(2));
    ASSERT_TRUE(c.join());
    std::vector<float> in(10), out(10);
    // Counts and displacements of what is sent, then of what is received.
    const std::vector<std::uint64_t> counts[] = {{3, 0, 0, 3, 3, 0, 0, 3}, {theirs, 3, 0, 5, 0, 3, 0, 5}};
    Tickets tickets;
    const auto submit = [&](int r) {
      tickets.push_back(std::make_unique<OpTicket>());
      c.submit(c.world(r),
               {.collective = Collective::kAllToAllV,
                .input = in.data(),
                .output = out.data(),
                .type = CANARY_F32,
                .counts = counts[r]},
               tickets.back().get());
    };
    submit(0);
    c.run_for(50_ms);
    EXPECT_FALSE(tickets[0]->done());
    submit(1);
    ASSERT_TRUE(c.run_until([&] { return all_done(tickets); }, 250_ms));
    for (const auto& t : tickets) EXPECT_EQ(t->code, theirs == 0 ? CANARY_OK : CANARY_MISMATCH) << t->status.text();
  }
}

}  // namespace
}  // namespace canarynet
