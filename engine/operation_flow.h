// engine/operation_flow.h -- the collectives of one group as a flow: signatures, pieces, and where they land.
//
// Outward: per peer and priority a list of what has something to send, the oldest operation's first; an operation's
// slot enters it when it begins (its signature is due), when the executor has a piece ready, and when the eager budget
// has room again.
// Inward: a landing remembers the run and the unit that it is for, so that the arrival looks nothing up.
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
  std::uint64_t waiting_bytes(const Mux& to, const Turn& turn) const override;
  void on_done(Mux& to, std::uint64_t cookie) override;
  Landing landing_for(Mux& from, const wire::Header& header) override;
  bool on_arrival(Mux& from, const wire::Header& header, const Arrival& arrival) override;
  void on_landing_lost(Mux& from, const wire::Header& header, std::uint64_t cookie) override;

 private:
  bool affords(const RunSlot& slot, const Executor::SendCell& cell) const;
  bool fill(RunSlot& slot, OutPiece* out);
  void sign(RunSlot& slot, OutPiece* out);
  bool speaks_for(const Mux& from, const wire::Header& header) const;
  bool on_signature(Mux& from, const wire::Header& header, std::span<const std::byte> payload);
  bool on_signed_piece(Mux& from, const wire::Header& header, std::span<const std::byte> payload);
  bool on_parked(Mux& from, const wire::Header& header, const Arrival& arrival);
  // nullptr: its operation has ended.
  Run* landed_in(std::uint64_t cookie, const wire::Header& header) const;

  Engine& engine_;
  Group& group_;
};

}  // namespace canarynet
