// embed/collective_call.h -- a caller's collective before it is submitted: its lists of counts copied, its arguments
// checked.
//
// No state, no allocation but the list's growth; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "base/status.h"
#include "engine/group.h"

namespace canarynet {

// A list of the caller's, one number per rank. Displacements come right behind the counts that they belong to; NULL:
// one block behind the other.
struct CountList {
  const std::size_t* numbers = nullptr;
  bool displacements = false;
};

// Replaces `out` by the lists, one behind the other, as PlanRequest::counts has them: the caller's are borrowed for the
// call only.
void copy_counts(std::initializer_list<CountList> lists, std::size_t ranks, std::vector<std::uint64_t>* out);

// OK, or CANARY_INVALID_ARGUMENT with what is wrong ("reduce: root 4 is outside of a group of 4"). Looks at no other
// rank's arguments.
Status check_call(const GroupMember& member, const OpRequest& request);

}  // namespace canarynet
