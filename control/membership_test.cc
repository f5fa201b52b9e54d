#include "control/membership.h"

#include <gtest/gtest.h>

#include "control/messages.h"
#include "control/membership_test_util.h"

namespace canarynet {
namespace {

::testing::AssertionResult contains(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    if (text.find(part) == std::string::npos) return ::testing::AssertionFailure() << "\"" << part << "\" is not in: " << text;
  }
  return ::testing::AssertionSuccess();
}

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
                         ::testing::Values(Shape{1, 1}, Shape{1, 4}, Shape{2, 1}, Shape{2, 4}, Shape{4, 1}, Shape{4, 4}, Shape{8, 1},
                                           Shape{8, 4}),
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
    // Nobody tells any more who is heard: that must not look like silence.
    job[h].poll();
    EXPECT_LT(job.fabric.now() - job[h].membership->last_heard(1), 2_s);
    job[h].membership->request_group(job.fabric.now(), job.options.ranks_each * h, {job.options.ranks_each * h}, 1);
    job[h].poll();
    EXPECT_EQ((job[h].group_errors[{job.options.ranks_each * h, 1}].code()), CANARY_COORDINATOR_LOST);
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

// --- joins that fail ----------------------------------------------------------------------------------------------------

TEST(MembershipJoin, DuplicateRankIsNamedOnEveryRank) {
  Job job({.engines = 4, .amend = [](int host, MembershipOptions* m) {
             if (host == 3) m->local_ranks = {2};
           }});
  job.start(0);
  job.start(1);
  job.start(2);
  job.run_for(100_ms);
  job.start(3);
  job.run_for(500_ms);
  for (int h = 0; h < 4; ++h) {
    EXPECT_EQ(job[h].join_status.code(), CANARY_JOIN) << h;
    EXPECT_TRUE(contains(job[h].join_status.text(), {"rank 2", "host-2", "1002", "host-3", "1003"}));
    EXPECT_EQ(job[h].join_status.detail().rank, 2);
  }
}

TEST(MembershipJoin, SomebodyElseClaimingRankZeroIsNamed) {
  Job job({.engines = 3, .amend = [](int host, MembershipOptions* m) {
             if (host == 2) m->local_ranks = {0};
           }});
  job.start_all();
  job.run_for(11_s);
  // Host 2 believes to be the coordinator: it hears nobody and says who is missing, and so does rank 0.
  EXPECT_TRUE(contains(job[2].join_status.text(), {"ranks 1, 2", "did not join"}));
  EXPECT_TRUE(contains(job[0].join_status.text(), {"rank 2", "did not join"}));
}

TEST(MembershipJoin, DifferentWorldSizesAreNamed) {
  Job job({.engines = 3, .amend = [](int host, MembershipOptions* m) {
             if (host == 1) m->world_size = 5;
           }});
  job.start_all();
  job.run_for(500_ms);
  for (int h = 0; h < 3; ++h) {
    EXPECT_EQ(job[h].join_status.code(), CANARY_JOIN);
    EXPECT_TRUE(contains(job[h].join_status.text(), {"3 on rank 0", "host-0", "5 on rank 1", "host-1"}));
  }
}

TEST(MembershipJoin, SettingsThatDifferAreNamedWithBothValues) {
  Job job({.engines = 4, .amend = [](int host, MembershipOptions* m) {
             if (host == 2) m->must_agree[0] = "algo=mesh";
           }});
  job.start_all();
  job.run_for(500_ms);
  for (int h = 0; h < 4; ++h) {
    EXPECT_EQ(job[h].join_status.code(), CANARY_MISMATCH);
    EXPECT_TRUE(contains(job[h].join_status.text(), {"algo", "\"ring\" on rank 0", "\"mesh\" on rank 2", "host-2"}));
  }
}

TEST(MembershipJoin, SettingThatOneSideLacksIsNamed) {
  for (const bool extra_at_zero : {false, true}) {
    Job job({.engines = 2, .amend = [&](int host, MembershipOptions* m) {
               if ((host == 0) == extra_at_zero) m->must_agree.push_back("codec=topk");
             }});
    job.start_all();
    job.run_for(500_ms);
    for (int h = 0; h < 2; ++h) EXPECT_TRUE(contains(job[h].join_status.text(), {"codec", "\"topk\"", "unknown"}));
  }
}

TEST(MembershipJoin, MissingRanksAreNamedToThoseWhoCame) {
  Job job({.engines = 8});
  for (const int h : {0, 1, 6}) job.start(h);
  job.run_for(9900_ms);
  EXPECT_TRUE(job[1].join_status.ok());
  job.run_for(300_ms);
  for (const int h : {0, 1, 6}) {
    EXPECT_EQ(job[h].join_status.code(), CANARY_JOIN);
    EXPECT_TRUE(contains(job[h].join_status.text(), {"ranks 2-5, 7 did not join within 10 s", "3 of 8"}));
  }
  // One that comes late gets the same answer, quickly.
  job.start(3);
  job.run_for(100_ms);
  EXPECT_EQ(job[3].join_status.text(), job[0].join_status.text());
}

TEST(MembershipJoin, UnreachableCoordinatorEndsInAClearError) {
  Job job({.engines = 2});
  job.start(1);
  job.run_for(9900_ms);
  EXPECT_TRUE(job[1].join_status.ok());
  job.run_for(200_ms);
  EXPECT_EQ(job[1].join_status.code(), CANARY_JOIN);
  EXPECT_TRUE(contains(job[1].join_status.text(), {"no connection to rank 0", "172.16.0.1:4000", "10 s", "connection refused"}));
}

TEST(MembershipJoin, CoordinatorThatNeverAnswersEndsInAClearError) {
  Job job({.engines = 2});
  job.start(0);
  job.fabric.block(0, 1);
  job.start(1);
  job.run_for(13_s);
  EXPECT_TRUE(contains(job[1].join_status.text(), {"no connection to rank 0"}));
  EXPECT_TRUE(contains(job[0].join_status.text(), {"rank 1 did not join"}));
}

TEST(MembershipJoin, CoordinatorThatFreezesAfterItsHelloDoesNotHangTheOthers) {
  Job job({.engines = 3});
  job.start(0);
  job.start(1);
  job.run_for(100_ms);
  job.fabric.freeze(0);
  job.run_for(30_s);
  EXPECT_EQ(job[1].join_status.code(), CANARY_JOIN);
}

TEST(MembershipJoin, ProcessThatEndsWhileJoiningIsNamedQuickly) {
  Job job({.engines = 4});
  for (const int h : {0, 1, 2}) job.start(h);
  job.run_for(500_ms);
  job.kill(2);
  job.run_for(50_ms);
  for (const int h : {0, 1}) {
    EXPECT_EQ(job[h].join_status.code(), CANARY_PEER_DIED);
    EXPECT_TRUE(contains(job[h].join_status.text(), {"rank 2", "host-2", "1002", "ended while"}));
  }
}

TEST(MembershipJoin, CoordinatorThatEndsWhileJoiningIsNamedQuickly) {
  Job job({.engines = 3});
  for (const int h : {0, 1}) job.start(h);
  job.run_for(500_ms);
  job.kill(0);
  job.run_for(50_ms);
  EXPECT_EQ(job[1].join_status.code(), CANARY_COORDINATOR_LOST);
  EXPECT_EQ(job[1].join_status.detail().rank, 0);
}

TEST(MembershipJoin, LaneThatBreaksLocallyWhileJoiningIsDialledAgain) {
  Job job({.engines = 3});
  for (const int h : {0, 1}) job.start(h);
  job.run_for(500_ms);
  std::vector<Lane*> lanes;
  job.fabric.lanes_between(1, 0, &lanes);
  ASSERT_EQ(lanes.size(), 1u);
  job.fabric.kill_lane(*lanes[0], true, false);
  job.run_for(500_ms);
  job.start(2);
  job.run_for(500_ms);
  EXPECT_TRUE(job.all_joined());
}

TEST(MembershipJoin, RankThatComesAfterTheStartIsTurnedAwayAlone) {
  JobOptions options{.engines = 3};
  options.amend = [](int host, MembershipOptions* m) {
    m->world_size = 2;
    if (host == 2) m->local_ranks = {1};
  };
  Job job(options);
  job.start(0);
  job.start(1);
  job.run_for(500_ms);
  job.start(2);
  job.run_for(500_ms);
  EXPECT_TRUE(contains(job[2].join_status.text(), {"after the job had started"}));
  EXPECT_TRUE(job[0].membership->joined() && job[1].membership->joined());
  EXPECT_TRUE(job[0].died.empty() && job[1].died.empty());
}

// A peer that speaks by hand.
class Stranger final : public LaneSink {
 public:
  Stranger(Job& job, int host) : job_(job) {
    Address to = job.fabric.control_address(0);
    to.port = 4000;
    auto dialled = job.fabric.factory(host).dial(kControlRail, to, *this);
    EXPECT_TRUE(dialled.ok());
    lane = dialled.take();
    step(host, 10_ms);
    EXPECT_TRUE(lane->up());
  }
  // Parties and the stranger's own host.
  void step(int host, Nanos time) {
    const Nanos end = job_.fabric.now() + time;
    while (job_.fabric.now() < end) {
      job_.run_for(1_ms);
      job_.fabric.factory(host).poll(job_.fabric.now());
    }
  }
  void say(wire::Kind kind, const void* data, std::size_t bytes) {
    wire::Header header;
    header.kind = kind;
    header.payload_bytes = static_cast<std::uint32_t>(bytes);
    header.payload_crc32 = wire::payload_crc(data, bytes);
    wire::seal(header);
    EXPECT_TRUE(lane->send(header, static_cast<const std::byte*>(data), 0));
    lane->flush(job_.fabric.now());
  }
  void hello(std::uint16_t version_min, std::uint16_t version_max) {
    const wire::HelloPayload hello{.engine = 0xffffffff, .rail = 0xffff, .version_min = version_min, .version_max = version_max,
                                   .purpose = wire::kHelloControl};
    say(wire::Kind::kHello, &hello, sizeof hello);
  }
  void on_up(Lane&) override {}
  Landing landing_for(Lane&, const wire::Header&) override { return {Landing::Kind::kSlot, nullptr, 0}; }
  void on_frame(Lane&, const wire::Header& header, const Arrival& arrival) override {
    if (header.kind == wire::Kind::kHello) ++hellos;
    if (header.kind != wire::Kind::kControl) return;
    auto message = control::decode(arrival.payload);
    ASSERT_TRUE(message.ok());
    messages.push_back(std::move(message.value()));
  }
  void on_writable(Lane&) override {}
  void on_down(Lane&, const Status&, bool) override { down = true; }

