#include "sim/swarm_blame.h"

#include <algorithm>
#include <set>

namespace canarynet {
namespace {

class Judgement {
 public:
  // `aborted`: an abort that was done is of this group, or of the one that this is part of. `limited`: likewise a
  // deadline.
  Judgement(Cluster& cluster, const Life& life, const Deed& deed, const std::vector<int>& ranks, bool aborted,
            bool limited, int world_rank, const Status& status)
      : cluster_(cluster),
        life_(life),
        deed_(deed),
        ranks_(ranks),
        aborted_(aborted),
        limited_(limited),
        host_(cluster.host_of(world_rank)),
        status_(status),
        text_(status.to_string()),
        named_rank_(status.detail().rank),
        named_(named_rank_ < 0 ? -1 : cluster.host_of(named_rank_)) {}

  // Rank 0 forms the groups and answers questions: a host that has lost it, or is lost to it, can do neither. After a
  // death that is proved, the next one does.
  bool lacks_coordinator() const {
    const bool proved = deed_.ending == Ending::kCrash && deed_.hangup;
    return status_.code() == CANARY_COORDINATOR_LOST && !proved && deed_.victim >= 0 &&
           (lost(0) || host_ == deed_.victim);
  }
  // Who tells the members of an exchange was lost when it had told some of them, or those who are not told are.
  bool waits_for_the_untold() const {
    const bool silent = deed_.ending == Ending::kFreeze || deed_.ending == Ending::kCut ||
                        (deed_.ending == Ending::kCrash && !deed_.hangup);
    return status_.code() == CANARY_ENTRY_TIMEOUT && silent && (lost(0) || host_ == deed_.victim);
  }
  // The dead had been told of a round with more members than the next coordinator knows of.
  bool differs_from_the_dead() const {
    return status_.code() == CANARY_MISMATCH && deed_.ending == Ending::kCrash && lost(0) && named_ == deed_.victim;
  }
  bool on_the_victim() const { return host_ == deed_.victim; }
  // The rank is of a host that the others may take for the one at fault.
  bool may_be_given_up() const {
    return deed_.ending == Ending::kCut && !deed_.control_cut && named_ == host_ && lost(host_);
  }

  std::string pass() const {
    switch (deed_.ending) {
      case Ending::kNone:
        return text_;
      case Ending::kAbort:
        if (!aborted_) return "another group was aborted: " + text_;
        if (status_.code() != CANARY_ABORTED || named_rank_ != deed_.rank ||
            text_.find(kAbortReason) == std::string::npos)
          return "rank " + std::to_string(deed_.rank) + " has aborted the group: " + text_;
        return "";
      case Ending::kDeadline:
        if (!limited_) return "the deadline was another group's: " + text_;
        return status_.code() == CANARY_DEADLINE ? "" : "a deadline passed: " + text_;
      case Ending::kCrash:
        if (!has(deed_.victim)) return "a host died that is not in this group: " + text_;
        // A process that ends closes its connections; a machine that ends falls silent.
        return expect({deed_.hangup ? CANARY_PEER_DIED : CANARY_PEER_SILENT}, deed_.victim);
      case Ending::kFreeze:
        if (!has(deed_.victim)) return "a host stopped that is not in this group: " + text_;
        // This holds even if it goes on: it then finds itself given up.
        return expect({CANARY_PEER_SILENT}, deed_.victim);
      case Ending::kCut:
        return cut();
    }
    return text_;
  }

 private:
  bool has(int host) const {
    return std::any_of(ranks_.begin(), ranks_.end(), [&](int r) { return cluster_.host_of(r) == host; });
  }
  bool lost(int host) const {
    return deed_.victim == host ||
           std::find(deed_.cut_from.begin(), deed_.cut_from.end(), host) != deed_.cut_from.end();
  }
  std::string expect(std::initializer_list<canary_status> codes, int host) const {
    if (std::find(codes.begin(), codes.end(), status_.code()) == codes.end()) return "not what happened: " + text_;
    return named_ == host ? "" : "blames the wrong rank, not one of host " + std::to_string(host) + ": " + text_;
  }

