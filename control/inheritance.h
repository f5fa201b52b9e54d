// control/inheritance.h -- what an engine brings along when it becomes the coordinator after another one.
//
// Plain values and links, moved from the Member that it was into the Coordinator that it is (control/succession.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "control/control_link.h"
#include "control/notices.h"  // VerdictLog

namespace canarynet::control {

// What is known of an engine that is in the job no more.
struct Ended {
  bool died = false;
  bool sure = false;  // else it may have left, without a word
  bool left = false;
  std::string why;              // it died
  std::vector<LastWord> words;  // with which it left
};

// A group of which ranks served here were told.
struct OwnGroup {
  std::uint32_t flow = 0;
  std::vector<int> members;
  std::vector<int> ranks;  // those
};

// A request for a group that has no answer yet.
struct OpenRequest {
  std::uint32_t request = 0;
  int rank = 0;
  std::uint64_t cookie = 0;
  std::vector<int> members;
};

// Another engine was quicker, and is waiting for an answer.
struct EarlyMember {
  std::unique_ptr<ControlLink> link;
  Nanos since;
  bool asked = false;
  Rejoin rejoin;
};

struct Inheritance {
  std::shared_ptr<Roster> roster;
  std::uint32_t me = 0;
  std::vector<Ended> ended;       // by engine
  std::vector<bool> passed_over;  // by engine: it refused to be the coordinator, so its process has ended
  std::vector<EarlyMember> early;
  std::vector<OwnGroup> groups;
  std::uint32_t forgotten = 0;  // up to this flow, `groups` may lack some
  std::uint32_t last_request = 0;
  std::vector<OpenRequest> requests;
  VerdictLog verdicts;
  std::vector<Missed> missed;
  std::vector<GroupEpoch> questions;
  std::vector<PolicyWord> words;
  std::vector<std::uint32_t> given_up;  // engines, for their silence
};

}  // namespace canarynet::control
