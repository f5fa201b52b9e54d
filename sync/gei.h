// sync/gei.h -- the gradient exchange index: which worker's gradient of which iteration and colayer has been merged
// here, how far behind a worker is, and whether it is too far.
//
// Source: Zhou et al., "Canary: Decentralized Distributed Deep Learning via Gradient Sketch and Partition in
// Multi-Interface Networks" (TPDS 2021), sections 5.2 and 5.3. Two readings differ from the letter of its pseudocode 1:
// the mask is the worker's own code and the test is "not 0", and the proportion is a count of colayers.
//
// A row r(t)[z] is the set of workers whose gradient of (iteration t, colayer z) is merged. The matrix keeps the newest
// `rows` rows: s + 3 suffice for the bound s (the page of the algorithm, rule 13). Of an older row nothing is known,
// and nothing is asked: its proportion counts as 0. One owner thread; nothing allocates after construction.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "sync/contributors.h"

namespace canarynet::sync {

// What happens to a worker at the bound: its gradients are dropped and it pulls (Canary), or it waits (BSP, SSP).
enum class AtBound { kDrop, kWait };

struct Thresholds {
  static constexpr Iteration kUnbounded = std::numeric_limits<Iteration>::max();
  static constexpr int kAbsencesMax = 1 << 20;

  Iteration staleness = 18;  // s: iterations behind the newest one
  int proportion = 6;        // p: colayers of the iteration that must be merged for the rest to be let in
  AtBound at_bound = AtBound::kDrop;
  // Mode wait: so many percent of the living workers are enough, once the others are unusually late (quorum.h)...
  int quorum = 100;
  int absences = 18;  // ...but so many steps in a row go on without the same one, and then it is waited for

  static Thresholds canary(Iteration s, int p) { return {s, p, AtBound::kDrop}; }
  static Thresholds bsp(int colayers) { return {0, colayers, AtBound::kWait}; }
  static Thresholds ssp(Iteration s, int colayers) { return {s, colayers, AtBound::kWait}; }
  static Thresholds asp(int colayers) { return {kUnbounded, colayers, AtBound::kDrop}; }
  bool operator==(const Thresholds&) const = default;
};

// Rows that the bound s needs; without a bound none is ever asked for, and a few are kept to look at.
int gei_rows(Iteration staleness);

class Gei {
 public:
  // n workers, k colayers at most, the newest `rows` iterations.
  Gei(int workers, int colayers, int rows);

  // ζ, the newest iteration that any worker is known to have entered; 0 before the first.
  Iteration newest() const { return newest_; }
  Iteration oldest_row() const;
  int rows() const { return rows_; }
  // Some worker has entered iteration t: the rows up to t begin, and as many old ones end.
  void enter(Iteration t);
  // Whoever had entered more than iteration t is gone: ζ = t if that is less. The rows beyond it end; of rows that had
  // ended before nothing is known.
  void fall_back(Iteration t);
  // Rows from iteration `from` on, which must not have begun, have k colayers and this version of their layout.
  void change_layout(Iteration from, std::uint16_t version, int colayers);

  // A round of colayer z is committed. What lies before the oldest row is not noted.
  void merge(int z, const Contributors& contributors);
  // Takes over what another worker's matrix knows (same sizes): a pull, or the first rows of a newcomer.
  void merge(const Gei& other);

  // r(t)[z]; the empty set where there is no such row.
  const WorkerSet& row(Iteration t, int z) const;
  int colayers(Iteration t) const;
  std::uint16_t layout(Iteration t) const;
  // s_i = ζ - t of a worker in iteration t.
  Iteration staleness(Iteration t) const { return newest_ - t; }
  // p_i: colayers of iteration t whose gradient from worker w is merged.
  int proportion(int w, Iteration t) const;
  // s_i > s and p_i < p. Beyond the rows that s needs the proportion counts as 0, also where more rows are kept.
  bool overtime(int w, Iteration t, const Thresholds& thresholds) const;

 private:
  struct Row {
    Iteration t = 0;  // 0: not begun
    std::uint16_t layout = 0;
    int colayers = 0;
    std::vector<WorkerSet> merged;  // per colayer
  };
  const Row* find(Iteration t) const;
  Row* find(Iteration t) { return const_cast<Row*>(static_cast<const Gei*>(this)->find(t)); }

  struct Layout {
    Iteration from = 1;
    std::uint16_t version = 0;
    int colayers = 0;
  };
  int rows_;
  int colayers_;
  Iteration newest_ = 0;
  Layout layout_;
  Layout next_layout_;  // from == 0: none is due
  std::vector<Row> ring_;
  WorkerSet none_;
};

}  // namespace canarynet::sync
