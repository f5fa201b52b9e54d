// engine/level_book.h -- what a group's engines have announced of their links, and what of it a table is made of.
//
// What: keeps the latest level of each link, and says which alphas and rates count where tables are made. A small frame
// that waits behind another channel's piece makes a way seem longer for a second, and if that counted, all that was
// timed would be worth nothing each time. So:
// - Both ends of a link take half of the same round trip for alpha: the shorter one is right.
// - A value that changes counts once it has stood for a while. It counts at once where operations have felt a change,
//   or where many links have changed. So does what was not known of a link before, and a way that is shorter: nothing
//   but the link makes it so.
// Memory: its own; allocates when a link is new. Thread: the engine's owner. Units: us, kilobytes a second.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "base/units.h"
#include "transport/decision_frames.h"

namespace canarynet {

class LevelBook {
 public:
  // So long a changed value stands before it counts, and so long operations that have felt a change vouch for levels.
  static constexpr Nanos kStands = 2_s;
  static constexpr std::uint32_t kPart = 5;      // values that differ by less than such a part are the same
  static constexpr std::uint32_t kFloorUs = 50;  // so are alphas that differ by no more
  // This part of the links, and no fewer than so many, are many.
  static constexpr std::size_t kManyPart = 4, kMany = 4;
  static constexpr std::uint16_t kNoRail = 0xffff;

  struct Value {
    std::uint32_t counts = 0;    // 0: not known
    Nanos since = Nanos::max();  // the latest has differed from that; max: it does not
  };
  struct Level {
    wire::LinkLevel level;      // the latest
    std::uint16_t partner = 0;  // the rail by which its end answers; kNoRail: more than one does, or it answers others
    bool told = false;          // to the parent
    Value alpha = {}, beta = {};
  };

  void take(const wire::LinkLevel& level, std::uint16_t partner) {
    const std::size_t place = place_of(link_of(level));
    if (place == levels_.size() || link_of(levels_[place].level) != link_of(level)) {
      levels_.insert(levels_.begin() + static_cast<std::ptrdiff_t>(place), Level{.level = level, .partner = partner});
    } else if (is_later(level.serial, levels_[place].level.serial)) {
      levels_[place].level = level;
      levels_[place].told = false;
    } else {
      return;
    }
    news_ = true;
  }
  // nullptr: nothing was announced of it.
  const wire::LinkLevel* find(std::uint16_t from, std::uint16_t to, std::uint16_t rail) const {
    const Link link{from, to, rail};
    const std::size_t place = place_of(link);
    return place != levels_.size() && link_of(levels_[place].level) == link ? &levels_[place].level : nullptr;
  }

  // kNew: something is known that was not known before; kChanged: something counts that was known otherwise;
  // kChangedForSure: and operations, or many links, say so.
  enum class Counted { kNothing, kNew, kChanged, kChangedForSure };
  // Looks what counts from now on: all that is announced where operations have `felt` a change lately. Cheap where
  // nothing has happened.
  Counted count(Nanos now, bool felt) {
    if (felt) felt_until_ = now + kStands;
    const bool vouched = now < felt_until_;
    if (!news_ && now < next_ && (!vouched || next_ == Nanos::max())) return Counted::kNothing;
    news_ = false;
    Counted counted = Counted::kNothing;
    std::size_t waiting = 0;
    for (Level& l : levels_) {
      const bool new_alpha = note(&l.alpha, least_alpha(l), kFloorUs, now);
      const bool new_beta = note(&l.beta, l.level.beta_kbps, 0, now);
      if (new_alpha || new_beta) counted = Counted::kNew;
      waiting += l.alpha.since != Nanos::max() || l.beta.since != Nanos::max();
    }
    const bool at_once = vouched || waiting >= std::max(kMany, levels_.size() / kManyPart);
    next_ = Nanos::max();
    for (Level& l : levels_) {
      const std::uint32_t alpha = least_alpha(l);
      const bool new_alpha = settle(&l.alpha, alpha, now, at_once || alpha < l.alpha.counts);
      const bool new_beta = settle(&l.beta, l.level.beta_kbps, now, at_once);
      if (new_alpha || new_beta) counted = std::max(counted, at_once ? Counted::kChangedForSure : Counted::kChanged);
    }
    return counted;
  }
  // When a value that does not count yet will, if it stands; max: there is none.
  Nanos next() const { return next_; }

  // Ascending by link.
  std::vector<Level>& all() { return levels_; }
  const std::vector<Level>& all() const { return levels_; }
  bool rates_known() const {
    return std::any_of(levels_.begin(), levels_.end(), [](const Level& l) { return l.beta.counts != 0; });
  }

 private:
  using Link = std::tuple<std::uint16_t, std::uint16_t, std::uint16_t>;
  static Link link_of(const wire::LinkLevel& l) { return {l.from, l.to, l.rail}; }
  std::size_t place_of(const Link& link) const {
    const auto at = std::lower_bound(levels_.begin(), levels_.end(), link,
                                     [](const Level& a, const Link& b) { return link_of(a.level) < b; });
    return static_cast<std::size_t>(at - levels_.begin());
  }
  std::uint32_t least_alpha(const Level& l) const {
    if (l.partner == kNoRail) return l.level.alpha_us;
    const wire::LinkLevel* const back = find(l.level.to, l.level.from, l.partner);
    if (back == nullptr || back->alpha_us == 0) return l.level.alpha_us;
    return l.level.alpha_us == 0 ? back->alpha_us : std::min(l.level.alpha_us, back->alpha_us);
  }
  // As base/serial.h, of 16 bits.
  static bool is_later(std::uint16_t a, std::uint16_t b) { return static_cast<std::int16_t>(a - b) > 0; }
  // Looks at the latest value. True: it is known from now on, and counts.
  static bool note(Value* v, std::uint32_t latest, std::uint32_t floor, Nanos now) {
    if (v->counts == 0 && latest != 0) {
      v->counts = latest;
      return true;
    }
    const std::uint32_t band = std::max(v->counts / kPart, floor);
    const bool differs = latest > v->counts ? latest - v->counts > band : latest != 0 && v->counts - latest > band;
    v->since = !differs ? Nanos::max() : std::min(v->since, now);
    return false;
  }
  // True: the latest one counts instead from now on.
  bool settle(Value* v, std::uint32_t latest, Nanos now, bool at_once) {
    if (v->since == Nanos::max()) return false;
    if (!at_once && now - v->since < kStands) {
      next_ = std::min(next_, v->since + kStands);
      return false;
    }
    *v = {.counts = latest, .since = Nanos::max()};
    return true;
  }

  std::vector<Level> levels_;
  bool news_ = false;  // something was taken since it was last looked what counts
  Nanos next_ = Nanos::max();
  Nanos felt_until_;
};

}  // namespace canarynet
