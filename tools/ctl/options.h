// tools/ctl/options.h -- canaryctl's command line. Pure: nothing is opened, nothing printed.
#pragma once

#include <string>
#include <vector>

#include "base/units.h"
#include "tools/arguments.h"

namespace canarynet::ctl {

enum class Command { kTop, kLinks, kExplain, kInfo };

struct CtlOptions {
  Command command = Command::kTop;
  // top, links, explain
  bool once = false;
  bool json = false;
  Nanos interval = 1_s;
  int pid = 0;    // 0: all
  int links = 8;  // shown per process; JSON has all
};

struct ParsedOptions : tools::Outcome {
  CtlOptions options;
};
ParsedOptions parse_ctl_options(const std::vector<std::string>& arguments);

}  // namespace canarynet::ctl
