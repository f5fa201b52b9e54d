#include "tools/run/place.h"

#include <optional>
#include <string>

#include "tools/arguments.h"

namespace canarynet::run {
namespace {

// Returns -1 for "*".
std::optional<int> number_of(std::string_view word, std::string_view front, int count) {
  if (word == "*") return -1;
  if (!word.starts_with(front)) return {};
  return tools::whole(word.substr(front.size()), 0, count - 1);
}

}  // namespace

Result<Place> parse_place(std::string_view text, int hosts, int nics) {
  const auto dot = text.find('.');
  const std::string_view none = "*";
  const auto host = number_of(text.substr(0, dot), "host", hosts);
  const auto nic = number_of(dot == std::string_view::npos ? none : text.substr(dot + 1), "nic", nics);
  // A host by itself could be taken for a place that lost its NIC.
  if (!host || !nic || (dot == std::string_view::npos && text != "*")) {
    return Status(CANARY_INVALID_ARGUMENT,
                  "takes a place such as host" + std::to_string(hosts - 1) + ".nic" + std::to_string(nics - 1) +
                      ", host0.* or *.nic0, or * for all NICs: hosts are host0 to host" + std::to_string(hosts - 1) +
                      ", NICs nic0 to nic" + std::to_string(nics - 1));
  }
  return Place{*host, *nic};
}

}  // namespace canarynet::run
