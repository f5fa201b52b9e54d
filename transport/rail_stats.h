// transport/rail_stats.h -- what went over one rail, summed over channels and lanes, and one link as counters see it.
// Plain data; whoever drives the channels fills it.
#pragma once

#include <cstdint>
#include <string>

#include "transport/channel.h"

namespace canarynet {

struct RailStats {
  LaneCounters lanes;             // bytes, frames, errors
  ResendCounts resends{};         // pieces sent again, by reason
  std::uint64_t retransmits = 0;  // all of them
  std::uint64_t failovers = 0;    // times a lane was given up
  BytesPerSec rate;               // measured, of the lanes there are; 0: not measured yet
  std::uint32_t lanes_up = 0;
  std::uint32_t lanes_wanted = 0;  // there should be, with those that are up

  // Adds the paths of `channel` that leave by `rail`.
  void add(const Channel& channel, int rail) {
    for (const Path& path : channel.paths()) {
      if (path.spec.local_rail == rail) add(path);
    }
  }
  void add(const Path& path) {
    Path::add(&lanes, path.counters());
    for (std::size_t i = 0; i < resends.size(); ++i) {
      resends[i] += path.resends[i];
      retransmits += path.resends[i];
    }
    failovers += path.failovers;
    rate.count += path.estimator.rate().count;
    lanes_up += path.state == Path::State::kUp;
    ++lanes_wanted;
  }
  // The channels have ended: what they did counts, their lanes are no more.
  void close() {
    rate = {};
    lanes_up = lanes_wanted = 0;
  }
};

// One path of a channel, for whoever lists them.
struct LinkView {
  const Path& path;
  std::uint32_t number;       // its owner's of the peer
  const std::string& peer;    // "rank 3", "hosta:1234"
  const std::string& remote;  // NIC or address there; "": only its number is known
  bool ended;                 // its peer has gone: what it did counts
  bool wanted;                // its peer was met, so there should be a lane
};

}  // namespace canarynet
