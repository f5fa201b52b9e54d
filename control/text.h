// control/text.h -- how ranks, engines and times read in messages to users; statuses to and from the wire.
#pragma once

#include <string>
#include <vector>

#include "control/messages.h"

namespace canarynet::control {

// "rank 3", "ranks 1, 3-5": of ascending ranks; a long list is cut.
std::string ranks_text(const std::vector<int>& ranks);
// "rank 3 (host b, pid 77)".
std::string engine_text(const EngineInfo& engine);
// "250 ms", "10 s".
std::string duration_text(Nanos t);

// A failure with a culprit (rank, host) in the join phase.
Status failure(canary_status code, std::string text, int rank = -1, const std::string& host = {},
               const char* phase = "join");
Refuse to_refuse(const Status& status);
Status to_status(const Refuse& refuse);

}  // namespace canarynet::control
