// engine/newcomer_flow.h -- what comes for flows that are not known here: groups whose making has not reached this
// engine yet, and groups that are over.
//
// While a request for a group is open here, it may be that group's: small pieces and messages are parked, signatures
// kept (Engine::admit_strays() and drain_eager() find them). At any other time the number is that of a group that is
// over: what comes is acknowledged and forgotten.
// Thread: the engine's owner.
#pragma once

#include "engine/flow/flow.h"

namespace canarynet {

class Engine;

class NewcomerFlow final : public Flow {
 public:
  explicit NewcomerFlow(Engine& engine) : engine_(engine) {}

  bool next_frame(Mux&, Turn&, OutPiece*) override { return false; }
  void on_done(Mux&, std::uint64_t) override {}
  Landing landing_for(Mux& from, const wire::Header& header) override;
  bool on_arrival(Mux& from, const wire::Header& header, const Arrival& arrival) override;
  void on_landing_lost(Mux& from, const wire::Header& header, std::uint64_t cookie) override;

 private:
  bool on_signature(Mux& from, const wire::Header& header, const Arrival& arrival, bool over);
  Engine& engine_;
};

}  // namespace canarynet
