// engine/knocker.h -- asks a peer over its own rails to dial, where the coordinator that would pass this on is silent.
//
// What: of two engines the lower one dials. A higher one that needs a lane first connects, says its hello and takes no
// part in the connection beyond that: the hello tells the other whom to dial, and that one closes it.
// Memory: owns a lane until it is down or old; sweep() destroys it, outside of callbacks. Thread: the owner's.
// Failures: none; a knock that nobody hears leaves nothing behind, and the owner repeats it.
#pragma once

#include <memory>
#include <vector>

#include "base/units.h"
#include "transport/lane.h"
#include "transport/wire.h"

namespace canarynet {

class Knocker final : public LaneSink {
 public:
  explicit Knocker(LaneFactory& factory) : factory_(factory) {}
  // `hello` names both engines and both rails; `at`: where the peer takes lanes on its one.
  void knock(const wire::HelloPayload& hello, const Address& at, Nanos now);
  void sweep(Nanos now);
  // Closes all lanes without a word. Outside of callbacks.
  void abandon() noexcept { knocks_.clear(); }

  // LaneSink
  void on_up(Lane& lane) override;
  Landing landing_for(Lane&, const wire::Header&) override { return {}; }
  void on_frame(Lane&, const wire::Header&, const Arrival&) override {}
  void on_writable(Lane&) override {}
  void on_down(Lane& lane, const Status& reason, bool hangup) override;

 private:
  struct Knock {
    std::unique_ptr<Lane> lane;
    wire::HelloPayload hello;
    Nanos since;
    bool over = false;
  };
  Knock* find(const Lane& lane);
  LaneFactory& factory_;
  std::vector<Knock> knocks_;
  Nanos now_;  // of the last call with a time
};

}  // namespace canarynet