  std::unique_ptr<Lane> lane;
  std::vector<control::Message> messages;
  int hellos = 0;
  bool down = false;

 private:
  Job& job_;
};

TEST(MembershipJoin, OtherProtocolVersionIsNamedOnEveryRank) {
  Job job({.engines = 3});
  job.start(0);
  job.start(1);
  job.run_for(100_ms);
  Stranger stranger(job, 2);
  stranger.hello(7, 9);
  stranger.step(2, 50_ms);
  ASSERT_EQ(stranger.messages.size(), 1u);
  const auto* refuse = std::get_if<control::Refuse>(&stranger.messages[0]);
  ASSERT_NE(refuse, nullptr);
  EXPECT_EQ(refuse->code, CANARY_VERSION);
  EXPECT_TRUE(contains(refuse->text, {"7..9", "rank 0 1"}));
  for (const int h : {0, 1}) EXPECT_EQ(job[h].join_status.code(), CANARY_VERSION);
  EXPECT_EQ(stranger.hellos, 1);
}

TEST(MembershipJoin, GarbageFromAStrangerHarmsNobody) {
  Job job({.engines = 3});
  job.start(0);
  job.start(1);
  Random random(7);
  for (int i = 0; i < 50; ++i) {
    Stranger stranger(job, 2);
    stranger.hello(1, 1);
    std::vector<std::uint8_t> bytes(1 + random.below(200));
    for (auto& b : bytes) b = static_cast<std::uint8_t>(random.next());
    stranger.say(wire::Kind::kControl, bytes.data(), bytes.size());
    stranger.step(2, 5_ms);
  }
  job.start(2);
  job.run_for(500_ms);
  EXPECT_TRUE(job.all_joined());
}

// --- groups -------------------------------------------------------------------------------------------------------------

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
    for (std::size_t i = 0; i < lists.size(); ++i) EXPECT_EQ((job[h].group_errors[{h, i}].code()), CANARY_INVALID_ARGUMENT) << h << i;
  }
}

