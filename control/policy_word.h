// control/policy_word.h -- what a worker whose policy asks a coordinator (sync/policy.h) says to it, and what it hears.
//
// Plain values, in which no time travels but durations. The words of one worker are numbered, and so are the replies to
// it; each names the last one of the other kind that came. So both may be said again over a new connection, and nothing
// counts twice. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"
#include "base/units.h"
#include "sync/policy.h"

namespace canarynet {

// A policy that the members of a group run together: the group's epoch, and the callers' number for it.
struct PolicyId {
  std::uint32_t flow = 0;
  std::uint32_t epoch = 0;
  std::uint64_t number = 0;
  auto operator<=>(const PolicyId&) const = default;
};

struct PolicyWord {
  // kLeave: this worker asks no more; a reply says when there is no exchange any more that others count on it for.
  // kResume: to a coordinator that succeeds another, what that one has heard from this worker and told it.
  enum class Kind : std::uint8_t { kOpen, kAsk, kLeave, kResume };
  Kind kind = Kind::kAsk;
  PolicyId policy;
  std::uint32_t rank = 0;    // the worker, in the world
  std::uint32_t serial = 0;  // of this worker's words, from 1
  std::uint32_t seen = 0;    // the last reply that came
  // kOpen, kResume
  std::string name;                  // as sync/policy_name.h has it
  std::vector<int> members;          // world ranks; worker w is members[w]
  std::vector<std::uint32_t> hosts;  // of each
  // kAsk: the question. kResume: the last one, if `asked`. Its worker follows from `rank`
  sync::Question question = {};
  // kResume; see sync::Recollection
  bool asked = false;
  bool open = false;
  bool has_told = false;
  bool leaves = false;  // it asks no more: a kLeave is in it
  Nanos ago;
  sync::Recollection::Told told = {};
};

struct PolicyReply {
  PolicyId policy;
  std::uint32_t rank = 0;
  std::uint32_t serial = 0;          // of the replies to this worker, from 1
  std::uint32_t heard = 0;           // the last word of it that came
  canary_status failed = CANARY_OK;  // else the policy is over for this worker
  std::string text;                  // why
  sync::Answer::Kind kind = sync::Answer::Kind::kTrain;
  std::int64_t number = 0;
  bool requested = true;
  std::int32_t steps = 1;
  std::vector<std::uint32_t> members;  // workers, ascending
  // See sync::Answer.
  std::int32_t source = -1;
  bool counted = false;
  std::vector<std::uint32_t> behind;  // workers, ascending
  bool last = false;                  // the answer to kLeave: no answer, and nothing follows
};

}  // namespace canarynet
