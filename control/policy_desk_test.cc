#include "control/policy_desk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/random.h"

namespace canarynet::control {
namespace {

using sync::Answer;
using sync::Question;

constexpr PolicyId kId{1, 9, 4};

// A worker's words, in order.
struct Speaker {
  std::uint32_t rank;
  std::uint32_t serial = 0;
  std::uint32_t seen = 0;

  PolicyWord open(const std::string& name, std::vector<int> members) {
    PolicyWord word = say(PolicyWord::Kind::kOpen);
    word.name = name;
    for (std::uint32_t host = 0; host < members.size(); ++host) word.hosts.push_back(host);
    word.members = std::move(members);
    return word;
  }
  PolicyWord ask(Question::Kind kind, std::int64_t number = 0, sync::Iteration iterations = 0, Nanos capability = {}) {
    PolicyWord word = say(PolicyWord::Kind::kAsk);
    word.question.kind = kind;
    word.question.number = number;
    word.question.iterations = iterations;
    word.question.capability = capability;
    return word;
  }
  PolicyWord say(PolicyWord::Kind kind) {
    PolicyWord word;
    word.kind = kind;
    word.policy = kId;
    word.rank = rank;
    word.serial = ++serial;
    word.seen = seen;
    return word;
  }
};

// Three workers, ranks 2, 3 and 5 of six.
struct Desk {
  explicit Desk(const std::string& name = "ripples:smart") {
    for (Speaker& s : speakers) hear(s.open(name, {2, 3, 5}));
    EXPECT_TRUE(replies.empty()) << replies.front().text;
  }
  void hear(const PolicyWord& word, Nanos now = {}) { desk.hear(now, word, &replies); }
  std::vector<PolicyReply> take() { return std::exchange(replies, {}); }

  PolicyDesk desk{6, 1};
  Speaker speakers[3] = {{2}, {3}, {5}};
  std::vector<PolicyReply> replies;
};

TEST(PolicyDesk, AGroupIsToldToItsMembersInTheirOwnNumbers) {
  Desk d;
  for (Speaker& s : d.speakers) d.hear(s.ask(Question::Kind::kGroup));
  const auto replies = d.take();
  ASSERT_EQ(replies.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(replies[i].kind, Answer::Kind::kGroup);
    EXPECT_EQ(replies[i].rank, d.speakers[i].rank);
    EXPECT_EQ(replies[i].members, (std::vector<std::uint32_t>{0, 1, 2}));
    EXPECT_EQ(replies[i].serial, 1u);
    EXPECT_EQ(replies[i].heard, 2u);
  }
}

TEST(PolicyDesk, WhatIsSaidTwiceCountsOnce) {
  Desk d;
  const PolicyWord question = d.speakers[0].ask(Question::Kind::kGroup);
  d.hear(question);
  d.hear(question);
  d.hear(d.speakers[1].ask(Question::Kind::kGroup));
  d.hear(d.speakers[2].ask(Question::Kind::kGroup));
  EXPECT_EQ(d.take().size(), 3u);
  d.hear(question);  // if it counted, it would be a new question
  for (int i = 1; i < 3; ++i) {
    d.speakers[i].seen = 1;
    d.hear(d.speakers[i].ask(Question::Kind::kDone, 1));
    d.hear(d.speakers[i].ask(Question::Kind::kGroup));
  }
  EXPECT_TRUE(d.take().empty()) << "worker 0 has not asked again";
}

// A random group may take a worker that has yet to open the policy.
TEST(PolicyDesk, WhatIsAskedOfAWorkerBeforeItIsThereWaitsForIt) {
  PolicyDesk desk(2, 1);
  std::vector<PolicyReply> replies;
  Speaker first{0}, second{1};
  desk.hear({}, first.open("ripples:random,group=2", {0, 1}), &replies);
  desk.hear({}, first.ask(Question::Kind::kGroup), &replies);
  ASSERT_EQ(replies.size(), 1u) << "the other could not hear it";
  EXPECT_EQ(replies[0].rank, 0u);
  replies.clear();
  desk.hear({}, second.open("ripples:random,group=2", {0, 1}), &replies);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].rank, 1u);
  EXPECT_EQ(replies[0].members, (std::vector<std::uint32_t>{0, 1}));
}

