// Pairs the NICs of one host with those of another (topology/rails.h).
#include <algorithm>
#include <array>
#include <functional>

#include "topology/rails.h"

namespace canarynet {
namespace {

constexpr std::array<const char*, 4> kNames = {"auto", "subnet", "route", "index"};

using Meet = std::function<bool(int local, int remote)>;

// Two hosts' rails, and the pairs found so far.
class Pairs {
 public:
  Pairs(std::span<const Rail> local, std::span<const Rail> remote)
      : local_(local), remote_(remote), local_matched_(local.size()), remote_matched_(remote.size()) {}

  // Pairs first with first, second with second …; the surplus of the longer side goes around the shorter one.
  void match(const Meet& meet) {
    const int locals = static_cast<int>(local_.size()), remotes = static_cast<int>(remote_.size());
    std::vector<RailPair> found;
    for (int i = 0; i < locals; ++i) {
      for (int j = 0; j < remotes; ++j) {
        if (!meet(i, j)) continue;
        int local_count = 0, local_position = 0, remote_count = 0, remote_position = 0;
        for (int k = 0; k < locals; ++k) {
          if (k == i) local_position = local_count;
          local_count += meet(k, j) ? 1 : 0;
        }
        for (int k = 0; k < remotes; ++k) {
          if (k == j) remote_position = remote_count;
          remote_count += meet(i, k) ? 1 : 0;
        }
        const int modulus = std::min(local_count, remote_count);
        if (local_position % modulus == remote_position % modulus) found.push_back({i, j});
      }
    }
    for (const RailPair& p : found) add(p);
  }

  void match_by_subnet() {
    match([&](int i, int j) { return here(i).same_subnet(there(j)); });
    for (int i = 0; i < std::min(static_cast<int>(local_.size()), static_cast<int>(remote_.size())); ++i) {
      // Two known subnets that differ are different networks: never joined by their index alone.
      const bool unknown = here(i).prefix_bits == 0 || there(i).prefix_bits == 0;
      if (!local_matched(i) && !remote_matched(i) && unknown && here(i).family == there(i).family) add({i, i});
    }
  }

  // Pairs the rails that have no partner yet.
  void match_by_route() {
    const std::vector<bool> local_had = local_matched_, remote_had = remote_matched_;
    match([&](int i, int j) {
      if (local_had[static_cast<std::size_t>(i)] || remote_had[static_cast<std::size_t>(j)]) return false;
      return rail(i).leads_to(there(j)) && remote_[static_cast<std::size_t>(j)].leads_to(here(i));
    });
  }

  void match_by_index() {
    match([&](int i, int j) {
      return here(i).family == there(j).family && here(i).family != Address::Family::kSharedMemory;
    });
  }

  bool none() const { return pairs_.empty(); }

  std::vector<RailPair> take() {
    const auto shared_memory = [&](const RailPair& p) {
      return here(p.local).family == Address::Family::kSharedMemory;
    };
    if (std::any_of(pairs_.begin(), pairs_.end(), shared_memory))
      std::erase_if(pairs_, [&](const RailPair& p) { return !shared_memory(p); });
    std::sort(pairs_.begin(), pairs_.end());
    return std::move(pairs_);
  }

 private:
  const Rail& rail(int i) const { return local_[static_cast<std::size_t>(i)]; }
  const Address& here(int i) const { return rail(i).address; }
  const Address& there(int j) const { return remote_[static_cast<std::size_t>(j)].address; }
  bool local_matched(int i) const { return local_matched_[static_cast<std::size_t>(i)]; }
  bool remote_matched(int j) const { return remote_matched_[static_cast<std::size_t>(j)]; }
  void add(const RailPair& p) {
    pairs_.push_back(p);
    local_matched_[static_cast<std::size_t>(p.local)] = remote_matched_[static_cast<std::size_t>(p.remote)] = true;
  }

  std::span<const Rail> local_, remote_;
  std::vector<bool> local_matched_, remote_matched_;
  std::vector<RailPair> pairs_;
};

}  // namespace

const char* name_of(RailPairing pairing) { return kNames[static_cast<std::size_t>(pairing)]; }

std::optional<RailPairing> parse_rail_pairing(std::string_view text) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (text == kNames[i]) return static_cast<RailPairing>(i);
  }
  return std::nullopt;
}

bool Rail::leads_to(const Address& to) const {
  if (to.loopback() || address.loopback() || to.family != address.family) return false;
  return std::any_of(beyond.begin(), beyond.end(), [&](const Network& n) { return n.contains(to); });
}

std::vector<RailPair> pair_rails(std::span<const Rail> local, std::span<const Rail> remote, RailPairing pairing) {
  Pairs pairs(local, remote);
  if (pairing == RailPairing::kIndex) {
    // If the two hosts share memory their NICs don't count.
    pairs.match([&](int i, int j) {
      const Address& here = local[static_cast<std::size_t>(i)].address;
      return here.family == Address::Family::kSharedMemory &&
             here.same_subnet(remote[static_cast<std::size_t>(j)].address);
    });
    if (pairs.none()) pairs.match_by_index();
    return pairs.take();
  }
  pairs.match_by_subnet();
  if (pairing == RailPairing::kRoute || (pairing == RailPairing::kAuto && pairs.none())) pairs.match_by_route();
  return pairs.take();
}

RailPairing settled_pairing(RailPairing asked, std::span<const std::vector<Rail>> hosts,
                            std::span<const int> engine_of) {
  const auto leads_out = [](const std::vector<Rail>& rails) {
    return std::any_of(rails.begin(), rails.end(), [](const Rail& r) { return !r.beyond.empty(); });
  };
  if (asked != RailPairing::kAuto || std::none_of(hosts.begin(), hosts.end(), leads_out)) return asked;
  const Reachability by_subnet = Reachability::from_rails(hosts, engine_of, RailPairing::kSubnet);
  const bool bcube = find_bcube(by_subnet, kRailsMax).levels >= 2;
  return bcube ? RailPairing::kSubnet : RailPairing::kAuto;
}

}  // namespace canarynet
