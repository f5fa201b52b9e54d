#include "engine/decision_flow.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/serial.h"
#include "collectives/ring_order.h"
#include "collectives/selector.h"
#include "engine/engine.h"
#include "engine/flow/mux.h"
#include "engine/landing_words.h"

namespace canarynet {
namespace {

std::vector<std::uint32_t> engines_in_order(const Group& g) {
  std::vector<std::uint32_t> engines;
  for (const std::uint32_t e : g.engine_of) {
    if (std::find(engines.begin(), engines.end(), e) == engines.end()) engines.push_back(e);
  }
  return engines;
}

// The parent of each engine in the tree that spans them, breadth first from the first one, by place; its own place: it
// is the root, or no way leads there.
std::vector<std::size_t> parents_in_tree(const Group& g, const std::vector<std::uint32_t>& engines) {
  std::vector<int> first_rank;
  for (const std::uint32_t e : engines)
    first_rank.push_back(static_cast<int>(std::find(g.engine_of.begin(), g.engine_of.end(), e) - g.engine_of.begin()));
  std::vector<std::size_t> parent(engines.size());
  for (std::size_t i = 0; i < parent.size(); ++i) parent[i] = i;
  std::vector<std::size_t> reached{0};
  for (std::size_t at = 0; at < reached.size(); ++at) {
    for (std::size_t i = 1; i < engines.size(); ++i) {
      if (parent[i] != i || !g.reach->meets(first_rank[reached[at]], first_rank[i])) continue;
      parent[i] = reached[at];
      reached.push_back(i);
    }
  }
  return parent;
}

}  // namespace

static_assert(kCostedRanksMax <= static_cast<int>(wire::kOrderedRanksMax), "an order of all ranks can be proposed");

bool DecisionFlow::serves(const Engine& engine, const Group& g) {
  if (g.members.size() > kCostedRanksMax) return false;
  const auto host = [&](std::size_t rank) { return engine.host_of_engine(g.engine_of[rank]); };
  bool several_hosts = false;
  for (std::size_t r = 1; r < g.members.size(); ++r) several_hosts |= host(r) != host(0);
  if (!several_hosts) return false;
  const std::vector<std::size_t> parent = parents_in_tree(g, engines_in_order(g));
  for (std::size_t i = 1; i < parent.size(); ++i) {
    if (parent[i] == i) return false;
  }
  return true;
}

DecisionFlow::DecisionFlow(Engine& engine, Group& group)
    : engine_(engine),
      group_(group),
      engines_(engines_in_order(group)),
      entered_then_(engine.options_.first_operation - 1) {
  const std::vector<std::size_t> parent = parents_in_tree(group, engines_);
  const std::size_t me = place_of(engine_.my_engine_);
  const auto add = [&](std::size_t place, bool child) {
    Neighbour& n = *neighbours_.emplace_back(std::make_unique<Neighbour>(this));
    n.engine = engines_[place];
    n.child = child;
  };
  for (const std::uint32_t e : engines_) {
    const auto rank = std::find(group.engine_of.begin(), group.engine_of.end(), e) - group.engine_of.begin();
    first_rank_.push_back(static_cast<int>(rank));
  }
  branch_.resize(engines_.size(), kNone);
  if (parent[me] != me) {
    parent_ = engines_[parent[me]];
    add(parent[me], false);
  }
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    if (parent[i] == me && i != me) add(i, true);
    std::size_t up = i;
    while (parent[up] != up && parent[up] != me) up = parent[up];
    if (i != me && parent[up] == me && up != me) branch_[i] = engines_[up];
  }
  for (const std::uint32_t e : engines_) departed_ |= engine_.peers_[e].left;
}

std::size_t DecisionFlow::place_of(std::uint32_t engine) const {
  return static_cast<std::size_t>(std::find(engines_.begin(), engines_.end(), engine) - engines_.begin());
}

DecisionFlow::Neighbour* DecisionFlow::neighbour(std::uint32_t engine) {
  for (const auto& n : neighbours_) {
    if (n->engine == engine) return n.get();
  }
  return nullptr;
}

