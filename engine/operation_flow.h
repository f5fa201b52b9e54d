// engine/operation_flow.h -- the collectives of one group as a flow: signatures, pieces, and where they land.
//
// Outward: for each peer and priority there is a list of the runs that have something to send there, the oldest
// operation's first. A run enters it as a partner when it begins (its signature is due), when its executor has a piece
// ready, and when the eager budget has room again.
// Inward: a landing remembers the run and the task that it is for, so that the arrival looks nothing up.
// Thread: the engine's owner. Nothing here allocates.
#pragma once

#include "engine/flow/flow.h"
#include "engine/group.h"

namespace canarynet {

class Engine;

class OperationFlow final : public Flow {
 public:
  OperationFlow(Engine& engine, Group& group) : engine_(engine), group_(group) {}

  bool next_frame(Mux& to, Turn& turn, OutPiece* out) override;
  void on_done(Mux& to, std::uint64_t cookie) override;
  Landing landing_for(Mux& from, const wire::Header& header) override;
  bool on_arrival(Mux& from, const wire::Header& header, const Arrival& arrival) override;
  void on_landing_lost(Mux& from, const wire::Header& header, std::uint64_t cookie) override;

 private:
  bool affords(const RunPartner& partner, const Executor::ReadyPiece& ready) const;
  bool fill(RunPartner& partner, OutPiece* out);
  void sign(RunPartner& partner, OutPiece* out);
  bool speaks_for(const Mux& from, const wire::Header& header) const;
  bool on_signature(Mux& from, const wire::Header& header, const wire::SignaturePayload& theirs);
  bool on_signed_piece(Mux& from, const wire::Header& header, std::span<const std::byte> payload);
  bool on_parked(Mux& from, const wire::Header& header, const Arrival& arrival);
  // nullptr: its operation has ended.
  Run* landed_in(std::uint64_t cookie, const wire::Header& header) const;

  Engine& engine_;
  Group& group_;
};

}  // namespace canarynet
