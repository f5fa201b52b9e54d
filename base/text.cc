#include "base/text.h"

#include <algorithm>

namespace canarynet {

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(by);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

void make_printable(std::string* text) {
  std::replace_if(
      text->begin(), text->end(), [](unsigned char b) { return b < 0x20 || b == 0x7f; }, '?');
}

}  // namespace canarynet
