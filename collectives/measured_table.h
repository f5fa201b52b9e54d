// collectives/measured_table.h -- the rows that a group's first rank has made of what was measured (table_costs.h),
// equal on all ranks. A row covers a collective and a class of sizes; it names a planner with a size of pieces, or says
// that the static choice stays. The table has an order of ranks in which rings may stand. Integers only. Pure values,
// used by one thread.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "collectives/schedule.h"
#include "transport/decision_frames.h"

namespace canarynet {

// Sizes (operation_bytes()) fall into classes by powers of four: up to 4 KiB, up to 16 KiB, ... up to 256 MiB, beyond.
inline constexpr int kSizeClasses = 10;
constexpr int size_class(std::uint64_t bytes) {
  const int from_1k = (static_cast<int>(std::bit_width(bytes)) - 11) / 2;  // of powers of four, rounded down
  return bytes < 4096 ? 0 : from_1k < kSizeClasses - 1 ? from_1k : kSizeClasses - 1;
}
constexpr std::uint64_t class_begin(int size_class) {
  return size_class == 0 ? 0 : std::uint64_t{1024} << (2 * size_class);
}

// The collectives whose choice can be measured: what they move is known alike on all ranks, and follows from the size.
constexpr bool is_measured(Collective c) {
  return c != Collective::kBarrier && !is_pairwise(c) && c != Collective::kAllGatherV;
}

// Why a row names the planner that it does. As on the wire.
enum class RowReason : std::uint8_t {
  kUntimed = 0,         // too few operations had run to compare anything
  kTrial = 1,           // it is there to be timed; the next table says what came of it
  kFastest = 2,         // of all that was timed, it took the least
  kAsFastAsStatic = 3,  // the static choice: what took less took hardly less
  kStays = 4,           // what decided before: what took less took hardly less
};
inline constexpr std::uint8_t kRowReasons = 5;
static_assert(kPlannerCount <= 16, "planners that are still to be tried are bits of 16");

struct MeasuredRow {
  Collective collective = Collective::kAllReduce;
  int size_class = 0;
  // A choice among codecs: the number that operations ask with (compress/codec_ask.h), and places among its candidates,
  // of the best one and of the next; the same: nothing is known of another. A codec's own number, or 0: a choice among
  // planners, for operations that carry what that codec makes, or for those without one; the lines up to `runner_up`
  // tell of it.
  std::uint32_t asked = 0;
  std::uint8_t codec = 0, codec_runner_up = 0;
  bool keeps_static = false;  // `planner` is what the static choice was when the row was made
  PlannerId planner = PlannerId::kRing;
  std::uint32_t piece_bytes = 0;           // 0: the job's
  bool in_order = false;                   // its ranks stand in the table's order (ring, ring_per_rail)
  PlannerId runner_up = PlannerId::kRing;  // the best of the others; the planner itself: there was none
  std::uint32_t predicted_us = 0, runner_up_us = 0;
  RowReason reason = RowReason::kUntimed;
  std::uint16_t to_follow = 0;  // on trial: the planners that are tried after this one, as bits by their numbers

  bool on_trial() const { return reason == RowReason::kTrial; }
  bool chooses_codec() const;
  // Whether both decide alike, and as finally, whatever their reasons.
  bool decides_as(const MeasuredRow& o) const {
    return collective == o.collective && size_class == o.size_class && asked == o.asked && codec == o.codec &&
           on_trial() == o.on_trial() && runs_as(o);
  }
  // Whether operations run by the same plan.
  bool runs_as(const MeasuredRow& o) const {
    return keeps_static == o.keeps_static &&
           (keeps_static || (planner == o.planner && piece_bytes == o.piece_bytes && in_order == o.in_order));
  }
};

class MeasuredTable {
 public:
  MeasuredTable() = default;
  // The rows are sorted by this. `ring_order`: of all ranks, or empty where no row needs one.
  MeasuredTable(std::uint32_t version, std::vector<MeasuredRow> rows, std::vector<std::uint16_t> ring_order = {});

  std::uint32_t version() const { return version_; }  // 0: no table, which has no rows
  const std::vector<MeasuredRow>& rows() const { return rows_; }
  const std::vector<std::uint16_t>& ring_order() const { return ring_order_; }
  // The row that chooses a planner for the operation, or nullptr. `codec`: the number of the codec of what it carries.
  const MeasuredRow* find(Collective collective, std::uint64_t bytes, std::uint32_t codec = 0) const;
  // The row that chooses a codec for an all-reduce of so many bytes that asks with this number, or nullptr.
  const MeasuredRow* find_codec(std::uint32_t asked, std::uint64_t bytes) const;
  // Names the table in signatures: the low 12 bits of the version, and 20 bits of a checksum of the rows and the order.
  // 0: no table.
  std::uint32_t identity() const { return identity_; }

  // As a proposal carries the rows.
  std::vector<wire::DecisionRow> to_wire() const;
  // nullptr, or why this can't be a table of a group of so many ranks in a job whose pieces have piece_bytes.
  static const char* from_wire(const wire::TableProposal& proposal, int ranks, std::uint32_t piece_bytes,
                               MeasuredTable* out);

 private:
  const MeasuredRow* find(const MeasuredRow& wanted) const;

  std::uint32_t version_ = 0, identity_ = 0;
  std::vector<MeasuredRow> rows_;
  std::vector<std::uint16_t> ring_order_;
};

// The parts of an identity.
inline constexpr int kTableChecksumBits = 20;
constexpr std::uint32_t table_version(std::uint32_t identity) { return identity >> kTableChecksumBits; }
constexpr std::uint32_t table_checksum(std::uint32_t identity) { return identity & ((1u << kTableChecksumBits) - 1); }
// "table 3 (checksum 1a2b3)"; "no table".
std::string table_name(std::uint32_t identity);

}  // namespace canarynet
