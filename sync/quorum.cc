#include "sync/quorum.h"

#include <algorithm>

#include "base/check.h"

namespace canarynet::sync {
namespace {

constexpr int kMedian = 50;

}  // namespace

ArrivalHistory::ArrivalHistory(int workers, int usual_percent)
    : usual_percent_(usual_percent), late_(static_cast<std::size_t>(workers)) {
  sorted_.reserve(static_cast<std::size_t>(workers));
}

Nanos ArrivalHistory::patience(const WorkerSet& members, int percent) const {
  constexpr std::size_t kHistory = 3;
  constexpr int kSlackPercent = 150;
  constexpr Nanos kSlackMin = 1_ms;
  sorted_.clear();
  for (int w = members.next(); w >= 0; w = members.next(w + 1)) {
    const RunningMedian& late = late_[static_cast<std::size_t>(w)];
    if (late.count() < kHistory) return Nanos::max();
    sorted_.push_back(late.quantile(usual_percent_));
  }
  if (sorted_.empty()) return Nanos::max();
  const auto at = sorted_.begin() + (quorum_of(members.count(), percent) - 1);
  std::nth_element(sorted_.begin(), at, sorted_.end());
  return std::max(*at * kSlackPercent / 100, *at + kSlackMin);
}

Quorum::Quorum(int workers, int percent)
    : percent_(percent),
      history_(workers, kMedian),
      members_(WorkerSet::all(workers)),
      here_(workers),
      joined_(workers),
      closed_{WorkerSet(workers), WorkerSet(workers)} {}

bool Quorum::arrive(Nanos now, int w, std::int64_t round) {
  if (!members_.has(w)) return false;
  if (round != round_) {
    // Of an older round only its end is remembered: who is later than one round counts as that late.
    history_.note(w, now - last_opened_);
    return false;
  }
  if (here_.has(w)) return true;
  if (here_ == joined_) opened_ = now;
  here_.add(w);
  history_.note(w, now - opened_);
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

Nanos Quorum::next_deadline() const {
  if (here_ == joined_ || percent_ >= 100 || here_.count() < quorum_of(members_.count(), percent_)) return Nanos::max();
  const Nanos patience = history_.patience(members_, percent_);
  return patience == Nanos::max() ? patience : opened_ + patience;
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
