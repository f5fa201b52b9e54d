// collectives/walk_lanes.h -- the lanes between the hosts of a cost walk over measured links (collectives/walk.h), and
// which of them takes a piece.
//
// A channel gives each piece to one lane: the one where it is expected first, by what the lane holds already and by
// what it is known to carry. The rail that a plan names is a preference (limits::kPlannedRail).
// So a piece is never spread over rails, and of two rails that differ much the slow one is left alone, whatever the
// plan says. Pure; one thread; allocates while lanes are added.
#pragma once

#include <cstdint>
#include <vector>

namespace canarynet {

// What a message costs on its way. Many sends have one in common, so that the walk's steps stay small: it is as fast as
// they are in the caches.
struct WalkWay {
  bool local = false;  // between ranks of one host
  double alpha = 0, out_beta = 0, in_beta = 0, link_beta = 0;
  bool operator==(const WalkWay&) const = default;
};

class WalkLanes {
 public:
  struct Lane {
    int rail = 0;  // the sender's
    WalkWay way;
    std::uint32_t out_queue = 0, in_queue = 0;  // of the walk's ports
    double free = 0;                            // when the link has carried what has left so far
    std::uint64_t held = 0;                     // bytes that it has been given and that are not there yet
  };

  // Begins another pair of hosts; its lanes are the next ones that are added. Returns the pair's number.
  std::uint32_t add_pair();
  void add(const Lane& lane) { lanes_.push_back(lane); }

  // The lane of the pair that takes a piece, which it holds from now on. `rail`: the one that the plan names, or < 0.
  // Of lanes that are as good the first one is taken.
  std::uint32_t choose(std::uint32_t pair, std::uint64_t bytes, int rail);
  // The piece is there.
  void arrived(std::uint32_t lane, std::uint64_t bytes) { lanes_[lane].held -= bytes; }

  Lane& operator[](std::uint32_t lane) { return lanes_[lane]; }
  const Lane& operator[](std::uint32_t lane) const { return lanes_[lane]; }
  std::vector<Lane>& all() { return lanes_; }

 private:
  std::uint32_t end_of(std::uint32_t pair) const {
    return pair + 1 < begins_.size() ? begins_[pair + 1] : static_cast<std::uint32_t>(lanes_.size());
  }

  std::vector<Lane> lanes_;            // by pair
  std::vector<std::uint32_t> begins_;  // [pair]: its first lane
};

}  // namespace canarynet
