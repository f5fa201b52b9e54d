// The channel's way back after an outage: connections that are made beside those whose TCP backs off.
//
// When all NICs of a host have been dark for 30 s, TCP tries its old connections again up to 30 s after they are back.
// A lane whose peer says nothing and whose connection backs off is therefore dialled anew, several times a second, and
// stays as it is until the peer has answered there: then the new connection takes its place, and what the old one held
// goes again. A peer whose kernel answers while its process stands still (SIGSTOP, a debugger) is not dialled: its
// connections go on by themselves.
#include <algorithm>

#include "base/duration_text.h"
#include "transport/channel.h"
#include "transport/channel_limits.h"

namespace canarynet {

void Channel::dial_beside(Path& path, Nanos now) {
  if (!options_.dialer || peer_left_ || peer_died_ || leaving_) return;
  if (path.spec.remote.family == Address::Family::kSharedMemory) return;
  const Nanos silent_from = path.last_heard + options_.heartbeat_interval * limits::kReplaceAfterBeats;
  if (path.successor) {
    const Nanos patience = std::max(limits::kBesideTimeout, path.estimator.rtt_min() * 3);
    const bool stands = path.successor->up() && !path.successor->backs_off();
    // Where the old lane speaks again the peer turns the successor away, or has taken it up already.
    const Nanos until = path.successor_since + (stands ? limits::kAnswerPatienceMax : patience);
    if (now < until || (stands && now >= silent_from)) return earlier(now + limits::kBesideTimeout);
    drop_successor(path);
  }
  if (now < silent_from) return earlier(silent_from);
  if (now < path.next_dial) return earlier(path.next_dial);
  if (!path.lane->backs_off()) return earlier(now + limits::kBesideTimeout);
  auto lane = factory_.dial(path.spec.local_rail, path.spec.remote, *this);
  path.next_dial = now + limits::kDialRetry;
  earlier(path.next_dial);
  if (!lane.ok()) return;
  path.successor = lane.take();
  path.successor->owner = &path;
  path.successor_since = now;
  path.successor_stood = false;
}

void Channel::drop_successor(Path& path) {
  if (!path.successor) return;
  path.successor->owner = nullptr;
  graveyard_.push_back(std::move(path.successor));
}

// The peer has taken it up as this path's lane, so it is.
void Channel::succeed(Path& path) {
  auto successor = std::move(path.successor);
  const Nanos probation = path.probation_backoff;
  const bool all_silent = last_heard_ - path.last_heard < options_.heartbeat_interval * 2;
  fail_path(path, "silent for " + milliseconds(now_ - path.last_heard) + ", and replaced by a new connection");
  // A peer that no lane heard was away: none of them flaps.
  if (all_silent) path.probation_backoff = std::max(probation, limits::kProbationFirst);
  path.lane = std::move(successor);
  come_up(path);
}

void Channel::successor_down(Path& path, const Status& reason, bool hangup) {
  const bool refused = hangup && !path.successor_stood;
  drop_successor(path);
  path.next_dial = now_ + limits::kDialRetry;
  earlier(path.next_dial);
  if (!refused) return;
  // The peer's machine is back, and nobody listens there any more: the old connection is as good as reset.
  fail_path(path, reason.text());
  note_hangup();
}

}  // namespace canarynet
