// control/group_desk.h -- the coordinator's desk for groups: who asked for which list, and when all of a list have.
//
// What: the k-th request of a list on one rank meets the k-th of the same list on every other member; when all members have asked, the group
// gets the next flow number. Pure bookkeeping: answers are returned, not sent.
// Units: world ranks; Nanos handed in. Memory: grows with groups asked for; kept, so that an answer lost with a connection is given again.
// Thread: the engine's owner. Failures: as answers, naming the ranks that did not ask, left or died.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/units.h"

namespace canarynet::control {

struct GroupAnswer {
  std::uint32_t engine = 0;   // who asked
  std::uint32_t request = 0;  // its number there
  int rank = 0;
  std::uint32_t flow = 0;  // 0: failed
  Status why;
};

class GroupDesk {
 public:
  GroupDesk(int world_size, Nanos entry_limit)
      : entry_limit_(entry_limit), gone_(static_cast<std::size_t>(world_size)) {}

  // Answers that follow are appended to *answers.
  void ask(Nanos now, std::uint32_t engine, std::uint32_t request, int rank, const std::vector<int>& members,
           std::vector<GroupAnswer>* answers);
  // These ranks will not ask any more: "rank 3 (host b, pid 5) died". Every group of theirs that waits fails with it.
  void ranks_gone(const std::vector<int>& ranks, const Status& why, std::vector<GroupAnswer>* answers);
  // Fails what waited longer than the entry limit.
  void poll(Nanos now, std::vector<GroupAnswer>* answers);
  Nanos next_deadline() const;

 private:
  // One group-to-be: the k-th of its list.
  struct Instance {
    std::vector<GroupAnswer> asked;  // answers to give
    std::vector<bool> has_asked;     // per member
    Nanos deadline;
    Status failed;  // those who ask later get it as well
  };
  struct List {
    std::vector<int> members;
    std::vector<std::uint32_t> requests;  // how many each member has made
    std::vector<Instance> waiting;        // number `done` and those after it
    std::uint32_t done = 0;               // instances in front of `waiting`: every member has asked
  };
  void fail(Instance& instance, const Status& why, std::vector<GroupAnswer>* answers);
  static void drop_finished(List& list);

  Nanos entry_limit_;
  std::uint32_t next_flow_ = 1;
  std::vector<List> lists_;
  std::vector<Status> gone_;  // per world rank: why it is
};

}  // namespace canarynet::control