TEST(PolicyDesk, WhatAWorkerHasNotSeenIsRepeated) {
  Desk d;
  for (Speaker& s : d.speakers) d.hear(s.ask(Question::Kind::kGroup));
  const auto first = d.take();
  d.desk.repeat({3}, &d.replies);
  const auto again = d.take();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].rank, 3u);
  EXPECT_EQ(again[0].serial, 1u);
  EXPECT_EQ(again[0].members, first[1].members);
  d.speakers[1].seen = 1;
  d.hear(d.speakers[1].ask(Question::Kind::kDone, 1));
  d.desk.repeat({3}, &d.replies);
  EXPECT_TRUE(d.take().empty());
}

TEST(PolicyDesk, ADeadWorkerIsWaitedForByNobody) {
  Desk d;
  d.hear(d.speakers[0].ask(Question::Kind::kGroup));
  d.hear(d.speakers[1].ask(Question::Kind::kGroup));
  EXPECT_TRUE(d.take().empty());
  d.desk.ranks_gone({}, {5}, &d.replies);
  const auto replies = d.take();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].members, (std::vector<std::uint32_t>{0, 1}));
  d.hear(d.speakers[2].ask(Question::Kind::kGroup));
  EXPECT_TRUE(d.take().empty()) << "it is dead";
}

TEST(PolicyDesk, AWorkerThatLeavesIsHeardThoughItsWordsBeforeGotLost) {
  Desk d;
  d.hear(d.speakers[0].ask(Question::Kind::kGroup));
  (void)d.speakers[2].ask(Question::Kind::kDone, 7);
  d.hear(d.speakers[2].say(PolicyWord::Kind::kLeave));
  auto replies = d.take();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_TRUE(replies[0].last);
  d.hear(d.speakers[1].ask(Question::Kind::kGroup));
  EXPECT_EQ(d.take().size(), 2u) << "the others go on";
  d.desk.repeat({5}, &d.replies);
  EXPECT_EQ(d.take().size(), 1u) << "it may not have seen that";
  EXPECT_EQ(d.desk.open(), 1u);
  d.hear(d.speakers[0].say(PolicyWord::Kind::kLeave));
  d.hear(d.speakers[1].say(PolicyWord::Kind::kLeave));
  EXPECT_EQ(d.desk.open(), 0u);
  (void)d.take();
  d.hear(d.speakers[1].say(PolicyWord::Kind::kLeave));
  replies = d.take();
  ASSERT_EQ(replies.size(), 1u) << "it said so again, since its connection took the answer along";
  EXPECT_TRUE(replies[0].last);
  EXPECT_EQ(replies[0].rank, 3u);
  EXPECT_EQ(replies[0].serial, d.speakers[1].seen + 1);
  EXPECT_EQ(d.desk.open(), 0u);
}

// Others of the round already wait for it.
TEST(PolicyDesk, AWorkerThatLeavesEsyncOwesTheRoundThatHasBegun) {
  Desk d("esync");
  const Nanos capability[] = {10_ms, 10_ms, 100_ms};
  for (int w = 0; w < 3; ++w) d.hear(d.speakers[w].ask(Question::Kind::kPulled, 0, 0, capability[w]));
  d.hear(d.speakers[0].ask(Question::Kind::kIterated, 0, 9, capability[0]), 95_ms);
  EXPECT_EQ(d.take().size(), 1u);
  d.hear(d.speakers[1].say(PolicyWord::Kind::kLeave));
  auto replies = d.take();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].kind, Answer::Kind::kAggregate);
  EXPECT_EQ(replies[0].members, (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_TRUE(replies[1].last);
  d.hear(d.speakers[0].say(PolicyWord::Kind::kLeave));
  replies = d.take();
  ASSERT_EQ(replies.size(), 1u) << "it has been told of the round";
  EXPECT_TRUE(replies[0].last);
}

// Fast workers train on until the slow one is about to finish; all of a round get one list, also if one dies meanwhile.
TEST(PolicyDesk, ARoundOfEsyncHasOneList) {
  Desk d("esync");
  const Nanos capability[] = {10_ms, 10_ms, 100_ms};
  for (int w = 0; w < 3; ++w) d.hear(d.speakers[w].ask(Question::Kind::kPulled, 0, 0, capability[w]));
  EXPECT_TRUE(d.take().empty());
  for (int w = 0; w < 2; ++w) d.hear(d.speakers[w].ask(Question::Kind::kIterated, 0, 1, capability[w]), 10_ms);
  auto replies = d.take();
  ASSERT_EQ(replies.size(), 2u);
  for (const auto& r : replies) EXPECT_EQ(r.kind, Answer::Kind::kTrain);
  d.hear(d.speakers[0].ask(Question::Kind::kIterated, 0, 9, capability[0]), 95_ms);
  replies = d.take();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].kind, Answer::Kind::kAggregate);
  EXPECT_EQ(replies[0].members, (std::vector<std::uint32_t>{0, 1, 2}));
  d.desk.ranks_gone(96_ms, {5}, &d.replies);
  d.hear(d.speakers[1].ask(Question::Kind::kIterated, 0, 9, capability[1]), 97_ms);
  replies = d.take();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].kind, Answer::Kind::kAggregate);
  EXPECT_EQ(replies[0].members, (std::vector<std::uint32_t>{0, 1, 2})) << "worker 0 averages over these";
  for (int w = 0; w < 2; ++w) d.hear(d.speakers[w].ask(Question::Kind::kPulled, 1, 0, capability[w]), 100_ms);
  d.hear(d.speakers[0].ask(Question::Kind::kIterated, 1, 1, capability[0]), 110_ms);
  replies = d.take();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].members, (std::vector<std::uint32_t>{0, 1}));
}

