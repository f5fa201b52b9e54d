// topology/rails.h -- a host's rails (its NICs as Canary uses them), and who can meet whom over them. Pure data.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "topology/address.h"
#include "topology/network.h"

namespace canarynet {

inline constexpr int kRailsMax = 16;   // NICs per host; shared memory comes behind them
inline constexpr int kBeyondMax = 16;  // networks that a rail may say it leads to

// One NIC of a host, or its shared memory. Its index in the host's list is the rail's number.
struct Rail {
  std::string device;   // "eth0"
  Address address;      // with prefix and the port its lanes are accepted on
  BytesPerSec nominal;  // a first guess only (a veth says 10 Gbit/s whatever it is shaped to); 0 = unknown
  // Networks that its host's routing tables reach through it, beyond its own subnet.
  std::vector<Network> beyond = {};

  bool leads_to(const Address& address) const;
};

// How rails find their partners; CANARY_RAIL_PAIRING.
enum class RailPairing : std::uint8_t {
  kAuto,    // by subnet; two hosts that share none by route
  kSubnet,  // by subnet only
  kRoute,   // by subnet, and by route every rail that has no partner yet
  kIndex,   // k-th with k-th, whatever their addresses are
};
const char* name_of(RailPairing pairing);
std::optional<RailPairing> parse_rail_pairing(std::string_view text);

// Pairs of rails over which two hosts meet, ascending. Symmetric: the other host finds the same ones. (pairing.cc)
//   By subnet: rails on one subnet meet; rails without a match on either side meet by index if a subnet is unknown.
//   By route: two rails meet if each leads to the other one's address.
//   If several rails of both hosts could meet, the k-th meets the k-th, and the surplus of the longer side goes round
//   the shorter one: each NIC has a partner, and no two pairs share both.
// Two known subnets that differ and that no route joins are two networks (BCube wiring looks like that). Two engines
// that meet through shared memory meet over nothing else.
struct RailPair {
  int local = -1;
  int remote = -1;
  auto operator<=>(const RailPair&) const = default;
};
std::vector<RailPair> pair_rails(std::span<const Rail> local, std::span<const Rail> remote, RailPairing pairing);

// The pairing for all hosts of a job: as asked, except that kAuto follows no route where the subnets alone wire the
// hosts as a BCube. Most of its pairs share no subnet on purpose, and a default route (to a gateway, a management
// network) says nothing about them.
RailPairing settled_pairing(RailPairing asked, std::span<const std::vector<Rail>> hosts,
                            std::span<const int> engine_of);

// Which of n ranks can meet directly, and over which rails of the first one. Symmetric in `meets`; rails are the row's
// own numbers. Ranks of one engine always meet (kLocalBit). A value type. Ranks whose rails lead to the same
// networks are of one kind, and meet others alike. It takes 4 bytes for each two kinds, which are few on a wide flat
// network, and 8 for each rank.
class Reachability {
 public:
  static constexpr std::uint32_t kLocalBit = 1u << 31;  // same engine: no rail needed
  static constexpr std::uint32_t kHostBit =
      1u << 30;  // same host: the one rail that is set beside it is its shared memory

  Reachability() = default;
  // Every rank meets every other over `rails` rails.
  static Reachability full(int ranks, int rails);
  // BCube(r, levels) wiring: rank digits in base r; rail l joins ranks that differ in digit l only.
  static Reachability bcube(int r, int levels);
  // hosts[i] = rails of the engine that serves rank i; engine_of[i] = that engine's number.
  static Reachability from_rails(std::span<const std::vector<Rail>> hosts, std::span<const int> engine_of,
                                 RailPairing pairing = RailPairing::kSubnet);
  // No rank meets another; every rank is of a kind of its own.
  explicit Reachability(int ranks);

  int ranks() const { return static_cast<int>(engine_.size()); }
  bool meets(int a, int b) const { return a == b || rails(a, b) != 0; }
  // Bit l: rail l of a reaches b.
  std::uint32_t rails(int a, int b) const {
    const auto i = static_cast<std::size_t>(a), j = static_cast<std::size_t>(b);
    if (engine_[i] == engine_[j]) return a == b ? 0 : kLocalBit;
    return between_[static_cast<std::size_t>(kind_[i]) * kinds_ + static_cast<std::size_t>(kind_[j])];
  }
  // Gives every rank a kind of its own, unless each has one already.
  void set(int a, int b, std::uint32_t rails_of_a, std::uint32_t rails_of_b);
  // The matrix of a subset: row i is members[i].
  Reachability subset(std::span<const int> members) const;
  // Whether `holds(rails(a, b))` for all a != b. Looks at kinds, not at ranks.
  template <typename Holds>
  bool all_pairs(Holds holds) const {
    for (std::size_t i = 0; i < kinds_; ++i) {
      for (std::size_t j = 0; j < kinds_; ++j) {
        if ((i != j || several_engines_[i]) && !holds(between_[i * kinds_ + j])) return false;
      }
    }
    return !shared_engine_ || holds(kLocalBit);
  }

 private:
  void count_engines();

  std::vector<int> engine_;  // [rank]
  std::vector<int> kind_;    // [rank]
  std::size_t kinds_ = 0;
  std::vector<std::uint32_t> between_;  // [kind of a * kinds + kind of b]
  std::vector<bool> several_engines_;   // [kind]: two engines or more are of it
  bool shared_engine_ = false;          // some engine serves several ranks
};

// Finds (r, levels) with n = r^levels such that the matrix contains every edge of BCube(r, levels), rail l on level l.
// levels = 0 if there is none; else the one with the most levels not above `levels_max`. Prefers a shape whose wiring
// is exactly that of all rails.
struct BCubeShape {
  int r = 0;
  int levels = 0;
};
BCubeShape find_bcube(const Reachability& reach, int levels_max);

}  // namespace canarynet
