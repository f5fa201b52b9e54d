#include "collectives/table_costs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "collectives/ring_order.h"
#include "collectives/selector.h"
#include "collectives/wiring.h"
#include "topology/rails.h"

namespace canarynet {
namespace {

// The times of kernel TCP, and of memory that two processes share, for what nobody measured.
constexpr LinkCost kUnknownLink{60e-6, 1 / 1.25e9};
constexpr LinkCost kUnknownMemory{2e-6, 1 / 8e9};
// Up to this size an operation's messages count, not its bytes, whatever the rate may be.
constexpr std::uint64_t kSmallBytes = 16 * 1024;
// Two rates, bytes a second, far apart: the cost of a plan is nearly linear in the time of a byte.
constexpr double kFastRate = 1.25e10, kSlowRate = 1.25e8, kLeastRate = 1e5;
// Pieces smaller than this cost more to post than they save in a pipeline.
constexpr std::uint32_t kSmallPiece = 16 * 1024;

std::uint32_t rails_of(const Reachability& reach, int a, int b) {
  return reach.rails(a, b) & ~(Reachability::kLocalBit | Reachability::kHostBit);
}

int host_of(const PlanRequest& request, int rank) {
  if (request.host_of.empty()) return rank;
  const auto& hosts = request.host_of;
  return static_cast<int>(std::find(hosts.begin(), hosts.end(), hosts[static_cast<std::size_t>(rank)]) - hosts.begin());
}

// Whether one rail leads from the first rank to the first one of another host.
bool have_one_rail(const PlanRequest& request) {
  int other = 1;
  while (other < request.ranks && host_of(request, other) == host_of(request, 0)) ++other;
  return other < request.ranks && std::has_single_bit(rails_of(*request.reach, 0, other));
}

// The rail of `b` that a's rail meets: the k-th of the rails that reach `b` meets the k-th of those that reach `a`, and
// a longer list goes round the shorter one.
int partner_of(const Reachability& reach, int a, int b, int rail) {
  const std::uint32_t mine = rails_of(reach, a, b), theirs = rails_of(reach, b, a);
  if (theirs == 0) return rail;
  int place = std::popcount(mine & ((1u << rail) - 1)) % std::popcount(theirs);
  for (std::uint32_t left = theirs;; left &= left - 1) {
    if (place-- == 0) return std::countr_zero(left);
  }
}

double median(std::vector<double>* values) {
  const auto middle = values->begin() + static_cast<std::ptrdiff_t>(values->size() / 2);
  std::nth_element(values->begin(), middle, values->end());
  return *middle;
}

std::uint32_t microseconds(double seconds) {
  return static_cast<std::uint32_t>(std::clamp(std::llround(seconds * 1e6), 1LL, 0xffffffffLL));
}

struct KnownLink {
  double alpha = 0, rate = 0;  // seconds; bytes a second; 0: not known
};

// Finds whether the rates that are known are those of a few hosts, and says which, by host; empty: they are not. Each
// such host shows rates with half of the others, and with two at least. A pair that is twice as fast as the median one
// does not speak against that.
std::vector<bool> hosts_with_rates(const PlanRequest& request, std::span<const std::array<KnownLink, kRailsMax>> known,
                                   double median_rate) {
  const auto n = static_cast<std::size_t>(request.ranks);
  const auto rate = [&](std::size_t a, std::size_t b) {
    double most = 0;
    for (const KnownLink& k : known[a * n + b]) most = std::max(most, k.rate);
    for (const KnownLink& k : known[b * n + a]) most = std::max(most, k.rate);
    return most;
  };
  std::vector<std::size_t> others(n);  // with which a host shows rates
  std::vector<bool> counts(n * n), found(n);
  std::size_t hosts = 0, left = 0;
  for (std::size_t a = 0; a < n; ++a) {
    hosts += host_of(request, static_cast<int>(a)) == static_cast<int>(a) ? 1 : 0;
    for (std::size_t b = 0; b < n; ++b) {
      const double r = rate(a, b);
      counts[a * n + b] = r > 0 && r < 2 * median_rate;
      others[a] += counts[a * n + b] ? 1 : 0;
    }
    left += others[a];
  }
  if (left == 0) return {};
  for (std::size_t few = std::max<std::size_t>(1, hosts / 4); left != 0 && few != 0; --few) {
    const auto most = static_cast<std::size_t>(std::max_element(others.begin(), others.end()) - others.begin());
    if (others[most] < std::max<std::size_t>(2, hosts / 2)) return {};
    found[most] = true;
    left -= 2 * others[most];
    others[most] = 0;
    for (std::size_t b = 0; b < n; ++b) {
      if (counts[most * n + b] && !found[b]) --others[b];
    }
  }
  return left == 0 ? found : std::vector<bool>();
}

// About how many tasks a walk has: those of the first two ranks, one of which may be a root, stand for all.
std::uint64_t tasks_of(PlannerId id, const PlanRequest& request, std::uint64_t piece_bytes) {
  std::vector<std::uint64_t> leaves;
  planner(id).leaves(request, &leaves);
  std::uint64_t most = 0;
  for (int rank = 0; rank < std::min(request.ranks, 2); ++rank) {
    Plan plan;
    planner(id).plan(request, rank, &plan);
    std::uint64_t tasks = 0;
    for (const Step& step : plan.steps) {
      for (std::uint32_t leaf = step.leaf_begin; leaf < step.leaf_end; ++leaf) {
        const std::uint64_t bytes = (leaves[leaf + 1] - leaves[leaf]) * request.element_bytes;
        tasks += std::max<std::uint64_t>(1, (bytes + piece_bytes - 1) / piece_bytes);
      }
    }
    most = std::max(most, tasks);
  }
  return most * static_cast<std::uint64_t>(request.ranks);
}

}  // namespace

LinkCosts fill_costs(const PlanRequest& request, std::span<const LinkMeasure> measured, CostModel* model,
                     RatesKnown* rates) {
  const auto n = static_cast<std::size_t>(request.ranks);
  std::vector<double> alphas, betas, local_alphas, local_betas;  // seconds; bytes a second
  std::vector<std::array<double, kRailsMax>> out(n), in(n);      // by host: bytes a second that a NIC has shown
  std::vector<std::array<KnownLink, kRailsMax>> known(n * n);
  for (const LinkMeasure& m : measured) {
    const int from = host_of(request, m.from), to = host_of(request, m.to);
    const double alpha = m.alpha_us * 1e-6, rate = m.beta_kbps * 1e3;
    if (from == to || m.rail >= kRailsMax) {
      if (alpha > 0) local_alphas.push_back(alpha);
      if (rate > 0) local_betas.push_back(rate);
      continue;
    }
    const auto a = static_cast<std::size_t>(from), b = static_cast<std::size_t>(to);
    const auto rail = static_cast<std::size_t>(m.rail);
    if (alpha > 0) alphas.push_back(alpha);
    if (rate > 0) betas.push_back(rate);
    // Several engines of a host may have measured one link: the least disturbed of them is right.
    KnownLink& k = known[a * n + b][rail];
    if (alpha > 0) k.alpha = k.alpha > 0 ? std::min(k.alpha, alpha) : alpha;
    k.rate = std::max(k.rate, rate);
    out[a][rail] = std::max(out[a][rail], rate);
    double& into = in[b][static_cast<std::size_t>(partner_of(*request.reach, m.from, m.to, m.rail))];
    into = std::max(into, rate);
  }
  model->local_alpha = local_alphas.empty() ? kUnknownMemory.alpha : median(&local_alphas);
  model->local_beta = local_betas.empty() ? kUnknownMemory.beta : 1 / median(&local_betas);
  const LinkCost usual{alphas.empty() ? kUnknownLink.alpha : median(&alphas),
                       betas.empty() ? kUnknownLink.beta : 1 / median(&betas)};
  const std::vector<bool> busy = hosts_with_rates(request, known, 1 / usual.beta);
  *rates = {.any = !betas.empty(), .of_few_hosts = !busy.empty()};
  LinkCosts links(usual);
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = 0; b < n; ++b) {
      const int from = static_cast<int>(a), to = static_cast<int>(b);
      if (a == b || host_of(request, from) != from || host_of(request, to) != to) continue;
      for (std::uint32_t left = rails_of(*request.reach, from, to); left != 0; left &= left - 1) {
        const int rail = std::countr_zero(left);
        if (rail >= kRailsMax) break;
        const auto mine = static_cast<std::size_t>(rail);
        const auto theirs = static_cast<std::size_t>(partner_of(*request.reach, from, to, rail));
        const KnownLink& k = known[a * n + b][mine];
        double rate = k.rate;
        // What the others carry to and from a few hosts tells nothing of the ways between them.
        const bool told = busy.empty() || busy[a] || busy[b];
        if (rate <= 0 && told && out[a][mine] > 0 && in[b][theirs] > 0) rate = std::min(out[a][mine], in[b][theirs]);
        // They are as slow the other way and over their other rails, as far as anybody knows.
        if (rate <= 0 && told && !busy.empty()) rate = 1 / usual.beta;
        const LinkCost cost{k.alpha > 0 ? k.alpha : usual.alpha, rate > 0 ? 1 / rate : usual.beta};
        if (rate > 0) {
          links.set(from, to, rail, cost);
        } else {
          links.guess(from, to, rail, cost);
        }
      }
    }
  }
  return links;
}

