#include "sync/quorum.h"

#include <algorithm>

#include "base/check.h"

namespace canarynet::sync {

Quorum::Quorum(int workers, int percent, int slack_percent, Nanos slack_min)
    : percent_(percent),
      slack_percent_(slack_percent),
      slack_min_(slack_min),
      members_(WorkerSet::all(workers)),
      here_(workers),
      joined_(workers),
      closed_{WorkerSet(workers), WorkerSet(workers)},
      offset_(static_cast<std::size_t>(workers)) {
  sorted_.reserve(static_cast<std::size_t>(workers));
}

int Quorum::needed() const { return (members_.count() * percent_ + 99) / 100; }

bool Quorum::arrive(Nanos now, int w, std::int64_t round) {
  if (!members_.has(w)) return false;
  if (round != round_) {
    // Of an older round only its end is remembered: who is later than one round counts as that late.
    offset_[static_cast<std::size_t>(w)].add(now - last_opened_);
    return false;
  }
  if (here_.has(w)) return true;
  if (here_ == joined_) opened_ = now;
  here_.add(w);
  offset_[static_cast<std::size_t>(w)].add(now - opened_);
  return true;
}

void Quorum::join(int w) {
  here_.add(w);
  joined_.add(w);
}

void Quorum::died(int w) {
  members_.remove(w);
  here_.remove(w);
  joined_.remove(w);
}

void Quorum::leave(int w) {
  here_.remove(w);
  joined_.remove(w);
}

Nanos Quorum::usual() const {
  constexpr std::size_t kHistory = 3;
  sorted_.clear();
  for (int w = members_.next(); w >= 0; w = members_.next(w + 1)) {
    const RunningMedian& offset = offset_[static_cast<std::size_t>(w)];
    if (offset.count() < kHistory) return Nanos::max();
    sorted_.push_back(offset.median());
  }
  if (sorted_.empty()) return Nanos::max();
  const auto at = sorted_.begin() + (needed() - 1);
  std::nth_element(sorted_.begin(), at, sorted_.end());
  return *at;
}

Nanos Quorum::next_deadline() const {
  if (here_ == joined_ || percent_ >= 100 || here_.count() < needed()) return Nanos::max();
  const Nanos time = usual();
  if (time == Nanos::max()) return time;
  return opened_ + std::max(time * slack_percent_ / 100, time + slack_min_);
}

bool Quorum::complete(Nanos now) const {
  if (here_.empty()) return false;
  return here_.count() == members_.count() || now >= next_deadline();
}

const WorkerSet& Quorum::close() {
  WorkerSet& closed = closed_[round_ % 2];
  closed = here_;
  here_.clear();
  joined_.clear();
  last_opened_ = opened_;
  ++round_;
  return closed;
}

const WorkerSet& Quorum::closed(std::int64_t round, const std::vector<std::uint32_t>& members) {
  CANARY_CHECK(round >= round_, "a round that is closed");
  round_ = round;
  here_.clear();
  joined_.clear();
  for (const std::uint32_t w : members) here_.add(static_cast<int>(w));
  return close();
}

}  // namespace canarynet::sync
