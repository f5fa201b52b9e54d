#include "sync/contributors.h"

#include <algorithm>

namespace canarynet::sync {

void Contributors::add(int w, IterationRange range) {
  CANARY_CHECK(!set_.has(w), "a worker contributes once to a sum");
  if (range.empty()) return;
  set_.add(w);
  ranges_[static_cast<std::size_t>(w)] = range;
}

bool Contributors::unite(const Contributors& other) {
  if (set_.meets(other.set_)) return false;
  for (int w = other.set_.next(); w >= 0; w = other.set_.next(w + 1)) {
    ranges_[static_cast<std::size_t>(w)] = other.ranges_[static_cast<std::size_t>(w)];
  }
  set_.unite(other.set_);
  return true;
}

Iteration Contributors::gradients() const {
  Iteration sum = 0;
  for (int w = set_.next(); w >= 0; w = set_.next(w + 1)) sum += ranges_[static_cast<std::size_t>(w)].count();
  return sum;
}

Iteration Contributors::oldest() const {
  Iteration oldest = 0;
  for (int w = set_.next(); w >= 0; w = set_.next(w + 1)) {
    const Iteration first = ranges_[static_cast<std::size_t>(w)].first;
    if (oldest == 0 || first < oldest) oldest = first;
  }
  return oldest;
}

Iteration Contributors::newest() const {
  Iteration newest = 0;
  for (int w = set_.next(); w >= 0; w = set_.next(w + 1)) {
    newest = std::max(newest, ranges_[static_cast<std::size_t>(w)].last);
  }
  return newest;
}

std::uint32_t Contributors::hash() const {
  if (empty()) return 0;
  std::uint64_t state = 0x9e3779b97f4a7c15ull;
  const auto mix = [&state](Iteration value) {
    state = (state ^ static_cast<std::uint64_t>(value)) * 0xbf58476d1ce4e5b9ull;
    state ^= state >> 29;
  };
  for (int w = set_.next(); w >= 0; w = set_.next(w + 1)) {
    mix(w);
    mix(ranges_[static_cast<std::size_t>(w)].first);
    mix(ranges_[static_cast<std::size_t>(w)].last);
  }
  const auto folded = static_cast<std::uint32_t>(state >> 32);
  return folded == 0 ? 1 : folded;  // 0 says "none"
}

bool Contributors::operator==(const Contributors& other) const {
  if (!(set_ == other.set_)) return false;
  for (int w = set_.next(); w >= 0; w = set_.next(w + 1)) {
    if (!(of(w) == other.of(w))) return false;
  }
  return true;
}

}  // namespace canarynet::sync