TableCosting::TableCosting(const PlanRequest& group, std::uint32_t piece_bytes, LinkCosts links, RatesKnown rates,
                           const CostModel& model, std::vector<CostedClass> classes, MeasuredTable present,
                           bool may_try, std::vector<std::uint16_t> ring_order)
    : group_(group),
      piece_bytes_(piece_bytes),
      links_(std::move(links)),
      rates_(rates),
      model_(model),
      classes_(std::move(classes)),
      present_(std::move(present)),
      may_try_(may_try),
      ring_order_(std::move(ring_order)),
      // Where rails differ by peer, such a plan walks the wiring each time that it is made, which takes far too long.
      takes_hierarchical_(hosts_share_memory(group) && !rails_differ_by_peer(group)) {
  if (!rates_.of_few_hosts) return;
  links_at_best_ = links_;
  links_at_best_.set_guessed_beta(1 / kFastRate);
}

PlanRequest TableCosting::request_of(const CostedClass& c, bool in_order) const {
  PlanRequest request = group_;
  if (in_order) request.ring_order = ring_order_;
  request.collective = c.collective;
  request.element_bytes = c.element_bytes;
  request.root = has_root(c.collective) ? c.root : 0;
  const std::uint64_t elements = c.bytes / c.element_bytes;
  request.count = in_blocks(c.collective) ? elements / static_cast<std::uint64_t>(group_.ranks) : elements;
  return request;
}

