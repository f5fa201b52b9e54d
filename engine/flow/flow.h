// engine/flow/flow.h -- a flow is a numbered conversation between engines: a group's operations, a group's messages, a
// connection. A new kind of traffic is a new flow and touches nothing else.
//
// What: a flow is asked for its next frame to a peer when its turn has come there, and told what arrives for it, what
// was acknowledged, and which landing was lost. It says how much waits for a turn when that changes: lanes are chosen
// by it. It owns its memory and its limits; it knows neither lanes nor other flows. Its owner tells it when a peer ends
// or time passes. A flow is registered at both ends before its first frame leaves: an unknown number is acknowledged
// and forgotten.
// Order: classes first, and within a class turns by bytes and weight (engine/flow/mux.h).
// Thread: the engine's owner. Nothing here allocates.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "transport/channel.h"

namespace canarynet {

class Flow;
class Mux;

enum class FlowClass : std::uint8_t {
  kControl,  // a few small frames that others wait for
  kUrgent,
  kBulk,
};
inline constexpr std::size_t kFlowClasses = 3;

// A place in what waits for one peer. A flow has one for each peer that it sends to, or several. It enters the queue
// with Mux::make_ready() and leaves it when it has nothing to send.
class Turn {
 public:
  explicit Turn(Flow* flow = nullptr, FlowClass its_class = FlowClass::kBulk) : flow_(flow), class_(its_class) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  Flow* flow() const { return flow_; }
  void set_flow(Flow* flow) { flow_ = flow; }
  bool waits() const { return waits_; }
  // The bytes last told to Mux::set_waiting_bytes().
  std::uint64_t waiting_bytes() const { return waiting_bytes_; }
  // Within next_frame(): its flow has nothing behind this frame.
  void end() { ended_ = true; }
  // Its part of what the flows of its class send, when all have something: at least 1.
  void set_weight(std::uint32_t weight) {
    CANARY_CHECK(weight != 0, "a turn without weight never comes");
    weight_ = weight;
  }

 private:
  friend class Mux;
  Flow* flow_;
  Turn* next_ = nullptr;
  std::int64_t credit_ = 0;          // bytes that it may send before the others' turns
  std::uint64_t waiting_bytes_ = 0;  // that its flow has for it
  std::uint32_t weight_ = 1;
  FlowClass class_;
  bool waits_ = false;
  bool ended_ = false;
};

class Flow {
 public:
  virtual ~Flow() = default;
  // Fills the turn's next frame; false when it has none. A flow that knows that there is no other one behind it calls
  // Turn::end(), and is not asked again. The mux fills OutPiece::owner.
  virtual bool next_frame(Mux& to, Turn& turn, OutPiece* out) = 0;
  // These are as ChannelClient has them.
  virtual void on_done(Mux& to, std::uint64_t cookie) = 0;
  virtual Landing landing_for(Mux& from, const wire::Header& header) = 0;
  virtual bool on_arrival(Mux& from, const wire::Header& header, const Arrival& arrival) = 0;
  virtual void on_landing_lost(Mux& from, const wire::Header& header, std::uint64_t cookie) = 0;

 private:
  friend class FlowTable;
  std::uint64_t handle_ = 0;  // its place in the table, and that place's generation; 0: in none
};

}  // namespace canarynet
