// What a policy's worker and its coordinator say to each other, as bytes.
#include "engine/policy_words.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace canarynet {
namespace {

constexpr int kWorkers = 5;

std::vector<std::byte> room(std::uint64_t workers = kWorkers) {
  return std::vector<std::byte>(port::policy_answer_bytes(workers));
}

TEST(PolicyWords, AQuestionComesBackAsItWas) {
  const sync::Question asked{sync::Question::Kind::kArrived, 0,  1ll << 40, 17,
                             Nanos{123'456'789'012},         -1, 1ll << 41, true};
  const sync::Question read = read_question(write_question(asked));
  EXPECT_EQ(read.kind, asked.kind);
  EXPECT_EQ(read.number, asked.number);
  EXPECT_EQ(read.iterations, asked.iterations);
  EXPECT_EQ(read.capability, asked.capability);
  EXPECT_EQ(read.applied, -1);
  EXPECT_EQ(read.doubted, asked.doubted);
  EXPECT_TRUE(read.unsure);
}

TEST(PolicyWords, AnAnswerComesBackWithItsMembers) {
  PolicyReply reply;
  reply.kind = sync::Answer::Kind::kGroup;
  reply.requested = false;
  reply.number = 1ll << 41;
  reply.steps = 9;
  reply.members = {0, 2, 4};
  reply.source = 0;
  reply.behind = {2, 4};
  reply.counted = true;
  auto bytes = room();
  write_answer(reply, bytes);
  sync::WorkerSet members(kWorkers), behind(kWorkers);
  members.add(1);  // of the answer before
  sync::Answer answer;
  ASSERT_EQ(read_answer(bytes, 2, &members, &behind, &answer).value(), Heard::kAnswer);
  EXPECT_EQ(answer.kind, reply.kind);
  EXPECT_EQ(answer.worker, 2);
  EXPECT_EQ(answer.number, reply.number);
  EXPECT_EQ(answer.steps, reply.steps);
  EXPECT_FALSE(answer.requested);
  ASSERT_EQ(answer.members, &members);
  EXPECT_EQ(members.bits(), 0b10101u);
  EXPECT_EQ(answer.source, 0);
  EXPECT_TRUE(answer.counted);
  ASSERT_EQ(answer.behind, &behind);
  EXPECT_EQ(behind.bits(), 0b10100u);
}

TEST(PolicyWords, NoneAndTheLastOneAreToldApart) {
  const port::PolicyAnswer none;
  auto bytes = room();
  std::memcpy(bytes.data(), &none, sizeof none);
  sync::WorkerSet members(kWorkers), behind(kWorkers);
  sync::Answer answer;
  EXPECT_EQ(read_answer(bytes, 0, &members, &behind, &answer).value(), Heard::kNothing);
  PolicyReply last;
  last.last = true;
  write_answer(last, bytes);
  EXPECT_EQ(read_answer(bytes, 0, &members, &behind, &answer).value(), Heard::kLast);
}

TEST(PolicyWords, AnAnswerThatCannotBeThisWorkersIsRefused) {
  sync::WorkerSet members(kWorkers), behind(kWorkers);
  sync::Answer answer;
  const auto why = [&](std::vector<std::uint32_t> listed, std::uint32_t claimed, int source = -1) {
    PolicyReply reply;
    reply.kind = sync::Answer::Kind::kGroup;
    reply.members = std::move(listed);
    reply.source = source;
    auto bytes = room();
    write_answer(reply, bytes);
    std::memcpy(bytes.data() + offsetof(port::PolicyAnswer, members), &claimed, sizeof claimed);
    return read_answer(bytes, 1, &members, &behind, &answer).status().text();
  };
  EXPECT_EQ(why({0, 1, 3}, 3), "");
  EXPECT_EQ(why({0, 1, 5}, 3), "an answer with a worker too many");
  EXPECT_EQ(why({0, 3}, 2), "an exchange without this worker");
  EXPECT_EQ(why({0, 1, 2, 3, 4}, 11), "an answer that is longer than its room");
  EXPECT_EQ(why({0, 1, 3}, 3, 0), "a source that is none") << "nobody is behind";
  EXPECT_EQ(why({0, 1, 3}, 3, 5), "a source that is none");
}

}  // namespace
}  // namespace canarynet
