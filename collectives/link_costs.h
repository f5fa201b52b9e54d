// collectives/link_costs.h -- the costs of each link between the hosts of a group: α and β per pair, direction and NIC.
// Pure values, used by one thread. Ranks of one host share its links, under the number of the host's first rank.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace canarynet {

struct LinkCost {
  double alpha = 0;  // seconds from the start of a message until its first byte is there
  double beta = 0;   // seconds per byte
  bool operator==(const LinkCost&) const = default;
};

class LinkCosts {
 public:
  LinkCosts() = default;
  // `everywhere` holds for every link that set() does not name.
  explicit LinkCosts(LinkCost everywhere) : everywhere_(everywhere) {}

  // Sets the cost from `from` over its rail `rail` to `to`.
  void set(int from, int to, int rail, LinkCost cost) { links_[key(from, to, rail)] = cost; }
  // As set(), of a link that has shown no rate: its beta is a guess.
  void guess(int from, int to, int rail, LinkCost cost) {
    set(from, to, rail, cost);
    guessed_.push_back(key(from, to, rail));
  }
  bool has_guesses() const { return !guessed_.empty(); }
  // Another guess for all of those.
  void set_guessed_beta(double beta) {
    for (const std::uint64_t link : guessed_) links_[link].beta = beta;
  }
  // The same links where a byte takes so many times as long.
  LinkCosts times(double share) const {
    LinkCosts out = *this;
    out.everywhere_.beta *= share;
    for (auto& [link, cost] : out.links_) cost.beta *= share;
    return out;
  }
  LinkCost usual() const { return everywhere_; }
  LinkCost of(int from, int to, int rail) const {
    const auto found = links_.find(key(from, to, rail));
    return found == links_.end() ? everywhere_ : found->second;
  }

  // Whether no link differs from the others.
  bool alike() const { return links_.empty(); }

  // The cost of `bytes` that leave `from` at once over `rails` (a bit each, at least one). Each rail takes what it
  // delivers by the moment when all is there, so one with a long way takes nothing of a short message. alpha: until the
  // first byte is there; beta: (last byte - first byte) / bytes.
  LinkCost together(int from, int to, std::uint32_t rails, std::uint64_t bytes) const;

 private:
  static std::uint64_t key(int from, int to, int rail) {
    return static_cast<std::uint64_t>(from) << 36 | static_cast<std::uint64_t>(to) << 8 |
           static_cast<std::uint64_t>(rail);
  }

  LinkCost everywhere_;
  std::unordered_map<std::uint64_t, LinkCost> links_;
  std::vector<std::uint64_t> guessed_;
};

}  // namespace canarynet
