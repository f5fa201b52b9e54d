// How a group's measured table chooses codecs: the part of engine/decision_flow.h beside collectives/codec_pick.h.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "collectives/codec_pick.h"
#include "engine/decision_flow.h"
#include "engine/engine.h"

namespace canarynet {
namespace {

std::uint32_t microseconds(double seconds) {
  return static_cast<std::uint32_t>(std::clamp(std::llround(seconds * 1e6), 1LL, 0xffffffffLL));
}

// Whether some plan is to be tried for operations that carry what the codec makes.
bool on_trial(const std::vector<MeasuredRow>& rows, const CodecSpec& codec) {
  const std::uint32_t number = codec_number(codec).value();
  return number != 0 && std::any_of(rows.begin(), rows.end(),
                                    [&](const MeasuredRow& row) { return row.asked == number && row.on_trial(); });
}

}  // namespace

bool DecisionFlow::measures_planners() const { return engine_.options_.settings.measured_choice; }

// Some operation's planner may be chosen by what was measured.
bool DecisionFlow::measures_plans() const { return measures_planners() || group_.use.measures_coded(); }

// Something asks for a table.
bool DecisionFlow::active() const { return used() && (measures_planners() || group_.codec_use.any()); }

// Whether operations with the codec of this number (0: without) run now: what a choice has passed over does not.
bool DecisionFlow::runs_now(std::uint32_t codec) const {
  if (codec == 0) return true;
  bool passed_over = false;
  for (const auto& cell : group_.codec_use.cells()) {
    const CodecCandidates candidates = candidates_of(cell->asked);
    const std::size_t present = CodecUse::chosen(current_, cell->asked, cell->bytes);
    for (std::size_t i = 1; i < candidates.count; ++i) {
      if (codec_number(candidates.specs[i]).value() != codec) continue;
      if (i == present) return true;
      passed_over = true;
    }
  }
  return !passed_over;
}

// Whether enough operations have run by what decides now.
bool DecisionFlow::all_tried() const {
  const std::uint32_t entered = latest_entered();
  const auto runs = [&](const ChoiceUse::Cell& use) { return !use.idle(entered) && runs_now(use.codec); };
  if (measures_plans() && !group_.use.all_tried(current_, runs)) return false;
  if (!group_.codec_use.all_tried(current_)) return false;
  const auto& cells = group_.codec_use.cells();
  return std::none_of(cells.begin(), cells.end(), [&](const auto& cell) { return lacks_rate(cell->asked); });
}

// Whether the best of them follows from the links, and no rate is known yet: one is waited for, but not for ever.
bool DecisionFlow::lacks_rate(std::uint32_t asked) const {
  if (levels_.rates_known() || engine_.now_ - first_used_ > kCodecsWaitForRates) return false;
  const CodecCandidates candidates = candidates_of(asked);
  const auto specs = std::span(candidates.specs).first(candidates.count);
  return std::any_of(specs.begin(), specs.end(), [](const CodecSpec& s) { return s.kind == CodecKind::kArTopK; });
}

// Whether the links are much faster or slower than when this was last true. Rates that nothing shapes always move a
// little, and what operations took says more than they do.
bool DecisionFlow::rates_moved() {
  std::vector<std::uint32_t> rates;
  for (const LevelBook::Level& l : levels_.all()) {
    if (l.beta.counts != 0) rates.push_back(l.beta.counts);
  }
  if (rates.empty()) return false;
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  const double rate = *middle;
  if (codec_rate_ != 0 && !CodecUse::far_apart(rate, codec_rate_)) return false;
  return std::exchange(codec_rate_, rate) != 0;
}

// The way between two engines, over all their rails: the median α and rate of those of which a rate is known.
LinkCost DecisionFlow::usual_link() const {
  std::vector<double> alphas, rates;
  const std::vector<LevelBook::Level>& levels = levels_.all();
  for (auto at = levels.begin(); at != levels.end();) {
    const auto [from, to] = std::pair(at->level.from, at->level.to);
    double alpha = 0, rate = 0;
    for (; at != levels.end() && at->level.from == from && at->level.to == to; ++at) {
      const double each = at->alpha.counts * 1e-6;
      if (each > 0) alpha = alpha > 0 ? std::min(alpha, each) : each;
      rate += at->beta.counts * 1e3;
    }
    if (rate <= 0) continue;
    alphas.push_back(alpha);
    rates.push_back(rate);
  }
  if (rates.empty()) return {};
  const auto median = [](std::vector<double>& v) {
    std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
    return v[v.size() / 2];
  };
  return {median(alphas), 1 / median(rates)};
}

// Puts rows that choose codecs in the place of those that are there.
void DecisionFlow::choose_codecs(std::vector<MeasuredRow>* rows) {
  const auto n = static_cast<int>(group_.members.size());
  const auto piece = static_cast<std::uint32_t>(engine_.roster_->piece_bytes.count);
  const bool moved = rates_moved();
  for (const auto& cell : group_.codec_use.cells()) {
    const std::size_t present = CodecUse::chosen(current_, cell->asked, cell->bytes);
    if (moved || CodecUse::moved(*cell, present)) {
      CodecUse::forget_others(cell.get(), present);
      cell->judged_seconds = 0;  // or it would have moved until it is judged again, and that asks for operations
    }
    if (!CodecUse::enough(cell->took[present])) continue;  // the row that is there stays
    cell->judged = present;
    cell->judged_seconds = static_cast<double>(cell->took[present].recent_ns) * 1e-9;
    const CodecCandidates candidates = candidates_of(cell->asked);
    if (lacks_rate(cell->asked)) continue;
    if (on_trial(*rows, candidates.specs[present])) continue;  // what it takes by its best plan will be known soon
    std::array<CodecTrial, kCodecCandidatesMax> trials;
    for (std::size_t i = 0; i < candidates.count; ++i) {
      const CodecSpec& spec = candidates.specs[i];
      CodecTrial& t = trials[i];
      if (spec.kind == CodecKind::kArTopK) {
        // Every value is looked at once, by the rank that chooses among its own.
        t.share = top_k_share(spec, cell->bytes, n, usual_link());
        t.work = static_cast<double>(cell->bytes) *
                 engine_.codec_speed({.kind = CodecKind::kTopK, .ratio_ppm = spec.ratio_ppm}).encode;
      } else {
        t.share = wire_share(spec, cell->bytes, n, piece);
        if (i != 0) t.work = codec_work(engine_.codec_speed(spec), cell->bytes, n, cell->feedback);
      }
      if (CodecUse::enough(cell->took[i])) t.took = static_cast<double>(cell->took[i].recent_ns) * 1e-9;
      t.slowdown = cell->slowdown[i];
    }
    const CodecPick pick = pick_codec({trials.data(), candidates.count}, present);
    for (std::size_t i = 0; i < candidates.count; ++i) cell->slowdown[i] = trials[i].slowdown;
    MeasuredRow row;
    row.size_class = cell->size_class;
    row.asked = cell->asked;
    row.codec = static_cast<std::uint8_t>(pick.best);
    row.codec_runner_up = static_cast<std::uint8_t>(pick.runner_up);
    row.predicted_us = microseconds(pick.expected);
    row.runner_up_us = microseconds(pick.runner_up_expected);
    std::erase_if(*rows, [&](const MeasuredRow& r) { return r.asked == row.asked && r.size_class == row.size_class; });
    rows->push_back(row);
  }
}

}  // namespace canarynet
