#include "port/policy_check.h"

#include <limits>
#include <string>

#include "port/check_parts.h"
#include "port/policy.h"

namespace canarynet::port {

Status check_policy(const Command& c, const Surroundings& here) {
  if (!here.member) return no_such_group();
  if (!here.ticket) return no_such_ticket(c);
  const auto workers = static_cast<std::uint64_t>(here.member->size);
  switch (static_cast<PolicyStep>(c.rank)) {
    case PolicyStep::kOpen: {
      if (c.input.bytes == 0 || c.input.bytes > kPolicyNameMax)
        return wrong("a name of " + std::to_string(c.input.bytes) + " bytes (1 to " + std::to_string(kPolicyNameMax) +
                     ")");
      if (Status s = check_buffer(c.input, c.input.bytes, "name", here.regions); !s.ok()) return s;
      if (Status s = check_words(c, workers, "hosts", here.regions); !s.ok()) return s;
      const auto* hosts = reinterpret_cast<const std::uint64_t*>(here.regions.at(c.numbers));
      for (std::uint64_t i = 0; i < workers; ++i) {
        if (hosts[i] >= workers)
          return wrong("host " + std::to_string(static_cast<std::int64_t>(hosts[i])) + " of rank " + std::to_string(i) +
                       " (0 to " + std::to_string(workers - 1) + ")");
      }
      return {};
    }
    case PolicyStep::kAsk: {
      if (Status s = check_words(c, kQuestionWords, "questions", here.regions); !s.ok()) return s;
      constexpr std::uint64_t kKinds = 5, kMost = std::numeric_limits<std::int64_t>::max();
      const auto* words = reinterpret_cast<const std::uint64_t*>(here.regions.at(c.numbers));
      const bool sound = words[kQuestionKind] < kKinds && words[kQuestionNumber] <= kMost &&
                         words[kIterations] <= kMost && words[kCapability] <= kMost && words[kApplied] <= kMost &&
                         words[kDoubted] <= kMost && words[kUnsure] <= 1;
      return sound ? Status() : wrong("a question that does not exist");
    }
    case PolicyStep::kNext:
      if (c.type != 0 && c.type != 1) return wrong("it waits or not, and not " + std::to_string(c.type));
      if (c.output.bytes != policy_answer_bytes(workers))
        return wrong("an answer takes " + std::to_string(policy_answer_bytes(workers)) + " bytes, not " +
                     std::to_string(c.output.bytes));
      return check_buffer(c.output, c.output.bytes, "answer", here.regions);
    case PolicyStep::kLeave:
    case PolicyStep::kClose:
      return {};
  }
  return wrong("step " + std::to_string(c.rank) + " of a policy does not exist");
}

}  // namespace canarynet::port
