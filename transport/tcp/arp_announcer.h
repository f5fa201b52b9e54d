// transport/tcp/arp_announcer.h -- tells a subnet which of this host's NICs has which address, where several are on it.
//
// What: Linux answers ARP for every address of a host on each of its NICs, and who asked keeps the first answer: what
// is meant for one NIC comes in by another. But a question that a NIC asks itself carries its own address and hardware
// address, and whoever has an entry for that address corrects it. So a datagram goes out by the NIC to an address that
// nobody has (decision 17): the kernel asks for it, three times within two seconds, and the datagram never leaves.
// Units: ns. Memory: a datagram socket for each rail that shares its subnet; announce() allocates nothing, never waits.
// Thread: the owner's. Needs no privilege where binding to a device needs none (Linux 5.7; CAP_NET_RAW before).
// Failure: none told. A NIC that is down can't announce, and will be asked to again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"
#include "topology/rails.h"
#include "transport/tcp/socket.h"

namespace canarynet {

class ArpAnnouncer {
 public:
  ArpAnnouncer() = default;
  explicit ArpAnnouncer(std::span<const Rail> rails);

  // Whether the rail shares its subnet, and can announce itself.
  bool serves(int rail) const;
  // Called whenever a peer may have a wrong entry; more than once a second is too much, and left out.
  void announce(int rail, Nanos now);

 private:
  // An entry younger than a second keeps what it was told first (the kernel's locktime).
  static constexpr Nanos kInterval = 1_s;

  struct Voice {
    Socket socket;  // closed: the rail is alone in its subnet
    Nanos next;
  };
  std::vector<Voice> voices_;
  std::uint32_t announced_ = 0;
};

}  // namespace canarynet
