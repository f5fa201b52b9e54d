// engine/group_message_flow.h -- the sends and receives of one group as a flow. engine/messages.h does the work.
//
// Thread: the engine's owner.
#pragma once

#include "engine/flow/flow.h"
#include "engine/messages.h"

namespace canarynet {

class Engine;
struct Group;

class GroupMessageFlow final : public Flow {
 public:
  GroupMessageFlow(Engine& engine, Group& group) : engine_(engine), group_(group) {}

  bool next_frame(Mux& to, Turn& turn, OutPiece* out) override;
  void on_done(Mux& to, std::uint64_t cookie) override;
  Landing landing_for(Mux& from, const wire::Header& header) override;
  bool on_arrival(Mux& from, const wire::Header& header, const Arrival& arrival) override;
  void on_landing_lost(Mux& from, const wire::Header& header, std::uint64_t cookie) override;

 private:
  Messages::Where where_is(const Mux& from, const wire::Header& header) const;

  Engine& engine_;
  Group& group_;
};

}  // namespace canarynet
