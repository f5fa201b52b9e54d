#include "topology/rails.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

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

// The level at which ranks a != b of BCube(r, levels) are mates, or -1 if they differ in several digits.
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
  constexpr std::uint32_t kAnyway = Reachability::kLocalBit | Reachability::kHostBit;
  if (levels == 1) {  // a flat network, which may be a wide one
    if (!reach.all_pairs([](std::uint32_t rails) { return (rails & (1u | kAnyway)) != 0; })) return Fit::kNone;
    return reach.all_pairs([](std::uint32_t rails) { return rails == 1; }) ? Fit::kExact : Fit::kContains;
  }
  // If every rank meets every other over all rails nothing else need be looked at; that is more than BCube wiring has.
  const std::uint32_t every = (1u << levels) - 1;
  if (reach.all_pairs([&](std::uint32_t rails) { return (rails & kAnyway) != 0 || (rails & every) == every; }))
    return Fit::kContains;
  bool exact = true;
  for (int a = 0; a < reach.ranks(); ++a) {
    for (int b = 0; b < reach.ranks(); ++b) {
      if (a == b) continue;
      const std::uint32_t rails = reach.rails(a, b);
      const int level = level_between(a, b, r, levels);
      const std::uint32_t wanted = level < 0 ? 0 : 1u << level;
      if (wanted != 0 && (rails & (wanted | kAnyway)) == 0) return Fit::kNone;
      exact = exact && rails == wanted;
    }
  }
  return exact ? Fit::kExact : Fit::kContains;
}

// The properties of a rail that decide whom it meets. They are equal for all addresses of one subnet.
struct RailKind {
  Address::Family family = Address::Family::kNone;
  std::uint8_t prefix_bits = 0;
  bool loopback = false;
  Network subnet;
  std::vector<Network> beyond;
  auto operator<=>(const RailKind&) const = default;
};

std::vector<RailKind> kind_of(const std::vector<Rail>& rails) {
  std::vector<RailKind> out;
  for (const Rail& r : rails) {
    RailKind& k = out.emplace_back();
    k.family = r.address.family;
    k.prefix_bits = r.address.prefix_bits;
    k.loopback = r.address.loopback();
    if (k.prefix_bits != 0) k.subnet = Network::of(r.address);
    k.beyond = r.beyond;
  }
  return out;
}

// Whether some route leads to only a part of a rail's subnet: then addresses within it are not alike.
bool routes_split_subnets(std::span<const std::vector<Rail>> hosts) {
  std::set<Network> networks, subnets;
  std::set<Address::Family> unknown;  // families with an unknown subnet
  for (const auto& rails : hosts) {
    for (const Rail& r : rails) {
      networks.insert(r.beyond.begin(), r.beyond.end());
      if (r.address.prefix_bits != 0) {
        subnets.insert(Network::of(r.address));
      } else {
        unknown.insert(r.address.family);
      }
    }
  }
  return std::any_of(networks.begin(), networks.end(), [&](const Network& n) {
    if (n.bits != 0 && unknown.count(n.base.family) != 0) return true;
    return std::any_of(subnets.begin(), subnets.end(),
                       [&](const Network& s) { return s.bits < n.bits && s.contains(n); });
  });
}

}  // namespace

Reachability::Reachability(int ranks)
    : engine_(static_cast<std::size_t>(ranks)),
      kind_(static_cast<std::size_t>(ranks)),
      kinds_(static_cast<std::size_t>(ranks)),
      between_(kinds_ * kinds_) {
  std::iota(engine_.begin(), engine_.end(), 0);
  std::iota(kind_.begin(), kind_.end(), 0);
  count_engines();
}

void Reachability::count_engines() {
  std::vector<int> first(kinds_, -1);
  several_engines_.assign(kinds_, false);
  shared_engine_ = false;
  std::vector<int> engines = engine_;
  std::sort(engines.begin(), engines.end());
  shared_engine_ = std::adjacent_find(engines.begin(), engines.end()) != engines.end();
  for (std::size_t r = 0; r < engine_.size(); ++r) {
    int& known = first[static_cast<std::size_t>(kind_[r])];
    if (known < 0) known = engine_[r];
    if (known != engine_[r]) several_engines_[static_cast<std::size_t>(kind_[r])] = true;
  }
}

void Reachability::set(int a, int b, std::uint32_t rails_of_a, std::uint32_t rails_of_b) {
  CANARY_CHECK(a >= 0 && b >= 0 && a < ranks() && b < ranks(), "ranks of the matrix only");
  CANARY_CHECK((rails_of_a == 0) == (rails_of_b == 0), "meeting is symmetric");
  if (kinds_ != engine_.size() || shared_engine_) {
    Reachability each(ranks());
    for (int i = 0; i < ranks(); ++i) {
      for (int j = 0; j < ranks(); ++j)
        each.between_[static_cast<std::size_t>(i) * each.kinds_ + static_cast<std::size_t>(j)] = rails(i, j);
    }
    *this = std::move(each);
  }
  between_[static_cast<std::size_t>(a) * kinds_ + static_cast<std::size_t>(b)] = rails_of_a;
  between_[static_cast<std::size_t>(b) * kinds_ + static_cast<std::size_t>(a)] = rails_of_b;
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
  Reachability reach;
  reach.engine_.assign(engine_of.begin(), engine_of.end());
  std::vector<const std::vector<Rail>*> example;  // [kind]
  const bool alike = !routes_split_subnets(hosts);
  std::map<std::vector<RailKind>, int> kinds;
  std::map<int, int> kind_of_engine;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    const auto next = static_cast<int>(example.size());
    const auto [of_engine, first] = kind_of_engine.emplace(engine_of[r], next);
    if (first && alike) of_engine->second = kinds.emplace(kind_of(hosts[r]), next).first->second;
    if (of_engine->second == next) example.push_back(&hosts[r]);
    reach.kind_.push_back(of_engine->second);
  }
  reach.kinds_ = example.size();
  reach.between_.resize(reach.kinds_ * reach.kinds_);
  reach.count_engines();
  for (std::size_t a = 0; a < reach.kinds_; ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      if (a == b && !reach.several_engines_[a]) continue;
      std::uint32_t of_a = 0, of_b = 0;
      for (const RailPair& pair : pair_rails(*example[a], *example[b], pairing)) {
        of_a |= 1u << pair.local;
        of_b |= 1u << pair.remote;
        if ((*example[a])[static_cast<std::size_t>(pair.local)].address.family == Address::Family::kSharedMemory) {
          of_a |= kHostBit;
          of_b |= kHostBit;
        }
      }
      reach.between_[a * reach.kinds_ + b] = of_a;
      reach.between_[b * reach.kinds_ + a] = of_b;
    }
  }
  return reach;
}

Reachability Reachability::subset(std::span<const int> members) const {
  Reachability reach;
  std::map<int, int> kinds;  // the kinds of the members, in order of their first
  std::vector<std::size_t> old;
  for (const int m : members) {
    const int kind = kind_[static_cast<std::size_t>(m)];
    const auto [known, first] = kinds.emplace(kind, static_cast<int>(old.size()));
    if (first) old.push_back(static_cast<std::size_t>(kind));
    reach.kind_.push_back(known->second);
    reach.engine_.push_back(engine_[static_cast<std::size_t>(m)]);
  }
  reach.kinds_ = old.size();
  for (const std::size_t a : old) {
    for (const std::size_t b : old) reach.between_.push_back(between_[a * kinds_ + b]);
  }
  reach.count_engines();
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