TEST(MembershipGroups, CoordinatorsDeathFailsPendingRequests) {
  Job job({.engines = 3});
  job.join();
  job[1].membership->request_group(job.fabric.now(), 1, {1, 2}, 1);
  job.run_for(100_ms);
  job.kill(0);
  job.run_for(100_ms);
  EXPECT_EQ((job[1].group_errors[{1, 1}].code()), CANARY_COORDINATOR_LOST);
}

// --- silence, and the way back ------------------------------------------------------------------------------------------

TEST(MembershipRejoin, SilentControlIsDialledAgainOverARail) {
  Job job({.engines = 4});
  job.join();
  job.run_for(1_s);
  job.fabric.block(0, 2, kBlockControl);
  // Both requests and answers get lost on the way.
  job[2].membership->request_group(job.fabric.now(), 2, {2, 3}, 1);
  job[3].membership->request_group(job.fabric.now(), 3, {2, 3}, 1);
  Verdict v;
  v.code = CANARY_ABORTED;
  v.rank = 3;
  v.flow = 5;
  job[3].membership->flood(v);
  Verdict own = v;
  own.flow = 6;
  job[2].membership->flood(own);
  job.run_for(900_ms);
  for (int h = 0; h < 4; ++h) EXPECT_TRUE(job[h].died.empty());
  EXPECT_LT(job.fabric.now() - job[0].membership->last_heard(2), 500_ms);
  EXPECT_LT(job.fabric.now() - job[2].membership->last_heard(0), 500_ms);
  EXPECT_NE((job[2].flows[{2, 1}]), 0u);
  EXPECT_EQ((job[2].flows[{2, 1}]), (job[3].flows[{3, 1}]));
  ASSERT_EQ(job[2].verdicts.size(), 1u);
  EXPECT_EQ(job[2].verdicts[0].flow, 5u);
  EXPECT_EQ(job[1].verdicts.size(), 2u);
  // The new connection counts: its end is a death.
  job.run_for(5_s);
  job.kill(2);
  job.run_for(50_ms);
  EXPECT_EQ(job[0].died.count(2), 1u);
  EXPECT_EQ(job[3].died.count(2), 1u);
}

