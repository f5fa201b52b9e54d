// port/policy.h -- what the commands of a policy that asks (sync/policy.h) say, as plain bytes.
//
// No state; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace canarynet::port {

enum class PolicyStep : std::int32_t {
  kOpen,   // makes it known to the coordinator
  kAsk,    // a question; its answer comes with a kNext
  kNext,   // the next answer that has come
  kLeave,  // no more is asked; a kNext gives the answers that are left, and then kLast
  kClose,  // likewise, and no other command names it afterwards
};
inline constexpr std::int32_t kPolicySteps = 5;
inline constexpr std::uint64_t kPolicyNameMax = 255;

// A sync::Question, as 8-byte words.
enum PolicyQuestionWord : std::size_t {
  kQuestionKind,
  kQuestionNumber,
  kIterations,
  kCapability,
  kApplied,  // and one more, so that 0 is none
  kDoubted,  // likewise
  kUnsure,
  kQuestionWords
};

// A sync::Answer. Behind it stand its members and those that are behind, `members` and `behind` numbers of workers, 4
// bytes each.
struct PolicyAnswer {
  static constexpr std::uint32_t kNone = UINT32_MAX;      // nothing has come
  static constexpr std::uint32_t kLast = UINT32_MAX - 1;  // nothing will come
  std::uint32_t kind = kNone;
  std::uint32_t requested = 0;
  std::int64_t number = 0;
  std::int32_t steps = 1;
  std::uint32_t members = 0;
  std::int32_t source = -1;
  std::uint32_t counted = 0;
  std::uint32_t behind = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(PolicyAnswer) == 40 && std::is_trivially_copyable_v<PolicyAnswer>);

// The room that an answer takes in a group of so many.
inline constexpr std::uint64_t policy_answer_bytes(std::uint64_t workers) {
  return sizeof(PolicyAnswer) + 2 * workers * sizeof(std::uint32_t);
}

}  // namespace canarynet::port
