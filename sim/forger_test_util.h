// sim/forger_test_util.h -- for tests: frames that no well-behaved peer sends, handed to an engine as if they had come
// over a lane.
#pragma once

#include <cstring>

#include "sim/cluster.h"

namespace canarynet {

// Says anything a peer could: a channel from "engine 1" that no lane stands behind, and the frames it would bring.
struct Forger {
  explicit Forger(Cluster& cluster)
      : engine(cluster.engine(0)), channel(options(), cluster.fabric().factory(0), *engine.mux(1)) {}
  static ChannelOptions options() {
    ChannelOptions o;
    o.peer_engine = 1;
    return o;
  }
  // The header of a piece of the world's operation `op` that rank 1 sends.
  static wire::Header piece_of(Cluster& cluster, std::uint32_t op, std::uint32_t payload_bytes) {
    wire::Header h;
    h.flow = cluster.world(0)->group->flow;
    h.epoch = cluster.world(0)->group->epoch;
    h.op = op;
    h.source = 1;
    h.payload_bytes = payload_bytes;
    return h;
  }
  // Returns false if the frame was not acknowledged.
  bool send(const wire::Header& h, const void* payload) {
    const Landing landing = engine.mux(1)->landing_for(channel, h);
    Arrival arrival;
    arrival.cookie = landing.cookie;
    arrival.owner = landing.owner;
    arrival.discarded = landing.kind == Landing::Kind::kDiscard;
    arrival.intact = !arrival.discarded;
    if (arrival.intact) arrival.payload = {static_cast<const std::byte*>(payload), h.payload_bytes};
    if (landing.kind == Landing::Kind::kSpan) {
      std::memcpy(landing.data, payload, h.payload_bytes);
      arrival.payload = {landing.data, h.payload_bytes};
    }
    return engine.mux(1)->on_arrival(channel, h, arrival);
  }
  Engine& engine;
  Channel channel;
};

}  // namespace canarynet