// There is something to say to it.
void DecisionFlow::wake(Neighbour& n) {
  Engine::EnginePeer& peer = engine_.peers_[n.engine];
  if (peer.ended() || !engine_.open(peer)) return;
  peer.mux->make_ready(n);
}

std::uint32_t DecisionFlow::latest_entered() const {
  std::uint32_t entered = group_.local.front()->entered;
  for (const auto& m : group_.local) entered = later_of(entered, m->entered);
  return entered;
}

bool DecisionFlow::used() const {
  const std::uint32_t before = engine_.options_.first_operation - 1;
  return std::any_of(group_.local.begin(), group_.local.end(), [&](const auto& m) { return m->entered != before; });
}

// A child has not been told yet how the last proposal ended.
bool DecisionFlow::outcome_waits() const {
  return std::any_of(neighbours_.begin(), neighbours_.end(), [](const auto& n) { return n->child && n->outcome; });
}

// --- deciding --------------------------------------------------------------------------------------------------------

const MeasuredTable& DecisionFlow::table_for(std::uint32_t operation) const {
  return !settled_ && later(valid_from_, operation) ? previous_ : current_;
}

bool DecisionFlow::holds(const GroupMember& m) const { return open_ && !group_.dead && later(m.entered + 1, limit_); }

// Every local rank decides by the current table: the one before it is not asked for any more.
void DecisionFlow::settle() {
  if (settled_) return;
  for (const auto& m : group_.local) {
    if (later(valid_from_, m->entered + 1)) return;
  }
  settled_ = true;
  previous_ = {};
}

void DecisionFlow::note_new_class() {
  if (!is_root()) return;
  const Nanos now = engine_.now_;
  if (!changed_) changed_since_ = now;
  changed_ = true;
  first_used_ = std::min(first_used_, now);
  judge_anew();
}

void DecisionFlow::note_class_wakes() { woken_ |= is_root(); }

// --- levels ----------------------------------------------------------------------------------------------------------

void DecisionFlow::take_level(const wire::LinkLevel& level) {
  const auto& engines = engine_.roster_->engines;
  int partner = -1, mine = 0, theirs = 0;
  const std::vector<RailPair> pairs =
      pair_rails(engines[engines_[level.from]].rails, engines[engines_[level.to]].rails, engine_.roster_->pairing);
  for (const RailPair& pair : pairs) {
    if (pair.local != level.rail) continue;
    partner = pair.remote;
    ++mine;
  }
  for (const RailPair& pair : pairs) theirs += pair.remote == partner;
  levels_.take(level, mine == 1 && theirs == 1 ? static_cast<std::uint16_t>(partner) : LevelBook::kNoRail);
}

// The root looks which levels its tables are made of.
void DecisionFlow::count_levels(Nanos now, bool felt) {
  using Counted = LevelBook::Counted;
  const Counted counted = levels_.count(now, felt);
  if (counted == Counted::kNothing) return;
  if (!changed_) changed_since_ = now;
  changed_ = true;
  order_due_ = true;
  if (counted == Counted::kChangedForSure) {
    group_.use.note_change(current_);
    guess_is_old_ = true;
  }
  // Of busy links some level changes all the time: what operations have shown since the last one that counted is kept
  // until it has been judged, or nothing ever would be.
  if (counted < Counted::kChanged || !judged_) return;
  group_.use.forget_present(current_);
  slowest_.clear();
  judge_anew();
}