class MembershipOverEither : public ::testing::TestWithParam<bool> {
 protected:
  JobOptions options(int engines) const {
    JobOptions o{.engines = engines};
    o.fabric.stream = GetParam();
    return o;
  }
};
// Streams bring what was lost later, packets never.
INSTANTIATE_TEST_SUITE_P(Membership, MembershipOverEither, ::testing::Values(true, false),
                         [](const auto& which) { return which.param ? "streams" : "packets"; });

TEST_P(MembershipOverEither, DeathsAndLeavesThatWereMissedAreToldAfterTheReturn) {
  Job job(options(5));
  job.join();
  job.fabric.block(0, 1);  // everything: there is no way back for now
  job.run_for(2_s);
  job.kill(2);
  job.finish(3);
  job.run_for(3_s);
  EXPECT_TRUE(job[1].died.empty());
  EXPECT_TRUE(job[1].left.empty());
  EXPECT_GT(job.fabric.now() - job[1].membership->last_heard(0), 4_s);
  EXPECT_GT(job.fabric.now() - job[0].membership->last_heard(1), 4_s);
  job.fabric.unblock(0, 1);
  job.run_for(3_s);
  EXPECT_EQ(job[1].died.size(), 1u);
  EXPECT_EQ(job[1].died.count(2), 1u);
  EXPECT_EQ(job[1].left, std::vector<std::uint32_t>{3});
  for (const int h : {0, 4}) EXPECT_EQ(job[h].died.count(1), 0u);
  EXPECT_LT(job.fabric.now() - job[1].membership->last_heard(0), 500_ms);
}

TEST(MembershipRejoin, LocallyBrokenLaneIsReplacedAndNobodyDied) {
  Job job({.engines = 3});
  job.join();
  for (int round = 0; round < 20; ++round) {
    std::vector<Lane*> lanes;
    job.fabric.lanes_between(1 + round % 2, 0, &lanes);
    ASSERT_GE(lanes.size(), 1u);
    job.fabric.kill_lane(*lanes.back(), true, false);
    job.run_for(300_ms);
  }
  for (int h = 0; h < 3; ++h) {
    EXPECT_TRUE(job[h].died.empty());
    EXPECT_LT(job.fabric.now() - job[h].membership->last_heard(h == 0 ? 1 : 0), 500_ms);
  }
}

