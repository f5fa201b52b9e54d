#include "collectives/measured_table.h"

#include <algorithm>
#include <cstdio>
#include <tuple>

#include "collectives/ring_order.h"
#include "compress/codec_ask.h"
#include "kernels/crc32c.h"

namespace canarynet {
namespace {

bool before(const MeasuredRow& a, const MeasuredRow& b) {
  return std::tuple(a.collective, a.size_class, a.asked) < std::tuple(b.collective, b.size_class, b.asked);
}

// nullptr, or why the row can't choose a planner.
const char* why_no_planner_row(const wire::DecisionRow& w) {
  return w.planner >= kPlannerCount || w.runner_up >= kPlannerCount ? "a row with a planner that is not known"
                                                                    : nullptr;
}

// nullptr, or why the row can't be for operations that ask for a codec, or name one.
const char* why_no_codec_row(const wire::DecisionRow& w) {
  if (static_cast<Collective>(w.collective) != Collective::kAllReduce) return "a codec for a collective that has none";
  if (!check_asked(w.asked).ok()) return "a row for what nobody can ask for";
  if (!asks_for_choice(w.asked)) return why_no_planner_row(w);
  const std::size_t candidates = candidates_of(w.asked).count;
  if (w.planner >= candidates || w.runner_up >= candidates) return "a row with a codec that is no candidate";
  return w.keeps_static != 0 || w.piece_bytes != 0 || w.reason != 0 ? "a row that chooses a codec and more" : nullptr;
}

// nullptr, or why these are not all ranks, each once.
const char* why_no_order(wire::ListIn<std::uint16_t> order, int ranks) {
  if (order.size() == 0) return nullptr;
  if (order.size() != static_cast<std::size_t>(ranks)) return "an order of another number of ranks";
  std::vector<bool> seen(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::uint16_t rank = order.at(i);
    if (rank >= seen.size() || seen[rank]) return "an order that does not name each rank once";
    seen[rank] = true;
  }
  return nullptr;
}

}  // namespace

bool MeasuredRow::chooses_codec() const { return asks_for_choice(asked); }

MeasuredTable::MeasuredTable(std::uint32_t version, std::vector<MeasuredRow> rows,
                             std::vector<std::uint16_t> ring_order)
    : version_(version), rows_(std::move(rows)), ring_order_(std::move(ring_order)) {
  std::sort(rows_.begin(), rows_.end(), before);
  if (version_ == 0) return;
  const std::vector<wire::DecisionRow> bytes = to_wire();
  std::uint32_t sum = crc32c(0, bytes.data(), bytes.size() * sizeof(wire::DecisionRow));
  sum = crc32c(sum, ring_order_.data(), ring_order_.size() * sizeof(std::uint16_t));
  identity_ = version_ << kTableChecksumBits | table_checksum(sum);
  if (identity_ == 0) identity_ = 1;  // 0 says that there is no table
}

const MeasuredRow* MeasuredTable::find(Collective collective, std::uint64_t bytes, std::uint32_t codec) const {
  MeasuredRow wanted;
  wanted.collective = collective;
  wanted.size_class = canarynet::size_class(bytes);
  wanted.asked = codec;
  return find(wanted);
}

const MeasuredRow* MeasuredTable::find_codec(std::uint32_t asked, std::uint64_t bytes) const {
  return find(Collective::kAllReduce, bytes, asked);
}

const MeasuredRow* MeasuredTable::find(const MeasuredRow& wanted) const {
  const auto at = std::lower_bound(rows_.begin(), rows_.end(), wanted, before);
  return at != rows_.end() && !before(wanted, *at) ? &*at : nullptr;
}

std::vector<wire::DecisionRow> MeasuredTable::to_wire() const {
  std::vector<wire::DecisionRow> out;
  for (const MeasuredRow& row : rows_) {
    wire::DecisionRow& w = out.emplace_back();
    w.collective = static_cast<std::uint8_t>(row.collective);
    w.size_class = static_cast<std::uint8_t>(row.size_class);
    w.asked = row.asked;
    w.planner = row.chooses_codec() ? row.codec : static_cast<std::uint8_t>(row.planner);
    w.runner_up = row.chooses_codec() ? row.codec_runner_up : static_cast<std::uint8_t>(row.runner_up);
    w.keeps_static = row.keeps_static ? 1 : 0;
    w.reason = static_cast<std::uint8_t>(row.reason);
    w.to_follow = row.to_follow;
    w.piece_bytes = row.piece_bytes;
    w.predicted_us = row.predicted_us;
    w.runner_up_us = row.runner_up_us;
    w.in_order = row.in_order ? 1 : 0;
  }
  return out;
}

const char* MeasuredTable::from_wire(const wire::TableProposal& proposal, int ranks, std::uint32_t piece_bytes,
                                     MeasuredTable* out) {
  if (const char* const why = why_no_order(proposal.ring_order, ranks); why != nullptr) return why;
  std::vector<std::uint16_t> order;
  for (std::size_t i = 0; i < proposal.ring_order.size(); ++i) order.push_back(proposal.ring_order.at(i));
  std::vector<MeasuredRow> read;
  for (std::size_t i = 0; i < proposal.rows.size(); ++i) {
    const wire::DecisionRow w = proposal.rows.at(i);
    if (w.collective >= kCollectiveCount || !is_measured(static_cast<Collective>(w.collective)))
      return "a row for a collective that has none";
    if (w.size_class >= kSizeClasses) return "a row for a class of sizes that can't be";
    if (w.asked != 0) {
      if (const char* const why = why_no_codec_row(w); why != nullptr) return why;
    } else if (const char* const why = why_no_planner_row(w); why != nullptr) {
      return why;
    }
    if (w.keeps_static > 1) return "a row that neither keeps nor changes the static choice";
    if (w.reason >= kRowReasons) return "a row for a reason that is not known";
    if (w.to_follow >> kPlannerCount != 0 ||
        (w.to_follow != 0 && static_cast<RowReason>(w.reason) != RowReason::kTrial))
      return "a row with trials that can't follow";
    if (w.piece_bytes > piece_bytes || w.piece_bytes % 128 != 0) return "a row with pieces that can't be";
    if (w.in_order > 1) return "a row whose in_order is neither 0 nor 1";
    if (w.in_order == 1 && (asks_for_choice(w.asked) || w.keeps_static != 0 || order.empty() ||
                            !takes_order(static_cast<PlannerId>(w.planner))))
      return "a row in an order that can't be";
    MeasuredRow& row = read.emplace_back();
    row.collective = static_cast<Collective>(w.collective);
    row.size_class = w.size_class;
    row.keeps_static = w.keeps_static != 0;
    row.reason = static_cast<RowReason>(w.reason);
    row.to_follow = w.to_follow;
    row.asked = w.asked;
    if (row.chooses_codec()) {
      row.codec = w.planner;
      row.codec_runner_up = w.runner_up;
    } else {
      row.planner = static_cast<PlannerId>(w.planner);
      row.runner_up = static_cast<PlannerId>(w.runner_up);
    }
    row.piece_bytes = w.piece_bytes;
    row.predicted_us = w.predicted_us;
    row.runner_up_us = w.runner_up_us;
    row.in_order = w.in_order != 0;
    if (i != 0 && !before(read[i - 1], row)) return "rows that are not in order";
  }
  *out = MeasuredTable(proposal.version, std::move(read), std::move(order));
  return nullptr;
}

std::string table_name(std::uint32_t identity) {
  if (identity == 0) return "no table";
  char text[48];
  std::snprintf(text, sizeof text, "table %u (checksum %05x)", table_version(identity), table_checksum(identity));
  return text;
}

}  // namespace canarynet
