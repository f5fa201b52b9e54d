#include "engine/policy_words.h"

#include <algorithm>
#include <cstring>

namespace canarynet {

using port::PolicyAnswer;

std::array<std::uint64_t, port::kQuestionWords> write_question(const sync::Question& question) {
  std::array<std::uint64_t, port::kQuestionWords> words{};
  words[port::kQuestionKind] = static_cast<std::uint64_t>(question.kind);
  words[port::kQuestionNumber] = static_cast<std::uint64_t>(question.number);
  words[port::kIterations] = static_cast<std::uint64_t>(question.iterations);
  words[port::kCapability] = static_cast<std::uint64_t>(question.capability.count);
  return words;
}

sync::Question read_question(std::span<const std::uint64_t, port::kQuestionWords> words) {
  sync::Question question;
  question.kind = static_cast<sync::Question::Kind>(words[port::kQuestionKind]);
  question.number = static_cast<std::int64_t>(words[port::kQuestionNumber]);
  question.iterations = static_cast<std::int64_t>(words[port::kIterations]);
  question.capability = Nanos{static_cast<std::int64_t>(words[port::kCapability])};
  return question;
}

void write_answer(const PolicyReply& reply, std::span<std::byte> to) {
  PolicyAnswer head;
  head.kind = reply.last ? PolicyAnswer::kLast : static_cast<std::uint32_t>(reply.kind);
  head.requested = reply.requested ? 1 : 0;
  head.number = reply.number;
  head.steps = reply.steps;
  const std::size_t room = (to.size() - sizeof head) / sizeof(std::uint32_t);
  head.members = static_cast<std::uint32_t>(std::min(room, reply.members.size()));
  std::memcpy(to.data(), &head, sizeof head);
  if (head.members != 0)
    std::memcpy(to.data() + sizeof head, reply.members.data(), head.members * sizeof(std::uint32_t));
}

Result<Heard> read_answer(std::span<const std::byte> from, int worker, sync::WorkerSet* members, sync::Answer* answer) {
  PolicyAnswer head;
  std::memcpy(&head, from.data(), sizeof head);
  if (head.kind == PolicyAnswer::kNone) return Heard::kNothing;
  if (head.kind == PolicyAnswer::kLast) return Heard::kLast;
  *answer = {};
  answer->kind = static_cast<sync::Answer::Kind>(head.kind);
  answer->worker = worker;
  answer->number = head.number;
  answer->requested = head.requested != 0;
  answer->steps = head.steps;
  if (head.members == 0) return Heard::kAnswer;
  if (head.members > (from.size() - sizeof head) / sizeof(std::uint32_t))
    return Status(CANARY_INTERNAL, "an answer that is longer than its room");
  members->clear();
  for (std::uint32_t i = 0; i < head.members; ++i) {
    std::uint32_t member = 0;
    std::memcpy(&member, from.data() + sizeof head + i * sizeof member, sizeof member);
    if (member >= static_cast<std::uint32_t>(members->workers()))
      return Status(CANARY_INTERNAL, "an answer with a worker too many");
    members->add(static_cast<int>(member));
  }
  if (!members->has(worker)) return Status(CANARY_INTERNAL, "an exchange without this worker");
  answer->members = members;
  return Heard::kAnswer;
}

}  // namespace canarynet