void TableCosting::begin_class() {
  using enum PlannerId;
  const CostedClass& c = classes_[class_];
  const PlanRequest request = request_of(c);
  planned_.clear();
  costed_.clear();
  rate_inferred_ = false;
  if (c.static_choice == kHierarchical && !takes_hierarchical_) return;
  // About as many tasks as a ring or a mesh in pieces of this size: 4 n^2 of a rank's share each.
  const auto n = static_cast<std::uint64_t>(group_.ranks);
  const std::uint64_t shares = std::max<std::uint64_t>(1, kWalkTasks / (4 * n * n)) * n;
  const bool encoded = c.encoding.piece_bytes != 0;
  const std::uint32_t piece_bytes = encoded ? c.encoding.piece_bytes : piece_bytes_;
  walk_piece_bytes_ = std::max<std::uint64_t>(piece_bytes, (c.bytes + shares - 1) / shares);
  // A codec has its own size of pieces.
  const std::uint32_t smaller = encoded ? 0 : piece_bytes_ / 4 / 128 * 128;
  for (const Planner& p : planners()) {
    // A parameter server is for callers that ask for it.
    if (p.id == kParameterServer || (p.id == kHierarchical && !takes_hierarchical_)) continue;
    // Where all ranks meet they relay nothing, and one rail has one ring.
    if (p.id == kMeshRelay && planner(kMesh).check(request).ok()) continue;
    if (p.id == kRingPerRail && have_one_rail(group_)) continue;
    for (const bool in_order : {false, true}) {
      if (in_order && (ring_order_.empty() || !takes_order(p.id))) continue;
      if (!p.check(request_of(c, in_order)).ok() || !takes_codec(p.id, request_of(c, in_order), c.codec)) continue;
      planned_.push_back({.planner = p.id, .piece_bytes = 0, .in_order = in_order});
      if (walk_piece_bytes_ == piece_bytes && smaller >= kSmallPiece && c.bytes > smaller)
        planned_.push_back({.planner = p.id, .piece_bytes = smaller, .in_order = in_order});
    }
  }
  if (!rates_.any) {
    const auto in_force = [&](const Costed& k) { return is_in_force(c, k) && took(c, k) > 0; };
    const bool known = std::any_of(planned_.begin(), planned_.end(), in_force);
    if (!known && c.bytes > kSmallBytes) planned_.clear();
    rate_inferred_ = !known;  // nothing to infer it from
  }
  std::reverse(planned_.begin(), planned_.end());
}