TEST(MembershipRejoin, SilentLaneIsReplacedAndItsEndIsNoDeath) {
  Job job({.engines = 3});
  job.join();
  for (int round = 0; round < 10; ++round) {
    std::vector<Lane*> lanes;
    job.fabric.lanes_between(1, 0, &lanes);
    ASSERT_GE(lanes.size(), 1u);
    for (Lane* lane : lanes) job.fabric.kill_lane(*lane, false);
    job.run_for(2_s);
    // The old ones are closed by both sides, long before this.
    job.fabric.lanes_between(1, 0, &lanes);
    EXPECT_EQ(lanes.size(), 1u);
  }
  for (int h = 0; h < 3; ++h) EXPECT_TRUE(job[h].died.empty());
}

TEST(MembershipRejoin, OneWaySilenceIsHealedAsWell) {
  for (const bool from_coordinator : {false, true}) {
    Job job({.engines = 3});
    job.join();
    from_coordinator ? job.fabric.block(0, 1, kBlockControl, false) : job.fabric.block(1, 0, kBlockControl, false);
    job.run_for(3_s);
    job.fabric.unblock(0, 1);
    job.run_for(3_s);
    for (int h = 0; h < 3; ++h) EXPECT_TRUE(job[h].died.empty());
    for (int h = 1; h < 3; ++h) {
      EXPECT_LT(job.fabric.now() - job[h].membership->last_heard(0), 500_ms);
      EXPECT_LT(job.fabric.now() - job[0].membership->last_heard(static_cast<std::uint32_t>(h)), 500_ms);
    }
  }
}

TEST(MembershipRejoin, ControlThatComesAndGoesKillsNobody) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    JobOptions options{.engines = 4};
    options.fabric.seed = seed;
    options.fabric.stream = seed % 2 == 0;
    options.fabric.nic = NicOptions::link(seed % 3 == 0 ? 40_ms : 20_us);  // the way back may be far slower than control
    options.fabric.control_latency = seed % 5 == 0 ? 60_ms : 50_us;
    Job job(options);
    job.join();
    Random random(seed);
    for (int round = 0; round < 120; ++round) {
      const int host = 1 + static_cast<int>(random.below(3));
      const auto what = static_cast<std::uint8_t>(1 + random.below(3));
      if (random.below(2) == 0) {
        random.below(2) == 0 ? job.fabric.block(0, host, what, false) : job.fabric.block(host, 0, what, false);
      } else {
        job.fabric.unblock(0, host);
      }
      job.run_for(Nanos{static_cast<std::int64_t>(random.below(random.below(2) == 0 ? 700'000'000 : 100'000'000))});
    }
    job.fabric.heal();
    job.run_for(10_s);
    for (int h = 0; h < 4; ++h) {
      EXPECT_TRUE(job[h].died.empty()) << "seed " << seed << " host " << h;
      EXPECT_LT(job.fabric.now() - job[0].membership->last_heard(static_cast<std::uint32_t>(h)), 500_ms) << "seed " << seed;
    }
    // All still hear each other's verdicts.
    Verdict v;
    v.flow = 1;
    job[1].membership->flood(v);
    job.run_for(200_ms);
    for (const int h : {0, 2, 3}) EXPECT_EQ(job[h].verdicts.size(), 1u) << "seed " << seed;
  }
}

TEST(MembershipRejoin, ResetAfterASilenceIsNoProofWhileTheEngineMayComeBack) {
  Job job({.engines = 3});
  job.join();
  job.fabric.block(0, 1);
  job.run_for(2_s);
  std::vector<Lane*> lanes;
  job.fabric.lanes_between(0, 1, &lanes);
  ASSERT_FALSE(lanes.empty());
  for (Lane* lane : lanes) job.fabric.kill_lane(*lane, true, true);
  job.run_for(100_ms);
  job.fabric.unblock(0, 1);
  job.run_for(5_s);
  for (int h = 0; h < 3; ++h) {
    EXPECT_TRUE(job[h].died.empty()) << h;
    EXPECT_LT(job.fabric.now() - job[h].membership->last_heard(h == 0 ? 1 : 0), 500_ms);
  }
}

