// engine/peer.h -- one process that an engine or an endpoint talks to: its channel, and what is known of its life.
//
// Memory: belongs to the engine or endpoint, which may know more of it (they derive from this); stays where it is while
// Peers knows it. Thread: the owner's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/process_pulse.h"
#include "base/units.h"
#include "engine/flow/mux.h"
#include "engine/messages.h"
#include "transport/channel.h"

namespace canarynet {

struct Peer {
  std::uint32_t number = 0;               // its owner's number of it
  std::unique_ptr<Mux> mux;               // before the channel, whose client it is
  std::unique_ptr<Channel> channel;       // null: no rail in common, or it has ended
  std::unique_ptr<MessagePeer> messages;  // null: there never was a channel
  std::string label;                      // for counters: "rank 3", "hosta:1234"

  std::string host;        // processes of one are told of together; "": not known
  std::int64_t pid = 0;    // there
  bool neighbour = false;  // its host is this one, and it can be seen whether it runs
  bool speaks = false;     // at every heartbeat, from `met` on; one that runs only inside calls does not
  bool idle = false;       // nobody uses it: its silence is no news
  bool gone = false;       // died, or was silent for too long
  bool left = false;       // in good order
  bool ended() const { return gone || left; }

  Nanos met;  // silence counts from here on, or from its last word

  // SilenceWatch's own.
  Nanos hung_up_since = Nanos::max();
  Nanos silent_since = Nanos::max();  // a warning has said so
  ProcessPulse pulse;                 // at the last look at a neighbour
  Nanos looked_by;                    // a moment after that look; max: not known yet
  bool looked = false;
  bool still = false;
};

}  // namespace canarynet
