#include "transport/tcp/stray_watch.h"

#include <algorithm>

namespace canarynet {

StrayWatch::Streak* StrayWatch::find(int rail, const Address& peer) {
  const auto at = std::find_if(streaks_.begin(), streaks_.end(), [&](const Streak& s) {
    return s.rail == rail && s.peer.family == peer.family && s.peer.bytes == peer.bytes;
  });
  return at == streaks_.end() ? nullptr : &*at;
}

bool StrayWatch::strayed(int rail, const Address& peer, Nanos now) {
  Streak* streak = find(rail, peer);
  if (streak == nullptr) {
    // A free place, else that of the one that was quiet longest.
    streak = &*std::min_element(streaks_.begin(), streaks_.end(), [](const Streak& a, const Streak& b) {
      return std::pair(a.rail >= 0, a.latest) < std::pair(b.rail >= 0, b.latest);
    });
    *streak = {rail, peer, now, now};
  }
  if (now - streak->latest > kApart) streak->since = now;
  streak->latest = now;
  return now - streak->since >= kPatience;
}

void StrayWatch::arrived(int rail, const Address& peer) {
  if (Streak* streak = find(rail, peer)) *streak = {};
}

}  // namespace canarynet