TEST(PolicyDesk, WhatDoesNotFitIsRefusedByName) {
  PolicyDesk desk(6, 1);
  std::vector<PolicyReply> replies;
  const auto refused = [&](const PolicyWord& word, canary_status code, const std::string& says) {
    replies.clear();
    desk.hear({}, word, &replies);
    ASSERT_EQ(replies.size(), 1u) << says;
    EXPECT_EQ(replies[0].failed, code) << replies[0].text;
    EXPECT_NE(replies[0].text.find(says), std::string::npos) << replies[0].text;
    EXPECT_EQ(replies[0].rank, word.rank);
  };
  const auto open = [](std::uint32_t rank, const std::string& name, std::vector<int> members) {
    return Speaker{rank}.open(name, std::move(members));
  };
  refused(open(2, "ripples:smart", {3, 5}), CANARY_INVALID_ARGUMENT, "members");
  refused(open(2, "ripples:smart", {2, 2}), CANARY_INVALID_ARGUMENT, "members");
  refused(open(2, "ripples:smart", {2, 6}), CANARY_INVALID_ARGUMENT, "members");
  refused(open(2, "ripples:smart", {-1, 2}), CANARY_INVALID_ARGUMENT, "members");
  refused(open(2, "ripples:smart", {}), CANARY_INVALID_ARGUMENT, "members");
  refused(open(2, "ripples:odd", {2, 3}), CANARY_INVALID_ARGUMENT, "odd");
  refused(open(2, "bsp", {2, 3}), CANARY_INVALID_ARGUMENT, "asks nobody");
  refused(Speaker{2}.ask(Question::Kind::kGroup), CANARY_INVALID_ARGUMENT, "no policy was opened");
  replies.clear();
  desk.hear({}, open(2, "ripples:smart", {2, 3}), &replies);
  EXPECT_TRUE(replies.empty());
  refused(open(3, "esync", {2, 3}), CANARY_MISMATCH, "\"esync\" and others \"ripples:smart\"");
  refused(open(3, "ripples:smart", {3, 2}), CANARY_MISMATCH, "different members");
  refused(open(5, "ripples:smart", {2, 3, 5}), CANARY_MISMATCH, "different members");
  refused(Speaker{5}.ask(Question::Kind::kGroup), CANARY_INVALID_ARGUMENT, "no member");
  replies.clear();
  desk.hear({}, open(9, "ripples:smart", {2, 9}), &replies);
  EXPECT_TRUE(replies.empty()) << "there is no such rank";
}

