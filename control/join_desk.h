// control/join_desk.h -- the coordinator's desk for those who join: who may, which ranks are there, and why others are
// not.
//
// What: engines are numbered as they come, this process's own is 0. One that is away (its connection is of no use) has
// joined, but the job does not begin without it. What somebody was turned away for is remembered, in case that its
// rank never comes.
// Pure bookkeeping: nothing is sent. Thread: the engine's owner. Failures: as statuses that name rank and host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "control/membership.h"
#include "control/messages.h"

namespace canarynet::control {

class JoinDesk {
 public:
  // `options` outlive it.
  explicit JoinDesk(const MembershipOptions& options) : options_(options) {}

  // The next engine is there.
  void enter(const EngineInfo& engine);
  bool away(std::size_t engine) const { return entries_[engine].away; }
  void leave(std::size_t engine);
  // False: it was not away.
  bool come_back(std::size_t engine);
  bool complete() const { return there_ == options_.world_size; }
  int there() const { return there_; }  // ranks

  // Whether one that shows this token means this job.
  Status check_token(std::uint64_t token, const EngineInfo& engine) const;
  // Whether it may enter. Settings differ, or a rank is there already: the error names both.
  Status check(const Join& join) const;

  // Who serves these ranks (as far as it has said) was turned away. False: that is known, or too much of it.
  bool remember(const std::vector<int>& ranks, const Status& why);
  // The time is over: what kept a missing rank out is the job's failure, where that is known. `trouble`: the network's.
  Status incomplete(const std::string& trouble) const;

 private:
  struct Entry {
    EngineInfo info;
    bool away = false;
  };
  struct Refused {
    std::vector<int> ranks;
    Status why;
  };

  const MembershipOptions& options_;
  std::vector<Entry> entries_;
  std::vector<int> claimed_by_;  // [rank] → entry, -1: nobody yet
  int there_ = 0;
  std::vector<Refused> refused_;  // the oldest first
};

}  // namespace canarynet::control
