#include "sim/cluster.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace canarynet {

Cluster::Cluster(ClusterOptions options) : options_(std::move(options)), fabric_(options_.fabric, options_.wiring) {
  engines_.resize(static_cast<std::size_t>(options_.hosts));
  deadlines_.resize(engines_.size(), Nanos::max());
  busy_until_.resize(engines_.size());
  for (int h = 0; h < options_.hosts; ++h) {
    EngineOptions e;
    e.settings = options_.settings;
    e.world_size = ranks();
    e.local_ranks.clear();
    for (int k = 0; k < options_.ranks_per_host; ++k) e.local_ranks.push_back(h * options_.ranks_per_host + k);
    e.coordinator = fabric_.control_address(0);
    e.coordinator.port = 4000;
    e.host_id = e.host_name = "host-" + std::to_string(h);
    e.pid = 1000 + h;
    e.job_token = options_.fabric.seed + 1;
    e.epoch_seed = options_.fabric.seed + 2;
    e.channel_records = 512;
    e.channel_copies = 256;
    if (options_.amend) options_.amend(h, &e);
    engines_[static_cast<std::size_t>(h)] = std::make_unique<Engine>(std::move(e), fabric_.factory(h));
  }
}

void Cluster::poll(int host) {
  const auto h = static_cast<std::size_t>(host);
  if (!engines_[h] || fabric_.frozen(host)) return;
  ++polls_;
  engines_[h]->poll(fabric_.now());
  busy_until_[h] = fabric_.now() + options_.poll_time;
  deadlines_[h] = std::max(engines_[h]->next_deadline(), busy_until_[h]);
  for (PollWatcher* watcher : watchers_) watcher->polled(host);
}

bool Cluster::join(Nanos limit) {
  for (int h = 0; h < hosts(); ++h) {
    const Status s = engine(h).start(fabric_.now());
    CANARY_CHECK(s.ok(), "an engine of the simulated cluster did not start");
    poll(h);
  }
  const auto settled = [this] {
    return std::all_of(engines_.begin(), engines_.end(),
                       [](const auto& e) { return !e || e->ready() || !e->join_status().ok(); });
  };
  run_until(settled, limit);
  return std::all_of(engines_.begin(), engines_.end(), [](const auto& e) { return e && e->ready(); });
}

void Cluster::submit(int rank, const port::Command& command) {
  const int h = host_of(rank);
  if (!alive(h)) return;
  const Status taken = engine(h).submit(command);
  CANARY_CHECK(taken.ok(), taken.to_string().c_str());
  poll(h);
}

void Cluster::all_reduce(int rank, const void* input, void* output, std::uint64_t count, DataType type, ReduceOp op,
                         OpTicket* ticket) {
  if (!alive(host_of(rank))) return;
  submit(world(rank),
         {.collective = Collective::kAllReduce,
          .input = input,
          .output = output,
          .count = count,
          .type = type,
          .redop = op},
         ticket);
}

bool Cluster::step(Nanos not_beyond) {
  Nanos t = fabric_.next_event();
  // A deadline seldom comes before t; only if one does it matters whose it is (a dead host has none).
  if (*std::min_element(deadlines_.begin(), deadlines_.end()) < t) {
    for (std::size_t h = 0; h < deadlines_.size(); ++h) {
      if (!fabric_.frozen(static_cast<int>(h))) t = std::min(t, deadlines_[h]);
    }
  }
  if (t == Nanos::max()) return false;
  t = std::clamp(t, fabric_.now(), std::max(not_beyond, fabric_.now()));
  fabric_.advance_to(t);
  fabric_.take_ready_hosts(&ready_hosts_);
  for (const int host : ready_hosts_) {
    const auto h = static_cast<std::size_t>(host);
    if (busy_until_[h] <= t) {
      poll(host);
    } else {
      deadlines_[h] = std::min(deadlines_[h], busy_until_[h]);
    }
  }
  for (std::size_t h = 0; h < deadlines_.size(); ++h) {
    if (deadlines_[h] <= t) poll(static_cast<int>(h));
  }
  return true;
}

bool Cluster::run_until(const std::function<bool()>& done, Nanos limit) {
  const Nanos end = fabric_.now() + limit;
  while (!done()) {
    if (fabric_.now() >= end || !step(end)) return done();
  }
  return true;
}

void Cluster::run_for(Nanos span) {
  const Nanos end = fabric_.now() + span;
  while (fabric_.now() < end && step(end)) {
  }
  if (fabric_.now() < end) fabric_.advance_to(end);  // nothing happens any more, but time passes
}

Cluster::~Cluster() {
  for (int host = 0; host < hosts(); ++host) {
    if (alive(host)) kill(host, CrashKind::kSilent);
  }
}

void Cluster::kill(int host, CrashKind kind) {
  fabric_.crash(host, kind);
  engines_[static_cast<std::size_t>(host)].reset();
  deadlines_[static_cast<std::size_t>(host)] = Nanos::max();
  busy_until_[static_cast<std::size_t>(host)] = {};
}

}  // namespace canarynet
