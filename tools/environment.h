// tools/environment.h -- a tool's warnings about its environment before it begins.
#pragma once

#include <cstdio>

#include "base/environment.h"

namespace canarynet::tools {

// Names CANARY_* variables that nothing reads, on stderr, with the names that were probably meant.
inline void warn_of_environment(const char* tool) {
  for (const std::string& sentence : strange_variables()) std::fprintf(stderr, "%s: %s\n", tool, sentence.c_str());
}

}  // namespace canarynet::tools