  std::string cut() const {
    const bool concerns =
        has(deed_.victim) && std::any_of(deed_.cut_from.begin(), deed_.cut_from.end(), [&](int h) { return has(h); });
    if (!concerns) return "what was cut does not concern this group: " + text_;
    if (deed_.control_cut) {
      // The host that was cut off hears nobody and knows that it is alone, unless all others are one machine: then
      // either side may be the one that is cut off.
      if (host_ == deed_.victim && machines_cut() < 2) return expect({CANARY_PEER_SILENT}, named_);
      return expect({CANARY_PEER_SILENT}, deed_.victim);
    }
    // The victim is in all of the missing pairs, unless another fault struck and one pair was missing earlier than the
    // others. If two hosts miss only each other, the one that is not heard is at fault. If neither hears the other any
    // more, nothing tells which of them is at fault, and the text has to name both: over a wire that is cut in one
    // direction no lane is made again, so a fault that ended one, or struck the other direction, has cut that as well.
    const int victim = deed_.victim, other = deed_.cut_from.front();
    const bool pair = deed_.cut_from.size() == 1;
    const bool told_apart = deed_.alone && (!pair || deed_.cut != Deed::Cut::kBothWays);
    if (told_apart || (!pair && named_ == victim))
      return expect({CANARY_NO_PATH}, pair && deed_.cut == Deed::Cut::kDeaf ? other : victim);
    const int end = pair ? other : named_;
    for (const int host : {victim, end}) {
      if (text_.find("(host host-" + std::to_string(host) + ",") == std::string::npos)
        return "names one of two that may both be at fault: " + text_;
    }
    return expect({CANARY_NO_PATH}, named_ == end && lost(end) ? end : victim);
  }
  std::size_t machines_cut() const {
    std::set<int> machines;
    const std::vector<int>& machine = life_.cluster.wiring.machine;
    for (const int h : deed_.cut_from) machines.insert(machine.empty() ? h : machine[static_cast<std::size_t>(h)]);
    return machines.size();
  }

  Cluster& cluster_;
  const Life& life_;
  const Deed& deed_;
  const std::vector<int>& ranks_;
  const bool aborted_, limited_;
  const int host_;
  const Status& status_;
  const std::string text_;
  const int named_rank_, named_;
};

}  // namespace

std::string blame(Cluster& cluster, const Life& life, const Deed& deed, const SwarmGroup& group, int world_rank,
                  const Status& status) {
  const bool is_its = &group == deed.group;
  const Judgement judgement(cluster, life, deed, group.ranks, is_its, is_its, world_rank, status);
  return judgement.lacks_coordinator() ? "" : judgement.pass();
}

std::string blame(Cluster& cluster, const Life& life, const Deed& deed, Joint what, const SwarmGroup& world,
                  const std::vector<int>& ranks, int world_rank, const Status& status) {
  // Of two hosts that miss each other, the one whose part has ended does not complain. So the other one's word is all
  // that is known, and the text has to name both.
  Deed seen = deed;
  seen.alone = false;
  const Judgement judgement(cluster, life, seen, ranks, &world == deed.group, false, world_rank, status);
  const bool harmed = deed.ending == Ending::kCrash || deed.ending == Ending::kFreeze || deed.ending == Ending::kCut;
  if (what == Joint::kPolicy && judgement.lacks_coordinator()) return "";
  if (what == Joint::kPolicyExchange && judgement.differs_from_the_dead()) return "";
  if ((what == Joint::kPolicyExchange || what == Joint::kPolicy) && judgement.waits_for_the_untold()) return "";
  if (what == Joint::kPolicy && harmed && !judgement.on_the_victim())
    return "the coordinator is not lost: " + status.to_string();
  if (what == Joint::kSessionThatGoesOn && harmed && !judgement.on_the_victim() && !judgement.may_be_given_up())
    return "the survivors go on, and this rank is one: " + status.to_string();
  return judgement.pass();
}

}  // namespace canarynet
