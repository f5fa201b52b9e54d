// base/text.h -- text as users write it in lists.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace canarynet {

// "a,b,,c" → "a", "b", "", "c"; "" → "". Views into `text`.
std::vector<std::string_view> split(std::string_view text, char by = ',');

// Puts '?' in place of control characters in a peer's words, which go to logs, counters and users.
void make_printable(std::string* text);

}  // namespace canarynet
