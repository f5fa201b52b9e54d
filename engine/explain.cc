// Why an operation runs by the planner that it does, in words.
#include <string>

#include "base/text.h"
#include "engine/engine.h"

namespace canarynet {
namespace {

std::string time_text(std::uint64_t us) { return as_written(Nanos{static_cast<std::int64_t>(us) * 1000}); }

// "ring"; "ring in pieces of 32KiB".
std::string planner_text(PlannerId id, std::uint32_t piece_bytes) {
  std::string out(name_of(id));
  if (piece_bytes != 0) out += " in pieces of " + as_written(Bytes{piece_bytes});
  return out;
}

// "; since then 120 operations took 8510us each by mesh"
std::string took_text(const ChoiceUse::Cell* cell) {
  if (cell == nullptr) return "";
  std::string out;
  for (std::size_t p = 0; p < cell->took.size(); ++p) {
    std::uint64_t operations = 0, ns = 0;
    for (const ChoiceUse::Took& took : cell->took[p]) {
      operations += took.operations;
      ns += took.ns;
    }
    if (operations == 0) continue;
    out += (out.empty() ? "; since then " : ", ") + std::to_string(operations) +
           (operations == 1 ? " operation took " : " operations took ") + time_text(ns / operations / 1000) +
           (operations == 1 ? " by " : " each by ") + std::string(name_of(static_cast<PlannerId>(p)));
  }
  return out;
}

}  // namespace

std::string Engine::explain(port::MemberId id, Collective collective, std::uint64_t bytes) const {
  const GroupMember* const m = member(id);
  if (m == nullptr) return "";
  const Group& g = *m->group;
  std::string out = std::string(name_of(collective)) + " of " + as_written(Bytes{static_cast<std::int64_t>(bytes)}) +
                    " among " + std::to_string(g.members.size()) + " ranks: ";
  const ChoiceUse::Cell* const cell = g.use.find(collective, bytes);
  if (const Decision* row = decisions_.find(collective, bytes); row != nullptr) {
    return out + planner_text(row->planner, row->piece_bytes) + ", forced by CANARY_ALGO" + took_text(cell);
  }
  static const MeasuredTable kNone;
  const MeasuredTable& table = g.decisions ? g.decisions->table_for(m->entered + 1) : kNone;
  const MeasuredRow* const row = table.find(collective, bytes);
  if (row == nullptr) {
    const bool known = cell != nullptr && cell->static_known;
    out += known ? std::string(name_of(cell->static_choice)) + ", chosen by size and topology"
                 : std::string("to be chosen by size and topology");
    if (!g.decisions) {
      out += options_.settings.measured_choice ? "; nothing is measured for a group of one host, or of so many ranks"
                                               : "; CANARY_MEASURED_CHOICE is off";
    } else {
      out +=
          table.version() == 0 ? "; no table has been made yet" : "; " + table_name(table.identity()) + " has no row";
    }
    return out + took_text(cell);
  }
  out += planner_text(row->planner, row->piece_bytes) + ", " +
         (row->keeps_static ? "chosen by size and topology and kept by " : "chosen by ") +
         table_name(table.identity()) + ": expected to take " + time_text(row->predicted_us);
  if (row->runner_up != row->planner)
    out += ", " + std::string(name_of(row->runner_up)) + " " + time_text(row->runner_up_us);
  return out + took_text(cell);
}

}  // namespace canarynet
