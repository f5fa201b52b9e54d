// engine/codec_use.h -- operations of a group that let their codec be chosen, by what they ask for and class of sizes:
// what the rows of the measured table that choose codecs are made from, and what explains them.
//
// Memory: a cell stays where it is while this lives; the first operation of its kind makes it. Beyond kCellsMax kinds
// nothing is noted, and operations travel dense. Units: bytes, ns. Thread: the engine's owner.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/measured_table.h"
#include "compress/codec_ask.h"
#include "engine/choice_use.h"

namespace canarynet {

class CodecUse {
 public:
  static constexpr std::size_t kCellsMax = 64;
  // So many slow operations tell how long the next one takes; of fast ones, ChoiceUse::Took::kEnough.
  static constexpr std::uint32_t kEnoughSlow = 2;
  static constexpr Nanos kSlow = 250_ms;

  struct Cell {
    std::uint32_t asked = 0;
    int size_class = 0;
    std::string text;                                         // what is asked,
    std::array<std::string, kCodecCandidatesMax> names;       // and the candidates, without their or-dense
    std::uint64_t bytes = 0;                                  // of the latest one
    bool feedback = false;                                    // it named a tensor
    std::array<ChoiceUse::Took, kCodecCandidatesMax> took{};  // by candidate
    std::array<double, kCodecCandidatesMax> slowdown{};       // CodecTrial's
    std::size_t judged = 0;                                   // the candidate that ran when it was last looked at,
    double judged_seconds = 0;                                // and what it took; 0: never
  };

  // So much says that something has changed, not that it wavers.
  static constexpr double kFarApart = 2;
  static bool far_apart(double a, double b) { return a > kFarApart * b || b > kFarApart * a; }
  // Whether the present candidate takes another time than when it was judged.
  static bool moved(const Cell& c, std::size_t present) {
    const double takes = static_cast<double>(c.took[present].recent_ns) * 1e-9;
    return c.judged == present && c.judged_seconds > 0 && far_apart(takes, c.judged_seconds);
  }
  bool any_moved(const MeasuredTable& table) const {
    return std::any_of(cells_.begin(), cells_.end(),
                       [&](const auto& c) { return moved(*c, chosen(table, c->asked, c->bytes)); });
  }
  static bool enough(const ChoiceUse::Took& took) {
    return took.lately >= (took.recent_ns >= kSlow.count ? kEnoughSlow : ChoiceUse::Took::kEnough);
  }
  bool any() const { return !cells_.empty(); }
  // nullptr: no such operation was entered here.
  Cell* find(std::uint32_t asked, std::uint64_t bytes) const {
    const int size = canarynet::size_class(bytes);
    for (const auto& c : cells_) {
      if (c->asked == asked && c->size_class == size) return c.get();
    }
    return nullptr;
  }
  // Of a kind that has none yet. nullptr: there are too many.
  Cell* add(std::uint32_t asked, std::uint64_t bytes) {
    if (cells_.size() == kCellsMax) return nullptr;
    Cell& made = *cells_.emplace_back(std::make_unique<Cell>());
    made.asked = asked;
    made.size_class = canarynet::size_class(bytes);
    made.text = text_asked(asked);
    const CodecCandidates candidates = candidates_of(asked);
    for (std::size_t i = 0; i < candidates.count; ++i) {
      CodecSpec shown = candidates.specs[i];
      shown.or_dense = false;
      made.names[i] = to_text(shown);
    }
    return &made;
  }
  const std::vector<std::unique_ptr<Cell>>& cells() const { return cells_; }
  // What operations took by other candidates than the present one says nothing any more. The present one's time follows
  // by itself, fast where operations are few.
  static void forget_others(Cell* cell, std::size_t present) {
    for (std::size_t i = 0; i < cell->took.size(); ++i) {
      if (i != present) cell->took[i].lately = 0;
    }
    ChoiceUse::Took& own = cell->took[present];
    if (own.recent_ns >= kSlow.count) own.lately = std::min(own.lately, 1u);
  }
  // Another table decides from now on: a codec whose plan it changes takes another time.
  void begin_anew(const MeasuredTable& before, const MeasuredTable& now) {
    for (const auto& cell : cells_) {
      const CodecCandidates candidates = candidates_of(cell->asked);
      for (std::size_t i = 1; i < candidates.count; ++i) {
        if (plan_changes(before, now, codec_number(candidates.specs[i]).value())) cell->took[i].begin_again();
      }
    }
  }
  // Whether enough operations of every kind have run by what the table chooses for them.
  bool all_tried(const MeasuredTable& table) const {
    return std::all_of(cells_.begin(), cells_.end(),
                       [&](const auto& c) { return enough(c->took[chosen(table, c->asked, c->bytes)]); });
  }
  // The candidate that the table chooses: its row's, else dense.
  static std::size_t chosen(const MeasuredTable& table, std::uint32_t asked, std::uint64_t bytes) {
    const MeasuredRow* const row = table.find_codec(asked, bytes);
    return row != nullptr ? row->codec : 0;
  }

 private:
  // Whether rows choose another plan for what the codec of this number makes.
  static bool plan_changes(const MeasuredTable& before, const MeasuredTable& now, std::uint32_t codec) {
    const auto kept = [codec](const MeasuredTable& in, const MeasuredRow& row) {
      const MeasuredRow* const other = in.find(row.collective, class_begin(row.size_class), codec);
      return row.asked != codec || (other == nullptr ? row.keeps_static : row.runs_as(*other));
    };
    const auto all_kept = [&](const MeasuredTable& rows, const MeasuredTable& in) {
      return std::all_of(rows.rows().begin(), rows.rows().end(), [&](const auto& row) { return kept(in, row); });
    };
    return !all_kept(before, now) || !all_kept(now, before);
  }

  std::vector<std::unique_ptr<Cell>> cells_;
};

}  // namespace canarynet