// What this engine has announced of its links to others of the group. Lanes of one link share its NICs.
void DecisionFlow::look_at_links() {
  std::uint64_t changes = 0;
  for (const std::uint32_t e : engines_) {
    const Channel* const channel = engine_.channel_to(e);
    if (channel == nullptr) continue;
    for (const Path& path : channel->paths()) changes += path.link.changes() + 1;
  }
  if (changes == changes_seen_) return;
  changes_seen_ = changes;
  const auto me = static_cast<std::uint16_t>(place_of(engine_.my_engine_));
  for (std::size_t to = 0; to < engines_.size(); ++to) {
    const Channel* const channel = engine_.channel_to(engines_[to]);
    if (channel == nullptr) continue;
    for (const Path& first : channel->paths()) {
      wire::LinkLevel level;
      for (const Path& path : channel->paths()) {
        if (path.spec.local_rail != first.spec.local_rail) continue;
        const auto alpha = static_cast<std::uint32_t>(std::min<std::int64_t>(
            (path.link.announced_alpha().count + 999) / 1000, std::numeric_limits<std::uint32_t>::max()));
        const auto beta = static_cast<std::uint32_t>(std::min<std::int64_t>(
            (path.link.announced_beta().count + 999) / 1000, std::numeric_limits<std::uint32_t>::max()));
        if (alpha != 0) level.alpha_us = level.alpha_us != 0 ? std::min(level.alpha_us, alpha) : alpha;
        level.beta_kbps = std::max(level.beta_kbps, beta);
      }
      if (level.alpha_us == 0 && level.beta_kbps == 0) continue;
      level.from = me;
      level.to = static_cast<std::uint16_t>(to);
      level.rail = static_cast<std::uint16_t>(first.spec.local_rail);
      if (const wire::LinkLevel* const known = levels_.find(me, level.to, level.rail)) {
        if (known->alpha_us == level.alpha_us && known->beta_kbps == level.beta_kbps) continue;
        level.serial = static_cast<std::uint16_t>(known->serial + 1);
      }
      take_level(level);
    }
  }
}

void DecisionFlow::on_report(const Neighbour& from, Mux& mux, const wire::LevelReport& report) {
  for (std::size_t i = 0; i < report.levels.size(); ++i) {
    const wire::LinkLevel level = report.levels.at(i);
    // A child speaks for its part of the tree only.
    const bool right = level.from < engines_.size() && level.to < engines_.size() && level.from != level.to &&
                       branch_[level.from] == from.engine && level.rail <= kRailsMax;
    if (!right) {
      mux.channel()->note_malformed("a level of a link that is not its own");
      continue;
    }
    take_level(level);
  }
}

// --- what operations took --------------------------------------------------------------------------------------------

void DecisionFlow::note_time(std::uint32_t operation, Nanos time, ChoiceUse::Took* took) {
  // About so many in the time between two reports that a report holds twice as many.
  const std::uint32_t lately = in_window_ * 2 / static_cast<std::uint32_t>(wire::kTimesPerReport);
  if (!SlowestTimes::drawn(operation, std::bit_width(lately))) return;
  const std::int64_t us = std::clamp<std::int64_t>(time.count / 1000, 1, std::numeric_limits<std::uint32_t>::max());
  take_time(operation, static_cast<std::uint32_t>(us), took);
}

void DecisionFlow::take_time(std::uint32_t operation, std::uint32_t us, ChoiceUse::Took* took) {
  std::size_t sources = group_.local.size() + neighbours_.size();
  if (!is_root()) --sources;
  const auto* all = slowest_.note(operation, us, static_cast<std::uint32_t>(sources), took);
  if (all == nullptr) return;
  if (!is_root()) {
    if (times_kept_ < times_.size()) times_[times_kept_++] = {all->op, all->us};
  } else if (all->of != nullptr) {
    static_cast<ChoiceUse::Took*>(all->of)->note_slowest(Nanos{std::int64_t{all->us} * 1000});
  }
}

// --- proposals -------------------------------------------------------------------------------------------------------

void DecisionFlow::count_entered(Nanos now) {
  if (now - window_began_ < kRateWindow) return;
  const std::uint32_t entered = later_of(entered_then_, latest_entered());
  in_window_ = entered - entered_then_;
  entered_then_ = entered;
  window_began_ = now;
}

