// tools/run/link_change.h -- one change of links while the ranks run, and its text as users write it.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "base/units.h"
#include "tools/run/place.h"

namespace canarynet::run {

struct LinkChange {
  Place place;
  enum class Action { kNone, kRate, kUp, kDown, kBlackhole, kLoss, kDelay } action = Action::kNone;
  std::int64_t rate = 0;
  bool on = false;  // kBlackhole
  std::uint32_t loss_ppm = 0;
  Nanos delay{};
};

// "host=1,nic=0,rate=125mbit" or "host=*,nic=1,down", as `canary-run link` takes it.
Result<LinkChange> parse_link_change(std::string_view text);

// Sets the action "rate" with the value "125mbit", or "down" with none. False if there is no such action; a value that
// does not fit is a Status.
Result<bool> set_action(std::string_view action, std::string_view value, LinkChange* change);

}  // namespace canarynet::run
