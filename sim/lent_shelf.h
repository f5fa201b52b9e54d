// sim/lent_shelf.h -- buffers that their lenders have back, watched for as long as there is room for them.
//
// Owned and used by one thread.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <utility>

#include "sim/lent_memory.h"

namespace canarynet {

class LentShelf {
 public:
  // Returns "", or where somebody has written into one of the oldest, which make room.
  std::string add(LentMemory memory) {
    bytes_ += memory.size();
    shelf_.push_back(std::move(memory));
    std::string where;
    while (bytes_ > kBytes) {
      if (where.empty()) where = shelf_.front().trespass();
      bytes_ -= shelf_.front().size();
      shelf_.pop_front();
    }
    return where;
  }
  // The same of all that are left.
  std::string trespass() const {
    for (const LentMemory& memory : shelf_) {
      if (std::string where = memory.trespass(); !where.empty()) return where;
    }
    return "";
  }

 private:
  static constexpr std::size_t kBytes = 64 << 20;
  std::deque<LentMemory> shelf_;
  std::size_t bytes_ = 0;
};

}  // namespace canarynet