// The root looks whether there is a better table.
Nanos DecisionFlow::rule(Nanos now) {
  if (departed_) {
    if (open_) withdraw();
    costing_.reset();
    return Nanos::max();
  }
  if (open_) {
    const Settings& s = engine_.options_.settings;
    // Long before anybody could be blamed for an operation that waits meanwhile.
    const Nanos limit = std::min({kProposalLimit, s.entry_limit / 4, s.exchange_limit / 4});
    if (now - opened_ < limit) return opened_ + limit;
    log(LogLevel::kInfo, "group %u: table %u is withdrawn, since not all engines answered within %lld ms", group_.flow,
        proposal_.version(), static_cast<long long>(limit.count / 1'000'000));
    withdraw();
    pause_ = std::min(pause_ * 2, kTableEveryMax);
    next_table_ = now + pause_;
    changed_ = true;  // what it was made for has not come into force
    changed_since_ = now;
    return next_table_;
  }
  if (costing_) {
    if (costing_->step()) return now + kWalkEvery;
    end_costing(now);
    return now + kSettles;
  }
  const bool moved = measures_plans() && group_.use.any_moved(current_);
  const bool codecs_moved = group_.codec_use.any_moved(current_);
  count_levels(now, moved || codecs_moved);
  // What a level that counts now has outdated has not moved.
  judge(now, moved && group_.use.any_moved(current_), codecs_moved);
  if (!changed_ || first_used_ == Nanos::max()) return levels_.next();
  Nanos at = std::max(changed_since_ + kSettles, next_table_);
  if (!levels_.rates_known()) at = std::max(at, first_used_ + kWaitsForRates);
  if (now < at) return at;
  if (outcome_waits()) return now + kSettles;
  // Nobody needs the table before the current one any more.
  for (std::size_t r = 0; r < group_.members.size(); ++r) {
    if (!settled_ || (last_version_ != 0 && later(valid_from_, group_.entered[r] + 1))) return now + kSettles;
  }
  changed_ = false;
  begin_costing(now);
  return now + kWalkEvery;
}

// Every class has been costed: proposes what is better.
void DecisionFlow::end_costing(Nanos now) {
  group_.use.note_costs(*costing_, current_);
  const bool trying = costing_->trying();
  round_waits_ = costing_->would_try() && !trying;
  if (trying && !in_round_) {
    round_began_ = now;
    group_.use.age();
  } else if (in_round_ && !trying) {
    round_pause_ = now - next_round_ > round_pause_ * 4 ? kRoundEvery : std::min(round_pause_ * 2, kRoundEveryMax);
    next_round_ = now + round_pause_;
    const Nanos took = now - round_began_;
    if (std::exchange(first_round_, false) && took <= kCheckAfter) {
      next_trial_ = next_check_ = now + kFirstCheckAfter;
    } else {
      // Without a reason trials take a tenth of the time, at most.
      next_trial_ = now + std::max(round_pause_, took * 9);
      next_check_ = std::max(next_trial_, now + check_pause_);
      check_pause_ = std::min(check_pause_ * kCheckTimes, kCheckPauseMax);
    }
  }
  moved_ = false;
  in_round_ = trying;
  take_guess(costing_->guessed_beta(), now);
  std::vector<MeasuredRow> rows = std::move(*costing_).rows();
  costing_.reset();
  choose_codecs(&rows);
  const MeasuredTable made(1, rows, order_of(rows));  // sorted
  const auto alike = [](const MeasuredRow& a, const MeasuredRow& b) { return a.decides_as(b); };
  if (made.ring_order() == current_.ring_order() &&
      std::equal(made.rows().begin(), made.rows().end(), current_.rows().begin(), current_.rows().end(), alike))
    return;
  propose(std::move(rows), now);
  if (in_round_) next_table_ = now + kTrialEvery;
}

// One planner's time allows what another one's does not, so the least guess since the network changed is right.
void DecisionFlow::take_guess(double beta, Nanos now) {
  if (beta <= 0) return;
  const bool faster = guessed_beta_ <= 0 || beta * TableCosting::kSameCost < guessed_beta_;
  const bool slower = std::exchange(guess_is_old_, false) && beta > guessed_beta_ * TableCosting::kSameCost;
  if (!faster && !slower) return;
  guessed_beta_ = beta;
  order_due_ = true;
  judge_soon(now);
}

