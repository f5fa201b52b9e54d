// base/environment.h -- variables of the environment that look like Canary's but are not: most are misspelt, and would
// be ignored in silence.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace canarynet {

// A sentence for each CANARY_* name in `variables` ("NAME=value", ends with a null pointer) that no part of Canary
// reads. It names the variable that was probably meant, if one is near.
std::vector<std::string> strange_variables(const char* const* variables);
// The same for this process.
std::vector<std::string> strange_variables();

// Warns of them through the log, once per process and not before a log sink is set.
void warn_of_strange_variables();

}  // namespace canarynet
