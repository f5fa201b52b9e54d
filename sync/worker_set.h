// sync/worker_set.h -- a set of workers, of any number of them.
//
// Workers count from 0 here: worker w is bit w. (The papers count from 1: their worker j is bit j - 1.) A set is sized
// once; sets that are combined have the same size. Nothing allocates after construction, also not an assignment between
// sets of one size. One owner thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace canarynet::sync {

class WorkerSet {
 public:
  explicit WorkerSet(int workers = 0)
      : workers_(workers), words_((static_cast<std::size_t>(workers) + 63) / 64, std::uint64_t{0}) {}
  static WorkerSet all(int workers) {
    WorkerSet set(workers);
    for (int w = 0; w < workers; ++w) set.add(w);
    return set;
  }

  int workers() const { return workers_; }
  bool has(int w) const { return ((words_[word(w)] >> (w & 63)) & 1) != 0; }
  void add(int w) { words_[word(w)] |= std::uint64_t{1} << (w & 63); }
  void remove(int w) { words_[word(w)] &= ~(std::uint64_t{1} << (w & 63)); }
  void clear() {
    for (auto& bits : words_) bits = 0;
  }
  int count() const {
    int sum = 0;
    for (const auto bits : words_) sum += std::popcount(bits);
    return sum;
  }
  bool empty() const {
    for (const auto bits : words_) {
      if (bits != 0) return false;
    }
    return true;
  }
  bool meets(const WorkerSet& other) const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      if ((words_[i] & other.words_[i]) != 0) return true;
    }
    return false;
  }
  void unite(const WorkerSet& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  }
  void intersect(const WorkerSet& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
  }
  // The smallest member that is not below `from`; -1 if there is none.
  int next(int from = 0) const {
    if (from >= workers_) return -1;
    std::size_t i = word(from);
    std::uint64_t bits = words_[i] & (~std::uint64_t{0} << (from & 63));
    while (bits == 0) {
      if (++i == words_.size()) return -1;
      bits = words_[i];
    }
    return static_cast<int>(i * 64) + std::countr_zero(bits);
  }
  // The members 64 i to 64 i + 63 as bits: the papers' integer, where there are at most 64 workers.
  std::uint64_t bits(std::size_t i = 0) const { return i < words_.size() ? words_[i] : 0; }
  bool operator==(const WorkerSet&) const = default;

 private:
  std::size_t word(int w) const {
    CANARY_CHECK(w >= 0 && w < workers_, "a worker outside of its set");
    return static_cast<std::size_t>(w) / 64;
  }
  int workers_;
  std::vector<std::uint64_t> words_;
};

}  // namespace canarynet::sync
