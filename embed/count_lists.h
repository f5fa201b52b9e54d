// embed/count_lists.h -- the lists of counts of a caller's collective, copied: they are borrowed for the call only.
//
// No state, no allocation but the list's growth; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace canarynet {

// A list of the caller's, one number per rank. Displacements come right behind the counts that they belong to; NULL:
// one block behind the other.
struct CountList {
  const std::size_t* numbers = nullptr;
  bool displacements = false;
};

// Replaces `out` by the lists, one behind the other, as PlanRequest::counts has them.
inline void copy_counts(std::initializer_list<CountList> lists, std::size_t ranks, std::vector<std::uint64_t>* out) {
  out->clear();
  for (const CountList& list : lists) {
    const std::size_t before = out->size() - (list.displacements ? ranks : 0);  // the counts that they belong to
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < ranks; ++i) {
      out->push_back(list.numbers != nullptr ? list.numbers[i] : at);
      if (list.displacements) at += (*out)[before + i];
    }
  }
}

}  // namespace canarynet
