#include "sim/swarm_partials.h"

#include <algorithm>
#include <cmath>

namespace canarynet {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

}  // namespace

SwarmPartials::SwarmPartials(const Life& life, std::uint64_t seed, SwarmExchanges::Excuse excuse)
    : life_(life),
      random_(seed ^ 0x7061727469616cull),
      exchanges_(std::move(excuse)),
      // Ranks that do not meet take part in none.
      waves_left_(static_cast<int>(!life.pairs         ? 0
                                   : life.ranks() > 16 ? 2 + random_.below(4)
                                                       : random_.below(16))),
      depth_(1 + random_.below(4)),
      pause_(static_cast<std::int64_t>(random_.below(5'000'000) + 1)),
      most_(random_.below(4) == 0 && life.ranks() <= 16 ? 100'000 : 5000),
      gone_(at(life.cluster.hosts)),
      ranks_(at(life.ranks())),
      current_(at(life.ranks())) {
  for (Rank& rank : ranks_) rank.value = static_cast<double>(random_.below(1000)) / 8;
}

std::string SwarmPartials::shape() const { return std::to_string(waves_left_) + " waves of exchanges"; }

void SwarmPartials::begin(Cluster* cluster) {
  cluster_ = cluster;
  cluster->add_watcher(this);
  exchanges_.begin(cluster);
  last_event_ = cluster->now();
}

std::size_t SwarmPartials::open_waves() const {
  return at(static_cast<int>(std::count_if(waves_.begin(), waves_.end(), [](const Wave& w) { return w.open != 0; })));
}

void SwarmPartials::plan() {
  --waves_left_;
  std::vector<int> order;
  for (int r = 0; r < life_.ranks(); ++r) {
    if (!gone_[at(cluster_->host_of(r))]) order.push_back(r);
  }
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
  Wave& wave = waves_.emplace_back();
  const std::uint64_t number = waves_.size() << 16;
  const bool one_number = random_.below(2) == 0;  // of all sets, which differ in their lowest rank
  const std::uint64_t most = random_.below(4) == 0 ? order.size() : 5;
  const auto kind = random_.below(8);
  for (std::size_t from = 0; from < order.size();) {
    const std::size_t size = std::min<std::size_t>(1 + random_.below(most), order.size() - from);
    const auto first = order.begin() + static_cast<std::ptrdiff_t>(from);
    from += size;
    if (random_.below(8) == 0) continue;  // idle in this wave
    SwarmExchanges::Terms terms;
    terms.number = number + (one_number ? 0 : wave.sets.size());
    terms.ranks.assign(first, first + static_cast<std::ptrdiff_t>(size));
    if (random_.below(2) == 0) std::sort(terms.ranks.begin(), terms.ranks.end());
    terms.count = random_.below(3) == 0 ? 1 : 1 + random_.below(most_);
    terms.type = random_.below(2) == 0 ? CANARY_F32 : CANARY_F64;
    terms.redop = kind == 0 ? CANARY_SUM : CANARY_AVG;
    terms.weighted = kind < 3;
    terms.in_place = random_.below(2) == 0;
    wave.open += size;
    for (const int r : terms.ranks) ranks_[at(r)].tasks.push_back({waves_.size() - 1, wave.sets.size()});
    wave.sets.push_back(std::move(terms));
  }
  wave.keeps_mean = kind >= 3;
}

bool SwarmPartials::act() {
  if (waves_left_ > 0 && open_waves() < depth_ && random_.below(2) == 0) return plan(), true;
  const auto turn = random_.below(ranks_.size());
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const int r = static_cast<int>((turn + i) % ranks_.size());
    Rank& rank = ranks_[at(r)];
    const int host = cluster_->host_of(r);
    if (rank.tasks.empty() || exchanges_.calls(r) || rank.pauses_until > cluster_->now()) continue;
    if (!cluster_->alive(host) || cluster_->fabric().frozen(host)) continue;
    const Task task = current_[at(r)] = rank.tasks.front();
    rank.tasks.pop_front();
    last_event_ = cluster_->now();
    const double weight = static_cast<double>(1 + random_.below(512)) / 2;
    exchanges_.call(r, waves_[task.wave].sets[task.set], rank.value, weight);
    if (!exchanges_.failure().empty()) fail(exchanges_.failure());
    return true;
  }
  if (waves_left_ > 0 && open_waves() < depth_) return plan(), true;
  return false;
}

Nanos SwarmPartials::wakes() const {
  Nanos next = Nanos::max();
  for (const Rank& rank : ranks_) {
    if (!rank.tasks.empty() && rank.pauses_until > cluster_->now()) next = std::min(next, rank.pauses_until);
  }
  return next;
}

bool SwarmPartials::finished() const { return waves_left_ == 0 && open_waves() == 0; }

void SwarmPartials::polled(int host) {
  exchanges_.settle(host, [&](const SwarmExchanges::End& one) { end(one); });
  if (!exchanges_.failure().empty()) fail(exchanges_.failure());
}

void SwarmPartials::end(const SwarmExchanges::End& end) {
  last_event_ = cluster_->now();
  mix(end.ok ? static_cast<std::uint64_t>(end.value * 1024) : 1);
  Rank& rank = ranks_[at(end.rank)];
  const Task task = current_[at(end.rank)];
  Wave& wave = waves_[task.wave];
  wave.given += rank.value;
  wave.size += std::abs(rank.value);
  if (end.ok && waves_[task.wave].sets[task.set].redop == CANARY_AVG) rank.value = end.value;
  wave.taken += rank.value;
  wave.keeps_mean &= end.ok;
  errors_ += end.ok ? 0 : 1;
  rank.pauses_until =
      cluster_->now() + Nanos{static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(pause_)))};
  if (--wave.open != 0 || !wave.keeps_mean) return;
  if (!(std::abs(wave.given - wave.taken) <= wave.size * 1e-5))
    fail("wave " + std::to_string(task.wave) + " changed the sum of all values from " + std::to_string(wave.given) +
         " to " + std::to_string(wave.taken));
}

void SwarmPartials::drop(const Task& task) {
  waves_[task.wave].keeps_mean = false;
  --waves_[task.wave].open;
}

void SwarmPartials::bury(int host) {
  for (int r = 0; r < life_.ranks(); ++r) {
    if (cluster_->host_of(r) != host) continue;
    if (exchanges_.calls(r)) drop(current_[at(r)]);
    for (const Task& task : ranks_[at(r)].tasks) drop(task);
    ranks_[at(r)].tasks.clear();
  }
  exchanges_.bury(host);
}

void SwarmPartials::close() {
  exchanges_.close();
  if (!exchanges_.failure().empty()) fail(exchanges_.failure());
}

}  // namespace canarynet
