// sim/warnings_test_util.h -- for tests: the library's warnings while an object of this class lives.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"

namespace canarynet {

class Warnings {
 public:
  Warnings() {
    set_log_sink([](void* self, LogLevel, std::string_view l) { static_cast<Warnings*>(self)->lines.emplace_back(l); },
                 this, LogLevel::kWarn);
  }
  ~Warnings() { set_log_sink(nullptr, nullptr, LogLevel::kError); }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;

  std::ptrdiff_t with(std::string_view part) const {
    return std::count_if(lines.begin(), lines.end(), [&](const std::string& l) { return l.find(part) != l.npos; });
  }
  std::vector<std::string> lines;
};

}  // namespace canarynet
