#include "port/session_check.h"

#include <algorithm>
#include <limits>
#include <string>

#include "port/check_parts.h"
#include "port/session.h"

namespace canarynet::port {
namespace {

// Its list of 8-byte words.
Status check_session_words(const Command& c, const Regions& regions) {
  const std::uint64_t words = c.numbers.bytes / sizeof(std::uint64_t);
  const std::uint64_t most =
      kSessionHead + (c.kind == Command::Kind::kOpenSession ? kSessionColayer * kColayersMax : 0);
  if (c.numbers.bytes % sizeof(std::uint64_t) != 0 || words < kSessionHead || words > most) {
    return wrong("its numbers have " + std::to_string(c.numbers.bytes) + " bytes, takes " +
                 std::to_string(kSessionHead * 8) + " to " + std::to_string(most * 8));
  }
  if (c.numbers.nowhere()) return wrong("numbers are NULL");
  if (!regions.has(c.numbers)) return wrong("its numbers lie outside of region " + std::to_string(c.numbers.region));
  const auto* numbers = reinterpret_cast<const std::uint64_t*>(regions.at(c.numbers));
  if (reinterpret_cast<std::uintptr_t>(numbers) % alignof(std::uint64_t) != 0)
    return wrong("its numbers are not aligned to 8 bytes");
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (numbers[kStaleness] > kMost && numbers[kStaleness] != kUnboundedStaleness)
    return wrong("a staleness bound of " + std::to_string(static_cast<std::int64_t>(numbers[kStaleness])));
  if (numbers[kProportion] > kColayersMax)
    return wrong("a proportion of " + std::to_string(static_cast<std::int64_t>(numbers[kProportion])) + " colayers");
  if (numbers[kWaits] > 1) return wrong("at the bound it neither waits nor drops");
  if (numbers[kQuorum] < 1 || numbers[kQuorum] > 100)
    return wrong("a quorum of " + std::to_string(static_cast<std::int64_t>(numbers[kQuorum])) +
                 " percent of the workers (1 to 100)");
  if (numbers[kAbsences] < 1 || numbers[kAbsences] > kAbsencesMax)
    return wrong("a worker that may be absent from " + std::to_string(static_cast<std::int64_t>(numbers[kAbsences])) +
                 " steps in a row (1 to " + std::to_string(kAbsencesMax) + ")");
  if (numbers[kGoesOn] > 1) return wrong("after a death it neither ends nor goes on");
  if (numbers[kLinger] > static_cast<std::uint64_t>(kTimeLimitMax) && numbers[kLinger] != kUsualLinger)
    return wrong("a linger of " + std::to_string(static_cast<std::int64_t>(numbers[kLinger])) + " ns");
  if (c.kind == Command::Kind::kThresholds) return {};
  if (numbers[kStalenessMax] > kMost) return wrong("a largest staleness bound that is negative");
  if (numbers[kBacklog] < 2 || numbers[kBacklog] > kBacklogMax) {
    return wrong("a backlog of " + std::to_string(numbers[kBacklog]) + " results (2 to " + std::to_string(kBacklogMax) +
                 ")");
  }
  if (words == kSessionHead) return wrong("no colayers");
  if ((words - kSessionHead) % kSessionColayer != 0) return wrong("half a colayer");
  std::uint64_t elements = 0;
  for (std::uint64_t z = 0; z < (words - kSessionHead) / kSessionColayer; ++z) {
    const std::uint64_t count = numbers[kSessionHead + kSessionColayer * z];
    const std::uint64_t codec = numbers[kSessionHead + kSessionColayer * z + 1];
    if (count == 0) return wrong("colayer " + std::to_string(z) + " has no elements");
    if (count > kBytesMax / sizeof(float) - elements)
      return wrong("colayer " + std::to_string(z) + " of " + std::to_string(count) + " elements is too large");
    if (codec > UINT32_MAX)
      return wrong("colayer " + std::to_string(z) + ": a codec of number " + std::to_string(codec));
    elements += count;
  }
  return {};
}

}  // namespace

Status check_session(const Command& c, const Surroundings& here) {
  if (!here.member) return no_such_group();
  if (!here.ticket) return no_such_ticket(c);
  switch (c.kind) {
    case Command::Kind::kOpenSession:
    case Command::Kind::kThresholds:
      return check_session_words(c, here.regions);
    case Command::Kind::kPush:
      if (c.rank < 0) return wrong("colayer " + std::to_string(c.rank) + " does not exist");
      if (Status s = check_buffer(c.input, std::max<std::uint64_t>(c.input.bytes, 1), "gradient", here.regions);
          !s.ok())
        return s;
      return reinterpret_cast<std::uintptr_t>(here.regions.at(c.input)) % alignof(float) == 0
                 ? Status()
                 : wrong("gradient is not aligned to 4 bytes");
    case Command::Kind::kStep: {
      if (c.rank < 0 || c.rank >= kSessionSteps) return wrong("step " + std::to_string(c.rank) + " does not exist");
      if (Status s = check_buffer(c.output, std::max<std::uint64_t>(c.output.bytes, 1), "sums", here.regions); !s.ok())
        return s;
      if (reinterpret_cast<std::uintptr_t>(here.regions.at(c.output)) % alignof(float) != 0)
        return wrong("sums are not aligned to 4 bytes");
      if (c.numbers.bytes != sizeof(SessionResult))
        return wrong("its result takes " + std::to_string(sizeof(SessionResult)) + " bytes, not " +
                     std::to_string(c.numbers.bytes));
      return check_buffer(c.numbers, sizeof(SessionResult), "result", here.regions);
    }
    default:
      return {};
  }
}

const char* name_of_session_call(const Command& c) {
  switch (c.kind) {
    case Command::Kind::kOpenSession:
      return "session_open";
    case Command::Kind::kPush:
      return "session_push";
    case Command::Kind::kThresholds:
      return "session_set";
    case Command::Kind::kCloseSession:
      return "session_close";
    default:
      break;
  }
  switch (static_cast<SessionStep>(c.rank)) {
    case SessionStep::kPull:
      return "session_pull";
    case SessionStep::kFinish:
      return "session_finish";
    default:
      return "session_step";
  }
}

}  // namespace canarynet::port
