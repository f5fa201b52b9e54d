// Why an operation runs by the planner that it does, in words.
#include <algorithm>
#include <bit>
#include <span>
#include <string>

#include "base/text.h"
#include "collectives/ring_order.h"
#include "engine/engine.h"

namespace canarynet {
namespace {

std::string time_text(std::uint64_t us) { return as_written(Nanos{static_cast<std::int64_t>(us) * 1000}); }

// "ring"; "ring in pieces of 32KiB"; "ring with the ranks in the order 0 2 1 3".
std::string planner_text(PlannerId id, std::uint32_t piece_bytes, std::span<const std::uint16_t> order) {
  std::string out(name_of(id));
  if (piece_bytes != 0) out += " in pieces of " + as_written(Bytes{piece_bytes});
  if (order.empty() || !takes_order(id)) return out;
  constexpr std::size_t kShown = 16;
  out += " with the ranks in the order";
  for (const std::uint16_t rank : order.first(std::min(order.size(), kShown))) out += ' ' + std::to_string(rank);
  return out + (order.size() > kShown ? " ..." : "");
}

// "; since then 120 operations took 8510us each by mesh"
std::string took_text(const ChoiceUse::Cell* cell) {
  if (cell == nullptr) return "";
  std::string out;
  for (std::size_t p = 0; p < cell->took.size(); ++p) {
    const auto [operations, ns] = cell->took_by(static_cast<PlannerId>(p));
    if (operations == 0) continue;
    out += (out.empty() ? "; since then " : ", ") + std::to_string(operations) +
           (operations == 1 ? " operation took " : " operations took ") + time_text(ns / operations / 1000) +
           (operations == 1 ? " by " : " each by ") + std::string(name_of(static_cast<PlannerId>(p)));
  }
  return out;
}

// "; before, ring took 9120us (8 operations, table 2), mesh in smaller pieces 8800us (8, table 3)"
std::string before_text(const ChoiceUse::Cell* cell) {
  std::string out;
  for (std::size_t p = 0; cell != nullptr && p < cell->took.size(); ++p) {
    for (std::size_t v = 0; v < kVariants; ++v) {
      const auto& t = cell->took[p][v].before;
      if (t.operations == 0) continue;
      out += (out.empty() ? "; before, " : ", ") + std::string(name_of(static_cast<PlannerId>(p))) +
             ((v & variant_of(true, false)) != 0 ? " in smaller pieces" : "") +
             ((v & variant_of(false, true)) != 0 ? " in another order" : "") + (out.empty() ? " took " : " ") +
             time_text(t.ns / t.operations / 1000) + " (" + std::to_string(t.operations) +
             (!out.empty()        ? ""
              : t.operations == 1 ? " operation"
                                  : " operations") +
             ", " + (t.table == 0 ? "no table" : "table " + std::to_string(t.table)) + ")";
    }
  }
  return out;
}

// "; it is on trial, and tree and dbtree follow"; "; it stays: nothing that was timed took clearly less".
std::string reason_text(const MeasuredRow& row) {
  switch (row.reason) {
    case RowReason::kUntimed:
      return "; too few operations had run to compare it with others";
    case RowReason::kFastest:
      return "; of what was timed it took the least";
    case RowReason::kAsFastAsStatic:
      return "; nothing that was timed took clearly less than the choice by size and topology";
    case RowReason::kStays:
      return "; it stays, since nothing that was timed took clearly less";
    case RowReason::kTrial:
      break;
  }
  std::string out = "; it is on trial", names;
  for (unsigned p = 0; p < kPlannerCount; ++p) {
    if ((row.to_follow >> p & 1) == 0) continue;
    names += (names.empty() ? "" : row.to_follow >> (p + 1) == 0 ? " and " : ", ");
    names += name_of(static_cast<PlannerId>(p));
  }
  if (names.empty()) return out;
  return out + ", and " + names + (std::has_single_bit(row.to_follow) ? " follows" : " follow");
}

// "; with codec auto int8, chosen by table 3 (checksum 1a2b3): expected to take 1800ms, dense 6300ms; so far 4
// operations took 6310ms each by dense"
std::string codec_text(const CodecUse::Cell& cell, const MeasuredTable* table) {
  std::string out = "; with codec " + cell.text + " ";
  const MeasuredRow* const row = table != nullptr ? table->find_codec(cell.asked, cell.bytes) : nullptr;
  if (table == nullptr) {
    out += "dense, since nothing is measured for a group of one host, or of so many ranks";
  } else if (row == nullptr) {
    out += "dense, until operations have shown how long they take";
  } else {
    out += cell.names[row->codec] + ", chosen by " + table_name(table->identity()) + ": expected to take " +
           time_text(row->predicted_us);
    if (row->codec_runner_up != row->codec)
      out += ", " + cell.names[row->codec_runner_up] + " " + time_text(row->runner_up_us);
  }
  std::string took;
  for (std::size_t i = 0; i < cell.names.size(); ++i) {
    const ChoiceUse::Took& t = cell.took[i];
    if (t.operations == 0) continue;
    took += (took.empty() ? "; so far " : ", ") + std::to_string(t.operations) +
            (t.operations == 1 ? " operation took " : " operations took ") + time_text(t.ns / t.operations / 1000) +
            (t.operations == 1 ? " by " : " each by ") + cell.names[i];
  }
  return out + took;
}

}  // namespace

ChoiceView Engine::choice_view(const Group& g, std::uint32_t operation, Collective collective, std::uint64_t bytes,
                               std::uint32_t codec) const {
  ChoiceView view;
  view.codec = codec;
  view.cell = codec != 0 ? g.use.find_coded(codec, bytes) : g.use.find(collective, bytes);
  if (g.decisions) view.table = g.decisions->table_for(operation).identity();
  if (const Decision* forced = decisions_.find(collective, bytes); forced != nullptr) {
    view.by = ChosenBy::kForced;
    view.planner = forced->planner;
    view.piece_bytes = forced->piece_bytes;
    return view;
  }
  if (g.decisions) view.row = g.decisions->table_for(operation).find(collective, bytes, codec);
  if (view.row != nullptr) {
    if (!view.row->keeps_static) view.by = ChosenBy::kMeasured;
    view.planner = view.row->planner;
    view.piece_bytes = view.row->piece_bytes;
    return view;
  }
  view.known = view.cell != nullptr && view.cell->static_known;
  if (view.known) view.planner = view.cell->static_choice;
  return view;
}

std::string Engine::explain(port::MemberId id, Collective collective, std::uint64_t bytes) const {
  const GroupMember* const m = member(id);
  if (m == nullptr) return "";
  std::string out = explain_planner(*m, collective, bytes);
  const Group& g = *m->group;
  const MeasuredTable* const table = g.decisions ? &g.decisions->table_for(m->entered + 1) : nullptr;
  for (const auto& cell : g.codec_use.cells()) {
    if (collective == Collective::kAllReduce && cell->size_class == size_class(bytes)) out += codec_text(*cell, table);
  }
  for (const auto& cell : g.use.coded_cells()) {
    const bool of_size = cell->operations != 0 && size_class(cell->called_bytes) == size_class(bytes);
    if (collective == Collective::kAllReduce && of_size) out += explain_carrier(*m, *cell);
  }
  return out;
}

// "; pieces by int8 go by mesh, chosen by ...", "; values of 80KB by artopk:star:0.1 go by tree, ...".
std::string Engine::explain_carrier(const GroupMember& m, const ChoiceUse::Cell& cell) const {
  const CodecSpec codec = codec_of_number(cell.codec).value();
  const std::string what = makes_chain(codec.kind)
                               ? "values of " + as_written(Bytes{static_cast<std::int64_t>(cell.usual_bytes)})
                               : "pieces";
  const ChoiceView view = choice_view(*m.group, m.entered + 1, Collective::kAllReduce, cell.usual_bytes, cell.codec);
  return "; " + what + " by " + cell.codec_name + " go by " + planner_reasons(m, view, cell.measured);
}

std::string Engine::explain_planner(const GroupMember& m, Collective collective, std::uint64_t bytes) const {
  const Group& g = *m.group;
  return std::string(name_of(collective)) + " of " + as_written(Bytes{static_cast<std::int64_t>(bytes)}) + " among " +
         std::to_string(g.members.size()) + " ranks: " +
         planner_reasons(m, choice_view(g, m.entered + 1, collective, bytes), options_.settings.measured_choice);
}

// `measured`: what was measured may choose the planner.
std::string Engine::planner_reasons(const GroupMember& m, const ChoiceView& view, bool measured) const {
  const Group& g = *m.group;
  std::string out;
  if (view.by == ChosenBy::kForced)
    return planner_text(view.planner, view.piece_bytes, g.ring_order) + ", forced by CANARY_ALGO" +
           took_text(view.cell);
  if (view.row == nullptr) {
    out += view.known ? planner_text(view.planner, 0, g.ring_order) + ", chosen by size and topology"
                      : std::string("to be chosen by size and topology");
    if (!measured) {
      out += "; CANARY_MEASURED_CHOICE is off";
    } else if (!g.decisions) {
      out += "; nothing is measured for a group of one host, or of so many ranks";
    } else {
      out += view.table == 0 ? "; no table has been made yet" : "; " + table_name(view.table) + " has no row";
    }
    return out + took_text(view.cell);
  }
  const MeasuredRow& row = *view.row;
  const auto& order = row.in_order ? g.decisions->table_for(m.entered + 1).ring_order() : g.ring_order;
  out += planner_text(row.planner, row.piece_bytes, order) + ", " +
         (row.on_trial()     ? "tried by "
          : row.keeps_static ? "chosen by size and topology and kept by "
                             : "chosen by ") +
         table_name(view.table) + ": expected to take " + time_text(row.predicted_us);
  if (row.runner_up != row.planner)
    out += ", " + std::string(name_of(row.runner_up)) + " " + time_text(row.runner_up_us);
  return out + reason_text(row) + took_text(view.cell) + before_text(view.cell);
}

}  // namespace canarynet
