// The coordinator's end, and who coordinates after it.
#include "control/succession.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "control/membership_test_util.h"
#include "sim/warnings_test_util.h"

namespace canarynet {
namespace {

// Every engine from `first` on asks for the group of all of them, for its first rank.
void ask_for_all(Job& job, int first, std::uint64_t cookie) {
  std::vector<int> members;
  for (int h = first; h < job.options.engines; ++h) members.push_back(h);
  for (const int h : members) {
    if (job.alive(h)) job[h].membership->request_group(job.fabric.now(), h, members, cookie);
  }
}

// The flow of the group that they have by now; 0: not all have it, or not the same one.
std::uint32_t flow_of_all(Job& job, int first, std::uint64_t cookie) {
  std::uint32_t flow = 0;
  for (int h = first; h < job.options.engines; ++h) {
    const auto found = job[h].flows.find({h, cookie});
    if (found == job[h].flows.end() || (flow != 0 && found->second != flow)) return 0;
    flow = found->second;
  }
  return flow;
}

void expect_coordinator(Job& job, int first, std::uint32_t engine) {
  for (int h = first; h < job.options.engines; ++h) EXPECT_EQ(job[h].membership->coordinator(), engine) << h;
}

void expect_coordinator_of(std::initializer_list<Party*> parties, std::uint32_t engine) {
  for (Party* p : parties) EXPECT_EQ(p->membership->coordinator(), engine);
}

TEST(Succession, TheNextEngineCoordinatesAfterADeath) {
  Job job({.engines = 5});
  job.join();
  ask_for_all(job, 0, 1);
  job.run_for(1_s);
  const std::uint32_t before = flow_of_all(job, 0, 1);
  ASSERT_NE(before, 0u);
  job.kill(0);
  job.run_for(100_ms);
  expect_coordinator(job, 1, 1);
  ask_for_all(job, 1, 2);
  job.run_for(100_ms);
  EXPECT_GT(flow_of_all(job, 1, 2), before) << "numbers are not used again";
  // What a coordinator is for: verdicts, deaths, leaves, questions, connections, and who is heard.
  Verdict v;
  v.code = CANARY_ABORTED;
  v.rank = 3;
  v.flow = 5;
  job[3].membership->flood(v);
  job[2].membership->ask_entered(job.fabric.now(), {7, 1});
  job[4].membership->ask_to_connect(job.fabric.now(), 2);
  job.run_for(300_ms);
  for (const int h : {1, 2, 4}) EXPECT_EQ(job[h].verdicts.size(), 1u) << h;
  for (const int h : {1, 2, 3, 4}) {
    ASSERT_EQ(job[h].entered.size(), 1u) << h;
    std::vector<std::uint32_t> heard = job[h].entered[0].heard;
    std::sort(heard.begin(), heard.end());
    EXPECT_EQ(heard, (std::vector<std::uint32_t>{1, 2, 3, 4})) << h;
  }
  EXPECT_EQ(job[2].wanted_by, std::vector<std::uint32_t>{4});
  job.kill(3);
  job.run_for(50_ms);
  for (const int h : {1, 2, 4}) EXPECT_EQ(job[h].died.count(3), 1u) << h;
  job.finish(4);
  job.run_for(5_s);
  for (const int h : {1, 2}) {
    EXPECT_EQ(job[h].left, std::vector<std::uint32_t>{4}) << h;
    EXPECT_EQ(job[h].last_words.size(), 1u) << h;
    EXPECT_EQ(job[h].died.size(), 2u) << h;
    EXPECT_LT(job.fabric.now() - job[h].membership->last_heard(static_cast<std::uint32_t>(3 - h)), 500_ms);
    EXPECT_EQ(job[h].coordinators, std::vector<std::uint32_t>{1});
  }
}

TEST(Succession, OneAfterAnotherUntilOneIsLeft) {
  Job job({.engines = 5});
  job.join();
  std::uint32_t last = 0;
  for (int h = 0; h < 4; ++h) {
    // Some die, some leave.
    if (h % 2 == 0) {
      job.kill(h);
    } else {
      job.finish(h);
    }
    ask_for_all(job, h + 1, static_cast<std::uint64_t>(h) + 1);  // in the midst of it
    job.run_for(1_s);
    expect_coordinator(job, h + 1, static_cast<std::uint32_t>(h) + 1);
    const std::uint32_t flow = flow_of_all(job, h + 1, static_cast<std::uint64_t>(h) + 1);
    EXPECT_GT(flow, last) << h;
    last = flow;
  }
  EXPECT_EQ(job[4].died.size(), 2u);
  EXPECT_EQ(job[4].left, (std::vector<std::uint32_t>{1, 3}));
}

// As where a machine with the first ranks of a job loses all its processes.
TEST(Succession, WhoDiedWithItIsPassedOver) {
  Job job({.engines = 6});
  job.join();
  job.run_for(1_s);
  for (const int h : {0, 1, 2}) job.kill(h);
  job.run_for(1_s);
  expect_coordinator(job, 3, 3);
  ask_for_all(job, 3, 1);
  job.run_for(100_ms);
  EXPECT_NE(flow_of_all(job, 3, 1), 0u);
  for (int h = 3; h < 6; ++h) {
    EXPECT_EQ(job[h].died.count(0), 1u);
    EXPECT_EQ(job[h].ended, (std::vector<std::uint32_t>{1, 2})) << h << ": whether they died or left, lanes tell";
  }
}

// Nobody saw their end: they are not between the dead one and its successor.
TEST(Succession, WhoDoesNotComeIsCalledAndFoundToHaveEnded) {
  Job job({.engines = 6});
  job.join();
  job.run_for(1_s);
  for (const int h : {0, 3, 5}) job.kill(h);
  job.fabric.freeze(4);  // it lives
  job.run_for(4_s);
  for (const int h : {1, 2}) {
    std::vector<std::uint32_t> ended = job[h].ended;
    std::sort(ended.begin(), ended.end());
    EXPECT_EQ(ended, (std::vector<std::uint32_t>{3, 5})) << h;
    EXPECT_EQ(job[h].died.size(), 1u) << h;
  }
  job.fabric.thaw(4);
  job.run_for(2_s);
  EXPECT_EQ(job[4].ended.size(), 2u);
  EXPECT_EQ(job[4].membership->coordinator(), 1u);
  // All that live are there: nobody is called any more.
  const Nanos next = job[1].membership->next_deadline();
  EXPECT_GT(next, job.fabric.now());
  job[1].membership->request_group(job.fabric.now(), 1, {1, 3}, 1);
  job.run_for(10_ms);
  EXPECT_EQ((job[1].group_errors[{1, 1}].code()), CANARY_PEER_DIED);
}

// One of its NICs answers no more, or is unplugged: the other one's refusal has to do.
TEST(Succession, AnAddressThatNeverAnswersHoldsNobodyUp) {
  Job job({.engines = 5});
  job.join();
  job.run_for(1_s);
  for (const int h : {0, 1, 3}) job.kill(h);
  job.fabric.nic_down(1, 0, NicDeath::kSilent);
  job.fabric.nic_down(3, 1, NicDeath::kSilent);
  job.run_for(9_s);  // three for the successor, and three for the one that did not come
  expect_coordinator_of({&job[2], &job[4]}, 2);
  for (const int h : {2, 4}) {
    std::vector<std::uint32_t> ended = job[h].ended;
    std::sort(ended.begin(), ended.end());
    EXPECT_EQ(ended, (std::vector<std::uint32_t>{1, 3})) << h;
  }
}

// A firewall refuses as well as a machine does whose process has ended. Lanes know better.
TEST(Succession, WhoeverALaneStandsToIsNotPassedOver) {
  Job job({.engines = 4});
  job.join();
  job.run_for(1_s);
  for (const int h : {2, 3}) job[h].standing = {1};
  job.kill(0);
  job.kill(1);
  const Warnings warnings;
  job.run_for(3_s);
  expect_coordinator_of({&job[2], &job[3]}, 1);
  EXPECT_TRUE(job[2].ended.empty());
  for (const int h : {2, 3}) job[h].standing.clear();
  job.run_for(3_s);
  expect_coordinator_of({&job[2], &job[3]}, 2);
}

TEST(Succession, WhereNobodyIsLeftThatCouldThatIsSaid) {
  Job job({.engines = 3});
  for (const int h : {1, 2}) {
    Address taken;
    ASSERT_TRUE(job.fabric.factory(h).listen_control(taken).ok());
  }
  job.join();
  job[1].membership->request_group(job.fabric.now(), 1, {1, 2}, 1);
  job.run_for(100_ms);
  job.kill(0);
  job.run_for(1_s);
  for (const int h : {1, 2}) {
    EXPECT_EQ(job[h].lost.code(), CANARY_COORDINATOR_LOST) << h;
    EXPECT_EQ(job[h].died.size(), 1u) << h;
  }
  EXPECT_EQ((job[1].group_errors[{1, 1}].code()), CANARY_COORDINATOR_LOST);
  job[2].membership->request_group(job.fabric.now(), 2, {1, 2}, 2);
  job.run_for(100_ms);
  EXPECT_EQ((job[2].group_errors[{2, 2}].code()), CANARY_COORDINATOR_LOST);
}

TEST(Succession, AnEngineThatNobodyCouldFindIsPassedOver) {
  Job job({.engines = 4});
  // Something else listens at the port of control on host 1.
  Address taken;
  ASSERT_TRUE(job.fabric.factory(1).listen_control(taken).ok());
  job.join();
  EXPECT_EQ(job[0].roster->engines[1].control.port, 0);
  job.kill(0);
  job.run_for(500_ms);
  expect_coordinator(job, 1, 2);
  ask_for_all(job, 1, 1);
  job.run_for(100_ms);
  EXPECT_NE(flow_of_all(job, 1, 1), 0u);
}

// The coordinator dies at any moment of the forming of two groups; some members have been told of one, of both or of
// none by then. All come to the same ones.
TEST(Succession, AGroupIsOneForAllWhereverTheCoordinatorDies) {
  int told_some = 0;
  for (int step = 0; step < 120; ++step) {
    JobOptions options{.engines = 4};
    options.fabric.stream = step % 2 == 0;  // else what is lost stays so
    Job job(options);
    job.join();
    job.run_for(1_s);
    ask_for_all(job, 1, 1);
    ask_for_all(job, 1, 2);
    // Its answers to one of them are lost in some of the runs.
    if (step % 3 != 0) job.fabric.block(0, step % 3, kBlockAll, false);
    job.run_for(Nanos{step / 2 * 5'000});
    std::size_t told = 0;
    for (int h = 1; h < 4; ++h) told += job[h].flows.size();
    if (told != 0 && told != 6 && !options.fabric.stream) ++told_some;
    job.kill(0);
    job.fabric.unblock(0, step % 3 != 0 ? step % 3 : 1);
    job.run_for(2_s);
    const std::uint32_t one = flow_of_all(job, 1, 1), two = flow_of_all(job, 1, 2);
    ASSERT_NE(one, 0u) << "step " << step;
    ASSERT_NE(two, 0u) << "step " << step;
    ASSERT_LT(one, two) << "step " << step;
    ask_for_all(job, 1, 3);
    job.run_for(100_ms);
    ASSERT_GT(flow_of_all(job, 1, 3), two) << "step " << step;
  }
  EXPECT_GT(told_some, 3) << "the cases that this test is for did not come up";
}

TEST(Succession, AThousandEnginesFindTheNextOne) {
  const bool quick = std::getenv("CANARY_TEST_QUICK") != nullptr;
  Job job({.engines = quick ? 300 : 1000, .join_timeout = 60_s});
  job.join();
  job.run_for(1_s);
  const Nanos died = job.fabric.now();
  job.kill(0);
  ask_for_all(job, 1, 1);
  while (flow_of_all(job, 1, 1) == 0 && job.fabric.now() < died + 10_s) job.run_for(10_ms);
  EXPECT_LT(job.fabric.now() - died, 1_s);
  job.kill(100);
  job.run_for(100_ms);
  for (const int h : {1, 2, job.options.engines - 1}) EXPECT_EQ(job[h].died.size(), 2u) << h;
}

TEST(Succession, GroupsWithTheDeadFailAndOthersThatWaitAreFormed) {
  Job job({.engines = 3});
  job.join();
  job[1].membership->request_group(job.fabric.now(), 1, {0, 1}, 1);
  job[1].membership->request_group(job.fabric.now(), 1, {1, 2}, 2);
  job.run_for(100_ms);
  job.kill(0);
  job.run_for(100_ms);
  EXPECT_EQ((job[1].group_errors[{1, 1}].code()), CANARY_PEER_DIED);
  job[2].membership->request_group(job.fabric.now(), 2, {1, 2}, 1);
  job.run_for(100_ms);
  EXPECT_NE((job[1].flows[{1, 2}]), 0u);
  EXPECT_EQ((job[1].flows[{1, 2}]), (job[2].flows[{2, 1}]));
}

TEST(Succession, WhoComesLateIsWaitedFor) {
  Job job({.engines = 4});
  job.join();
  job.run_for(1_s);
  job.fabric.freeze(3);
  job.run_for(10_ms);
  job.kill(0);
  job.run_for(3_s);
  ask_for_all(job, 1, 1);
  job.run_for(1_s);
  EXPECT_EQ(job[1].flows.size(), 0u);
  job.fabric.thaw(3);
  job.run_for(2_s);
  EXPECT_NE(flow_of_all(job, 1, 1), 0u);
  expect_coordinator(job, 1, 1);
}

TEST(Succession, ASuccessorThatDoesNotKnowYetIsWaitedFor) {
  Job job({.engines = 4});
  job.join();
  job.run_for(1_s);
  job.fabric.freeze(1);
  job.run_for(10_ms);
  job.kill(0);
  job.run_for(2_s);
  expect_coordinator(job, 2, 1);
  ask_for_all(job, 1, 1);
  job.run_for(1_s);
  job.fabric.thaw(1);
  job.run_for(2_s);
  expect_coordinator(job, 1, 1);
  EXPECT_NE(flow_of_all(job, 1, 1), 0u);
  for (int h = 1; h < 4; ++h) EXPECT_EQ(job[h].died.size(), 1u) << h;
}

// Silence proves nothing: two halves of a divided network would both go on.
TEST(Succession, ASilentMachineIsNotSucceeded) {
  Job job({.engines = 3});
  job.join();
  job.kill(0, CrashKind::kSilent);
  job.run_for(20_s);
  expect_coordinator(job, 1, 0);
  for (const int h : {1, 2}) EXPECT_TRUE(job[h].coordinators.empty());
}

TEST(Succession, DeathsThatSomeHaveNotHeardOfAreTold) {
  Job job({.engines = 5});
  job.join();
  job.run_for(1_s);
  job.fabric.block(0, 4);  // it hears of nothing
  job.run_for(10_ms);
  job.kill(3);
  job.run_for(100_ms);
  EXPECT_TRUE(job[4].died.empty());
  job.kill(0);
  job.fabric.unblock(0, 4);
  job.run_for(3_s);
  EXPECT_EQ(job[4].died.count(3), 1u);
  EXPECT_EQ(job[4].died.count(0), 1u);
  // And where the one that has not heard is the successor, and never will by itself.
  JobOptions lossy{.engines = 5};
  lossy.fabric.stream = false;
  Job other(lossy);
  other.join();
  other.run_for(1_s);
  other.fabric.block(0, 1);
  other.run_for(10_ms);
  other.kill(3);
  other.run_for(100_ms);
  other.kill(0);
  other.fabric.unblock(0, 1);
  other.run_for(3_s);
  expect_coordinator(other, 4, 1);
  for (const int h : {1, 2, 4}) EXPECT_EQ(other[h].died.count(3), 1u) << h;
}

// One that says what only members know is a member; a stranger at the successor's port is nobody.
TEST(Succession, StrangersDoNotMakeACoordinator) {
  Job job({.engines = 3});
  job.join();
  job.run_for(1_s);
  Address port = job.fabric.control_address(1);
  port.port = job[0].roster->engines[1].control.port;
  struct Sink final : LaneSink {
    void on_up(Lane&) override {}
    Landing landing_for(Lane&, const wire::Header&) override { return {Landing::Kind::kSlot, nullptr, 0}; }
    void on_frame(Lane&, const wire::Header&, const Arrival&) override {}
    void on_writable(Lane&) override {}
    void on_down(Lane&, const Status&, bool) override {}
  } sink;
  std::vector<std::unique_ptr<Lane>> lanes;
  const auto say = [&](wire::Kind kind, const void* data, std::size_t bytes) {
    wire::Header header;
    header.kind = kind;
    header.payload_bytes = static_cast<std::uint32_t>(bytes);
    header.payload_crc32 = wire::payload_crc(data, bytes);
    wire::seal(header);
    EXPECT_TRUE(lanes.back()->send(header, static_cast<const std::byte*>(data), 0));
    lanes.back()->flush(job.fabric.now());
  };
  for (const std::uint64_t job_token : {0, 42}) {  // not of the job, and of it
    auto dialled = job.fabric.factory(2).dial(kControlRail, port, sink);
    ASSERT_TRUE(dialled.ok());
    lanes.push_back(dialled.take());
    job.run_for(10_ms);
    const wire::HelloPayload hello{.job = job_token, .engine = 2, .rail = 0xffff, .purpose = wire::kHelloControl};
    say(wire::Kind::kHello, &hello, sizeof hello);
    for (const control::Message& message :
         {control::Message{control::Rejoin{job_token, 2, 7, 1, 0}}, control::Message{control::Death{0, "so"}},
          control::Message{control::GroupKnown{{2}, 3, {1, 2}}}}) {
      const auto bytes = control::encode(message);
      say(wire::Kind::kControl, bytes.data(), bytes.size());
    }
    job.run_for(1_s);
  }
  expect_coordinator(job, 0, 0);
  for (int h = 0; h < 3; ++h) EXPECT_TRUE(job[h].died.empty()) << h;
  ask_for_all(job, 0, 1);
  job.run_for(100_ms);
  EXPECT_NE(flow_of_all(job, 0, 1), 0u);
}

PolicyWord word_of(std::uint32_t rank, PolicyWord::Kind kind, std::uint32_t serial) {
  PolicyWord word;
  word.kind = kind;
  word.policy = {1, 2, 3};
  word.rank = rank;
  word.serial = serial;
  word.name = "ripples:smart";
  word.members = {1, 2, 3};
  word.hosts = {0, 1, 2};
  word.question.kind = sync::Question::Kind::kGroup;
  return word;
}

// Two of three have asked for a group when the generator dies with its engine; the third one asks the next one.
TEST(Succession, APolicyGoesOnAtTheSuccessor) {
  Job job({.engines = 4});
  job.join();
  for (int h = 1; h < 4; ++h) {
    const auto rank = static_cast<std::uint32_t>(h);
    job[h].membership->say(job.fabric.now(), word_of(rank, PolicyWord::Kind::kOpen, 1));
    if (h != 3) job[h].membership->say(job.fabric.now(), word_of(rank, PolicyWord::Kind::kAsk, 2));
    PolicyWord resume = word_of(rank, PolicyWord::Kind::kResume, 3);
    resume.asked = resume.open = h != 3;
    job[h].resumes = {resume};
  }
  job.run_for(100_ms);
  job.kill(0);
  job.run_for(100_ms);
  for (int h = 1; h < 4; ++h) EXPECT_TRUE(job[h].policy_replies.empty()) << h;
  job[3].membership->say(job.fabric.now(), word_of(3, PolicyWord::Kind::kAsk, 4));
  job.run_for(100_ms);
  for (int h = 1; h < 4; ++h) {
    ASSERT_EQ(job[h].policy_replies.size(), 1u) << h;
    EXPECT_EQ(job[h].policy_replies[0].failed, CANARY_OK) << job[h].policy_replies[0].text;
    EXPECT_EQ(job[h].policy_replies[0].members, (std::vector<std::uint32_t>{0, 1, 2})) << h;
  }
}

// Nobody coordinates just then. The others are not to wait for it.
TEST(Succession, AWorkerThatOpensAPolicyAndLeavesItMeanwhileIsHeard) {
  Job job({.engines = 4});
  job.join();
  job.kill(0);
  for (int i = 0; i < 1000 && job[3].membership->coordinator() == 0; ++i) job.run_for(100_us);
  ASSERT_EQ(job[3].membership->coordinator(), 1u);
  job[3].membership->say(job.fabric.now(), word_of(3, PolicyWord::Kind::kOpen, 1));
  job[3].membership->say(job.fabric.now(), word_of(3, PolicyWord::Kind::kLeave, 2));
  job.run_for(20_ms);
  for (const std::uint32_t rank : {1u, 2u}) {
    Membership& membership = *job[static_cast<int>(rank)].membership;
    membership.say(job.fabric.now(), word_of(rank, PolicyWord::Kind::kOpen, 1));
    membership.say(job.fabric.now(), word_of(rank, PolicyWord::Kind::kAsk, 2));
  }
  job.run_for(2_s);
  ASSERT_EQ(job[3].policy_replies.size(), 1u);
  EXPECT_TRUE(job[3].policy_replies[0].last);
  for (int h = 1; h < 3; ++h) {
    ASSERT_EQ(job[h].policy_replies.size(), 1u) << h;
    EXPECT_EQ(job[h].policy_replies[0].members, (std::vector<std::uint32_t>{0, 1})) << h;
  }
}

}  // namespace
}  // namespace canarynet
