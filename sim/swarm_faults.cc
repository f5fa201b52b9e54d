#include "sim/swarm_faults.h"

#include <algorithm>

#include "base/log.h"

namespace canarynet {

void SwarmFaults::begin(Cluster* cluster) {
  cluster_ = cluster;
  next_fault_ = cluster->now() + below(30_ms);
}

Nanos SwarmFaults::next() const { return heals_.empty() ? next_fault_ : std::min(next_fault_, heals_.front().at); }

void SwarmFaults::run() {
  while (!heals_.empty() && heals_.front().at <= cluster_->now()) {
    const Heal heal = heals_.front();
    heals_.erase(heals_.begin());
    undo(heal);
  }
  if (next_fault_ <= cluster_->now()) inject();
}

void SwarmFaults::end() {
  next_fault_ = Nanos::max();
  for (const Heal& heal : heals_) undo(heal);
  heals_.clear();
}

void SwarmFaults::spare(int host, bool stopped) {
  spared_ = host;
  stopped_ = stopped;
  std::erase_if(heals_, [&](const Heal& heal) {
    const bool blocked = heal.kind == Heal::Kind::kBlock && (heal.host == host || heal.rail == host);
    if (blocked) undo(heal);
    return blocked;
  });
}

void SwarmFaults::inject() {
  const Nanos limit = life_.cluster.settings.silence_limit;
  // Without a rail that always works, outages must not add up to the silence limit: that is then rightly a failure.
  const bool safe = life_.safe_rail;
  next_fault_ = cluster_->now() + (safe ? 1_ms : limit * 2) + below(200_ms);
  SimFabric& f = cluster_->fabric();
  const int host = any_host();
  if (host == spared_ || f.crashed(host)) return;
  const int rail = safe ? 1 + static_cast<int>(random_.below(static_cast<std::uint64_t>(life_.rails - 1)))
                        : static_cast<int>(random_.below(static_cast<std::uint64_t>(life_.rails)));
  const Nanos outage = below(safe ? 3_s : limit / 4);
  ++count_;
  const std::uint64_t what = random_.below(8);
  log(LogLevel::kDebug, "%.3f s: fault %d of host %d, rail %d, for %.3f s", cluster_->now().seconds(),
      static_cast<int>(what), host, rail, outage.seconds());
  switch (what) {
    case 0:
    case 1:
      if (!f.nic_is_up(host, rail)) return;
      f.nic_down(host, rail, static_cast<NicDeath>(random_.below(3)));
      later({cluster_->now() + outage, Heal::Kind::kNic, host, rail});
      return;
    case 2: {
      const int peer = any_host();
      if (peer == host) return;
      std::vector<Lane*> lanes;
      f.lanes_between(host, peer, &lanes);
      std::erase_if(lanes, [&](const Lane* l) { return l->rail() == kControlRail || (safe && l->rail() == 0); });
      if (lanes.empty()) return;
      // A lane that dies silently is noticed within the silence limit only if another one speaks. A lane within a
      // machine never dies silently.
      Lane& lane = *lanes[random_.below(lanes.size())];
      f.kill_lane(lane, !safe || lane.rail() >= life_.rails || random_.below(2) == 0);
      return;
    }
    case 3:
      // A pause delays the verdict on the host that failed. After a long one control goes over other rails, which fail
      // as well. If faults come often and limits are long, some host would stand still all the time.
      return freeze(host, below((safe ? std::min(limit, 3_s) : limit) * (life_.ending == Ending::kNone ? 6 : 2) / 10));
    case 4:
      f.slow(host, static_cast<std::int64_t>(1 + random_.below(10)));
      return later({cluster_->now() + outage, Heal::Kind::kSpeed, host});
    case 5:
    case 6:
      return lose_one_way(host, rail, outage);
    case 7: {
      // All rails between two hosts fail one way, for less than any limit; frequent faults would add up.
      const int peer = any_host();
      if (safe || peer == host || peer == spared_) return;
      f.block(host, peer, kBlockRails, false);
      return later({cluster_->now() + below(limit / 4), Heal::Kind::kBlock, host, peer});
    }
  }
}

void SwarmFaults::freeze(int host, Nanos span) {
  if (cluster_->fabric().frozen(host)) return;
  cluster_->fabric().freeze(host);
  later({cluster_->now() + span, Heal::Kind::kThaw, host});
}

void SwarmFaults::lose_one_way(int host, int rail, Nanos span) {
  const bool in = random_.below(2) == 0;
  NicOptions& nic = cluster_->fabric().nic(host, rail);
  DirectionOptions& direction = in ? nic.in : nic.out;
  if (direction.loss_ppm == 1'000'000) return;
  Heal heal{cluster_->now() + span, Heal::Kind::kLoss, host, rail, in, direction.loss_ppm};
  direction.loss_ppm = 1'000'000;
  later(heal);
}

void SwarmFaults::later(const Heal& heal) {
  heals_.insert(
      std::upper_bound(heals_.begin(), heals_.end(), heal, [](const Heal& a, const Heal& b) { return a.at < b.at; }),
      heal);
}

void SwarmFaults::undo(const Heal& heal) {
  SimFabric& f = cluster_->fabric();
  switch (heal.kind) {
    case Heal::Kind::kNic:
      return f.nic_up(heal.host, heal.rail);
    case Heal::Kind::kThaw:
      if (f.frozen(heal.host) && !(stopped_ && heal.host == spared_)) f.thaw(heal.host);
      return;
    case Heal::Kind::kSpeed:
      return f.slow(heal.host, 1);
    case Heal::Kind::kLoss: {
      NicOptions& nic = f.nic(heal.host, heal.rail);
      (heal.in ? nic.in : nic.out).loss_ppm = heal.loss_ppm;
      return;
    }
    case Heal::Kind::kBlock:
      return f.unblock(heal.host, heal.rail, kBlockRails, false);
  }
}

}  // namespace canarynet