const CostedClass::Known& TableCosting::known(const CostedClass& c, const Costed& k) {
  return c.known[static_cast<std::size_t>(k.planner)][k.variant()];
}

const MeasuredRow* TableCosting::present_row(const CostedClass& c) const {
  return present_.find(c.collective, c.bytes, c.codec);
}

// Whether operations of the class run by this candidate now.
bool TableCosting::is_in_force(const CostedClass& c, const Costed& k) const {
  const MeasuredRow* const row = present_row(c);
  if (row == nullptr || row->keeps_static) return k.is_static(c.static_choice);
  // Rings that stand in another order now, or in none, are still what decides.
  const bool in_order = row->in_order && !ring_order_.empty();
  return k.planner == row->planner && k.piece_bytes == row->piece_bytes && k.in_order == in_order;
}

std::uint64_t TableCosting::piece_bytes_of(const Costed& k) const {
  return std::max(k.piece_bytes != 0 ? k.piece_bytes : walk_piece_bytes_, k.walked_in);
}

double TableCosting::walk(const LinkCosts& links, const Costed& k) const {
  const CostedClass& c = classes_[class_];
  const PlanRequest request = request_of(c, k.in_order);
  CostModel model = model_;
  model.links = &links;
  model.piece_bytes = piece_bytes_of(k);
  if (c.encoding.piece_bytes == 0) return walk_cost(k.planner, request, kRailsMax, model);
  // Pieces of f32 whose bytes are cheaper; decoding adds.
  const LinkCosts cheaper = links.times(c.encoding.share);
  model.links = &cheaper;
  model.local_beta *= c.encoding.share;
  model.gamma = 0;
  return walk_cost(k.planner, request, kRailsMax, model) +
         codec_work(c.encoding.speed, k.planner, request, c.encoding.feedback);
}

// The rate of links that have shown none by which the planner in force takes as long as it did. Two walks.
void TableCosting::infer_rate() {
  const CostedClass& c = classes_[class_];
  const auto in_force = [&](const Costed& k) { return is_in_force(c, k) && took(c, k) > 0; };
  const auto known = std::find_if(planned_.begin(), planned_.end(), in_force);
  if (known == planned_.end()) return;
  Costed in_pieces = *known;
  if (!fits(&in_pieces, kWalkTasks / 2)) return;
  const double time = took(c, *known);
  // Rates are first known of links that are busy for long, and the others are no slower than those.
  const double slow_beta = rates_.any ? links_.usual().beta : 1 / kSlowRate;
  if (rates_.any && (c.bytes <= kSmallBytes || slow_beta <= 1 / kFastRate)) return;
  LinkCosts guess = links_;
  guess.set_guessed_beta(slow_beta);
  const double slow = walk(guess, in_pieces);
  if (rates_.any) {
    if (slow < kMayBeAlike * time && guessed_beta_ <= 0) guessed_beta_ = slow_beta;
    if (slow < kSameCost * time) return;
  }
  guess.set_guessed_beta(1 / kFastRate);
  const double fast = walk(guess, in_pieces);
  const double per_byte = (slow - fast) / (slow_beta - 1 / kFastRate);
  const double beta = per_byte > 0 ? 1 / kFastRate + (time - fast) / per_byte : 1 / kFastRate;
  const double inferred = std::clamp(beta, 1 / kFastRate, rates_.any ? slow_beta : 1 / kLeastRate);
  if (rates_.any) {
    // Of classes that tell something the one whose time leaves the least for those links is right.
    guessed_beta_ = guessed_beta_ > 0 ? std::min(guessed_beta_, inferred) : inferred;
  } else {
    links_.set_guessed_beta(inferred);
  }
}