// The costs are made anew once operations have shown how long they take by what decides now, and when that changes.
void DecisionFlow::judge(Nanos now, bool moved, bool codecs_moved) {
  if (moved && !in_round_ && !moved_ && now >= next_round_) {
    moved_ = true;
    group_.use.renew_others_where_moved(current_);
  }
  // Nothing was waited for while no operations of a class ran. Some class may wake all the time.
  if (woken_ && now >= next_wake_) {
    woken_ = false;
    next_wake_ = now + kTableEvery;
    if (judged_ && !all_tried()) judge_anew();
  }
  if (!judged_) {
    const bool tried = all_tried();
    if (!tried && now < judge_at_) return;
    judged_ = tried;
    judge_pause_ = std::min(judge_pause_ * 2, kTableEveryMax);
    judge_at_ = now + judge_pause_;
    judge_soon(now);
  } else if (moved || codecs_moved || (round_waits_ && now >= next_trial_)) {
    round_waits_ = false;
    judge_soon(now);
  } else if (!in_round_ && now >= next_check_) {
    next_check_ = Nanos::max();
    group_.use.doubt(current_);
    judge_soon(now);
  }
}

// No level has changed, so nothing needs to settle.
void DecisionFlow::judge_soon(Nanos now) {
  if (!changed_) changed_since_ = now - kSettles;
  changed_ = true;
}

// What is known of operations by the table in force is not enough any more.
void DecisionFlow::judge_anew() {
  judged_ = false;
  judge_pause_ = kJudgeAfter;
  judge_at_ = engine_.now_ + judge_pause_;
}

void DecisionFlow::begin_costing(Nanos now) {
  std::vector<LinkMeasure> measured;
  measured.reserve(levels_.all().size());
  for (const LevelBook::Level& l : levels_.all())
    measured.push_back(
        {first_rank_[l.level.from], first_rank_[l.level.to], l.level.rail, l.alpha.counts, l.beta.counts});
  const PlanRequest group = engine_.plan_request(group_);
  CostModel model;
  model.gamma = engine_.options_.reduce_seconds;
  model.post = engine_.options_.post_seconds;
  RatesKnown rates;
  LinkCosts links = fill_costs(group, measured, &model, &rates);
  std::vector<CostedClass> classes;
  if (measures_plans()) {
    if (std::exchange(order_due_, false)) {
      LinkCosts by = links;
      if (guessed_beta_ > 0) by.set_guessed_beta(guessed_beta_);
      std::vector<std::uint16_t> order = order_by_links(group, by, ring_order_);
      if (order != ring_order_) {
        group_.use.forget_ordered();
        slowest_.clear();
      }
      ring_order_ = std::move(order);
    }
    classes = group_.use.classes(latest_entered());
    // What does not run needs no costs.
    std::erase_if(classes, [this](const CostedClass& c) { return !runs_now(c.codec); });
    for (CostedClass& c : classes) {
      if (c.encoding.piece_bytes != 0) c.encoding.speed = engine_.codec_speed(codec_of_number(c.codec).value());
    }
  }
  costing_.emplace(group, static_cast<std::uint32_t>(engine_.roster_->piece_bytes.count), std::move(links), rates,
                   model, std::move(classes), current_, measures_plans() && (in_round_ || moved_ || now >= next_trial_),
                   ring_order_);
}

// The order that a table with these rows has: none where no row asks for it.
std::vector<std::uint16_t> DecisionFlow::order_of(const std::vector<MeasuredRow>& rows) const {
  const bool needed = std::any_of(rows.begin(), rows.end(), [](const MeasuredRow& row) { return row.in_order; });
  return needed ? ring_order_ : std::vector<std::uint16_t>();
}

void DecisionFlow::propose(std::vector<MeasuredRow> rows, Nanos now) {
  next_table_ = now + pause_;
  std::uint32_t version = last_version_ + 1;
  if (version == 0) version = 1;
  std::vector<std::uint16_t> order = order_of(rows);
  open(MeasuredTable(version, std::move(rows), std::move(order)));
}

// A proposal begins here, and in this part of the tree.
void DecisionFlow::open(MeasuredTable table) {
  const Nanos now = engine_.now_;
  proposal_ = std::move(table);
  open_ = true;
  opened_ = now;
  const std::uint32_t entered = latest_entered();
  limit_ = part_limit_ = entered + std::clamp(std::max(in_window_, entered - entered_then_),
                                              measures_planners() ? kAheadMin : kAheadMinOfCodecs, kAheadMax);
  for (const auto& n : neighbours_) {
    if (!n->child) continue;
    n->has_limit = false;
    n->table = true;
    wake(*n);
  }
  limit_is_known();
}