// Three workers as above, whose coordinator has gone: each has asked `asked` questions and seen `seen` replies.
struct NextDesk {
  explicit NextDesk(std::string policy = "ripples:smart") : name(std::move(policy)) { desk.succeed(1_s); }
  struct Memory {
    std::optional<Question> question = {};
    Nanos ago = {};
    bool open = false;
    std::optional<sync::Recollection::Told> told = {};
  };
  void resume(int w, const Memory& memory, Nanos now = {}) {
    Speaker& s = speakers[w];
    s.serial = 7;
    s.seen = 4;
    PolicyWord word = s.say(PolicyWord::Kind::kResume);
    word.name = name;
    word.members = {2, 3, 5};
    word.hosts = {0, 1, 2};
    word.asked = memory.question.has_value();
    if (memory.question) word.question = *memory.question;
    word.ago = memory.ago;
    word.open = memory.open;
    word.has_told = memory.told.has_value();
    if (memory.told) word.told = *memory.told;
    desk.hear(now, word, &replies);
  }
  void resumed(int w, Nanos now = {}) { desk.testified(now, {static_cast<int>(speakers[w].rank)}, &replies); }
  void others(Nanos now = {}) { desk.testified(now, {0, 1, 4}, &replies); }
  std::vector<PolicyReply> take() { return std::exchange(replies, {}); }

  std::string name;
  PolicyDesk desk{6, 1};
  Speaker speakers[3] = {{2}, {3}, {5}};
  std::vector<PolicyReply> replies;
};

Question question(Question::Kind kind, std::int64_t number = 0, sync::Iteration iterations = 0, Nanos capability = {}) {
  Question q;
  q.kind = kind;
  q.number = number;
  q.iterations = iterations;
  q.capability = capability;
  return q;
}

// The answer of one was on its way when the generator died: it gets it, and the group is over when all have done it.
TEST(PolicyDesk, AGroupThatSomeWereToldOfIsToldToTheRest) {
  NextDesk d;
  d.others();
  const sync::Recollection::Told group{Answer::Kind::kGroup, 12, {0, 1, 2}, false};
  d.resume(0, {question(Question::Kind::kGroup), {}, false, group});
  d.resumed(0);
  // This one has done it already, and asks for the next one.
  d.resume(1, {question(Question::Kind::kGroup),
               {},
               true,
               sync::Recollection::Told{Answer::Kind::kGroup, 12, {0, 1, 2}, true}});
  d.resumed(1);
  EXPECT_TRUE(d.take().empty()) << "not before all have told";
  d.resume(2, {question(Question::Kind::kGroup), {}, true, {}});
  d.resumed(2);
  auto replies = d.take();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].rank, 5u);
  EXPECT_EQ(replies[0].number, 12);
  EXPECT_EQ(replies[0].members, (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_TRUE(replies[0].requested);
  EXPECT_EQ(replies[0].serial, 5u) << "its numbers go on";
  d.speakers[2].seen = 5;
  for (const int w : {0, 2}) {
    d.desk.hear({}, d.speakers[w].ask(Question::Kind::kDone, 12), &d.replies);
    d.desk.hear({}, d.speakers[w].ask(Question::Kind::kGroup), &d.replies);
  }
  replies = d.take();
  ASSERT_EQ(replies.size(), 3u);
  for (const PolicyReply& r : replies) EXPECT_GT(r.number, 12 + (1 << 19)) << "a number that nobody has used";
}

TEST(PolicyDesk, OneThatComesLateIsNotToldOfItsGroupAgain) {
  NextDesk d;
  d.others();
  const sync::Recollection::Told group{Answer::Kind::kGroup, 12, {0, 2}, false};
  d.resume(0, {question(Question::Kind::kGroup), {}, false, group});
  d.resume(1, {question(Question::Kind::kGroup), {}, true, {}});
  d.desk.poll(1_s, &d.replies);  // it is not waited for any longer
  for (const PolicyReply& r : d.take()) EXPECT_NE(r.rank, 5u);
  d.resume(2, {question(Question::Kind::kGroup), {}, false, group}, 2_s);
  d.resumed(2, 2_s);
  EXPECT_TRUE(d.take().empty()) << "it has it, and two groups at once are none";
}

// It may be in a group that nobody else has told of.
TEST(PolicyDesk, WhoHasNotComeToTheNextDeskIsPutIntoNoGroup) {
  for (const char* const name : {"ripples:random,group=3", "ripples:smart"}) {
    NextDesk d(name);
    d.others();
    d.resume(0, {question(Question::Kind::kGroup), {}, true, {}});
    d.resume(1, {question(Question::Kind::kGroup), {}, true, {}});
    d.desk.poll(1_s, &d.replies);
    const auto replies = d.take();
    ASSERT_EQ(replies.size(), 2u) << name;
    for (const PolicyReply& r : replies) EXPECT_EQ(r.members, (std::vector<std::uint32_t>{0, 1})) << name;
  }
}

// The others have gone on without it, in other groups. It takes part in no other one before it has done its own.
TEST(PolicyDesk, OneThatComesLateIsInItsGroupUntilItHasDoneIt) {
  NextDesk d("ripples:random,group=3");
  d.others();
  d.resume(0, {question(Question::Kind::kGroup), {}, true, {}});
  d.resume(1, {});
  d.desk.poll(1_s, &d.replies);
  const auto begun = d.take();
  ASSERT_EQ(begun.size(), 2u);
  d.resume(
      2,
      {question(Question::Kind::kGroup), {}, false, sync::Recollection::Told{Answer::Kind::kGroup, 12, {0, 2}, false}});
  d.resumed(2);
  for (const int w : {0, 1}) d.desk.hear({}, d.speakers[w].ask(Question::Kind::kDone, begun[0].number), &d.replies);
  d.desk.hear({}, d.speakers[0].ask(Question::Kind::kGroup), &d.replies);
  EXPECT_TRUE(d.take().empty()) << "the group of three waits for it";
  d.desk.hear({}, d.speakers[2].ask(Question::Kind::kDone, 12), &d.replies);
  EXPECT_EQ(d.take().size(), 3u);
}

TEST(PolicyDesk, ARoundOfEsyncKeepsItsListAtTheNextDesk) {
  NextDesk d("esync");
  d.others();
  d.desk.ranks_gone({}, {3}, &d.replies);  // after the list was made
  d.resume(0, {question(Question::Kind::kIterated, 5, 9, 10_ms), 1_ms, false,
               sync::Recollection::Told{Answer::Kind::kAggregate, 5, {0, 1, 2}, false}});
  d.resumed(0);
  d.resume(2, {question(Question::Kind::kIterated, 5, 1, 100_ms), 2_ms, true, {}});
  d.resumed(2);
  const auto replies = d.take();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].rank, 5u);
  EXPECT_EQ(replies[0].kind, Answer::Kind::kAggregate);
  EXPECT_EQ(replies[0].number, 5);
  EXPECT_EQ(replies[0].members, (std::vector<std::uint32_t>{0, 1, 2})) << "two lists would be a mismatch";
}

