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
  words[port::kApplied] = static_cast<std::uint64_t>(question.applied + 1);
  words[port::kDoubted] = static_cast<std::uint64_t>(question.doubted + 1);
  words[port::kUnsure] = question.unsure ? 1 : 0;
  return words;
}

sync::Question read_question(std::span<const std::uint64_t, port::kQuestionWords> words) {
  sync::Question question;
  question.kind = static_cast<sync::Question::Kind>(words[port::kQuestionKind]);
  question.number = static_cast<std::int64_t>(words[port::kQuestionNumber]);
  question.iterations = static_cast<std::int64_t>(words[port::kIterations]);
  question.capability = Nanos{static_cast<std::int64_t>(words[port::kCapability])};
  question.applied = static_cast<std::int64_t>(words[port::kApplied]) - 1;
  question.doubted = static_cast<std::int64_t>(words[port::kDoubted]) - 1;
  question.unsure = words[port::kUnsure] != 0;
  return question;
}

namespace {

// The workers of one of its lists, which begins `from` places behind the head.
Status read_workers(std::span<const std::byte> answer, std::uint32_t from, std::uint32_t count,
                    sync::WorkerSet* workers) {
  workers->clear();
  for (std::uint32_t i = from; i < from + count; ++i) {
    std::uint32_t worker = 0;
    std::memcpy(&worker, answer.data() + sizeof(PolicyAnswer) + i * sizeof worker, sizeof worker);
    if (worker >= static_cast<std::uint32_t>(workers->workers()))
      return Status(CANARY_INTERNAL, "an answer with a worker too many");
    workers->add(static_cast<int>(worker));
  }
  return {};
}

}  // namespace

void write_answer(const PolicyReply& reply, std::span<std::byte> to) {
  PolicyAnswer head;
  head.kind = reply.last ? PolicyAnswer::kLast : static_cast<std::uint32_t>(reply.kind);
  head.requested = reply.requested ? 1 : 0;
  head.number = reply.number;
  head.steps = reply.steps;
  head.source = reply.source;
  head.counted = reply.counted ? 1 : 0;
  const std::size_t room = (to.size() - sizeof head) / sizeof(std::uint32_t) / 2;
  std::byte* end = to.data() + sizeof head;
  const auto put = [&](const std::vector<std::uint32_t>& workers, std::uint32_t* count) {
    *count = static_cast<std::uint32_t>(std::min(room, workers.size()));
    if (*count != 0) std::memcpy(end, workers.data(), *count * sizeof(std::uint32_t));
    end += *count * sizeof(std::uint32_t);
  };
  put(reply.members, &head.members);
  put(reply.behind, &head.behind);
  std::memcpy(to.data(), &head, sizeof head);
}

Result<Heard> read_answer(std::span<const std::byte> from, int worker, sync::WorkerSet* members,
                          sync::WorkerSet* behind, sync::Answer* answer) {
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
  const std::size_t room = (from.size() - sizeof head) / sizeof(std::uint32_t);
  if (head.members > room || head.behind > room - head.members)
    return Status(CANARY_INTERNAL, "an answer that is longer than its room");
  if (Status s = read_workers(from, 0, head.members, members); !s.ok()) return s;
  if (Status s = read_workers(from, head.members, head.behind, behind); !s.ok()) return s;
  if (head.source < -1 || head.source >= members->workers() || (head.source < 0) != behind->empty())
    return Status(CANARY_INTERNAL, "a source that is none");
  if (!members->has(worker)) return Status(CANARY_INTERNAL, "an exchange without this worker");
  answer->members = members;
  answer->source = head.source;
  answer->counted = head.counted != 0;
  if (!behind->empty()) answer->behind = behind;
  return Heard::kAnswer;
}

}  // namespace canarynet
