// control/group_desk.h -- the coordinator's desk for groups: who asked for which list, and when all of a list have.
//
// What: the k-th request of a list of ranks on one of them meets the k-th of the same list on every other one; when all
// have asked, the group gets the next flow number. Another order of the same ranks is another list. Pure bookkeeping:
// answers are returned, not sent. The desk of an engine that succeeds another hears of the groups that were formed
// before. Some of their members may not have been told: what those had asked for by then gets the same number.
// Units: world ranks; Nanos handed in. Memory: of groups that somebody has asked for and somebody else has not yet.
// Thread: the engine's owner. Failures: as answers, naming the ranks that did not ask, left or died, and both orders
// where one of them asked for the same ranks in another.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "control/messages.h"

namespace canarynet::control {

struct GroupAnswer {
  std::uint32_t engine = 0;   // who asked
  std::uint32_t request = 0;  // its number there
  int rank = 0;
  std::uint32_t flow = 0;  // 0: failed
  Status why;
  bool carried = false;  // it was first asked for at another desk
};

class GroupDesk {
 public:
  // Numbers of flows are not used again, and above these they mean something else on the wire.
  static constexpr std::uint32_t kFlowsMax = control::kFlowsMax;
  // New numbers begin this far behind the greatest one that is recalled, since those who knew of later ones may have
  // died as well.
  static constexpr std::uint32_t kFlowsLeft = 1u << 16;
  static constexpr std::size_t kRecalledMax = 4096;

  GroupDesk(int world_size, Nanos entry_limit)
      : entry_limit_(entry_limit),
        forgotten_(static_cast<std::size_t>(world_size)),
        gone_(static_cast<std::size_t>(world_size)) {}

  // Answers that follow are appended to *answers.
  void ask(Nanos now, std::uint32_t engine, std::uint32_t request, int rank, const std::vector<int>& members,
           std::vector<GroupAnswer>* answers, bool carried = false);
  // The numbers that another desk has handed out come from its ranks: one recall() for each group and the ranks of
  // one engine that were told of it, no longer in order. `carried` in ask(): that rank had asked before.
  void succeed() { next_flow_ = std::max(next_flow_, kFlowsLeft); }
  void recall(Nanos now, const std::vector<int>& ranks, std::uint32_t flow, const std::vector<int>& members,
              std::vector<GroupAnswer>* answers);
  // These ranks can't tell which groups they had up to that number: they had them all.
  void forgotten(const std::vector<int>& ranks, std::uint32_t up_to);
  // These ranks will not ask any more: "rank 3 (host b, pid 5) died". Every group of theirs that waits fails with it.
  void ranks_gone(const std::vector<int>& ranks, const Status& why, std::vector<GroupAnswer>* answers);
  // Fails what waited longer than the entry limit.
  void poll(Nanos now, std::vector<GroupAnswer>* answers);
  Nanos next_deadline() const;
  // For tests: what is kept, and as if this were the next number to be handed out.
  std::size_t lists() const { return lists_.size(); }
  void skip_to_flow(std::uint32_t flow) { next_flow_ = flow; }

 private:
  // One group-to-be: the k-th of its list.
  struct Instance {
    std::vector<GroupAnswer> asked;  // answers to give
    std::vector<bool> has_asked;     // per member
    Nanos deadline;
    Status failed;  // those who ask later get it as well
  };
  struct List {
    std::vector<int> members;             // in the order of the request
    std::vector<std::uint32_t> requests;  // how many each member has made
    std::vector<Instance> waiting;        // number `done` and those after it
    std::uint32_t done = 0;               // instances in front of `waiting`: every member has asked
  };
  // A group that another desk formed, and who of its members may still have to be told.
  struct Recalled {
    std::uint32_t flow = 0;
    std::vector<int> members;
    std::vector<bool> told;
    bool known_to_all() const { return std::find(told.begin(), told.end(), false) == told.end(); }
  };
  bool take_recalled(GroupAnswer* answer, const std::vector<int>& members);
  std::vector<GroupAnswer> withdraw(List& list, std::size_t member);
  void fail(Instance& instance, const Status& why, std::vector<GroupAnswer>* answers);
  void drop_finished(List& list);
  std::string other_order(const List& list, const std::vector<int>& missing) const;

  Nanos entry_limit_;
  std::uint32_t next_flow_ = 1;
  std::vector<Recalled> recalled_;        // by flow
  std::vector<std::uint32_t> forgotten_;  // per world rank
  std::vector<List> lists_;               // with somebody waiting, and nobody gone
  std::vector<Status> gone_;              // per world rank: why it is
};

}  // namespace canarynet::control
