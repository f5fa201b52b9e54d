// engine/peers.h -- all peers of an engine or an endpoint: builds their channels, and drives them together.
//
// What: makes a peer's mux, channel and message store from the settings and the rails that meet; passes time, timers
// and acks to all channels; adds up what they did. Whether a peer lives is SilenceWatch's to say.
// Memory: peers are their owner's; each is removed before it goes. Thread: the owner's; nothing here allocates but
// add() and connect(). Failures: none of its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/attention.h"
#include "base/settings.h"
#include "engine/peer.h"
#include "engine/shared_rails.h"
#include "topology/rails.h"
#include "transport/rail_stats.h"

namespace canarynet {

class Peers {
 public:
  struct Pools {  // of each channel; see ChannelOptions
    std::uint32_t records = 0;
    std::uint32_t copies = 0;
  };
  // Both outlive this.
  Peers(const Settings& settings, Pools pools, SharedRails& rails)
      : settings_(settings), pools_(pools), rails_(rails), ended_(rails.factory.rails().size()) {}

  // Every lane of every pair of rails that meet; none: these two can't.
  std::vector<PathSpec> paths(std::span<const Rail> mine, std::span<const Rail> theirs, RailPairing pairing) const;
  // The rails' names in messages.
  static std::vector<std::string> names_of(std::span<const Rail> rails);

  void add(Peer& peer, Nanos now);
  void remove(Peer& peer);
  // `who` says whom the new channel joins and over which paths. What follows from the settings is filled in here.
  // Frames go where Mux's constructor says.
  void connect(Peer& peer, ChannelOptions who, const FlowTable* flows, Flow& others, MuxHost& host,
               std::span<const Rail> mine, std::span<const Rail> theirs, Nanos now);
  // The channel's end; what its lanes did stays counted.
  void disconnect(Peer& peer);

  // Time passes for all channels. Returns how long nobody drove this process, which is no silence of anybody: their
  // clocks were moved by it.
  Nanos begin_cycle(Nanos now);
  void on_timers(Nanos now);
  std::size_t pump(Nanos now);
  void flush_acks(Nanos now, bool all);
  Nanos next_deadline() const;

  std::span<Peer* const> all() const { return peers_; }
  // The reason why a channel has never come up.
  struct NoLane {
    Obstacle obstacle = Obstacle::kNone;
    std::string why;  // ": no answer", or "" where there is nothing to tell
  };
  NoLane no_lane(const Peer& peer) const;
  // That have a channel and have not ended.
  std::uint64_t connected() const;
  RailStats rail_stats(int rail) const;
  // Statistics of the ended channels on a rail.
  const RailStats& ended_stats(std::size_t rail) const { return ended_[rail]; }
  // Every path to a peer, as LinkView.
  template <typename Fn>
  void for_each_link(Fn fn) const {
    for (const Peer* p : peers_) {
      if (!p->channel) continue;
      for (const Path& path : p->channel->paths())
        fn(LinkView{path, p->number, p->label, p->channel->remote_name(path), p->ended(), p->channel->ever_up()});
    }
  }

 private:
  // By index: a channel's client may open another peer's channel meanwhile. One that goes behind this one is driven as
  // well; before it, it waits for the next cycle, which is due at once, and this one is driven twice.
  template <typename Fn>
  void for_each_connected(Fn drive) {
    for (std::size_t i = 0; i < connected_.size(); ++i) drive(*connected_[i]);
  }

  const Settings& settings_;
  Pools pools_;
  SharedRails& rails_;
  std::vector<Peer*> peers_;
  // Those that have a channel: what is done in every cycle is done to them only. The nearest one below goes first,
  // round to the nearest one above, as in a mesh's plan: were the order everybody's same, all would send to one at
  // once.
  std::vector<Peer*> connected_;
  std::vector<RailStats> ended_;  // by rail
  Attention attention_{kLooksEvery * 2};
};

}  // namespace canarynet
