// engine/policy_post.h -- a local rank's post with the coordinator of a policy that asks: what it has said so far, and
// the replies that its caller has not taken.
//
// Owned and used by the engine (policy_operations.cc).
#pragma once

#include <cstdint>
#include <deque>

#include "base/status.h"
#include "base/units.h"
#include "control/policy_word.h"
#include "port/command.h"
#include "port/ticket.h"

namespace canarynet {

struct PolicyPost {
  static constexpr std::size_t kInboxMax = 1024;

  port::MemberId caller;
  PolicyId policy;
  std::uint32_t rank = 0;  // in the world
  std::uint32_t said = 0;  // words
  std::uint32_t seen = 0;  // replies
  std::deque<PolicyReply> inbox;
  bool left = false;      // it has said that it asks no more
  bool finished = false;  // and heard that nobody counts on it
  // For a coordinator that succeeds another, to which all of it is said again: the opening word, with what its worker
  // said and heard last.
  PolicyWord opening;
  Nanos asked_at;
  Status over;  // an error: no reply comes any more

  void note(const sync::Question& question, Nanos now);
  void note(const PolicyReply& reply);

  // A kNext that waits.
  OpTicket* waiting = nullptr;
  port::MemoryRef to;
  Nanos since;
};

}  // namespace canarynet
