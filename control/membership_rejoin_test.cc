// Control that falls silent, and the way back.
#include <gtest/gtest.h>

#include "control/membership_test_util.h"
#include "control/messages.h"
#include "sim/warnings_test_util.h"

namespace canarynet {
namespace {

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
  EXPECT_EQ(job[1].last_words, (std::vector<LastWord>{{{7, 1}, 3, 5}}));
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

// More was said to a member than its link holds while it did not read: it hears no more beats over that link, and so
// comes back over another.
TEST(MembershipRejoin, AMemberWhoseLinkOverflowedComesBack) {
  JobOptions o{.engines = 4};
  o.fabric.window_bytes = 64 << 10;
  Job job(o);
  job.join();
  const Warnings warnings;
  job.fabric.freeze(1);
  for (std::uint32_t n = 0; n < 10'000; ++n) {
    job[3].membership->ask_entered(job.fabric.now(), {7, n});
    if (n % 100 == 99) job.run_for(10_ms);
  }
  ASSERT_EQ(warnings.with("a control message that does not fit"), 1);
  job.fabric.thaw(1);
  job.run_for(3_s);
  EXPECT_LT(job.fabric.now() - job[0].membership->last_heard(1), 500_ms);
  EXPECT_LT(job.fabric.now() - job[1].membership->last_heard(0), 500_ms);
  Verdict v;
  v.code = CANARY_ABORTED;
  v.flow = 5;
  job[1].membership->flood(v);
  job.run_for(50_ms);
  EXPECT_EQ(job[2].verdicts.size(), 1u) << "it is heard";
  for (int h = 0; h < 4; ++h) EXPECT_TRUE(job[h].died.empty()) << h;
}

// A question that is said while the way to the coordinator is cut gets there when it is open again, and so does the
// answer, each once.
TEST(MembershipRejoin, WordsOfPoliciesGetThereOverANewConnection) {
  Job job(JobOptions{.engines = 3});
  job.join();
  std::uint32_t said[3] = {};
  const auto say = [&](std::uint32_t rank, PolicyWord word) {
    word.policy = {1, 1, 1};
    word.rank = rank;
    word.serial = ++said[rank];
    job[static_cast<int>(rank)].membership->say(job.fabric.now(), word);
  };
  PolicyWord open;
  open.kind = PolicyWord::Kind::kOpen;
  open.name = "ripples:smart";
  open.members = {0, 1, 2};
  open.hosts = {0, 1, 2};
  PolicyWord ask;
  ask.question.kind = sync::Question::Kind::kGroup;
  for (std::uint32_t rank = 0; rank < 3; ++rank) say(rank, open);
  job.run_for(50_ms);
  job.damage(1, 0, Job::Damage::kHeader);  // rank 1's connection is of no use from its next word on
  for (std::uint32_t rank = 0; rank < 3; ++rank) say(rank, ask);
  job.run_for(3_s);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(job[rank].died.empty());
    ASSERT_EQ(job[rank].policy_replies.size(), 1u) << rank;
    EXPECT_EQ(job[rank].policy_replies[0].kind, sync::Answer::Kind::kGroup);
    EXPECT_EQ(job[rank].policy_replies[0].members, (std::vector<std::uint32_t>{0, 1, 2}));
  }
}

struct Garbled {
  std::string name;
  std::vector<std::pair<int, int>> ways;  // from, to
  Job::Damage where;
  bool caller_driven = false;  // rank 0's engine is: it may be silent, so that its silence tells nothing
};
void PrintTo(const Garbled& g, std::ostream* os) { *os << g.name; }
class MembershipGarbled : public ::testing::TestWithParam<Garbled> {
 protected:
  JobOptions options() const {
    const bool driven = GetParam().caller_driven;
    return {.engines = 4,
            .amend = [driven](int host, MembershipOptions* m) { m->caller_driven = driven && host == 0; }};
  }
  static void damage(Job& job) {
    for (const auto& [from, to] : GetParam().ways) job.damage(from, to, GetParam().where);
  }
};
INSTANTIATE_TEST_SUITE_P(Membership, MembershipGarbled,
                         ::testing::Values(Garbled{"header_from_member", {{1, 0}}, Job::Damage::kHeader},
                                           Garbled{"header_to_member", {{0, 1}}, Job::Damage::kHeader},
                                           Garbled{"headers_both_ways", {{0, 1}, {1, 0}}, Job::Damage::kHeader},
                                           Garbled{"header_to_one_who_calls", {{1, 0}}, Job::Damage::kHeader, true},
                                           Garbled{"payload_from_member", {{1, 0}}, Job::Damage::kPayload},
                                           Garbled{"payload_to_member", {{0, 1}}, Job::Damage::kPayload},
                                           Garbled{"payloads_both_ways", {{0, 1}, {1, 0}}, Job::Damage::kPayload}),
                         [](const auto& which) { return which.param.name; });

TEST_P(MembershipGarbled, NamesNobodyAndTheWayIsBackAtOnce) {
  Job job(options());
  job.join();
  for (int round = 0; round < 10; ++round) {
    damage(job);
    job.run_for(20_ms);
    job.run_for(Nanos{round * 100'000'000});
    for (int h = 0; h < 4; ++h) ASSERT_TRUE(job[h].died.empty()) << "round " << round << " host " << h;
    // Over a connection of its own, which both ends read.
    std::vector<Lane*> lanes;
    job.fabric.lanes_between(1, 0, &lanes);
    EXPECT_EQ(lanes.size(), 1u);
    job.fabric.lanes_between(0, 1, &lanes);
    EXPECT_EQ(lanes.size(), 1u);
    Verdict v;
    v.flow = static_cast<std::uint32_t>(round + 1);
    job[1].membership->flood(v);
    ++v.epoch;
    job[2].membership->flood(v);
    job.run_for(10_ms);
    EXPECT_EQ(job[3].verdicts.size(), static_cast<std::size_t>(2 * round + 2));
    EXPECT_EQ(job[1].verdicts.size(), static_cast<std::size_t>(round + 1));
  }
  job.run_for(10_s);
  for (int h = 0; h < 4; ++h) EXPECT_TRUE(job[h].died.empty()) << h;
  EXPECT_LT(job.fabric.now() - job[0].membership->last_heard(1), 500_ms);
  EXPECT_LT(job.fabric.now() - job[1].membership->last_heard(0), 500_ms);
}

TEST_P(MembershipGarbled, DeathsAreStillToldAtOnce) {
  for (const int victim : {0, 1}) {
    Job job(options());
    job.join();
    damage(job);
    job.run_for(1_s);
    job.kill(victim);
    const Nanos at = job.fabric.now();
    job.run_for(1_s);
    for (int h = 0; h < 4; ++h) {
      if (h == victim) continue;
      ASSERT_EQ(job[h].died.count(static_cast<std::uint32_t>(victim)), 1u) << h;
      EXPECT_EQ(job[h].died.size(), 1u);
      EXPECT_LT(job[h].died_at - at, 10_ms);
    }
  }
}

TEST_P(MembershipGarbled, ACoordinatorThatDiesMeanwhileIsFound) {
  Job job(options());
  job.join();
  damage(job);
  job.run_for(70_us);  // it has arrived; the answer has not
  job.kill(0);
  job.run_for(3_s);
  for (int h = 1; h < 4; ++h) EXPECT_EQ(job[h].died.count(0), 1u) << h;
}

TEST_P(MembershipGarbled, LeavingIsNoDeathAfterIt) {
  for (const int leaver : {0, 1}) {
    Job job(options());
    job.join();
    damage(job);
    job.run_for(20_ms);
    job.finish(leaver);
    job.run_for(5_s);
    for (int h = 0; h < 4; ++h) {
      if (h == leaver) continue;
      EXPECT_TRUE(job[h].died.empty()) << h;
    }
  }
}

// A damaged frame may have been a member's REJOIN: a refusal would evict it.
TEST_P(MembershipGarbled, ANewcomerThatCanNotBeReadIsSentBackNotRefused) {
  Job job(options());
  job.join();
  Stranger newcomer(job, 1);
  newcomer.hello(wire::kVersion, wire::kVersion, job.options.join_token);
  const auto bytes = control::encode(control::Rejoin{});
  wire::Header header;
  header.kind = wire::Kind::kControl;
  header.payload_bytes = static_cast<std::uint32_t>(bytes.size());
  header.payload_crc32 = wire::payload_crc(bytes.data(), bytes.size()) ^ 1;
  wire::seal(header);
  ASSERT_TRUE(newcomer.lane->send(header, bytes.data(), 0));
  newcomer.lane->flush(job.fabric.now());
  newcomer.step(1, 20_ms);
  ASSERT_EQ(newcomer.messages.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<control::Retract>(newcomer.messages[0]));
}

// The roster would be said on a connection that nobody reads any more.
TEST(MembershipRejoin, WhoIsOnTheWayBackWhenTheLastOneComesIsWaitedFor) {
  for (int us = 0; us < 800; us += 10) {
    Job job({.engines = 3});
    job.start(0);
    job.start(1);
    job.run_for(1_s);
    job.start(2);
    job.run_for(Nanos{us * 1000});
    if (job[1].roster) break;
    job.damage(1, 0, Job::Damage::kPayload);
    job.run_for(5_s);
    ASSERT_TRUE(job.all_joined()) << us << " us: " << job[1].join_status.to_string();
  }
}

TEST(MembershipRejoin, WhoNeverComesBackIsNamedAsMissing) {
  Job job({.engines = 3, .join_timeout = 2_s});
  job.start(0);
  job.start(1);
  job.run_for(500_ms);
  job.fabric.block(0, 1);
  job.damage(1, 0, Job::Damage::kPayload);
  std::vector<Lane*> lanes;
  job.fabric.lanes_between(1, 0, &lanes);
  job.run_for(5_s);
  EXPECT_EQ(job[0].join_status.code(), CANARY_JOIN) << job[0].join_status.to_string();
  EXPECT_TRUE(job[0].join_status.text().find("rank 2") != std::string::npos ||
              job[0].join_status.text().find("ranks 1") != std::string::npos)
      << job[0].join_status.text();
}

TEST(MembershipRejoin, AnAbandonedEngineIsKnownToBeGoneAtOnce) {
  for (const int victim : {0, 1}) {
    Job job({.engines = 4});
    job.join();
    job[victim].membership->abandon();
    const Nanos at = job.fabric.now();
    (void)job[victim].membership->next_deadline();
    job.run_for(50_ms);
    for (int h = 0; h < 4; ++h) {
      if (h == victim) continue;
      ASSERT_EQ(job[h].died.count(static_cast<std::uint32_t>(victim)), 1u) << "victim " << victim << ", host " << h;
      EXPECT_LT(job[h].died_at - at, 10_ms);
    }
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
    options.fabric.nic =
        NicOptions::link(seed % 3 == 0 ? 40_ms : 20_us);  // the way back may be far slower than control
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
      EXPECT_LT(job.fabric.now() - job[0].membership->last_heard(static_cast<std::uint32_t>(h)), 500_ms)
          << "seed " << seed;
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
  const bool first_rail =
      lanes[1]->description().find(job.fabric.factory(0).rails()[0].address.to_string()) != std::string::npos;
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
    Job job({.engines = 2, .join_token = 0});
    job.start(0);
    const auto say = [](Stranger& s, const control::Message& m) {
      const auto bytes = control::encode(m);
      s.say(wire::Kind::kControl, bytes.data(), bytes.size());
    };
    Stranger first(job, 1);
    first.hello(wire::kVersion, wire::kVersion);
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
      second.hello(wire::kVersion, wire::kVersion);
      say(second, control::Rejoin{token, 1, 1});
      if (retract) say(second, control::Retract{});
    }  // its end
    first.step(1, 50_ms);
    EXPECT_EQ(job[0].died.count(1), retract ? 0u : 1u);
    Stranger third(job, 1);
    third.hello(wire::kVersion, wire::kVersion);
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
    EXPECT_LT(job.fabric.now() - job[sleeper].membership->last_heard(static_cast<std::uint32_t>(other)), 600_ms)
        << sleeper;
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

// Its silence is no news, and nobody waits for it with a deadline that has passed: "time stands still", then.
TEST(MembershipRejoin, ACoordinatorThatRunsOnlyInItsCallersCallsMayBeSilent) {
  Job job({.engines = 3, .amend = [](int host, MembershipOptions* m) { m->caller_driven = host == 0; }});
  job.join();
  job.fabric.freeze(0);
  job.run_for(5_s);
  job.fabric.thaw(0);
  job.run_for(1_s);
  for (int h = 0; h < 3; ++h) EXPECT_TRUE(job[h].died.empty()) << h;
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

}  // namespace
}  // namespace canarynet
