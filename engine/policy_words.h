// engine/policy_words.h -- what a policy's worker says to its coordinator and hears from it, as the bytes of
// port/policy.h: callers write questions and read answers, the engine does the reverse.
//
// No state; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "control/policy_word.h"
#include "port/policy.h"
#include "sync/policy.h"

namespace canarynet {

std::array<std::uint64_t, port::kQuestionWords> write_question(const sync::Question& question);
// Its worker is the rank that asks, which the words do not say.
sync::Question read_question(std::span<const std::uint64_t, port::kQuestionWords> words);

// `to` has room for a head; members beyond its room are left out.
void write_answer(const PolicyReply& reply, std::span<std::byte> to);

enum class Heard {
  kNothing,  // none has come
  kAnswer,
  kLast,  // none will come any more
};
// What `from` says to `worker`, one of members->workers(). *members and *behind are written where the answer has
// members, which then point there; as do those behind, where there are any. An error: it can't be an answer to this
// worker.
Result<Heard> read_answer(std::span<const std::byte> from, int worker, sync::WorkerSet* members,
                          sync::WorkerSet* behind, sync::Answer* answer);

}  // namespace canarynet
