#include "topology/rails.h"

#include <algorithm>

#include "base/check.h"

namespace canarynet {
namespace {

// base^exponent, or 0 above `limit`.
int power_up_to(int base, int exponent, int limit) {
  std::int64_t value = 1;
  for (int i = 0; i < exponent; ++i) {
    value *= base;
    if (value > limit) return 0;
  }
  return static_cast<int>(value);
}

// The level at which ranks a != b of BCube(r, levels) are mates, or -1 when they differ in several digits.
int level_between(int a, int b, int r, int levels) {
  int found = -1;
  for (int l = 0; l < levels; ++l, a /= r, b /= r) {
    if (a % r == b % r) continue;
    if (found >= 0) return -1;
    found = l;
  }
  return found;
}

enum class Fit { kNone, kContains, kExact };

Fit fit_of(const Reachability& reach, int r, int levels) {
  bool exact = true;
  for (int a = 0; a < reach.ranks(); ++a) {
    for (int b = 0; b < reach.ranks(); ++b) {
      if (a == b) continue;
      const std::uint32_t rails = reach.rails(a, b);
      const int level = level_between(a, b, r, levels);
      const std::uint32_t wanted = level < 0 ? 0 : 1u << level;
      const std::uint32_t anyway = Reachability::kLocalBit | Reachability::kHostBit;
      if (wanted != 0 && (rails & (wanted | anyway)) == 0) return Fit::kNone;
      exact = exact && rails == wanted;
    }
  }
  return exact ? Fit::kExact : Fit::kContains;
}

}  // namespace

void Reachability::set(int a, int b, std::uint32_t rails_of_a, std::uint32_t rails_of_b) {
  CANARY_CHECK(a >= 0 && b >= 0 && a < ranks_ && b < ranks_, "ranks of the matrix only");
  CANARY_CHECK((rails_of_a == 0) == (rails_of_b == 0), "meeting is symmetric");
  rails_[static_cast<std::size_t>(a) * ranks_ + b] = rails_of_a;
  rails_[static_cast<std::size_t>(b) * ranks_ + a] = rails_of_b;
}

Reachability Reachability::full(int ranks, int rails) {
  CANARY_CHECK(rails >= 1 && rails <= kRailsMax, "1 to 16 rails");
  Reachability reach(ranks);
  const std::uint32_t all = (1u << rails) - 1;
  for (int a = 0; a < ranks; ++a) {
    for (int b = 0; b < a; ++b) reach.set(a, b, all, all);
  }
  return reach;
}

Reachability Reachability::bcube(int r, int levels) {
  CANARY_CHECK(r >= 2 && levels >= 1 && levels <= kRailsMax, "BCube(r, L) has r >= 2 and 1 to 16 levels");
  const int ranks = power_up_to(r, levels, 1 << 16);
  CANARY_CHECK(ranks > 0, "BCube too large");
  Reachability reach(ranks);
  for (int a = 0; a < ranks; ++a) {
    for (int b = 0; b < a; ++b) {
      const int level = level_between(a, b, r, levels);
      if (level >= 0) reach.set(a, b, 1u << level, 1u << level);
    }
  }
  return reach;
}

Reachability Reachability::from_rails(std::span<const std::vector<Rail>> hosts, std::span<const int> engine_of,
                                      RailPairing pairing) {
  CANARY_CHECK(hosts.size() == engine_of.size(), "one engine number per rank");
  Reachability reach(static_cast<int>(hosts.size()));
  for (int a = 0; a < reach.ranks(); ++a) {
    for (int b = 0; b < a; ++b) {
      if (engine_of[a] == engine_of[b]) {
        reach.set(a, b, kLocalBit, kLocalBit);
        continue;
      }
      std::uint32_t of_a = 0, of_b = 0;
      for (const RailPair& pair : pair_rails(hosts[a], hosts[b], pairing)) {
        of_a |= 1u << pair.local;
        of_b |= 1u << pair.remote;
        if (hosts[a][static_cast<std::size_t>(pair.local)].address.family == Address::Family::kSharedMemory) {
          of_a |= kHostBit;
          of_b |= kHostBit;
        }
      }
      reach.set(a, b, of_a, of_b);
    }
  }
  return reach;
}

Reachability Reachability::subset(std::span<const int> members) const {
  Reachability reach(static_cast<int>(members.size()));
  for (int a = 0; a < reach.ranks(); ++a) {
    for (int b = 0; b < a; ++b) reach.set(a, b, rails(members[a], members[b]), rails(members[b], members[a]));
  }
  return reach;
}

BCubeShape find_bcube(const Reachability& reach, int levels_max) {
  BCubeShape best;
  for (int levels = std::min(levels_max, kRailsMax); levels >= 1; --levels) {
    int r = 2;
    while (power_up_to(r, levels, reach.ranks()) != 0 && power_up_to(r, levels, reach.ranks()) < reach.ranks()) ++r;
    if (power_up_to(r, levels, reach.ranks()) != reach.ranks()) continue;
    const Fit fit = fit_of(reach, r, levels);
    if (fit == Fit::kExact) return {r, levels};
    if (fit == Fit::kContains && best.levels == 0) best = {r, levels};
  }
  return best;
}

}  // namespace canarynet