// Who is behind is one list as well: a member that dies meanwhile, or leaves, changes nothing about it.
TEST(PolicyDesk, ARoundOfEsyncHasOneSource) {
  Desk d("esync");
  const auto word = [&](int w, Question::Kind kind, sync::Iteration iterations) {
    PolicyWord said = d.speakers[w].ask(kind, 1, iterations, 10_ms);
    said.question.applied = w == 1 ? 0 : -1;
    said.question.doubted = w == 1 ? -1 : 0;
    return said;
  };
  for (int w = 0; w < 3; ++w) d.hear(word(w, Question::Kind::kPulled, 0));
  d.hear(word(0, Question::Kind::kIterated, 1), 95_ms);
  d.desk.ranks_gone(96_ms, {3}, &d.replies);  // worker 1
  d.hear(d.speakers[2].say(PolicyWord::Kind::kLeave), 97_ms);
  const auto replies = d.take();
  ASSERT_EQ(replies.size(), 3u);
  for (int i = 0; i < 2; ++i) {
    const PolicyReply& r = replies[static_cast<std::size_t>(i)];
    EXPECT_EQ(r.kind, Answer::Kind::kAggregate);
    EXPECT_EQ(r.source, 1);
    EXPECT_EQ(r.behind, (std::vector<std::uint32_t>{0, 2}));
    EXPECT_TRUE(r.counted);
  }
  EXPECT_TRUE(replies[2].last);
}

PolicyWord arrive(Speaker& s, std::int64_t round, std::int64_t applied) {
  PolicyWord word = s.ask(Question::Kind::kArrived, round, 1, 10_ms);
  word.question.applied = applied;
  return word;
}