TEST(MembershipRejoin, AttemptThatArrivesLateDoesNotReplaceANewerOne) {
  Job job({.engines = 2});
  job.join();
  job.run_for(1_s);
  job.fabric.block(0, 1, kBlockControl);
  // As soon as the way over a rail stands, and its REJOIN has left, that rail dies.
  std::vector<Lane*> lanes;
  for (int step = 0; step < 200'000 && lanes.size() < 2; ++step) {
    job.run_for(5_us);
    job.fabric.lanes_between(1, 0, &lanes);
  }
  ASSERT_GE(lanes.size(), 2u);
  const bool first_rail = lanes[1]->description().find(job.fabric.factory(0).rails()[0].address.to_string()) != std::string::npos;
  job.fabric.nic_down(0, first_rail ? 0 : 1, NicDeath::kSilent);
  job.run_for(2_s);
  EXPECT_LT(job.fabric.now() - job[0].membership->last_heard(1), 500_ms) << "the other rail was not tried";
  job.fabric.heal();  // the first attempt arrives now
  job.run_for(3_s);
  EXPECT_TRUE(job[0].died.empty());
  EXPECT_TRUE(job[1].died.empty());
}

TEST(MembershipRejoin, RetractedAttemptIsNoDeathOthersAre) {
  for (const bool retract : {true, false}) {
    Job job({.engines = 2});
    job.start(0);
    const auto say = [](Stranger& s, const control::Message& m) {
      const auto bytes = control::encode(m);
      s.say(wire::Kind::kControl, bytes.data(), bytes.size());
    };
    Stranger first(job, 1);
    first.hello(1, 1);
    control::Join join;
    join.engine.ranks = {1};
    join.world_size = 2;
    join.must_agree = job.options_of(0).must_agree;
    say(first, join);
    first.step(1, 50_ms);
    ASSERT_TRUE(job[0].membership->joined());
    const std::uint64_t token = job[0].roster->job;
    {
      Stranger second(job, 1);
      second.hello(1, 1);
      say(second, control::Rejoin{token, 1, 1});
      if (retract) say(second, control::Retract{});
    }  // its end
    first.step(1, 50_ms);
    EXPECT_EQ(job[0].died.count(1), retract ? 0u : 1u);
    Stranger third(job, 1);
    third.hello(1, 1);
    say(third, control::Rejoin{token, 1, 2});
    third.step(1, 50_ms);
    ASSERT_FALSE(third.messages.empty());
    EXPECT_EQ(std::holds_alternative<control::Rejoined>(third.messages[0]), retract);
    EXPECT_EQ(std::holds_alternative<control::Refuse>(third.messages[0]), !retract);
  }
}

TEST(MembershipRejoin, RequestSaidAgainCountsOnce) {
  Job job({.engines = 3});
  job.join();
  const std::vector<int> list{1, 2};
  job[1].membership->request_group(job.fabric.now(), 1, list, 1);
  job.run_for(100_ms);  // it is there; the answer has to wait for rank 2
  job.fabric.block(0, 1, kBlockControl);
  job.run_for(3_s);
  for (const std::uint64_t cookie : {1, 2}) {
    if (cookie == 2) job[1].membership->request_group(job.fabric.now(), 1, list, cookie);
    job[2].membership->request_group(job.fabric.now(), 2, list, cookie);
    job.run_for(100_ms);
    EXPECT_NE((job[1].flows[{1, cookie}]), 0u);
    EXPECT_EQ((job[1].flows[{1, cookie}]), (job[2].flows[{2, cookie}]));
  }
}

TEST(MembershipRejoin, NotHavingLookedIsNotThePeersSilence) {
  Job job({.engines = 3});
  job.join();
  job.run_for(1_s);
  for (const int sleeper : {0, 1}) {
    const int other = 1 - sleeper;
    job.fabric.freeze(sleeper);
    job.fabric.block(0, 1, kBlockAll);  // nothing lies at the door when it wakes up
    job.run_for(5_s);
    job.fabric.thaw(sleeper);
    job[sleeper].membership->poll(job.fabric.now());
    EXPECT_LT(job.fabric.now() - job[sleeper].membership->last_heard(static_cast<std::uint32_t>(other)), 600_ms) << sleeper;
    job.fabric.unblock(0, 1);
    job.run_for(5_s);
  }
  for (int h = 0; h < 3; ++h) EXPECT_TRUE(job[h].died.empty());
}