// Of one more child, or of this engine.
void DecisionFlow::limit_is_known() {
  for (const auto& n : neighbours_) {
    if (n->child && !n->has_limit) return;
  }
  for (const auto& n : neighbours_) {
    if (n->child) part_limit_ = later_of(part_limit_, n->last);
  }
  if (is_root()) {
    pause_ = kTableEvery;
    judge_anew();
    return commit(part_limit_ + 1);
  }
  Neighbour& up = *neighbour(parent_);
  up.limit = true;
  wake(up);
}

// The proposal is the table from that operation on.
void DecisionFlow::commit(std::uint32_t valid_from) {
  CANARY_CHECK(settled_, "a third table comes only when the first is not needed any more");
  previous_ = std::move(current_);
  current_ = std::move(proposal_);
  proposal_ = {};
  valid_from_ = valid_from;
  settled_ = false;
  open_ = false;
  last_version_ = outcome_version_ = current_.version();
  outcome_from_ = valid_from;
  outcome_commits_ = true;
  group_.use.begin_anew(previous_, current_);
  group_.codec_use.begin_anew(previous_, current_);
  for (const auto& n : neighbours_) {
    if (!n->child) continue;
    n->outcome = true;
    wake(*n);
  }
  log(LogLevel::kInfo, "group %u: %s decides from operation #%u on", group_.flow,
      table_name(current_.identity()).c_str(), valid_from);
}

// The proposal is over, and everything stays as it was.
void DecisionFlow::withdraw() {
  open_ = false;
  last_version_ = outcome_version_ = proposal_.version();
  outcome_commits_ = false;
  proposal_ = {};
  for (const auto& n : neighbours_) {
    n->limit = false;
    if (!n->child) continue;
    n->outcome = !std::exchange(n->table, false);  // a child that was not told needs no outcome
    if (n->outcome) wake(*n);
  }
}

Nanos DecisionFlow::poll(Nanos now) {
  if (group_.dead || group_.local.empty()) return Nanos::max();
  settle();
  count_entered(now);
  if (active()) look_at_links();
  Nanos next = Nanos::max();
  if (is_root()) {
    next = rule(now);
  } else if (!departed_ && now >= next_report_ &&
             std::any_of(levels_.all().begin(), levels_.all().end(), [](const auto& l) { return !l.told; })) {
    next_report_ = now + kReportEvery;
    Neighbour& up = *neighbour(parent_);
    up.report = true;
    wake(up);
  }
  if (!is_root() && !departed_ && times_kept_ != 0 && now >= next_times_) {
    next_times_ = now + kTimesEvery;
    Neighbour& up = *neighbour(parent_);
    up.times = true;
    wake(up);
  }
  // A parent that never says how it ended: nobody waits for longer than for a rank that does not call.
  if (open_ && !is_root() && now - opened_ > engine_.options_.settings.entry_limit) withdraw();
  return next;
}

void DecisionFlow::on_engine_left(std::uint32_t engine) {
  if (std::find(engines_.begin(), engines_.end(), engine) == engines_.end()) return;
  departed_ = true;
  // It had said everything to us before: what it did not commit, nobody has.
  if (open_ && (is_root() || engine == parent_)) withdraw();
}

void DecisionFlow::close() {
  if (open_ && !group_.dead) withdraw();
  for (const auto& n : neighbours_) {
    Engine::EnginePeer& peer = engine_.peers_[n->engine];
    if (!peer.mux) continue;
    // The outcome leaves before the group does: below here they wait for it.
    if (n->outcome && !group_.dead && peer.channel && !peer.ended()) peer.channel->pump(engine_.now_);
    peer.mux->forget(*n);
  }
}

void DecisionFlow::abandon() {
  open_ = false;
  costing_.reset();
  for (const auto& n : neighbours_) n->report = n->times = n->table = n->limit = n->outcome = false;
}

}  // namespace canarynet