// Worker 2 is late for round 0, and takes part in round 1 with what it has trained.
TEST(PolicyDesk, ALateWorkerOfDilocoIsBehindInItsNextRound) {
  Desk d("diloco:h=1,quorum=60");
  Nanos now;
  for (std::int64_t round = 0; round < 3; ++round) {
    for (Speaker& s : d.speakers) d.hear(arrive(s, round, round - 1), now += 10_ms);
    EXPECT_EQ(d.take().size(), 3u);
  }
  for (int w = 0; w < 2; ++w) d.hear(arrive(d.speakers[w], 3, 2), now += 10_ms);
  EXPECT_TRUE(d.take().empty()) << "it is usually there 20 ms after the first one";
  d.desk.poll(now + 100_ms, &d.replies);
  auto replies = d.take();
  ASSERT_EQ(replies.size(), 2u);
  for (const PolicyReply& r : replies) {
    EXPECT_EQ(r.members, (std::vector<std::uint32_t>{0, 1}));
    EXPECT_EQ(r.source, -1);
  }
  d.hear(arrive(d.speakers[2], 3, 2), now += 200_ms);
  EXPECT_TRUE(d.take().empty()) << "it waits for the others' next round";
  for (int w = 0; w < 2; ++w) d.hear(arrive(d.speakers[w], 4, 3), now += 10_ms);
  replies = d.take();
  ASSERT_EQ(replies.size(), 3u);
  for (const PolicyReply& r : replies) {
    EXPECT_EQ(r.number, 4);
    EXPECT_EQ(r.members, (std::vector<std::uint32_t>{0, 1, 2}));
    EXPECT_EQ(r.source, 0);
    EXPECT_EQ(r.behind, std::vector<std::uint32_t>{2});
    EXPECT_FALSE(r.counted);
  }
}

TEST(PolicyDesk, ARoundOfDilocoThatSomeWereToldOfIsToldToTheRest) {
  NextDesk d("diloco:h=1");
  d.others();
  const sync::Recollection::Told told{Answer::Kind::kAggregate, 7, {0, 1, 2}, false, 1, {2}};
  d.resume(0, {question(Question::Kind::kArrived, 7, 1, 10_ms), 9_ms, false, told});
  d.resume(1, {question(Question::Kind::kArrived, 7, 1, 10_ms), 9_ms, true, {}});
  d.resume(2, {question(Question::Kind::kArrived, 6, 1, 10_ms), 9_ms, true, {}});
  for (int w = 0; w < 3; ++w) d.resumed(w);
  auto replies = d.take();
  ASSERT_EQ(replies.size(), 2u);
  for (const PolicyReply& r : replies) {
    EXPECT_NE(r.rank, 2u) << "it knows";
    EXPECT_EQ(r.kind, Answer::Kind::kAggregate);
    EXPECT_EQ(r.number, 7);
    EXPECT_EQ(r.members, told.members);
    EXPECT_EQ(r.source, 1);
    EXPECT_EQ(r.behind, told.behind);
  }
  d.desk.hear({}, d.speakers[1].say(PolicyWord::Kind::kLeave), &d.replies);
  replies = d.take();
  ASSERT_EQ(replies.size(), 1u) << "it has been told of the round";
  EXPECT_TRUE(replies[0].last);
  for (const int w : {0, 2}) d.desk.hear({}, arrive(d.speakers[w], 8, 7), &d.replies);
  replies = d.take();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].members, (std::vector<std::uint32_t>{0, 2}));
}

// A memory that no coordinator can have left is none.
TEST(PolicyDesk, ASourceThatIsBehindIsBelievedNobody) {
  for (const auto& [source, behind] :
       {std::pair<int, std::vector<std::uint32_t>>{2, {2}}, {0, {3}}, {-1, {2}}, {5, {2}}}) {
    NextDesk d("diloco:h=1");
    d.others();
    d.resume(0, {question(Question::Kind::kArrived, 7, 1, 10_ms), 9_ms, false,
                 sync::Recollection::Told{Answer::Kind::kAggregate, 7, {0, 1, 2}, false, source, behind}});
    d.resume(1, {question(Question::Kind::kArrived, 7, 1, 10_ms), 9_ms, true, {}});
    d.resume(2, {question(Question::Kind::kArrived, 6, 1, 10_ms), 9_ms, true, {}});
    for (int w = 0; w < 3; ++w) d.resumed(w);
    for (const PolicyReply& r : d.take()) EXPECT_TRUE(r.behind.empty());
  }
}