TEST(MembershipRejoin, DeathRightAfterALongJoinIsToldAtOnce) {
  Job job({.engines = 3});
  job.start(0);
  job.start(1);
  for (int i = 0; i < 100; ++i) {  // silent all that time: before the join nobody has to speak
    job.run_for(80_ms);
    job[0].poll();
  }
  job.fabric.freeze(1);
  job.start(2);
  job.run_for(10_ms);
  ASSERT_TRUE(job[0].membership->joined() && job[2].membership->joined());
  job.kill(1);
  job.run_for(50_ms);
  EXPECT_EQ(job[0].died.count(1), 1u);
  EXPECT_EQ(job[2].died.count(1), 1u);
}

TEST(MembershipRejoin, FrozenEngineComesBackUnlessItWasDeclaredDead) {
  Job job({.engines = 3});
  job.join();
  job.fabric.freeze(1);
  job.run_for(5_s);
  EXPECT_TRUE(job[0].died.empty());
  EXPECT_GT(job.fabric.now() - job[0].membership->last_heard(1), 4_s);
  job.fabric.thaw(1);
  job.run_for(2_s);
  for (int h = 0; h < 3; ++h) EXPECT_TRUE(job[h].died.empty());
  EXPECT_LT(job.fabric.now() - job[0].membership->last_heard(1), 500_ms);
}

TEST(MembershipRejoin, FrozenCoordinatorKillsNobodyWhenItResumes) {
  Job job({.engines = 4});
  job.join();
  job.fabric.freeze(0);
  job.run_for(30_s);  // far more attempts to come back than are kept open
  for (int h = 1; h < 4; ++h) EXPECT_TRUE(job[h].died.empty());
  job.fabric.thaw(0);
  job.run_for(5_s);
  for (int h = 0; h < 4; ++h) {
    EXPECT_TRUE(job[h].died.empty());
    EXPECT_LT(job.fabric.now() - job[0].membership->last_heard(static_cast<std::uint32_t>(h)), 500_ms);
  }
}

TEST(MembershipRejoin, DeathOfAnEngineThatHadBeenSilentIsToldAfterTheGrace) {
  Job job({.engines = 3});
  job.join();
  job.fabric.block(1, 0, kBlockAll);
  job.run_for(3_s);
  job.kill(1);
  job.fabric.unblock(0, 1);
  job.run_for(3_s);
  EXPECT_EQ(job[0].died.count(1), 1u);
  EXPECT_EQ(job[2].died.count(1), 1u);
}

TEST_P(MembershipOverEither, CoordinatorThatDiedDuringASilenceIsFound) {
  Job job(options(3));
  job.join();
  job.fabric.block(0, 1, kBlockAll);
  job.run_for(2_s);
  job.kill(0);
  job.run_for(1_s);
  EXPECT_EQ(job[2].died.count(0), 1u);
  EXPECT_TRUE(job[1].died.empty());
  job.fabric.unblock(0, 1);
  job.run_for(3_s);
  EXPECT_EQ(job[1].died.count(0), 1u);
}

TEST(MembershipRejoin, DeadMachineProvesNothingByItself) {
  Job job({.engines = 3});
  job.join();
  job.kill(2, CrashKind::kSilent);
  job.run_for(10_s);
  for (const int h : {0, 1}) {
    EXPECT_TRUE(job[h].died.empty());
    EXPECT_GT(job.fabric.now() - job[h].membership->last_heard(2), 9_s);  // whoever looks can tell
    EXPECT_LT(job.fabric.now() - job[h].membership->last_heard(1 - h), 500_ms);
  }
}

TEST(MembershipRejoin, EngineDeclaredDeadLearnsItWhenItReturns) {
  Job job({.engines = 3});
  job.join();
  std::vector<Lane*> lanes;
  job.fabric.lanes_between(0, 1, &lanes);
  ASSERT_EQ(lanes.size(), 1u);
  job.fabric.freeze(1);
  job.run_for(100_ms);
  job.fabric.kill_lane(*lanes[0], true, true);  // a middle box resets the connection: to rank 0 this is proof
  job.run_for(1_s);
  EXPECT_EQ(job[0].died.count(1), 1u);
  EXPECT_EQ(job[2].died.count(1), 1u);
  job.fabric.thaw(1);
  job.run_for(2_s);
  // It takes the reset for rank 0's death, or asks to come back and is told: either way it does not go on.
  EXPECT_TRUE(job[1].died.count(0) == 1 || !job[1].verdicts.empty());
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
