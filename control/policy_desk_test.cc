#include "control/policy_desk.h"

#include <gtest/gtest.h>

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
  EXPECT_TRUE(d.take().empty());
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

// Whatever workers claim, nothing crashes, and no worker is told of an exchange without itself.
TEST(PolicyDesk, AnyWordsAreSurvived) {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    Random random(seed);
    PolicyDesk desk(8, seed);
    std::vector<PolicyReply> replies;
    Speaker speakers[8];
    for (std::uint32_t r = 0; r < 8; ++r) speakers[r].rank = r;
    const char* const names[] = {"ripples:smart", "ripples:random", "esync", "esync-nb", "ad-psgd", "diloco:h=2"};
    const std::string name = names[seed - 1];
    Nanos now;
    for (int step = 0; step < 20'000; ++step) {
      Speaker& s = speakers[random.below(8)];
      const std::uint64_t what = random.below(200);
      now += Nanos{static_cast<std::int64_t>(random.below(10'000'000))};
      if (what == 0) {
        s.serial = 0;
        desk.hear(now, s.open(name, {0, 1, 2, 3, 4, 5, 6, 7}), &replies);
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