// The state server knows by the memories when each will finish: a fast one trains on beside a slow one that has begun.
TEST(PolicyDesk, TimesOfEsyncAreRemembered) {
  NextDesk d("esync");
  d.others();
  d.resume(0, {question(Question::Kind::kPulled, 5, 0, 10_ms), 9_ms, false, {}});
  d.resume(1, {question(Question::Kind::kPulled, 5, 0, 10_ms), 9_ms, false, {}});
  d.resume(2, {question(Question::Kind::kPulled, 5, 0, 100_ms), 9_ms, false, {}});
  for (int w = 0; w < 3; ++w) d.resumed(w);
  d.desk.hear(1_ms, d.speakers[0].ask(Question::Kind::kIterated, 5, 1, 10_ms), &d.replies);
  auto replies = d.take();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].kind, Answer::Kind::kTrain);
  d.desk.hear(82_ms, d.speakers[0].ask(Question::Kind::kIterated, 5, 9, 10_ms), &d.replies);
  replies = d.take();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].kind, Answer::Kind::kAggregate) << "the slow one ends at 91 ms";
}

TEST(PolicyDesk, WhoLeavesOrDiesWhileTheNextDeskGathersIsNotForgotten) {
  NextDesk d;
  d.others();
  for (int w = 0; w < 3; ++w) d.resume(w, {question(Question::Kind::kGroup), {}, w != 2, {}});
  d.desk.hear({}, d.speakers[2].say(PolicyWord::Kind::kLeave), &d.replies);
  d.resumed(0);
  d.resumed(1);
  EXPECT_TRUE(d.take().empty());
  d.resumed(2);
  auto replies = d.take();
  ASSERT_EQ(replies.size(), 3u);
  EXPECT_TRUE(std::any_of(replies.begin(), replies.end(), [](const PolicyReply& r) { return r.rank == 5 && r.last; }));
  // One that had left before says so as it resumes.
  NextDesk before;
  before.others();
  for (int w = 0; w < 3; ++w) {
    Speaker& s = before.speakers[w];
    PolicyWord word = s.open("ripples:smart", {2, 3, 5});
    word.kind = PolicyWord::Kind::kResume;
    word.question.kind = Question::Kind::kGroup;
    word.asked = word.open = w != 2;
    word.leaves = w == 2;
    before.desk.hear({}, word, &before.replies);
    before.resumed(w);
  }
  replies = before.take();
  ASSERT_EQ(replies.size(), 3u);
  for (const PolicyReply& r : replies) {
    EXPECT_EQ(r.last, r.rank == 5);
    if (r.last) continue;
    EXPECT_EQ(r.members, (std::vector<std::uint32_t>{0, 1}));
  }
  NextDesk other;
  other.others();
  other.resume(0, {question(Question::Kind::kGroup), {}, true, {}});
  other.resume(1, {question(Question::Kind::kGroup), {}, true, {}});
  other.resume(2, {question(Question::Kind::kGroup), {}, false, {}});
  other.resumed(0);
  other.desk.ranks_gone({}, {5}, &other.replies);
  EXPECT_TRUE(other.take().empty());
  other.resumed(1);
  replies = other.take();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].members, (std::vector<std::uint32_t>{0, 1}));
}

// Pairs are made of those that do not ask, which might be told that they had left.
TEST(PolicyDesk, TheNextDeskMakesNoGroupWithAWorkerThatHadLeft) {
  NextDesk d("ad-psgd");
  d.others();
  for (int w = 0; w < 3; ++w) {
    Speaker& s = d.speakers[w];
    PolicyWord word = s.open("ad-psgd", {2, 3, 5});
    word.kind = PolicyWord::Kind::kResume;
    word.question.kind = Question::Kind::kGroup;
    word.asked = word.open = w == 0;
    word.leaves = w == 1;  // the only passive one
    d.desk.hear({}, word, &d.replies);
    d.resumed(w);
  }
  auto replies = d.take();
  ASSERT_EQ(replies.size(), 2u);
  for (const PolicyReply& r : replies) {
    EXPECT_EQ(r.last, r.rank == 3);
    EXPECT_TRUE(r.members.empty());
    if (!r.last) {
      EXPECT_EQ(r.kind, Answer::Kind::kAlone);
    }
  }
}

