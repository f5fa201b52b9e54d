// What a group's engines say to each other about their tables, and what they take of it.
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/serial.h"
#include "engine/decision_flow.h"
#include "engine/engine.h"
#include "engine/flow/mux.h"
#include "engine/landing_words.h"

namespace canarynet {

bool DecisionFlow::next_frame(Mux& to, Turn& turn, OutPiece* out) {
  auto& n = static_cast<Neighbour&>(turn);
  if (group_.dead || engine_.peers_[to.peer()].ended() || to.channel() == nullptr || to.channel()->peer_left())
    return false;
  wire::Header& h = out->header;
  h.kind = wire::Kind::kSignature;
  h.flow = group_.decisions_number();
  h.epoch = group_.epoch;
  outgoing_.clear();
  const auto append = [&](const auto& entry) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&entry);
    outgoing_.insert(outgoing_.end(), bytes, bytes + sizeof entry);
  };
  const auto says = [&](wire::DecisionFrame frame, std::uint32_t version, std::uint32_t op) {
    h.step = static_cast<std::uint16_t>(frame);
    h.signature = version;
    h.op = op;
    h.payload_bytes = static_cast<std::uint32_t>(outgoing_.size());
    out->payload = outgoing_.data();  // small enough to be copied at once
    return true;
  };
  if (std::exchange(n.table, false)) {
    for (const std::uint16_t rank : proposal_.ring_order()) append(rank);
    for (const wire::DecisionRow& row : proposal_.to_wire()) append(row);
    return says(wire::DecisionFrame::kTable, proposal_.version(),
                static_cast<std::uint32_t>(proposal_.ring_order().size()));
  }
  if (std::exchange(n.outcome, false)) {
    if (outcome_commits_) return says(wire::DecisionFrame::kCommit, outcome_version_, outcome_from_);
    return says(wire::DecisionFrame::kWithdraw, outcome_version_, 0);
  }
  if (std::exchange(n.limit, false)) return says(wire::DecisionFrame::kLimit, proposal_.version(), part_limit_);
  if (std::exchange(n.times, false)) {
    for (std::size_t i = 0; i < times_kept_; ++i) append(times_[i]);
    if (std::exchange(times_kept_, 0) != 0) return says(wire::DecisionFrame::kTimes, 0, 0);
  }
  if (!n.report) return false;
  std::size_t told = 0;
  for (LevelBook::Level& l : levels_.all()) {
    if (l.told || told == wire::kLevelsPerReport) continue;
    l.told = true;
    ++told;
    append(l.level);
  }
  n.report = told == wire::kLevelsPerReport;
  return told != 0 && says(wire::DecisionFrame::kReport, 0, 0);
}

Landing DecisionFlow::landing_for(Mux&, const wire::Header&) {
  return {Landing::Kind::kSlot, nullptr, landing::kLanded};
}

// True where it must not come again.
bool DecisionFlow::on_arrival(Mux& from, const wire::Header& h, const Arrival& arrival) {
  if (arrival.discarded || group_.dead || h.epoch != group_.epoch) return true;
  Neighbour* const n = neighbour(from.peer());
  if (n == nullptr) return true;
  wire::DecisionWord word;
  if (!from.is_read(h, arrival.payload, &word)) return true;
  const bool of_open = open_ && h.signature == proposal_.version();
  engine_.decisions_due_ = Nanos{};
  if (const auto* report = std::get_if<wire::LevelReport>(&word)) {
    if (n->child) on_report(*n, from, *report);
  } else if (const auto* times = std::get_if<wire::TimesReport>(&word)) {
    for (std::size_t i = 0; n->child && i < times->times.size(); ++i)
      take_time(times->times.at(i).op, times->times.at(i).us, nullptr);
  } else if (const auto* table = std::get_if<wire::TableProposal>(&word)) {
    return n->child || on_table(*n, from, *table);
  } else if (const auto* limit = std::get_if<wire::EntryLimit>(&word)) {
    if (!n->child || !of_open || n->has_limit) return true;
    n->has_limit = true;
    n->last = limit->last;
    limit_is_known();
  } else if (const auto* committed = std::get_if<wire::TableCommit>(&word)) {
    if (n->child || !of_open) return true;
    if (later(committed->valid_from, part_limit_)) {
      commit(committed->valid_from);
    } else {
      from.channel()->note_malformed("a table from an operation on that may have been entered");
      withdraw();
    }
  } else if (const auto* withdrawal = std::get_if<wire::TableWithdrawal>(&word)) {
    if (n->child) return true;
    if (of_open) {
      withdraw();
    } else if (!open_ && later(withdrawal->version, last_version_)) {
      last_version_ = withdrawal->version;  // its table comes late, by another lane
    }
  }
  return true;
}

bool DecisionFlow::on_table(Neighbour& from, Mux& mux, const wire::TableProposal& table) {
  if (!later(table.version, last_version_)) return true;
  if (open_) return table.version == proposal_.version();  // the end of the one before comes by another lane
  settle();
  // Before a rank here has come to the current table there is no place for another one.
  if (!settled_ || group_.local.empty()) return false;
  if (outcome_waits()) return false;
  MeasuredTable proposed;
  const char* const why =
      MeasuredTable::from_wire(table, static_cast<int>(group_.members.size()),
                               static_cast<std::uint32_t>(engine_.roster_->piece_bytes.count), &proposed);
  if (why != nullptr) {
    mux.channel()->note_malformed(why);
    return true;
  }
  CANARY_CHECK(from.engine == parent_, "tables come from above");
  open(std::move(proposed));
  return true;
}

}  // namespace canarynet
