// transport/strangers.h -- connections that have not said who they are: which one makes room for the next, and what one
// that is turned away is told.
//
// Anybody may connect. The options of the host bound what strangers hold, and the one that opens the most connections
// loses them first, so that a member that comes always finds room. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "topology/address.h"
#include "transport/wire.h"

namespace canarynet {

// The one in `waiting`, oldest first, that goes: the oldest of the source that has the most. remote_of(entry): where
// it comes from.
template <typename Waiting, typename RemoteOf>
std::size_t one_to_drop(const std::vector<Waiting>& waiting, RemoteOf remote_of) {
  const auto source = [&](const Waiting& w) {
    Address a = remote_of(w);
    a.port = 0;
    a.prefix_bits = 0;
    return a;
  };
  std::vector<Address> sorted;
  for (const Waiting& w : waiting) sorted.push_back(source(w));
  std::sort(sorted.begin(), sorted.end());
  Address most;
  std::ptrdiff_t count = 0;
  for (auto at = sorted.begin(); at != sorted.end();) {
    const auto end = std::upper_bound(at, sorted.end(), *at);
    if (end - at > count) {
      count = end - at;
      most = *at;
    }
    at = end;
  }
  const auto oldest = std::find_if(waiting.begin(), waiting.end(), [&](const Waiting& w) { return source(w) == most; });
  return static_cast<std::size_t>(oldest - waiting.begin());
}

// The frame that is sent in place of a hello to a connection that is turned away: an Abort, with the reason as its
// text.
std::vector<std::byte> refusal_frame(std::string_view why);
// The reason in such a frame, printable; "" where it can't be read. These are a stranger's words as well.
std::string refusal_text(const wire::Header& header, std::span<const std::byte> payload);

}  // namespace canarynet