// Whether the candidate's walk has at most so many tasks, in larger pieces if need be: the root of a tree sends
// everything several times, and fine pieces are many.
bool TableCosting::fits(Costed* k, std::uint64_t tasks) const {
  const PlanRequest request = request_of(classes_[class_], k->in_order);
  const std::uint64_t usual = piece_bytes_of(*k);
  const auto fits_in = [&](std::uint64_t piece) { return tasks_of(k->planner, request, piece) <= tasks; };
  if (fits_in(usual)) return true;
  if (!fits_in(kLargerAtMost * usual)) return false;
  for (k->walked_in = 2 * usual; !fits_in(k->walked_in);) k->walked_in *= 2;
  return true;
}

bool TableCosting::step() {
  while (class_ < classes_.size()) {
    if (!begun_) {
      begun_ = true;
      begin_class();
    }
    if (links_.has_guesses() && !planned_.empty() && !std::exchange(rate_inferred_, true)) {
      infer_rate();
      return true;
    }
    if (rates_.of_few_hosts && !costed_.empty() && !std::exchange(costed_.back().walked_at_best, true)) {
      costed_.back().at_best = walk(links_at_best_, costed_.back());
      return true;
    }
    while (!planned_.empty()) {
      Costed candidate = planned_.back();
      planned_.pop_back();
      if (!fits(&candidate, kWalkTasks)) continue;
      candidate.seconds = walk(links_, candidate);
      costed_.push_back(candidate);
      return true;
    }
    end_class();
    ++class_;
    begun_ = false;
  }
  return false;
}

double TableCosting::least_cost() const {
  double least = std::numeric_limits<double>::max();
  for (const Costed& k : costed_) least = std::min(least, k.seconds);
  return least;
}

double TableCosting::least_at_best() const {
  double least = std::numeric_limits<double>::max();
  for (const Costed& k : costed_) least = std::min(least, k.at_best);
  return least;
}

// Sets what each candidate is expected to take: the time that it took, or its cost, which is wrong by as much as the
// cost of what decides.
void TableCosting::expect(const CostedClass& c) {
  double scale = 1;
  for (const Costed& k : costed_) {
    if (is_in_force(c, k) && took(c, k) > 0 && k.seconds > 0) scale = took(c, k) / k.seconds;
  }
  const double least = least_cost();
  for (Costed& k : costed_) {
    const CostedClass::Known& what = known(c, k);
    k.tried = what.took > 0;
    k.expected = k.tried ? what.took : scale * k.seconds;
    k.aged = what.aged;
    k.doubted = what.doubted;
    if (!k.tried || what.cost <= 0 || is_in_force(c, k) || !rates_.any) continue;
    const double now = k.seconds * what.least, then = what.cost * least;  // against the cheapest
    k.outdated = now > kSameCost * then || then > kSameCost * now;
    // Where the network has changed, all of them may cost something else.
    if (what.before) k.outdated |= k.seconds > kSameCost * what.cost || what.cost > kSameCost * k.seconds;
    // A time of another network would be the best one for ever.
    if (k.outdated) k.expected = scale * k.seconds;
  }
}

// Nobody has tried it in this round, and it may be the best: by the costs, or if links that show no rate are fast.
bool TableCosting::open_to_trial(const Costed& k, double best_cost, double best_time) const {
  if (k.timed()) return k.aged && (k.expected <= kCloseBefore * best_time || (k.doubted && k.seconds <= best_cost));
  return k.seconds <= kClose * best_cost || (k.walked_at_best && k.at_best <= kClose * least_at_best());
}

// The cheapest of those.
TableCosting::Candidate TableCosting::to_try(double best_cost, double best_time) const {
  auto next = costed_.cend();
  for (auto k = costed_.cbegin(); k != costed_.cend(); ++k) {
    if (open_to_trial(*k, best_cost, best_time) && (next == costed_.cend() || k->seconds < next->seconds)) next = k;
  }
  return next;
}

