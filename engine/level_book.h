// engine/level_book.h -- what a group's engines have announced of their links, and what of it a table is made of.
//
// What: keeps the latest level of each link, and says which of them count where tables are made. A small frame that
// waits behind another channel's piece makes a way seem longer for a second, and if that counted, all that was timed
// would be worth nothing each time. So:
// - Both ends of a link take half of the same round trip for alpha: the shorter one is right.
// - A level that changes counts once it has stood for a while. It counts at once where operations have felt a change,
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
  // So long a changed level stands before it counts, and so long operations that have felt a change vouch for levels.
  static constexpr Nanos kStands = 2_s;
  static constexpr std::uint32_t kPart = 5;      // levels that differ by less than such a part are the same
  static constexpr std::uint32_t kFloorUs = 50;  // so are alphas that differ by no more
  // This part of the links, and no fewer than so many, are many.
  static constexpr std::size_t kManyPart = 4, kMany = 4;

  struct Level {
    wire::LinkLevel level;                      // the latest
    std::uint16_t partner = 0;                  // the rail at its end
    bool told = false;                          // to the parent
    std::uint32_t alpha_us = 0, beta_kbps = 0;  // what counts; 0: not known
    Nanos since = Nanos::max();                 // the latest has differed from what counts; max: it does not
  };

  // `partner`: the rail of the engine at the link's end that it meets.
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

  enum class Counted { kNothing, kNew, kChanged };
  // Looks which levels count from now on: all where operations have `felt` a change lately. kNew: something is known
  // that was not known before; kChanged: something counts that was known otherwise. Cheap where nothing has happened.
  Counted count(Nanos now, bool felt) {
    if (felt) felt_until_ = now + kStands;
    const bool vouched = now < felt_until_;
    if (!news_ && now < next_ && (!vouched || next_ == Nanos::max())) return Counted::kNothing;
    news_ = false;
    Counted counted = Counted::kNothing;
    std::size_t waiting = 0;
    for (Level& l : levels_) {
      const std::uint32_t alpha = least_alpha(l);
      if (is_new(l.alpha_us, alpha) || is_new(l.beta_kbps, l.level.beta_kbps)) {
        if (l.alpha_us == 0) l.alpha_us = alpha;
        if (l.beta_kbps == 0) l.beta_kbps = l.level.beta_kbps;
        counted = Counted::kNew;
      }
      const bool other = differs(l.alpha_us, alpha, kFloorUs) || differs(l.beta_kbps, l.level.beta_kbps, 0);
      waiting += other;
      l.since = !other ? Nanos::max() : std::min(l.since, now);
    }
    const bool at_once = vouched || waiting >= std::max(kMany, levels_.size() / kManyPart);
    next_ = Nanos::max();
    for (Level& l : levels_) {
      if (l.since == Nanos::max()) continue;
      const std::uint32_t alpha = least_alpha(l);
      if (!at_once && now - l.since < kStands && alpha >= l.alpha_us) {
        next_ = std::min(next_, l.since + kStands);
        continue;
      }
      l.alpha_us = alpha;
      l.beta_kbps = l.level.beta_kbps;
      l.since = Nanos::max();
      counted = Counted::kChanged;
    }
    return counted;
  }
  // When a level that does not count yet will, if it stands; max: there is none.
  Nanos next() const { return next_; }

  // Ascending by link.
  std::vector<Level>& all() { return levels_; }
  const std::vector<Level>& all() const { return levels_; }
  bool rates_known() const {
    return std::any_of(levels_.begin(), levels_.end(), [](const Level& l) { return l.beta_kbps != 0; });
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
    const wire::LinkLevel* const back = find(l.level.to, l.level.from, l.partner);
    if (back == nullptr || back->alpha_us == 0) return l.level.alpha_us;
    return l.level.alpha_us == 0 ? back->alpha_us : std::min(l.level.alpha_us, back->alpha_us);
  }
  // As base/serial.h, of 16 bits.
  static bool is_later(std::uint16_t a, std::uint16_t b) { return static_cast<std::int16_t>(a - b) > 0; }
  static bool is_new(std::uint32_t counted, std::uint32_t level) { return counted == 0 && level != 0; }
  static bool differs(std::uint32_t counted, std::uint32_t level, std::uint32_t floor) {
    if (level == 0) return false;
    const std::uint32_t band = std::max(counted / kPart, floor);
    return level > counted ? level - counted > band : counted - level > band;
  }

  std::vector<Level> levels_;
  bool news_ = false;  // something was taken since it was last looked what counts
  Nanos next_ = Nanos::max();
  Nanos felt_until_;
};

}  // namespace canarynet
