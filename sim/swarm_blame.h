// sim/swarm_blame.h -- the harm done to the ranks of a swarm's life, and the errors that it excuses: those that the
// engine promises for it.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "sim/cluster.h"
#include "sim/swarm_life.h"
#include "sim/swarm_traffic.h"

namespace canarynet {

inline constexpr char kAbortReason[] = "loss is NaN";

struct Deed {
  enum class Cut : std::uint8_t { kBothWays, kUnheard, kDeaf };  // the victim is not heard, or does not hear

  Ending ending = Ending::kNone;  // kNone: nothing has happened yet
  int victim = -1;                // host
  bool hangup = false;            // crash: its kernel said so
  Cut cut = Cut::kBothWays;
  std::vector<int> cut_from;          // hosts that no network joins to the victim any more
  bool control_cut = false;           // control does not join them either
  bool alone = true;                  // nothing else has struck: what ended, ended for this
  const SwarmGroup* group = nullptr;  // aborted, or with a deadline
  int rank = -1;                      // the world rank that aborted
};

// Returns "" if the deed excuses this error of a rank in that group, otherwise what is wrong with it.
std::string blame(Cluster& cluster, const Life& life, const Deed& deed, const SwarmGroup& group, int world_rank,
                  const Status& status);

// What ranks of the world do together without forming a group for it.
enum class Joint : std::uint8_t {
  kExchange,           // a partial all-reduce whose members all know of it
  kPolicyExchange,     // one whose members the coordinator tells
  kSession,            // which ends with a death
  kSessionThatGoesOn,  // for the survivors of deaths
  kPolicy,             // its questions to the coordinator
};
// The same for such an error. `ranks`: all that take part.
std::string blame(Cluster& cluster, const Life& life, const Deed& deed, Joint what, const SwarmGroup& world,
                  const std::vector<int>& ranks, int world_rank, const Status& status);

}  // namespace canarynet
