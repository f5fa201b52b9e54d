// tools/ctl/info.h -- the features of this build, those of this kernel and the NICs that Canary would use, a line each.
//
// It looks at the machine: opens sockets, makes a namespace in a child of its own. It changes nothing.
#pragma once

#include <string>
#include <vector>

namespace canarynet::ctl {

struct Fact {
  std::string section;  // "build", "kernel", ...
  std::string name;
  std::string value;
};

// `dependencies` is "Highway=found (/usr/include)|benchmark=not found|..." as the build wrote it down.
std::vector<Fact> build_facts(const std::string& dependencies);
std::vector<Fact> kernel_facts();
// Sets *ok to false if the settings leave no NIC to use.
std::vector<Fact> nic_facts(bool* ok);
// Sections with their facts in columns.
std::string info_text(const std::vector<Fact>& facts);

}  // namespace canarynet::ctl