// Whatever workers claim, nothing crashes, and no worker is told of an exchange without itself.
TEST(PolicyDesk, AnyWordsAreSurvived) {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    Random random(seed);
    PolicyDesk desk(8, seed);
    std::vector<PolicyReply> replies;
    if (seed % 2 == 0) desk.succeed(5_s);
    Speaker speakers[8];
    for (std::uint32_t r = 0; r < 8; ++r) speakers[r].rank = r;
    const char* const names[] = {"ripples:smart", "ripples:random", "esync",
                                 "esync-nb",      "ad-psgd",        "diloco:h=2,fragments=2,quorum=50"};
    const std::string name = names[seed - 1];
    Nanos now;
    for (int step = 0; step < 20'000; ++step) {
      Speaker& s = speakers[random.below(8)];
      const std::uint64_t what = random.below(200);
      now += Nanos{static_cast<std::int64_t>(random.below(10'000'000))};
      if (what == 0) {
        s.serial = 0;
        desk.hear(now, s.open(name, {0, 1, 2, 3, 4, 5, 6, 7}), &replies);
      } else if (what == 4 || (what < 40 && step < 20)) {
        PolicyWord word = s.open(name, {0, 1, 2, 3, 4, 5, 6, 7});
        word.kind = PolicyWord::Kind::kResume;
        word.question.kind = static_cast<Question::Kind>(random.below(5));
        word.question.number = static_cast<std::int64_t>(random.below(2) == 0 ? random.below(20) : random.next());
        word.asked = random.below(2) == 0;
        word.open = random.below(2) == 0;
        word.has_told = random.below(2) == 0;
        word.ago = Nanos{static_cast<std::int64_t>(random.below(4) == 0 ? random.next() : random.below(1u << 30))};
        word.told.kind = random.below(2) == 0 ? Answer::Kind::kGroup : Answer::Kind::kAggregate;
        word.told.number = static_cast<std::int64_t>(random.below(2) == 0 ? random.below(20) : random.next());
        word.told.done = random.below(4) == 0;
        word.told.source = static_cast<int>(random.below(10)) - 1;
        word.leaves = random.below(16) == 0 && step > 15'000;
        for (std::uint32_t w = 0; w < 10; ++w) {
          if (random.below(3) == 0) word.told.members.push_back(w);
          if (random.below(6) == 0) word.told.behind.push_back(w);
        }
        desk.hear(now, word, &replies);
      } else if (what == 5) {
        desk.testified(now, {static_cast<int>(s.rank)}, &replies);
      } else if (what == 1 && step > 15'000) {
        desk.hear(now, s.say(PolicyWord::Kind::kLeave), &replies);
      } else if (what == 2 && step > 15'000) {
        desk.ranks_gone(now, {static_cast<int>(s.rank)}, &replies);
      } else if (what == 3) {
        desk.repeat({static_cast<int>(s.rank)}, &replies);
      } else {
        const auto number = static_cast<std::int64_t>(random.below(2) == 0 ? random.below(20) : random.next());
        const Nanos capability{
            static_cast<std::int64_t>(random.below(4) == 0 ? random.next() : random.below(1u << 30))};
        PolicyWord word = s.ask(static_cast<Question::Kind>(random.below(5)), number,
                                static_cast<sync::Iteration>(random.below(5)), capability);
        word.question.applied = static_cast<std::int64_t>(random.below(3) == 0 ? random.next() : random.below(4)) - 1;
        word.question.doubted = static_cast<std::int64_t>(random.below(3) == 0 ? random.next() : random.below(4)) - 1;
        if (random.below(4) == 0) word.seen = static_cast<std::uint32_t>(random.next());
        desk.hear(now, word, &replies);
      }
      if (now >= desk.next_deadline()) desk.poll(now, &replies);
      for (const PolicyReply& r : replies) {
        if (r.failed != CANARY_OK || r.members.empty()) continue;
        ASSERT_NE(std::find(r.members.begin(), r.members.end(), r.rank), r.members.end()) << "seed " << seed;
      }
      replies.clear();
    }
  }
}

}  // namespace
}  // namespace canarynet::control
