// port/policy_check.h -- the part of port/command_check.h that looks at the commands of a policy.
//
// No state; any thread. Where all is well nothing is allocated.
#pragma once

#include "base/status.h"
#include "port/command_check.h"

namespace canarynet::port {

// OK, or CANARY_INVALID_ARGUMENT with what is wrong.
Status check_policy(const Command& command, const Surroundings& here);

}  // namespace canarynet::port
