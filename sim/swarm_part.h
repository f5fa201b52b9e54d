// sim/swarm_part.h -- one kind of thing that the ranks do in a swarm's life, and the judgement of its results.
//
// The swarm lets its parts act in turns, tells them which hosts it harms, and ends the life at the first failure. A
// part judges each result the moment that a caller could see it: it watches the cluster's polls. One owner thread. It
// must outlive the cluster, whose engines borrow its buffers.
#pragma once

#include <cstdint>
#include <string>

#include "sim/cluster.h"

namespace canarynet {

class SwarmPart : public PollWatcher {
 public:
  // Call it when the cluster has joined.
  virtual void begin(Cluster* cluster) = 0;
  // Lets one rank do one thing that it may do now. Returns false if there is none.
  virtual bool act() = 0;
  // When a rank will be able to do something though nothing happens before; Nanos::max() if never.
  virtual Nanos wakes() const { return Nanos::max(); }
  // Whether everything was called and has ended, on hosts that still live.
  virtual bool finished() const = 0;
  // Something ends this host, or cuts it off: nothing new may count on it.
  virtual void give_up(int host) = 0;
  // Its process has ended: its ranks call no more.
  virtual void bury(int host) = 0;
  // Call it when the life is over, and its cluster gone: nobody may have written where it had no right to.
  virtual void close() = 0;
  virtual std::string pending() const = 0;  // what has not ended, for people

  const std::string& failure() const { return failure_; }  // "": all is well
  Nanos last_event() const { return last_event_; }         // when something was last called, or ended
  std::uint64_t errors() const { return errors_; }         // that ranks got
  std::uint64_t hash() const { return hash_; }             // of all results

 protected:
  void fail(const std::string& why) {
    if (failure_.empty()) failure_ = why;
  }
  void mix(std::uint64_t result) { hash_ = (hash_ ^ result) * 0x100000001b3ull; }

  std::string failure_;
  Nanos last_event_;
  std::uint64_t errors_ = 0, hash_ = 0;
};

}  // namespace canarynet
