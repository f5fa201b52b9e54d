// control/miss_desk.h -- the coordinator's desk for engines that no lane reaches: which miss each other, and whose
// fault it is.
//
// What: a pair of engines that can't reach each other over any lane does not tell which end is broken; all pairs
// together do. Every engine reports whom it misses, early; when an operation can't go on for want of a lane, the desk
// waits a moment for the others' reports and then names the end that is in most of the pairs. A lane that comes back
// takes the report back, and with it the verdict.
// Pure bookkeeping: verdicts are returned, not sent. Units: engine numbers, Nanos handed in. Thread: the engine's
// owner. Cannot fail.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "control/membership.h"

namespace canarynet::control {

class MissDesk {
 public:
  // `window`: between the first complaint of an operation and the verdict.
  explicit MissDesk(Nanos window) : window_(window) {}

  void open(const Roster& roster);
  // Takes the place of what `engine` reported before.
  void report(Nanos now, std::uint32_t engine, std::vector<Missed> missed);
  // The engine died or left: neither what it says nor that it is missed counts any more.
  void forget(std::uint32_t engine);
  // The verdicts that are due.
  std::vector<Verdict> poll(Nanos now);
  Nanos next_deadline() const;

 private:
  struct Complaint {  // A group's operations can't go on.
    GroupEpoch group;
    Nanos since;
  };
  // The reports as far as they concern one engine.
  struct Standing {
    std::size_t obstacles = 0;                // that lie at it
    std::vector<std::uint32_t> cut_off_from;  // whom it misses, and who misses it; ascending
    std::size_t missed_by = 0;
    auto weight() const { return std::make_tuple(obstacles, cut_off_from.size(), missed_by); }
  };
  std::vector<Standing> standings() const;
  // Tells what is said of one of its pairs, what lies at its own end first.
  std::string obstacle_text(std::uint32_t engine) const;
  template <typename Fn>
  void for_each_obstacle(Fn fn) const;
  Verdict judge(const GroupEpoch& group, const std::set<std::uint32_t>& ends,
                const std::vector<Standing>& standings) const;
  std::string nics(std::uint32_t a, std::uint32_t b) const;

  Nanos window_;
  const Roster* roster_ = nullptr;
  std::vector<std::vector<Missed>> reports_;  // by engine
  std::vector<bool> gone_;
  std::deque<Complaint> complaints_;  // the oldest first
  std::set<GroupEpoch> complained_;   // their groups
};

}  // namespace canarynet::control
