// tools/ctl/info.h -- what this build has, what this kernel offers and which NICs Canary would use, a line each.
//
// Looks at the machine: opens sockets, makes a namespace in a child of its own. Changes nothing.
#pragma once

#include <string>
#include <vector>

namespace canarynet::ctl {

struct Fact {
  std::string section;  // "build", "kernel", ...
  std::string name;
  std::string value;
};

// `dependencies`: "Highway=found (/usr/include)|benchmark=not found|..." as the build wrote it down.
std::vector<Fact> build_facts(const std::string& dependencies);
std::vector<Fact> kernel_facts();
// *ok: false when the settings leave no NIC to use.
std::vector<Fact> nic_facts(bool* ok);
// Sections with their facts in columns.
std::string info_text(const std::vector<Fact>& facts);

}  // namespace canarynet::ctl
