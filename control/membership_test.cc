#include "control/membership.h"

#include <gtest/gtest.h>

#include "control/membership_test_util.h"
#include "control/notices.h"
#include "sim/warnings_test_util.h"

namespace canarynet {
namespace {

struct Shape {
  int engines;
  int ranks_each;
};
std::string shape_name(const ::testing::TestParamInfo<Shape>& info) {
  return "n" + std::to_string(info.param.engines) + "_k" + std::to_string(info.param.ranks_each);
}

class JobOfShape : public ::testing::TestWithParam<Shape> {
 protected:
  JobOptions options() const { return {.engines = GetParam().engines, .ranks_each = GetParam().ranks_each}; }
};
INSTANTIATE_TEST_SUITE_P(Membership, JobOfShape,
                         ::testing::Values(Shape{1, 1}, Shape{1, 4}, Shape{2, 1}, Shape{2, 4}, Shape{4, 1}, Shape{4, 4},
                                           Shape{8, 1}, Shape{8, 4}),
                         shape_name);

TEST_P(JobOfShape, EveryEngineGetsTheSameRoster) {
  Job job(options());
  job.join();
  const Roster& first = *job[0].roster;
  EXPECT_NE(first.job, 0u);
  EXPECT_EQ(first.piece_bytes, Bytes{131072});
  for (int h = 0; h < job.options.engines; ++h) {
    const Roster& r = *job[h].roster;
    EXPECT_TRUE(job[h].membership->joined());
    EXPECT_EQ(r.job, first.job);
    EXPECT_EQ(r.world_size, job.options.engines * job.options.ranks_each);
    EXPECT_EQ(r.piece_bytes, first.piece_bytes);
    ASSERT_EQ(r.engines.size(), static_cast<std::size_t>(job.options.engines));
    for (int e = 0; e < job.options.engines; ++e) {
      const EngineInfo& info = r.engines[static_cast<std::size_t>(e)];
      EXPECT_EQ(info.engine, static_cast<std::uint32_t>(e));
      EXPECT_EQ(info.ranks.front(), e * job.options.ranks_each);
      EXPECT_EQ(info.ranks.size(), static_cast<std::size_t>(job.options.ranks_each));
      EXPECT_EQ(info.host_name, "host-" + std::to_string(e));
      EXPECT_EQ(info.pid, 1000 + e);
      ASSERT_EQ(info.rails.size(), 2u);
      EXPECT_EQ(info.rails[1].address, job.fabric.factory(e).rails()[1].address);
      for (const int rank : info.ranks) EXPECT_EQ(r.engine_of[static_cast<std::size_t>(rank)], e);
    }
  }
}

TEST_P(JobOfShape, RanksJoinInAnyOrderAndRefusalsBeforeRankZeroIsUpAreNormal) {
  Job job(options());
  for (int h = job.options.engines - 1; h >= 0; --h) {
    job.start(h);
    job.run_for(700_ms);
  }
  job.run_for(600_ms);
  EXPECT_TRUE(job.all_joined());
}

TEST_P(JobOfShape, NobodyDiesOrFallsSilentWhileAllAreWell) {
  Job job(options());
  job.join();
  job.run_for(60_s);
  for (int h = 0; h < job.options.engines; ++h) {
    EXPECT_TRUE(job[h].died.empty());
    for (int e = 0; e < job.options.engines; ++e) {
      EXPECT_LT(job.fabric.now() - job[h].membership->last_heard(static_cast<std::uint32_t>(e)), 500_ms);
    }
  }
}

TEST_P(JobOfShape, GroupsOfSubsetsGetTheirFlow) {
  Job job(options());
  job.join();
  const int world = job.options.engines * job.options.ranks_each;
  const auto host_of = [&](int rank) { return rank / job.options.ranks_each; };
  std::vector<std::vector<int>> lists;
  for (int size = 1; size <= world; size *= 2) {
    std::vector<int> list;
    for (int r = world - size; r < world; ++r) list.push_back(r);
    std::reverse(list.begin(), list.end());  // the order is the caller's, not ours
    lists.push_back(list);
    if (size == 2) lists.push_back({0, world - 1});
  }
  std::uint64_t cookie = 100;
  for (const auto& list : lists) {
    for (const int rank : list) job[host_of(rank)].membership->request_group(job.fabric.now(), rank, list, cookie);
    ++cookie;
  }
  job.run_for(100_ms);
  std::vector<std::uint32_t> flows;
  cookie = 100;
  for (const auto& list : lists) {
    const std::uint32_t flow = job[host_of(list[0])].flows[{list[0], cookie}];
    EXPECT_NE(flow, 0u);
    EXPECT_EQ(std::count(flows.begin(), flows.end(), flow), 0);
    flows.push_back(flow);
    for (const int rank : list) EXPECT_EQ((job[host_of(rank)].flows[{rank, cookie}]), flow) << "rank " << rank;
    ++cookie;
  }
}

TEST_P(JobOfShape, LeavingIsNoDeath) {
  Job job(options());
  job.join();
  for (int h = job.options.engines - 1; h >= 0; --h) {
    job.finish(h);
    job.run_for(2_s);
    for (int other = 0; other < h; ++other) {
      EXPECT_TRUE(job[other].died.empty());
      EXPECT_EQ(job[other].left.size(), static_cast<std::size_t>(job.options.engines - h));
      EXPECT_EQ(job[other].left.back(), static_cast<std::uint32_t>(h));
      EXPECT_EQ(job[other].last_words.back(), (LastWord{{7, 1}, static_cast<std::uint32_t>(h), 5}));
    }
  }
}

TEST_P(JobOfShape, CoordinatorMayLeaveFirst) {
  Job job(options());
  job.join();
  job.finish(0);
  job.run_for(20_s);
  for (int h = 1; h < job.options.engines; ++h) {
    EXPECT_TRUE(job[h].died.empty());
    EXPECT_EQ(job[h].left, std::vector<std::uint32_t>{0});
    EXPECT_EQ(job[h].last_words, (std::vector<LastWord>{{{7, 1}, 0, 5}}));
    // Nobody tells any more who is heard: that must not look like silence.
    job[h].poll();
    EXPECT_LT(job.fabric.now() - job[h].membership->last_heard(1), 2_s);
    job[h].membership->request_group(job.fabric.now(), job.options.ranks_each * h, {job.options.ranks_each * h}, 1);
    job[h].poll();
    job.run_for(100_ms);
    EXPECT_NE((job[h].flows[{job.options.ranks_each * h, 1}]), 0u) << "the next one coordinates";
  }
}

TEST_P(JobOfShape, DeathIsToldToAllAtOnce) {
  if (GetParam().engines < 2) GTEST_SKIP() << "needs a peer";
  Job job(options());
  job.join();
  job.run_for(3_s);
  const int victim = job.options.engines - 1;
  job.kill(victim);
  const Nanos at = job.fabric.now();
  job.run_for(1_s);
  for (int h = 0; h < victim; ++h) {
    ASSERT_EQ(job[h].died.count(static_cast<std::uint32_t>(victim)), 1u);
    EXPECT_EQ(job[h].died.size(), 1u);
    EXPECT_LT(job[h].died_at - at, 10_ms);
    EXPECT_TRUE(contains(job[h].died[static_cast<std::uint32_t>(victim)], {"control connection closed"}));
  }
}

TEST_P(JobOfShape, CoordinatorsDeathIsTheDeathOfEngineZero) {
  Job job(options());
  job.join();
  job.run_for(1_s);
  job.kill(0);
  job.run_for(1_s);
  for (int h = 1; h < job.options.engines; ++h) {
    EXPECT_EQ(job[h].died.size(), 1u);
    EXPECT_EQ(job[h].died.count(0), 1u);
  }
}

TEST_P(JobOfShape, VerdictReachesEveryEngineOnce) {
  Job job(options());
  job.join();
  Verdict v;
  v.code = CANARY_MISMATCH;
  v.rank = 0;
  v.flow = 3;
  v.epoch = 1;
  v.text = "rank 0 called something else";
  const int reporter = job.options.engines - 1;
  v.reporter = static_cast<std::uint32_t>(reporter);
  job[reporter].membership->flood(v);
  job[reporter].membership->flood(v);
  job[0].membership->flood(v);  // found by two
  job.run_for(100_ms);
  for (int h = 1; h < reporter; ++h) {
    ASSERT_EQ(job[h].verdicts.size(), 1u);
    EXPECT_EQ(job[h].verdicts[0].code, v.code);
    EXPECT_EQ(job[h].verdicts[0].flow, v.flow);
    EXPECT_EQ(job[h].verdicts[0].reporter, v.reporter);
    EXPECT_EQ(job[h].verdicts[0].text, v.text);
  }
  EXPECT_TRUE(job[reporter].verdicts.empty() || reporter == 0);
  v.epoch = 2;
  job[0].membership->flood(v);
  job.run_for(100_ms);
  for (int h = 1; h < reporter; ++h) EXPECT_EQ(job[h].verdicts.size(), 2u);
}

// --- groups ----------------------------------------------------------------------------------------------------------

// An engine that is asked to connect hears who asks: the coordinator itself, or another one through it.
TEST(MembershipConnect, RequestsReachWhomTheyName) {
  Job job({.engines = 4});
  job.join();
  job[3].membership->ask_to_connect(job.fabric.now(), 1);
  job[3].membership->ask_to_connect(job.fabric.now(), 0);
  job[0].membership->ask_to_connect(job.fabric.now(), 2);
  // A request for the engine itself, or for a number that no engine has, reaches nobody.
  job[3].membership->ask_to_connect(job.fabric.now(), 3);
  job[3].membership->ask_to_connect(job.fabric.now(), 4);
  job.run_for(10_ms);
  EXPECT_EQ(job[0].wanted_by, std::vector<std::uint32_t>{3});
  EXPECT_EQ(job[1].wanted_by, std::vector<std::uint32_t>{3});
  EXPECT_EQ(job[2].wanted_by, std::vector<std::uint32_t>{0});
  EXPECT_TRUE(job[3].wanted_by.empty());
  job.run_for(1_s);
  for (int h = 0; h < 4; ++h) EXPECT_TRUE(job[h].died.empty()) << h;
}

// Requests to a stopped member beyond what its link can ever hold are forgotten. They break nothing.
TEST(MembershipConnect, RequestsToWhoDoesNotReadAreForgotten) {
  for (const int stopped : {0, 1}) {
    JobOptions o{.engines = 4};
    o.fabric.window_bytes = 64 << 10;
    Job job(o);
    job.join();
    const Warnings warnings;
    job.fabric.freeze(stopped);
    for (int burst = 0; burst < 200; ++burst) {
      for (int i = 0; i < 100; ++i) job[3].membership->ask_to_connect(job.fabric.now(), 1);
      job.run_for(1_ms);
    }
    job.fabric.thaw(stopped);
    job.run_for(1_s);
    EXPECT_TRUE(warnings.lines.empty()) << warnings.lines.front();
    const std::size_t before = job[1].wanted_by.size();
    EXPECT_GT(before, 0u) << "those that found room";
    EXPECT_LT(before, 4096u);
    job[3].membership->ask_to_connect(job.fabric.now(), 1);
    job.run_for(10_ms);
    EXPECT_EQ(job[1].wanted_by.size(), before + 1);
    for (int h = 0; h < 4; ++h) EXPECT_TRUE(job[h].died.empty()) << h;
  }
}

TEST(MembershipGroups, KthRequestMeetsKthRequest) {
  Job job({.engines = 3});
  job.join();
  const std::vector<int> list{1, 2};
  for (std::uint64_t k = 0; k < 5; ++k) job[1].membership->request_group(job.fabric.now(), 1, list, k);
  job.run_for(300_ms);
  EXPECT_TRUE(job[1].flows.empty());
  for (std::uint64_t k = 0; k < 5; ++k) {
    job[2].membership->request_group(job.fabric.now(), 2, list, 10 + k);
    job.run_for(10_ms);
  }
  std::vector<std::uint32_t> flows;
  for (std::uint64_t k = 0; k < 5; ++k) {
    const std::uint32_t flow = job[1].flows[{1, k}];
    EXPECT_NE(flow, 0u);
    EXPECT_EQ((job[2].flows[{2, 10 + k}]), flow);
    flows.push_back(flow);
  }
  EXPECT_TRUE(std::is_sorted(flows.begin(), flows.end()));
}

TEST(MembershipGroups, OverlappingListsAskedForInDifferentOrdersBothForm) {
  Job job({.engines = 3});
  job.join();
  const std::vector<int> ab{0, 1}, bc{1, 2}, abc{2, 1, 0};
  Membership* m[] = {job[0].membership.get(), job[1].membership.get(), job[2].membership.get()};
  const Nanos now = job.fabric.now();
  m[0]->request_group(now, 0, ab, 1);
  m[0]->request_group(now, 0, abc, 2);
  m[1]->request_group(now, 1, abc, 2);
  m[1]->request_group(now, 1, bc, 3);
  m[1]->request_group(now, 1, ab, 1);
  m[2]->request_group(now, 2, bc, 3);
  m[2]->request_group(now, 2, abc, 2);
  job.run_for(100_ms);
  EXPECT_EQ((job[0].flows[{0, 1}]), (job[1].flows[{1, 1}]));
  EXPECT_EQ((job[0].flows[{0, 2}]), (job[2].flows[{2, 2}]));
  EXPECT_EQ((job[1].flows[{1, 3}]), (job[2].flows[{2, 3}]));
  EXPECT_EQ(job[0].flows.size() + job[1].flows.size() + job[2].flows.size(), 7u);
}

TEST(MembershipGroups, MemberThatNeverAsksIsNamedAtTheEntryLimit) {
  Job job({.engines = 4, .ranks_each = 2});
  job.join();
  const std::vector<int> list{7, 0, 3, 5};
  for (const int rank : {7, 0}) job[rank / 2].membership->request_group(job.fabric.now(), rank, list, 9);
  job.run_for(4900_ms);
  EXPECT_TRUE(job[0].group_errors.empty());
  job.run_for(200_ms);
  for (const int rank : {7, 0}) {
    const Status& s = job[rank / 2].group_errors[{rank, 9}];
    EXPECT_EQ(s.code(), CANARY_ENTRY_TIMEOUT);
    EXPECT_TRUE(contains(s.text(), {"ranks 3, 5 did not ask", "ranks 0, 3, 5, 7", "5 s"}));
    EXPECT_EQ(s.detail().rank, 3);
  }
  // The late ones are told as well, and the next request of the list is a new one.
  job[1].membership->request_group(job.fabric.now(), 3, list, 9);
  job[2].membership->request_group(job.fabric.now(), 5, list, 9);
  for (const int rank : list) job[rank / 2].membership->request_group(job.fabric.now(), rank, list, 10);
  job.run_for(100_ms);
  EXPECT_EQ((job[1].group_errors[{3, 9}].code()), CANARY_ENTRY_TIMEOUT);
  for (const int rank : list) EXPECT_NE((job[rank / 2].flows[{rank, 10}]), 0u);
}

TEST(MembershipGroups, DeadOrDepartedMembersFailTheGroupAtOnce) {
  Job job({.engines = 4});
  job.join();
  job[1].membership->request_group(job.fabric.now(), 1, {1, 2}, 1);
  job[0].membership->request_group(job.fabric.now(), 0, {0, 3}, 2);
  job.run_for(100_ms);
  job.kill(2);
  job.finish(3);
  job.run_for(100_ms);
  EXPECT_EQ((job[1].group_errors[{1, 1}].code()), CANARY_PEER_DIED);
  EXPECT_TRUE(contains(job[1].group_errors[{1, 1}].text(), {"rank 2", "host-2"}));
  EXPECT_EQ((job[0].group_errors[{0, 2}].code()), CANARY_CLOSED);
  job[1].membership->request_group(job.fabric.now(), 1, {0, 1, 2}, 3);
  job.run_for(100_ms);
  EXPECT_EQ((job[1].group_errors[{1, 3}].code()), CANARY_PEER_DIED);
}

TEST(MembershipGroups, WrongListsAreRefused) {
  Job job({.engines = 2});
  job.join();
  for (const int h : {0, 1}) {
    const std::vector<std::vector<int>> lists{{}, {h, h}, {h, 7}, {1 - h}};
    for (std::size_t i = 0; i < lists.size(); ++i) job[h].membership->request_group(job.fabric.now(), h, lists[i], i);
    job.run_for(100_ms);
    for (std::size_t i = 0; i < lists.size(); ++i)
      EXPECT_EQ((job[h].group_errors[{h, i}].code()), CANARY_INVALID_ARGUMENT) << h << i;
  }
}

TEST(MembershipVerdicts, OnlyTheLatestAreRemembered) {
  control::VerdictLog known;
  Verdict v;
  for (v.flow = 1; v.flow <= 10 * control::VerdictLog::kKept; ++v.flow) EXPECT_TRUE(known.add(v));
  EXPECT_EQ(known.all().size(), control::VerdictLog::kKept);
  --v.flow;
  EXPECT_FALSE(known.add(v));
  v.flow -= std::uint32_t{control::VerdictLog::kKept};
  EXPECT_TRUE(known.add(v)) << "the oldest made room";
}

TEST(MembershipScale, LargeRosterTravelsInPartsOverAWireThatTakesItsTime) {
  JobOptions options{.engines = 420, .rails = 8, .join_timeout = 60_s};
  options.fabric.control_over_rails = true;
  options.fabric.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(1000));
  options.amend = [](int, MembershipOptions* m) {
    m->host_name = std::string(255, 'h');
    m->host_id = std::string(255, 'i');
  };
  Job job(options);
  job.start_all();
  job.run_for(5_s);
  ASSERT_TRUE(job.all_joined());
  EXPECT_EQ(job[399].roster->engines[7].host_name.size(), 255u);
  EXPECT_EQ(job[199].roster->engines[419].rails.size(), 8u);
  for (int h = 0; h < options.engines; ++h) EXPECT_TRUE(job[h].died.empty());
}

TEST(MembershipReplay, SeedGivesTheSameRun) {
  const auto once = [](std::uint64_t seed) {
    JobOptions options{.engines = 4};
    options.fabric.seed = seed;
    Job job(options);
    job.join();
    job.fabric.block(0, 1, kBlockControl);
    job.run_for(2_s);
    job.kill(3);
    job.run_for(2_s);
    return job.fabric.hash();
  };
  EXPECT_EQ(once(5), once(5));
}

}  // namespace
}  // namespace canarynet
