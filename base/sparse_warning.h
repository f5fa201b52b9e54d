// base/sparse_warning.h -- a warning about something that may happen any number of times: logged at most once in ten
// seconds, with the number left out.
#pragma once

#include <cstdint>
#include <string>

#include "base/log.h"
#include "base/units.h"

namespace canarynet {

class SparseWarning {
 public:
  void say(Nanos now, const std::string& text) {
    if (now < quiet_until_) {
      ++untold_;
      return;
    }
    const std::string before = untold_ == 0 ? "" : ", as " + std::to_string(untold_) + " times before";
    log(LogLevel::kWarn, "%s%s", text.c_str(), before.c_str());
    quiet_until_ = now + 10_s;
    untold_ = 0;
  }

 private:
  Nanos quiet_until_;
  std::uint64_t untold_ = 0;
};

}  // namespace canarynet
