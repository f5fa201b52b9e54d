// tools/run/control.h -- changes links of a running test bed: the socket that init serves, and the client behind
// `canary-run link`. A connection carries one request (changes, a line each) and one answer.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/run/link_change.h"
#include "tools/run/process.h"

namespace canarynet::run {

class ControlServer {
 public:
  Status listen(const std::string& path);
  int fd() const { return listener_.fd(); }
  // Takes one connection and answers it; waits for a silent client at most half a second.
  void serve(const std::function<Status(const LinkChange&)>& apply);

 private:
  Descriptor listener_;
};

// Has the running canary-run make the changes, in order; it stops at the first that fails.
Status request_changes(const std::string& state_path, const std::vector<std::string>& changes);

}  // namespace canarynet::run
