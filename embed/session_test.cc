// Sessions through the C ABI, over real sockets.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "canarynet/canarynet.hpp"
#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using test::Job;
using test::last_error;

constexpr std::size_t kCounts[] = {1000, 70'000};
constexpr std::size_t kAll = 71'000;

std::uint32_t codec_of(const char* text) {
  std::uint32_t number = 0;
  EXPECT_EQ(canary_codec(text, &number), CANARY_OK) << last_error().message;
  return number;
}

canary_session_options options(std::uint64_t number, int at_bound, std::int64_t staleness) {
  canary_session_options o = CANARY_SESSION_OPTIONS_INIT;
  o.number = number;
  o.counts = kCounts;
  o.colayers = 2;
  o.at_bound = at_bound;
  o.staleness = staleness;
  return o;
}

// Trains for `iterations`, sleeping for `compute` each; returns how much each element was summed to, or the error.
std::string train(canary_group* group, std::uint64_t number, int at_bound, std::int64_t staleness, int iterations,
                  unsigned compute_us, double* total) {
  const canary_session_options o = options(number, at_bound, staleness);
  canary_session* session = nullptr;
  if (canary_session_open(group, &o, &session) != CANARY_OK) return last_error().message;
  std::vector<float> gradient(kCounts[1], 1.0f), sums(kAll);
  const auto apply = [&] {
    for (const std::size_t at : {std::size_t{0}, kAll - 1}) {
      if (sums[at] != sums[at == 0 ? kCounts[0] - 1 : kCounts[0]]) return false;
    }
    *total += static_cast<double>(sums[0]);
    return true;
  };
  canary_session_result result = CANARY_SESSION_RESULT_INIT;
  for (int i = 0; i < iterations; ++i) {
    usleep(compute_us);
    for (int z = 0; z < 2; ++z) {
      if (canary_session_push(session, z, gradient.data(), kCounts[z]) != CANARY_OK) return last_error().message;
    }
    if (canary_session_step(session, sums.data(), kAll, &result, nullptr) != CANARY_OK) return last_error().message;
    if (result.overtime != 0 && canary_session_pull(session, sums.data(), kAll, &result, nullptr) != CANARY_OK)
      return last_error().message;
    if (!apply()) return "elements of a colayer differ";
  }
  if (canary_session_finish(session, sums.data(), kAll, &result, nullptr) != CANARY_OK) return last_error().message;
  if (!apply()) return "elements of a colayer differ";
  if (canary_session_close(session) != CANARY_OK) return last_error().message;
  return "";
}

TEST(Session, EverybodyIsHandedEverything) {
  Job job(4);
  ASSERT_TRUE(job.joined());
  job.each([&](int rank) {
    double bsp = 0, asp = 0;
    EXPECT_EQ(train(job.world(rank), 1, CANARY_AT_BOUND_WAIT, 0, 30, 200, &bsp), "");
    EXPECT_EQ(bsp, 4 * 30);
    EXPECT_EQ(
        train(job.world(rank), 2, CANARY_AT_BOUND_DROP, CANARY_STALENESS_UNBOUNDED, 30, rank == 3 ? 3000 : 200, &asp),
        "");
    EXPECT_EQ(asp, 4 * 30);
  });
}

TEST(Session, AFastWorkerGoesOnWhileASlowOneComputes) {
  Job job(3);
  ASSERT_TRUE(job.joined());
  std::atomic<int> fast{0};
  std::atomic<int> seen{-1};
  job.each([&](int rank) {
    const canary_session_options o = options(1, CANARY_AT_BOUND_DROP, CANARY_STALENESS_UNBOUNDED);
    canary_session* session = nullptr;
    ASSERT_EQ(canary_session_open(job.world(rank), &o, &session), CANARY_OK) << last_error().message;
    std::vector<float> gradient(kCounts[1], 1.0f), sums(kAll);
    canary_session_result result = CANARY_SESSION_RESULT_INIT;
    for (int i = 0; i < (rank == 2 ? 1 : 50); ++i) {
      if (rank == 2) {
        // It calls nothing at all until the others are through.
        for (int waited = 0; fast < 2 && waited < 10'000; ++waited) usleep(1000);
        seen = fast.load();
      }
      for (int z = 0; z < 2; ++z)
        ASSERT_EQ(canary_session_push(session, z, gradient.data(), kCounts[z]), CANARY_OK) << last_error().message;
      ASSERT_EQ(canary_session_step(session, sums.data(), kAll, &result, nullptr), CANARY_OK) << last_error().message;
    }
    if (rank != 2) ++fast;
    ASSERT_EQ(canary_session_finish(session, sums.data(), kAll, &result, nullptr), CANARY_OK) << last_error().message;
    EXPECT_EQ(canary_session_close(session), CANARY_OK);
  });
  EXPECT_EQ(seen, 2);
}

// A program that goes by result.iteration: a rank that others go on without makes fewer iterations than they do.
TEST(Session, WithAQuorumTheOthersGoOnWithoutASlowWorker) {
  constexpr int kIterations = 60;
  Job job(4);
  ASSERT_TRUE(job.joined());
  struct Did {
    int pushed = 0;
    double handed = 0;
    double seconds = 0;
    canary_session_state state{};
  } did[4];
  job.each([&](int rank) {
    canary_session_options o = options(1, CANARY_AT_BOUND_DROP, 18);
    ASSERT_EQ(canary_session_rule("bsp:quorum=75", &o), CANARY_OK) << last_error().message;
    canary_session* session = nullptr;
    ASSERT_EQ(canary_session_open(job.world(rank), &o, &session), CANARY_OK) << last_error().message;
    std::vector<float> gradient(kCounts[1], 1.0f), sums(kAll);
    canary_session_result result = CANARY_SESSION_RESULT_INIT;
    Did& mine = did[rank];
    const auto began = std::chrono::steady_clock::now();
    while (result.iteration <= kIterations) {
      usleep(rank == 3 ? 60'000 : 5'000);
      for (int z = 0; z < 2; ++z)
        ASSERT_EQ(canary_session_push(session, z, gradient.data(), kCounts[z]), CANARY_OK) << last_error().message;
      ++mine.pushed;
      ASSERT_EQ(canary_session_step(session, sums.data(), kAll, &result, nullptr), CANARY_OK) << last_error().message;
      mine.handed += static_cast<double>(sums[0]);
    }
    mine.seconds = test::seconds_since(began);
    ASSERT_EQ(canary_session_finish(session, sums.data(), kAll, &result, nullptr), CANARY_OK) << last_error().message;
    mine.handed += static_cast<double>(sums[0]);
    EXPECT_EQ(result.dropped, 0u);
    mine.state.struct_size = sizeof mine.state;
    EXPECT_EQ(canary_session_read(session, &mine.state), CANARY_OK);
    EXPECT_EQ(canary_session_close(session), CANARY_OK);
  });
  double pushed = 0;
  for (const Did& one : did) pushed += one.pushed;
  for (const Did& one : did) EXPECT_EQ(one.handed, pushed) << "nothing is lost, and all have the same";
  EXPECT_EQ(did[0].pushed, kIterations);
  EXPECT_LT(did[3].pushed, kIterations / 2);
  EXPECT_LT(did[0].seconds, 0.06 * kIterations / 2) << "sixty iterations of the slow one take 3.6 s";
  EXPECT_GT(did[0].state.went_on, 20u);
  EXPECT_GT(did[3].state.was_late, 3u);
}

TEST(Session, AWorkerThatIsKilledIsNamedByAllOthers) {
  test::expect_good_without_rank_2([](canary_context* context, int rank, const auto& ready) -> std::string {
    if (rank == 2) ready();
    double total = 0;
    // Ranks 0 and 1 wait for its gradients, rank 3 does not.
    const bool waits = rank < 2;
    const std::string error =
        train(canary_world(context), 1, waits ? CANARY_AT_BOUND_WAIT : CANARY_AT_BOUND_DROP, 1, 100'000, 500, &total);
    if (last_error().code != CANARY_PEER_DIED || last_error().rank != 2) return "not told: " + error;
    return "good";
  });
}

TEST(Session, TheOthersGoOnWithoutAWorkerThatIsKilled) {
  test::expect_good_without_rank_2([](canary_context* context, int rank, const auto& ready) -> std::string {
    canary_session_options o = options(1, rank < 2 ? CANARY_AT_BOUND_WAIT : CANARY_AT_BOUND_DROP, 3);
    o.at_death = CANARY_AT_DEATH_GO_ON;
    canary_session* session = nullptr;
    if (canary_session_open(canary_world(context), &o, &session) != CANARY_OK) return last_error().message;
    if (rank == 2) ready();
    std::vector<float> gradient(kCounts[1], 1.0f), sums(kAll);
    canary_session_result result = CANARY_SESSION_RESULT_INIT;
    canary_session_state state{};
    state.struct_size = sizeof state;
    double total = 0;
    int pushed = 0;
    // Until it has gone on for a while without the dead one.
    for (int without = 0; without < 50; without += state.workers == 3) {
      usleep(1000);
      for (int z = 0; z < 2; ++z) {
        if (canary_session_push(session, z, gradient.data(), kCounts[z]) != CANARY_OK) return last_error().message;
      }
      ++pushed;
      if (canary_session_step(session, sums.data(), kAll, &result, nullptr) != CANARY_OK) return last_error().message;
      if (result.overtime != 0 && canary_session_pull(session, sums.data(), kAll, &result, nullptr) != CANARY_OK)
        return last_error().message;
      total += static_cast<double>(sums[0]);
      if (canary_session_read(session, &state) != CANARY_OK) return last_error().message;
    }
    if (canary_session_finish(session, sums.data(), kAll, &result, nullptr) != CANARY_OK) return last_error().message;
    total += static_cast<double>(sums[0]);
    if (canary_session_close(session) != CANARY_OK) return last_error().message;
    // Of the survivors everybody has everything, and of the dead one the same.
    const int ranks[] = {0, 1, 3};
    canary_partial among = CANARY_PARTIAL_INIT;
    among.ranks = ranks;
    among.count = 3;
    std::string failed;
    const auto reduce = [&](double value, canary_redop redop) {
      ++among.number;
      const canary_status code =
          canary_partial_all_reduce(canary_world(context), &among, &value, &value, 1, CANARY_F64, redop, nullptr);
      if (code != CANARY_OK && failed.empty()) failed = last_error().message;
      return value;
    };
    const double least = reduce(total, CANARY_MIN), most = reduce(total, CANARY_MAX);
    const double kept = reduce(pushed - static_cast<double>(result.dropped) / 2, CANARY_SUM);
    if (!failed.empty()) return failed;
    if (least != most) return "handed out: " + std::to_string(least) + " and " + std::to_string(most);
    if (total < kept) return "handed out " + std::to_string(total) + ", pushed " + std::to_string(kept);
    return "good";
  });
}

TEST(Session, WhatIsWrongIsRefusedByNameAndNothingElseEnds) {
  Job job(1);
  ASSERT_TRUE(job.joined());
  canary_session* session = nullptr;
  const auto refused = [&](const canary_session_options* o, const std::string& word) {
    EXPECT_EQ(canary_session_open(job.world(0), o, &session), CANARY_INVALID_ARGUMENT);
    EXPECT_NE(last_error().message.find(word), std::string::npos) << last_error().message;
    EXPECT_EQ(session, nullptr);
  };
  refused(nullptr, "options are NULL");
  canary_session_options o = options(1, CANARY_AT_BOUND_DROP, 3);
  const auto with = [&](auto change, const std::string& word) {
    canary_session_options other = o;
    change(other);
    refused(&other, word);
  };
  const std::size_t none[] = {10, 0};
  with([](auto& x) { x.struct_size = 8; }, "CANARY_SESSION_OPTIONS_INIT");
  with([](auto& x) { x.counts = nullptr; }, "counts are NULL");
  with([&](auto& x) { x.counts = none; }, "colayer 1 has no elements");
  with([](auto& x) { x.colayers = 0; }, "0 colayers");
  with([](auto& x) { x.colayers = 257; }, "257 colayers");
  with([](auto& x) { x.at_bound = 2; }, "at_bound 2");
  with([](auto& x) { x.staleness = -2; }, "bound of -2");
  with([](auto& x) { x.proportion = 3; }, "proportion 3 of 2");
  with([](auto& x) { x.backlog = 1; }, "a backlog of 1");
  with([](auto& x) { x.linger = -5; }, "a linger of -5");
  with([](auto& x) { x.reserved = 1; }, "reserved is 1");
  with([](auto& x) { x.codec = codec_of("auto"); }, "codec auto is a choice");
  with([](auto& x) { x.codec = codec_of("artopk:star:0.01"); }, "codec artopk:star:0.01 is not for sessions");
  with([](auto& x) { x.codec = codec_of("svd:4"); }, "codec svd:4 is not for sessions: colayers have no shape");
  with([](auto& x) { x.codec = 0x0fffffff; }, "colayer 0");
  const std::uint32_t second[] = {0, codec_of("int8,auto")};
  with([&](auto& x) { x.codecs = second; }, "colayer 1: codec int8,auto is a choice");
  with([](auto& x) { x.at_bound = CANARY_AT_BOUND_WAIT, x.staleness = -1; }, "needs a bound");
  ASSERT_EQ(canary_session_open(job.world(0), &o, &session), CANARY_OK) << last_error().message;
  canary_session* again = nullptr;
  EXPECT_EQ(canary_session_open(job.world(0), &o, &again), CANARY_INVALID_ARGUMENT);
  EXPECT_NE(last_error().message.find("has opened it"), std::string::npos) << last_error().message;

  std::vector<float> data(kAll);
  canary_session_result result = CANARY_SESSION_RESULT_INIT;
  const auto fails = [&](canary_status code, const std::string& word) {
    EXPECT_EQ(code, CANARY_INVALID_ARGUMENT);
    EXPECT_NE(last_error().message.find(word), std::string::npos) << last_error().message;
  };
  fails(canary_session_push(session, 0, nullptr, kCounts[0]), "gradient is NULL");
  fails(canary_session_push(session, 0, data.data(), 7), "colayer 0 has 1000 elements, not 7");
  fails(canary_session_push(session, 2, data.data(), 7), "colayer 2 of 2");
  fails(canary_session_push(session, -1, data.data(), 7), "colayer -1");
  fails(canary_session_push(session, 0, data.data(), SIZE_MAX), "too large");
  fails(canary_session_step(session, data.data(), kAll, nullptr, nullptr), "result is NULL");
  fails(canary_session_step(session, data.data(), kAll - 1, &result, nullptr), "room for 70999");
  fails(canary_session_step(session, nullptr, kAll, &result, nullptr), "sums is NULL");
  fails(canary_session_step(session, data.data(), kAll, &result, nullptr), "before every colayer was pushed");
  ASSERT_EQ(canary_session_push(session, 0, data.data(), kCounts[0]), CANARY_OK);
  fails(canary_session_push(session, 0, data.data(), kCounts[0]), "pushed in iteration 1 already");
  std::uint64_t bits[1] = {};
  fails(canary_session_row(session, 5, 0, bits, 1), "no row of iteration 5");
  fails(canary_session_row(session, 1, 0, bits, 0), "room for 0 words");
  fails(canary_session_read(session, nullptr), "state is NULL");
  o.staleness = 100;
  fails(canary_session_set(session, &o), "rows of the index");
  EXPECT_EQ(canary_session_close(session), CANARY_OK);
  fails(canary_session_close(session), "it was closed");
  fails(canary_session_push(session, 0, data.data(), kCounts[0]), "this session has ended");
  o.staleness = 3;
  EXPECT_EQ(canary_session_open(job.world(0), &o, &again), CANARY_ABORTED) << "the number has been used";
  EXPECT_NE(last_error().message.find("closed it before all had finished"), std::string::npos) << last_error().message;
}

TEST(Session, RulesGoByTheirNames) {
  canary_session_options o = CANARY_SESSION_OPTIONS_INIT;
  const auto is = [&](const char* name, int at_bound, std::int64_t staleness, int proportion, std::int64_t linger) {
    ASSERT_EQ(canary_session_rule(name, &o), CANARY_OK) << name << ": " << last_error().message;
    EXPECT_EQ(o.at_bound, at_bound) << name;
    EXPECT_EQ(o.staleness, staleness) << name;
    EXPECT_EQ(o.proportion, proportion) << name;
    EXPECT_EQ(o.linger, linger) << name;
  };
  is("bsp", CANARY_AT_BOUND_WAIT, 0, -1, CANARY_LINGER_USUAL);
  is("ssp:3", CANARY_AT_BOUND_WAIT, 3, -1, CANARY_LINGER_USUAL);
  is("asp:linger=5ms", CANARY_AT_BOUND_DROP, CANARY_STALENESS_UNBOUNDED, -1, 5'000'000);
  is("canary:s=4,p=2", CANARY_AT_BOUND_DROP, 4, 2, CANARY_LINGER_USUAL);
  EXPECT_EQ(o.backlog, 2) << "only the rule is set";
  EXPECT_EQ(o.quorum, 100);
  is("bsp:quorum=75", CANARY_AT_BOUND_WAIT, 0, -1, CANARY_LINGER_USUAL);
  EXPECT_EQ(o.quorum, 75);
  EXPECT_EQ(o.absences, 18);
  is("ssp:3,quorum=60,absences=5", CANARY_AT_BOUND_WAIT, 3, -1, CANARY_LINGER_USUAL);
  EXPECT_EQ(o.quorum, 60);
  EXPECT_EQ(o.absences, 5);
  for (const char* const name : {"", "bps", "ssp", "ssp:-1", "canary:s", "bsp:s=3", "bsp:quorum=0", "ssp:3,quorum=101",
                                 "bsp:absences=0", "asp:quorum=75", "esync", "ripples:static"}) {
    o.staleness = 7;
    EXPECT_EQ(canary_session_rule(name, &o), CANARY_INVALID_ARGUMENT) << name;
    EXPECT_NE(last_error().message.find("polic"), std::string::npos) << last_error().message;
    EXPECT_EQ(o.staleness, 7) << name;
  }
  EXPECT_EQ(canary_session_rule(nullptr, &o), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_session_rule("bsp", nullptr), CANARY_INVALID_ARGUMENT);
  o.struct_size = 8;
  EXPECT_EQ(canary_session_rule("bsp", &o), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(Rule::parse("asp").staleness, CANARY_STALENESS_UNBOUNDED);
  EXPECT_EQ(Rule::parse("ssp:3,linger=1ms").linger, std::chrono::milliseconds(1));
  EXPECT_FALSE(Rule::parse("canary:s=3,p=1").linger.has_value());
  EXPECT_EQ(Rule::parse("bsp:quorum=75").quorum, 75);
  EXPECT_EQ(Rule::parse("ssp:3,quorum=75,absences=2").absences, 2);
  EXPECT_THROW(Rule::parse("esync"), Error);
}

TEST(Session, WithCodecsWhatIsHandedOutIsWhatWasPushedButForWhatIsLeftOut) {
  Job job(3);
  ASSERT_TRUE(job.joined());
  const std::uint32_t codecs[] = {codec_of("int8"), codec_of("topk:0.1")};
  std::vector<double> totals[3];
  job.each([&](int rank) {
    canary_session_options o = options(1, CANARY_AT_BOUND_DROP, CANARY_STALENESS_UNBOUNDED);
    o.codecs = codecs;
    canary_session* session = nullptr;
    ASSERT_EQ(canary_session_open(job.world(rank), &o, &session), CANARY_OK) << last_error().message;
    std::vector<float> gradient(kCounts[1]), sums(kAll);
    std::vector<double>& total = totals[rank];
    total.resize(kAll);
    canary_session_result result = CANARY_SESSION_RESULT_INIT;
    const auto add = [&] {
      for (std::size_t i = 0; i < kAll; ++i) total[i] += static_cast<double>(sums[i]);
    };
    for (int n = 0; n < 20; ++n) {
      for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>((i + 1) % 100);
      if (n == 7 && rank == 1) {
        gradient[5] = NAN;
        EXPECT_EQ(canary_session_push(session, 1, gradient.data(), kCounts[1]), CANARY_INVALID_ARGUMENT);
        EXPECT_NE(last_error().message.find("element 5 of colayer 1 is nan, which codec topk:0.1"), std::string::npos)
            << last_error().message;
        gradient[5] = 6;
      }
      for (int z = 0; z < 2; ++z)
        ASSERT_EQ(canary_session_push(session, z, gradient.data(), kCounts[z]), CANARY_OK) << last_error().message;
      ASSERT_EQ(canary_session_step(session, sums.data(), kAll, &result, nullptr), CANARY_OK) << last_error().message;
      add();
    }
    canary_session_state state{};
    state.struct_size = sizeof state;
    EXPECT_EQ(canary_session_read(session, &state), CANARY_OK);
    // Dense ones take 2 + backlog times the elements and 16 bytes per rank.
    EXPECT_EQ(state.bytes, sizeof(float) * (4 * (kAll + 2 * 3 * 4) + kAll));
    ASSERT_EQ(canary_session_finish(session, sums.data(), kAll, &result, nullptr), CANARY_OK) << last_error().message;
    add();
    EXPECT_EQ(canary_session_close(session), CANARY_OK);
  });
  for (std::size_t i = 0; i < kAll; ++i) {
    const double pushed = 60.0 * static_cast<double>(((i < kCounts[0] ? i : i - kCounts[0]) + 1) % 100);
    if (i < kCounts[0]) {
      ASSERT_NEAR(totals[0][i], pushed, 0.03 * 6000) << i;
    } else {
      ASSERT_LE(totals[0][i], pushed + 0.5) << i;
    }
    ASSERT_NEAR(totals[1][i], totals[0][i], 0.1) << i;
    ASSERT_NEAR(totals[2][i], totals[0][i], 0.1) << i;
  }
  // A tenth of the elements travels in a round, so the largest ones do when they are about five gradients old, or five
  // times as many as a slow machine gathers in a round: with three long rounds in all they travel only in the first.
  EXPECT_GT(totals[0][kCounts[0] + 98], 0.25 * 60 * 99);
}

// As programs that were built before sessions could go on after deaths.
TEST(Session, OptionsAndStatesWithoutDeathsAreTakenAndNotTouchedBeyondTheirEnd) {
  Job job(1);
  ASSERT_TRUE(job.joined());
  canary_session_options o = options(1, CANARY_AT_BOUND_DROP, 3);
  o.struct_size = offsetof(canary_session_options, at_death);
  o.at_death = 77;
  o.reserved_2 = 7;
  canary_session* session = nullptr;
  ASSERT_EQ(canary_session_open(job.world(0), &o, &session), CANARY_OK) << last_error().message;
  canary_session_state state{};
  state.struct_size = offsetof(canary_session_state, workers);
  state.workers = -5;
  EXPECT_EQ(canary_session_read(session, &state), CANARY_OK) << last_error().message;
  EXPECT_EQ(state.workers, -5);
  EXPECT_GT(state.bytes, 0u);
  EXPECT_EQ(canary_session_close(session), CANARY_OK);
  o.struct_size = sizeof o;
  o.number = 2;
  EXPECT_EQ(canary_session_open(job.world(0), &o, &session), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(last_error().message), "INVALID_ARGUMENT: session_open: at_death 77 is not a canary_at_death");
}

// As programs that were built before there were quorums.
TEST(Session, OptionsAndStatesWithoutQuorumsAreTakenAndNotTouchedBeyondTheirEnd) {
  Job job(1);
  ASSERT_TRUE(job.joined());
  canary_session_options o = options(1, CANARY_AT_BOUND_WAIT, 3);
  o.struct_size = offsetof(canary_session_options, quorum);
  o.quorum = -7;
  o.absences = -8;
  canary_session* session = nullptr;
  ASSERT_EQ(canary_session_open(job.world(0), &o, &session), CANARY_OK) << last_error().message;
  EXPECT_EQ(canary_session_set(session, &o), CANARY_OK) << last_error().message;
  EXPECT_EQ(canary_session_rule("bsp", &o), CANARY_OK) << last_error().message;
  EXPECT_EQ(o.quorum, -7);
  EXPECT_EQ(canary_session_rule("bsp:quorum=75", &o), CANARY_INVALID_ARGUMENT);
  EXPECT_NE(last_error().message.find("have no quorum"), std::string::npos) << last_error().message;
  canary_session_state state{};
  state.struct_size = offsetof(canary_session_state, went_on);
  state.went_on = 77;
  EXPECT_EQ(canary_session_read(session, &state), CANARY_OK) << last_error().message;
  EXPECT_EQ(state.went_on, 77u);
  EXPECT_EQ(state.workers, 1);
  o.struct_size = sizeof o;
  EXPECT_EQ(canary_session_set(session, &o), CANARY_INVALID_ARGUMENT);
  EXPECT_NE(last_error().message.find("a quorum of -7 percent"), std::string::npos) << last_error().message;
  o.quorum = 75;
  EXPECT_EQ(canary_session_set(session, &o), CANARY_INVALID_ARGUMENT);
  EXPECT_NE(last_error().message.find("absent from -8 steps"), std::string::npos) << last_error().message;
  EXPECT_EQ(canary_session_close(session), CANARY_OK);
}

// As a program that was built when options had no codecs.
TEST(Session, OptionsWithoutCodecsAreTakenAndNotReadBeyondTheirEnd) {
  Job job(1);
  ASSERT_TRUE(job.joined());
  canary_session_options o = options(1, CANARY_AT_BOUND_DROP, 3);
  o.struct_size = offsetof(canary_session_options, codec);
  o.codec = 0xffffffff;
  o.reserved = 7;
  o.codecs = reinterpret_cast<const std::uint32_t*>(8);
  canary_session* session = nullptr;
  ASSERT_EQ(canary_session_open(job.world(0), &o, &session), CANARY_OK) << last_error().message;
  EXPECT_EQ(canary_session_set(session, &o), CANARY_OK) << last_error().message;
  EXPECT_EQ(canary_session_rule("bsp", &o), CANARY_OK) << last_error().message;
  EXPECT_EQ(canary_session_close(session), CANARY_OK);
}

TEST(Session, InCpp) {
  const std::string url = test::join_url(test::free_port());
  test::on_threads(2, [&](int rank) {
    Context context({.join = url, .rank = rank, .world_size = 2});
    Session session(context.world(), 7, kCounts, Rule::ssp(1));
    std::vector<float> gradient(kAll, static_cast<float>(rank + 1)), sums(kAll);
    double total = 0;
    for (int i = 0; i < 10; ++i) {
      session.push(0, std::span(gradient).first(kCounts[0]));
      session.push(1, std::span(gradient).first(kCounts[1]));
      EXPECT_EQ(session.step(sums).iteration, i + 2);
      total += static_cast<double>(sums[0]);
    }
    session.set(Rule::asp());
    EXPECT_EQ(session.state().iteration, 11);
    EXPECT_EQ(session.finish(sums).dropped, 0u);
    total += static_cast<double>(sums[0]);
    EXPECT_EQ(total, 30);
    EXPECT_EQ(session.row(10, 1, 2), std::vector<std::uint64_t>{3});
    session.close();

    const std::uint32_t codecs[] = {codec("bf16"), codec("int8")};
    for (const std::size_t given : {1u, 2u}) {
      Session coded(context.world(), 7 + given, kCounts, Rule::bsp(), 0, 2, std::span(codecs).first(given));
      coded.push(0, std::span(gradient).first(kCounts[0]));
      coded.push(1, std::span(gradient).first(kCounts[1]));
      coded.step(sums);
      EXPECT_EQ(sums[0], 3) << "a sum of whole numbers is a bf16";
      EXPECT_NEAR(sums[kAll - 1], 3, 0.05);
      coded.finish(sums);
    }
    const std::uint32_t three[] = {0, 0, 0};
    EXPECT_THROW(Session(context.world(), 10, kCounts, Rule::bsp(), 0, 2, three), Error);
  });
}

}  // namespace
}  // namespace canarynet
