// tools/run/script.h -- changes of links at given times: the content of --script FILE, a line each.
//
//   # seconds after the ranks began
//   2.0s  host1.nic0  rate 50mbit
//   3s    host0.*     down
//   6s    host0.*     up
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tools/run/link_change.h"

namespace canarynet::run {

struct ScriptStep {
  Nanos at{};  // after the ranks began
  LinkChange change;
  std::string text;  // "host1.nic0 rate 50mbit"
};

// In order of time; steps of one time keep the order of the lines. Errors name `file`, line and word.
Result<std::vector<ScriptStep>> parse_script(const std::string& file, std::string_view text, int hosts, int nics);

}  // namespace canarynet::run
