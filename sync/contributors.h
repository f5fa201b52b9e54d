// sync/contributors.h -- whose gradients a sum holds: per worker a run of iterations without holes.
//
// Every partial sum of a round travels with its Contributors; an aggregator unites them and finds out if one gradient
// came twice. Sized once for n workers; nothing allocates afterwards, also not an assignment. One owner thread.
#pragma once

#include <cstdint>
#include <vector>

#include "sync/worker_set.h"

namespace canarynet::sync {

// Iterations count from 1; 0 is "none yet".
using Iteration = std::int64_t;

// first..last, both included; empty if last < first.
struct IterationRange {
  Iteration first = 1;
  Iteration last = 0;

  bool empty() const { return last < first; }
  Iteration count() const { return empty() ? 0 : last - first + 1; }
  bool operator==(const IterationRange& o) const {
    return (empty() && o.empty()) || (first == o.first && last == o.last);
  }
};

class Contributors {
 public:
  explicit Contributors(int workers = 0) : set_(workers), ranges_(static_cast<std::size_t>(workers)) {}

  const WorkerSet& set() const { return set_; }
  bool empty() const { return set_.empty(); }
  // Empty where worker w contributed nothing.
  IterationRange of(int w) const { return set_.has(w) ? ranges_[static_cast<std::size_t>(w)] : IterationRange{}; }
  void clear() { set_.clear(); }
  // Worker w, which must not be a member yet; an empty range adds nothing.
  void add(int w, IterationRange range);
  // False, and nothing changes, if a worker is in both: a gradient would count twice.
  [[nodiscard]] bool unite(const Contributors& other);

  // How many gradients these are, the oldest iteration and the newest; 0 of nothing.
  Iteration gradients() const;
  Iteration oldest() const;
  Iteration newest() const;
  // Equal for equal contributors on all machines; differs for others but for one in 2^32. 0 for none.
  std::uint32_t hash() const;
  bool operator==(const Contributors& other) const;

 private:
  WorkerSet set_;
  std::vector<IterationRange> ranges_;  // of the members only
};

}  // namespace canarynet::sync