// costed_.cend(): nothing is known that could replace what decides.
TableCosting::Choice TableCosting::choose(const CostedClass& c) {
  const auto find = [&](auto is) { return std::find_if(costed_.begin(), costed_.end(), is); };
  const auto of_static = find([&](const Costed& k) { return k.is_static(c.static_choice); });
  const auto present = find([&](const Costed& k) { return is_in_force(c, k); });
  // Too long a walk: nothing to compare with.
  if (of_static == costed_.end() || present == costed_.end()) return {of_static};
  if (!present->tried) {
    const MeasuredRow* const row = c.on_trial ? present_row(c) : nullptr;
    if (row == nullptr || !row->on_trial()) return {present};
    return {present, RowReason::kTrial, row->to_follow};
  }
  present->aged = false;  // its times are taken all the time
  Candidate best = present;
  for (auto k = costed_.cbegin(); k != costed_.cend(); ++k) {
    if (k->timed() && k->expected < best->expected) best = k;
  }
  // The best may cost more than others, by a model that is wrong.
  const double least = least_cost();
  auto next = to_try(least, best->expected);
  if (next == costed_.cend()) next = to_try(best->seconds, best->expected);
  if (c.idle) next = costed_.cend();
  would_try_ |= next != costed_.cend() && (!next->tried || next->outdated);
  if (next != costed_.cend() && (may_try_ || (!next->timed() && next->expected < kClearlyCheaper * best->expected))) {
    std::uint16_t to_follow = 0;
    for (auto k = costed_.cbegin(); may_try_ && k != costed_.cend(); ++k) {
      if (k->planner != next->planner && open_to_trial(*k, std::max(least, best->seconds), best->expected))
        to_follow = static_cast<std::uint16_t>(to_follow | 1u << static_cast<unsigned>(k->planner));
    }
    return {next, RowReason::kTrial, to_follow};
  }
  const Candidate fastest = best;
  RowReason reason = RowReason::kFastest;
  const auto keep = [&](Candidate which, RowReason why) {
    best = which;
    reason = best == fastest ? RowReason::kFastest : why;
  };
  // What was only tried has no claim to stay.
  if (!c.on_trial && best->expected > kBetter * present->expected) keep(present, RowReason::kStays);
  if (of_static->timed() && best->expected > kLikeStatic * of_static->expected)
    keep(of_static, RowReason::kAsFastAsStatic);
  return {best, reason};
}

void TableCosting::end_class() {
  const CostedClass& c = classes_[class_];
  expect(c);
  const auto [chosen, reason, to_follow] = choose(c);
  const bool on_trial = reason == RowReason::kTrial;
  trying_ |= on_trial && !c.idle;
  if (chosen == costed_.cend()) return;
  const double least = least_cost();
  for (const Costed& k : costed_) {
    costs_.push_back({c.collective, c.bytes, c.codec, k.planner, k.variant(), is_in_force(c, k), k.outdated, on_trial,
                      k.seconds, least, rates_.any});
  }
  MeasuredRow row;
  row.collective = c.collective;
  row.size_class = size_class(c.bytes);
  row.asked = c.codec;
  row.keeps_static = chosen->is_static(c.static_choice);
  row.planner = row.runner_up = chosen->planner;
  row.piece_bytes = chosen->piece_bytes;
  row.in_order = chosen->in_order;
  row.predicted_us = microseconds(chosen->expected);
  row.reason = reason;
  row.to_follow = to_follow;
  double next = 0;
  for (const Costed& other : costed_) {
    if (other.planner == chosen->planner || (next != 0 && other.expected >= next)) continue;
    next = other.expected;
    row.runner_up = other.planner;
    row.runner_up_us = microseconds(next);
  }
  rows_.push_back(row);
}

std::vector<MeasuredRow> TableCosting::rows() && {
  for (const MeasuredRow& row : present_.rows()) {
    if (row.in_order && present_.ring_order() != ring_order_) continue;  // there is one order for all
    const auto same = [&](const MeasuredRow& o) {
      return o.collective == row.collective && o.size_class == row.size_class && o.asked == row.asked;
    };
    if (std::none_of(rows_.begin(), rows_.end(), same)) rows_.push_back(row);
  }
  return std::move(rows_);
}

}  // namespace canarynet
