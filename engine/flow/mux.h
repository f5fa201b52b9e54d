// engine/flow/mux.h -- the frames of all flows, to and from one peer.
//
// What: the one client of the peer's channel. Outward, one queue of turns for each class: control, then urgent, then
// bulk (which has its part of many urgent pieces: the channel sees to that). Within a class turns go round by deficit
// (Shreedhar and Varghese, "Efficient fair queueing using deficit round robin", 1995): each may send kQuantum bytes
// times its weight before the next has its turn, and what a frame takes beyond that is missing the next time. Nothing
// is scanned: a flow puts itself in. Inward, a frame's number finds its flow once; what the flow decided about its
// landing comes back to it by handle.
// Thread: the engine's owner. Nothing here allocates.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "engine/flow/flow.h"
#include "engine/flow/flow_table.h"
#include "transport/channel.h"

namespace canarynet {

// Frames that belong to no flow.
class MuxHost {
 public:
  virtual ~MuxHost() = default;
  virtual void on_heartbeat(Mux& from, const wire::Header& header) = 0;
  virtual void fill_heartbeat(Mux& to, wire::Header* header) = 0;
  virtual void on_abort(Mux& from, const wire::Header& header, const wire::AbortFrame& abort) = 0;
  virtual void on_path_event(Mux& peer, const std::string& what) = 0;
};

class Mux final : public ChannelClient {
 public:
  static constexpr std::int64_t kQuantum = 64 * 1024;

  // `others` gets frames whose number is not in `flows`; all of them when `flows` is null. All outlive the mux; `peer`
  // is the owner's number of this peer.
  Mux(std::uint32_t peer, const FlowTable* flows, Flow& others, MuxHost& host)
      : peer_(peer), flows_(flows), others_(others), host_(host) {}

  std::uint32_t peer() const { return peer_; }
  // Set once the channel stands, which takes its client first. nullptr: it has ended.
  void set_channel(Channel* channel) { channel_ = channel; }
  Channel* channel() const { return channel_; }

  // A flow reads a frame of its own: true, or the reason is counted and told (Channel::note_malformed).
  template <typename Frame>
  bool is_read(const wire::Header& header, std::span<const std::byte> payload, Frame* out) {
    const char* const why = read(header, payload, out);
    if (why != nullptr && channel_ != nullptr) channel_->note_malformed(why);
    return why == nullptr;
  }
  // The turn's flow has something to send.
  void make_ready(Turn& turn);
  // The turn leaves the queue: it ends, or its flow.
  void forget(Turn& turn);
  // About how many payload bytes the turn's flow has for it now. A flow that never says so counts as having none: slow
  // lanes are used only where much waits.
  void set_waiting_bytes(Turn& turn, std::uint64_t bytes);
  // ChannelClient
  bool next_piece(Channel& channel, PieceClass which, OutPiece* out) override;
  bool has_piece(const Channel&, PieceClass which) const override {
    const auto waits = [this](FlowClass c) { return queues_[static_cast<std::size_t>(c)].head != nullptr; };
    return which == PieceClass::kBulk ? waits(FlowClass::kBulk)
                                      : waits(FlowClass::kControl) || waits(FlowClass::kUrgent);
  }
  std::uint64_t waiting_bytes(const Channel&, PieceClass which) const override {
    std::uint64_t bytes = 0;
    for (std::size_t c = 0; c < kFlowClasses; ++c) {
      if (which == PieceClass::kBulk || c != static_cast<std::size_t>(FlowClass::kBulk)) bytes += queues_[c].bytes;
    }
    return bytes;
  }
  void on_done(Channel& channel, std::uint64_t owner, std::uint64_t cookie) override;
  Landing landing_for(Channel& channel, const wire::Header& header) override;
  bool on_arrival(Channel& channel, const wire::Header& header, const Arrival& arrival) override;
  void on_landing_lost(Channel& channel, const wire::Header& header, std::uint64_t owner,
                       std::uint64_t cookie) override;
  void on_heartbeat(Channel&, const wire::Header& header) override { host_.on_heartbeat(*this, header); }
  void fill_heartbeat(Channel&, wire::Header* header) override { host_.fill_heartbeat(*this, header); }
  void on_abort(Channel&, const wire::Header& header, const wire::AbortFrame& abort) override {
    host_.on_abort(*this, header, abort);
  }
  void on_path_event(Channel&, const Path&, const std::string& what) override { host_.on_path_event(*this, what); }

 private:
  struct Queue {
    Turn* head = nullptr;
    Turn* tail = nullptr;
    std::uint64_t bytes = 0;  // that wait for the turns in it
  };
  static void push(Queue& queue, Turn& turn);
  static void push_front(Queue& queue, Turn& turn);
  static void pop(Queue& queue);
  Queue& queue_of(FlowClass c) { return queues_[static_cast<std::size_t>(c)]; }
  Queue& queue_of(const Turn& turn) { return queue_of(turn.class_); }
  bool serve(FlowClass which, OutPiece* out);
  // The flow of the handle that a frame was given; nullptr: it has ended.
  Flow* owner_of(std::uint64_t handle) { return handle != 0 ? flows_->at(handle) : &others_; }

  std::uint32_t peer_;
  const FlowTable* flows_;
  Flow& others_;
  MuxHost& host_;
  Channel* channel_ = nullptr;
  std::array<Queue, kFlowClasses> queues_;
  Turn* asked_ = nullptr;     // its flow is asked for a frame, and it stands in no queue meanwhile
  bool ready_again_ = false;  // it was made ready while it was asked
};

}  // namespace canarynet
