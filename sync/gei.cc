#include "sync/gei.h"

#include <algorithm>

namespace canarynet::sync {

int gei_rows(Iteration staleness) {
  constexpr Iteration kShown = 64;
  return static_cast<int>(staleness == Thresholds::kUnbounded ? kShown : staleness + 3);
}

Gei::Gei(int workers, int colayers, int rows)
    : rows_(rows), colayers_(colayers), layout_{1, 0, colayers}, next_layout_{0, 0, 0}, none_(workers) {
  CANARY_CHECK(workers > 0 && colayers > 0 && rows > 0, "an index of nobody or nothing");
  ring_.resize(static_cast<std::size_t>(rows));
  for (auto& row : ring_) row.merged.assign(static_cast<std::size_t>(colayers), WorkerSet(workers));
}

Iteration Gei::oldest_row() const { return std::max<Iteration>(1, newest_ - rows_ + 1); }

void Gei::enter(Iteration t) {
  for (Iteration at = std::max(newest_ + 1, t - rows_ + 1); at <= t; ++at) {
    if (next_layout_.from != 0 && at >= next_layout_.from) {
      layout_ = next_layout_;
      next_layout_.from = 0;
    }
    Row& row = ring_[static_cast<std::size_t>(at % rows_)];
    row.t = at;
    row.layout = layout_.version;
    row.colayers = layout_.colayers;
    for (auto& merged : row.merged) merged.clear();
  }
  newest_ = std::max(newest_, t);
}

void Gei::fall_back(Iteration t) {
  for (auto& row : ring_) {
    if (row.t > t) row.t = 0;
  }
  newest_ = std::min(newest_, t);
}

void Gei::change_layout(Iteration from, std::uint16_t version, int colayers) {
  CANARY_CHECK(from > newest_, "the layout of rows that have begun");
  CANARY_CHECK(colayers > 0 && colayers <= colayers_, "more colayers than the index was made for");
  next_layout_ = {from, version, colayers};
}

void Gei::merge(int z, const Contributors& contributors) {
  CANARY_CHECK(z >= 0 && z < colayers_, "no such colayer");
  enter(std::max(newest_, contributors.newest()));
  for (int w = contributors.set().next(); w >= 0; w = contributors.set().next(w + 1)) {
    const IterationRange range = contributors.of(w);
    for (Iteration t = std::max(range.first, oldest_row()); t <= range.last; ++t) {
      if (Row* row = find(t)) row->merged[static_cast<std::size_t>(z)].add(w);
    }
  }
}

void Gei::merge(const Gei& other) {
  CANARY_CHECK(other.colayers_ == colayers_ && other.none_.workers() == none_.workers(), "another session's index");
  enter(other.newest_);
  for (Iteration t = oldest_row(); t <= newest_; ++t) {
    Row* row = find(t);
    const Row* theirs = other.find(t);
    if (row == nullptr || theirs == nullptr) continue;
    for (std::size_t z = 0; z < row->merged.size(); ++z) row->merged[z].unite(theirs->merged[z]);
  }
}

const Gei::Row* Gei::find(Iteration t) const {
  if (t < oldest_row() || t > newest_) return nullptr;
  const Row& row = ring_[static_cast<std::size_t>(t % rows_)];
  return row.t == t ? &row : nullptr;
}

const WorkerSet& Gei::row(Iteration t, int z) const {
  const Row* row = find(t);
  return row == nullptr || z < 0 || z >= row->colayers ? none_ : row->merged[static_cast<std::size_t>(z)];
}

int Gei::colayers(Iteration t) const {
  const Row* row = find(t);
  return row == nullptr ? layout_.colayers : row->colayers;
}

std::uint16_t Gei::layout(Iteration t) const {
  const Row* row = find(t);
  return row == nullptr ? layout_.version : row->layout;
}

int Gei::proportion(int w, Iteration t) const {
  const Row* row = find(t);
  if (row == nullptr) return 0;
  int merged = 0;
  for (int z = 0; z < row->colayers; ++z) merged += row->merged[static_cast<std::size_t>(z)].has(w) ? 1 : 0;
  return merged;
}

bool Gei::overtime(int w, Iteration t, const Thresholds& thresholds) const {
  if (staleness(t) <= thresholds.staleness) return false;
  return staleness(t) >= gei_rows(thresholds.staleness) || proportion(w, t) < thresholds.proportion;
}

}  // namespace canarynet::sync
