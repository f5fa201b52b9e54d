// Joins that fail, and who is told what.
#include <gtest/gtest.h>

#include "control/membership_test_util.h"
#include "control/messages.h"

namespace canarynet {
namespace {

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

TEST(MembershipJoin, DuplicateRankWithinOneProcessIsNoRedial) {
  Job job({.engines = 4, .amend = [](int host, MembershipOptions* m) {
             if (host != 3) return;
             m->local_ranks = {2};
             m->pid = 1002;
             m->host_id = "id-2";
             m->host_name = "host-2";
           }});
  job.start_all();
  job.run_for(500_ms);
  for (int h = 0; h < 4; ++h) {
    EXPECT_EQ(job[h].join_status.code(), CANARY_JOIN) << h;
    EXPECT_TRUE(contains(job[h].join_status.text(), {"rank 2 joined twice", "host-2", "1002"}));
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
  EXPECT_TRUE(contains(job[1].join_status.text(),
                       {"no connection to rank 0", "172.16.0.1:4000", "10 s", "connection refused"}));
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

// Versions that are still to come.
constexpr std::uint16_t kNewer = wire::kVersion + 1, kNewest = wire::kVersion + 3;

TEST(MembershipJoin, OtherProtocolVersionIsNamedOnEveryRank) {
  const struct {
    std::uint16_t min, max;
    std::string text;
  } others[] = {{kNewer, kNewest, std::to_string(kNewer) + ".." + std::to_string(kNewest)}, {1, 1, "1..1"}};
  const std::string mine = "rank 0 " + std::to_string(wire::kVersion);
  for (const auto& versions : others) {
    Job job({.engines = 3});
    job.start(0);
    job.start(1);
    job.run_for(100_ms);
    Stranger stranger(job, 2);
    stranger.hello(versions.min, versions.max, 77);
    stranger.step(2, 50_ms);
    ASSERT_EQ(stranger.messages.size(), 1u);
    const auto* refuse = std::get_if<control::Refuse>(&stranger.messages[0]);
    ASSERT_NE(refuse, nullptr);
    EXPECT_EQ(refuse->code, CANARY_VERSION);
    EXPECT_TRUE(contains(refuse->text, {versions.text.c_str(), mine.c_str()}));
    for (const int h : {0, 1}) EXPECT_EQ(job[h].join_status.code(), CANARY_VERSION);
    EXPECT_EQ(stranger.hellos, 1);
  }
}

// By address anybody may come: one that does not fit hears why at once, and the others are waited for.
TEST(MembershipJoin, ByAddressWhoeverDoesNotFitIsTurnedAwayAlone) {
  Job job({.engines = 4, .join_token = 0});
  job.start(0);
  job.start(1);
  job.run_for(100_ms);
  const struct {
    int rank;
    std::uint32_t world_size;
    const char* why;
  } misfits[] = {{2, 5, "the world sizes differ"}, {1, 4, "rank 1 joined twice"}, {7, 4, "does not exist"}};
  for (const auto& misfit : misfits) {
    Stranger stranger(job, 3);
    stranger.hello(wire::kVersion, wire::kVersion);
    stranger.join(misfit.rank, misfit.world_size);
    stranger.step(3, 20_ms);
    ASSERT_EQ(stranger.messages.size(), 1u) << misfit.why;
    const auto* refuse = std::get_if<control::Refuse>(&stranger.messages[0]);
    ASSERT_NE(refuse, nullptr);
    EXPECT_TRUE(contains(refuse->text, {misfit.why}));
  }
  Stranger newer(job, 3);
  newer.hello(kNewer, kNewest);
  newer.step(3, 20_ms);
  EXPECT_EQ(newer.messages.size(), 1u);
  for (const int h : {0, 1}) EXPECT_TRUE(job[h].join_status.ok()) << job[h].join_status.text();
  job.start(2);
  job.start(3);
  job.run_for(500_ms);
  EXPECT_TRUE(job.all_joined());
}

TEST(MembershipJoin, ByAddressAJobThatDoesNotFormTellsWhomItTurnedAwayAndWhy) {
  Job job({.engines = 4, .join_token = 0, .amend = [](int host, MembershipOptions* m) {
             if (host == 2) m->must_agree[0] = "algo=mesh";
             if (host == 3) m->local_ranks = {1};
           }});
  job.start_all();
  job.run_for(100_ms);
  EXPECT_EQ(job[2].join_status.code(), CANARY_MISMATCH) << "at once";
  EXPECT_TRUE(contains(job[3].join_status.text(), {"rank 1 joined twice"})) << "at once";
  job.run_for(9800_ms);
  EXPECT_TRUE(job[0].join_status.ok());
  job.run_for(200_ms);
  for (const int h : {0, 1}) {
    EXPECT_EQ(job[h].join_status.code(), CANARY_MISMATCH) << "what kept the missing rank out";
    EXPECT_EQ(job[h].join_status.detail().rank, 2);
    EXPECT_TRUE(contains(job[h].join_status.text(),
                         {"ranks 2, 3 did not join within 10 s (2 of 4 are there); turned away: setting algo differs",
                          "\"mesh\" on rank 2", "; rank 1 joined twice"}));
  }
}

TEST(MembershipJoin, WithoutTheUniqueIdNobodyCanEndAJobThatForms) {
  for (const std::uint64_t token : {0, 78}) {
    Job job({.engines = 3});
    job.start(0);
    job.start(1);
    job.run_for(100_ms);
    Stranger newer(job, 2), other(job, 2);
    newer.hello(kNewer, kNewest, token);
    other.hello(wire::kVersion, wire::kVersion, token);
    other.join(1, 5);
    newer.step(2, 20_ms);
    EXPECT_EQ(newer.messages.size(), 1u);
    EXPECT_EQ(other.messages.size(), 1u);
    job.start(2);
    job.run_for(500_ms);
    EXPECT_TRUE(job.all_joined());
  }
}

TEST(MembershipJoin, NewcomersThatSayNoMoreThanHelloAreFewAndGoSoon) {
  Job job({.engines = 2, .join_timeout = 60_s, .amend = [](int, MembershipOptions* m) { m->strangers_max = 4; }});
  job.start(0);
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 6; ++i) {
    strangers.push_back(std::make_unique<Stranger>(job, 1));
    strangers.back()->hello(wire::kVersion, wire::kVersion);
    strangers.back()->step(1, 10_ms);
  }
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(strangers[i]->down, i < 2) << "the oldest made room";
    ASSERT_EQ(strangers[i]->messages.size(), i < 2 ? 1u : 0u);
    if (i >= 2) continue;
    EXPECT_TRUE(std::holds_alternative<control::Retract>(strangers[i]->messages[0])) << "a member comes again";
  }
  strangers[5]->step(1, 10'100_ms);
  for (const auto& s : strangers) {
    EXPECT_TRUE(s->down);
    ASSERT_EQ(s->messages.size(), 1u);
    EXPECT_TRUE(std::holds_alternative<control::Retract>(s->messages[0])) << "a member comes again";
  }
  strangers.clear();
  job.start(1);
  job.run_for(500_ms);
  EXPECT_TRUE(job.all_joined());
}

TEST(MembershipJoin, ADamagedHeaderOnTheWayEndsNoJob) {
  for (const bool to_member : {true, false}) {
    Job job({.engines = 3});
    job.start(0);
    job.start(1);
    // As soon as the connection stands: before the hello of its other end.
    std::vector<Lane*> lanes;
    const int from = to_member ? 0 : 1;
    for (int step = 0; step < 1000 && lanes.empty(); ++step) {
      job.run_for(1_us);
      job.fabric.lanes_between(from, 1 - from, &lanes);
    }
    job.damage(from, 1 - from, Job::Damage::kHeader);
    job.run_for(1_s);
    job.start(2);
    job.run_for(1_s);
    EXPECT_TRUE(job.all_joined()) << to_member;
    job.run_for(5_s);
    for (int h = 0; h < 3; ++h) EXPECT_TRUE(job[h].died.empty()) << h;
  }
}

TEST(MembershipJoin, ADamagedJoinIsSaidAgain) {
  Job job({.engines = 2, .join_token = 0});
  job.start(0);
  {
    Stranger first(job, 1);
    first.hello(wire::kVersion, wire::kVersion);
    first.step(1, 10_ms);
    ASSERT_EQ(first.hellos, 1);
    wire::Header header;
    header.kind = wire::Kind::kControl;
    ASSERT_TRUE(first.lane->send(header, nullptr, 0));  // not sealed
    first.lane->flush(job.fabric.now());
    first.step(1, 10_ms);
    ASSERT_EQ(first.messages.size(), 1u);
    EXPECT_TRUE(std::holds_alternative<control::Retract>(first.messages[0]));
    EXPECT_TRUE(first.down);
  }
  job.start(1);
  job.run_for(1_s);
  EXPECT_TRUE(job.all_joined());
}

TEST(MembershipJoin, GarbageFromAStrangerHarmsNobody) {
  Job job({.engines = 3});
  job.start(0);
  job.start(1);
  Random random(7);
  for (int i = 0; i < 50; ++i) {
    Stranger stranger(job, 2);
    stranger.hello(wire::kVersion, wire::kVersion);
    std::vector<std::uint8_t> bytes(1 + random.below(200));
    for (auto& b : bytes) b = static_cast<std::uint8_t>(random.next());
    stranger.say(wire::Kind::kControl, bytes.data(), bytes.size());
    stranger.step(2, 5_ms);
  }
  job.start(2);
  job.run_for(500_ms);
  EXPECT_TRUE(job.all_joined());
}

}  // namespace
}  // namespace canarynet
