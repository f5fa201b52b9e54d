// engine/shared_rails.h -- what the engine and the endpoint of one process share: the lanes, what their channels have
// learnt of the NICs, and the greeter that finds out for which of the two a peer's lane is.
//
// Memory: the factory is the caller's and outlives this, and this outlives the engine and the endpoint.
// Thread: the one that drives them.
#pragma once

#include <cstddef>

#include "engine/greeter.h"
#include "transport/lane.h"
#include "transport/rail_rates.h"

namespace canarynet {

struct SharedRails {
  SharedRails(LaneFactory& lanes, std::size_t strangers_max) : factory(lanes), greeter(strangers_max) {
    factory.set_acceptor(&greeter);
  }
  SharedRails(const SharedRails&) = delete;
  SharedRails& operator=(const SharedRails&) = delete;
  ~SharedRails() { factory.set_acceptor(nullptr); }

  LaneFactory& factory;
  RailRates rates;
  Greeter greeter;
};

}  // namespace canarynet
