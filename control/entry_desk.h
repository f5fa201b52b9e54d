// control/entry_desk.h -- the coordinator's desk for the question who has called what: asked before a rank is named for
// not having called.
//
// What: heartbeats tell slowly, and ranks that share no rail only through others, so an engine whose entry limit passed
// asks. The desk passes the question to every engine that lives, merges their answers (each tells all it knows of the
// group), and when all have answered, or after a moment, tells everybody. Questions that come meanwhile are answered by
// the same inquiry.
// Pure bookkeeping: what is to be sent is returned. Units: engine numbers, Nanos handed in. Thread: the engine's owner.
// Cannot fail.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "control/membership.h"

namespace canarynet::control {

class EntryDesk {
 public:
  // `patience`: for engines that do not answer.
  explicit EntryDesk(Nanos patience) : patience_(patience) {}

  void open(std::size_t engines) { gone_.resize(engines); }
  // True: everybody is to be asked now.
  bool ask(Nanos now, GroupEpoch group);
  void answer(std::uint32_t engine, const Entered& entered);
  // Died or left: it is not waited for.
  void forget(std::uint32_t engine);
  // The answers that everybody is to be told.
  std::vector<Entered> poll(Nanos now);
  Nanos next_deadline() const;
  // What is asked and not told yet: an engine whose connection is a new one may not have heard of it.
  std::vector<GroupEpoch> questions() const;

 private:
  struct Inquiry {
    Entered merged;
    std::vector<bool> answered;  // by engine
    Nanos deadline;
  };
  bool complete(const Inquiry& inquiry) const;

  Nanos patience_;
  std::vector<bool> gone_;
  std::vector<Inquiry> open_;
};

}  // namespace canarynet::control
