// collectives/decision_table.h -- which planner runs which collective at which size, as rows. The static choice
// (collectives/selector.h) decides where no row does.
//
// The rows come from CANARY_ALGO:
//   ring                                      every collective that ring defines
//   broadcast=tree                            one collective, any size
//   all_reduce:0-64K=mesh,64K-=ring           by size: from (inclusive) to (exclusive); no number: to the end
//   all_reduce:0-64K=mesh,64K-=ring;broadcast=tree
//   all_reduce=ring/32K                       in pieces of 32 KiB, if the job's are not smaller
// A size is operation_bytes(), which all ranks know alike, so the rows choose the same planner everywhere. Pure.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "collectives/schedule.h"

namespace canarynet {

struct Decision {
  Collective collective = Collective::kAllReduce;
  std::uint64_t from_bytes = 0;
  std::uint64_t to_bytes = std::numeric_limits<std::uint64_t>::max();  // one past
  PlannerId planner = PlannerId::kRing;
  std::uint32_t piece_bytes = 0;  // 0: the job's; larger ones are cut to the job's

  bool operator==(const Decision&) const = default;
  bool covers(Collective c, std::uint64_t bytes) const {
    return c == collective && bytes >= from_bytes && (bytes < to_bytes || to_bytes == kNoEnd);
  }
  static constexpr std::uint64_t kNoEnd = std::numeric_limits<std::uint64_t>::max();
};

class DecisionTable {
 public:
  // Reads rows as CANARY_ALGO writes them; "" has none. The error says which rule is wrong and what it may be.
  static Result<DecisionTable> parse(std::string_view text);

  // The row that covers the operation, or nullptr.
  const Decision* find(Collective collective, std::uint64_t bytes) const;
  const std::vector<Decision>& rows() const { return rows_; }
  // A text that parse() reads, with one rule per collective, ascending.
  std::string to_string() const;

 private:
  Status add(const Decision& row);

  std::vector<Decision> rows_;  // ascending by collective and size, disjoint
};

// The size by which rows choose: bytes of the operation's whole buffer, which is the longer one of a rank (all-gather:
// all blocks; all-to-all: a rank's row of blocks). It is 0 for a barrier, and for all-to-all-v, whose lengths no two
// ranks know alike.
std::uint64_t operation_bytes(const PlanRequest& request);

}  // namespace canarynet
