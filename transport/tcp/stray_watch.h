// transport/tcp/stray_watch.h -- connections that come in by another NIC than that of the address they were meant for:
// when they are more than a peer's first try, which is answered by announcing where the address is.
//
// Memory: a fixed number of peers. Thread: the owner's. Pure.
#pragma once

#include <array>
#include <cstddef>

#include "base/units.h"
#include "topology/address.h"

namespace canarynet {

class StrayWatch {
 public:
  // Announced by then several times over; it takes a second or two.
  static constexpr Nanos kPatience = 6_s;
  // Tries that are further apart have nothing to do with each other.
  static constexpr Nanos kApart = 3_s;

  // A connection to `rail` from `peer` strayed. True where it goes on in spite of what was announced.
  bool strayed(int rail, const Address& peer, Nanos now);
  // One came in where it should.
  void arrived(int rail, const Address& peer);

 private:
  static constexpr std::size_t kPeersMax = 64;
  struct Streak {
    int rail = -1;  // -1: free
    Address peer;   // without a port
    Nanos since, latest;
  };
  Streak* find(int rail, const Address& peer);

  std::array<Streak, kPeersMax> streaks_{};
};

}  // namespace canarynet
