#include "engine/peers.h"

#include <algorithm>
#include <utility>

namespace canarynet {

std::vector<PathSpec> Peers::paths(std::span<const Rail> mine, std::span<const Rail> theirs,
                                   RailPairing pairing) const {
  std::vector<PathSpec> out;
  for (const RailPair& pair : pair_rails(mine, theirs, pairing)) {
    for (int lane = 0; lane < settings_.lanes_per_rail; ++lane)
      out.push_back({pair.local, pair.remote, lane, theirs[static_cast<std::size_t>(pair.remote)].address});
  }
  return out;
}

std::vector<std::string> Peers::names_of(std::span<const Rail> rails) {
  std::vector<std::string> out;
  for (const Rail& r : rails) out.push_back(r.device.empty() ? r.address.to_string() : r.device);
  return out;
}

void Peers::add(Peer& peer, Nanos now) {
  peer.met = now;
  peers_.push_back(&peer);
}

void Peers::remove(Peer& peer) {
  std::erase(peers_, &peer);
  std::erase(connected_, &peer);
}

void Peers::connect(Peer& peer, ChannelOptions who, const FlowTable* flows, Flow& others, MuxHost& host,
                    std::span<const Rail> mine, std::span<const Rail> theirs, Nanos now) {
  who.heartbeat_interval = settings_.heartbeat_interval;
  who.silence_limit = settings_.silence_limit;
  who.records = pools_.records;
  who.copies = pools_.copies;
  who.check_memory = settings_.shm_crc;
  who.probes = settings_.probes;
  who.rails = &rails_.rates;
  peer.mux = std::make_unique<Mux>(peer.number, flows, others, host);
  peer.channel = std::make_unique<Channel>(std::move(who), rails_.factory, *peer.mux);
  peer.mux->set_channel(peer.channel.get());
  peer.channel->set_rail_names(names_of(mine), names_of(theirs));
  peer.messages = std::make_unique<MessagePeer>(*peer.mux, settings_);
  if (peer.gone) peer.channel->peer_died();
  if (peer.left) peer.channel->peer_departed();
  peer.channel->start(now);
  const auto below = [](const Peer& p) { return p.channel->me() - p.channel->peer(); };  // modulo 2^32
  connected_.insert(std::upper_bound(connected_.begin(), connected_.end(), &peer,
                                     [&](const Peer* a, const Peer* b) { return below(*a) < below(*b); }),
                    &peer);
}

void Peers::disconnect(Peer& peer) {
  if (!peer.channel) return;
  std::erase(connected_, &peer);
  peer.mux->set_channel(nullptr);
  for (std::size_t i = 0; i < ended_.size(); ++i) {
    ended_[i].add(*peer.channel, static_cast<int>(i));
    ended_[i].close();
  }
  peer.channel.reset();
}

Nanos Peers::begin_cycle(Nanos now) {
  for_each_connected([&](Peer& p) { p.channel->begin_cycle(now); });
  const Nanos missed = attention_.missed(now);
  if (missed.count == 0) return missed;
  for (Peer* p : peers_) {
    p->met += missed;
    for (Nanos* since : {&p->silent_since, &p->hung_up_since}) {
      if (*since != Nanos::max()) *since += missed;
    }
    if (p->channel) p->channel->move_clocks(missed);
  }
  return missed;
}

void Peers::on_timers(Nanos now) {
  for_each_connected([&](Peer& p) {
    if (now >= p.channel->next_deadline()) p.channel->on_timer(now);
  });
}

std::size_t Peers::pump(Nanos now) {
  std::size_t work = 0;
  for_each_connected([&](Peer& p) {
    if (p.channel->active()) work += p.channel->pump(now);
  });
  return work;
}

void Peers::flush_acks(Nanos now, bool all) {
  for_each_connected([&](Peer& p) { p.channel->flush_acks(now, all); });
}

// Work that on_timer or the cycle's last step left behind is due at once.
Nanos Peers::next_deadline() const {
  Nanos t = Nanos::max();
  for (const Peer* p : connected_) {
    t = std::min(t, p->channel->active() ? Nanos{} : p->channel->next_deadline());
  }
  return t;
}

// Where the peer dials, the obstacle may be that its connection could not be accepted here.
Peers::NoLane Peers::no_lane(const Peer& peer) const {
  if (!peer.channel || peer.channel->ever_up()) return {};
  NoLane out{peer.channel->obstacle(), peer.channel->describe_failures()};
  const std::string trouble = peer.channel->dials() ? "" : rails_.factory.trouble();
  if (!trouble.empty()) out = {Obstacle::kHere, ": " + trouble};
  return out;
}

std::uint64_t Peers::connected() const {
  return static_cast<std::uint64_t>(
      std::count_if(connected_.begin(), connected_.end(), [](const Peer* p) { return !p->ended(); }));
}

RailStats Peers::rail_stats(int rail) const {
  RailStats out = static_cast<std::size_t>(rail) < ended_.size() ? ended_[static_cast<std::size_t>(rail)] : RailStats{};
  for (const Peer* p : connected_) out.add(*p->channel, rail);
  return out;
}

}  // namespace canarynet
